"""Opens the sources of a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from core.config.corpus import CorpusConfig, unknown_source_error
from core.corpus.addresses import with_local_files
from core.corpus.cleaned import CleanedSource
from core.corpus.docs import DocsSource
from core.corpus.files import FilesSource
from core.corpus.hub import HubSource
from core.corpus.report import Facts, ReadingReport
from core.corpus.source import Source
from core.errors import StudioError
from core.records.events import Reporter
from core.workspace.workspace import Workspace


@dataclass(frozen=True)
class Member:
    """One source of a corpus.

    Attributes:
        name: Empty if the corpus has no named sources.
        config: Options of this source alone.
    """

    name: str
    config: CorpusConfig
    source: Source

    @property
    def report(self) -> ReadingReport:
        if isinstance(self.source, FilesSource | CleanedSource):
            return self.source.report
        report = ReadingReport(file_count=1)
        if self.config.source == "hub":
            _, column = self.source.columns()
            report.add(self.config.dataset_name, Facts("dataset of the Hub", column=column))
        else:
            report.add("the documentation of the installed packages", Facts("docstrings"))
        return report


def open_members(
    config: CorpusConfig,
    workspace: Workspace,
    reporter: Reporter,
    *,
    sample: bool = False,
    keep_unreadable: bool = False,
) -> list[Member]:
    """Opens the sources of a corpus, in order; errors name the source.

    Args:
        sample: Whether the beginning suffices, for a preview.
        keep_unreadable: Whether a file that can't be opened is an error only when it is read.
    """
    if config.source == "corpus":
        return _open_cleaned(config, workspace, sample)
    if config.source != "several":
        return [Member("", config, _open(config, workspace, reporter, sample, keep_unreadable))]
    members = []
    for named in config.sources:
        with naming_source(named.name):
            own = config.of_source(named)
            source = _open(own, workspace, reporter, sample, keep_unreadable)
            members.append(Member(named.name, own, source))
    _leave_out_held_out_files(members, reporter)
    return members


def choose_members(config: CorpusConfig, members: Sequence[Member]) -> list[Member]:
    """Returns the sources that `only` names, or all; raises ConfigError."""
    wanted = config.names_only
    known = [member.name for member in members if member.name]
    if unknown := [name for name in wanted if name not in known]:
        raise unknown_source_error(unknown[0], known, config.corpus_name)
    return [member for member in members if not wanted or member.name in wanted]


def stored_bytes(members: Sequence[Member]) -> int | None:
    """Adds up the sizes of the files; None if one isn't known, or a part of the text is read."""
    total = 0
    for member in members:
        if member.config.limit or not isinstance(member.source, FilesSource | CleanedSource):
            return None
        total += member.source.stored_bytes
    return total or None


def _open(
    config: CorpusConfig,
    workspace: Workspace,
    reporter: Reporter,
    sample: bool,
    keep_unreadable: bool,
) -> Source:
    if config.source == "docs":
        return DocsSource(workspace, reporter)
    if config.source == "files":
        local = with_local_files(config, workspace, reporter, sample=sample)
        return FilesSource(local, keep_unreadable=keep_unreadable, by_split=True)
    if config.source == "corpus":
        return _find_cleaned(config, workspace, sample)
    return HubSource(config)


def _leave_out_held_out_files(members: Sequence[Member], reporter: Reporter) -> None:
    """Removes files from training that another source holds out for validation."""
    sources = [
        (member.name, member.source) for member in members if isinstance(member.source, FilesSource)
    ]
    held_out = {place for _, source in sources for place in source.validation_places}
    for name, source in sources:
        with naming_source(name):
            if left_out := source.leave_out(held_out):
                reporter.note(
                    f"Source {name}: {left_out:,} files are not trained on, because a source holds "
                    "them out for validation",
                    reading=True,
                )


def _find_cleaned(config: CorpusConfig, workspace: Workspace, sample: bool) -> CleanedSource:
    """Opens a cleaned corpus, and compares its files with their hashes, unless for a sample."""
    artifact = workspace.find("corpus", config.corpus_name, field="corpus_name")
    source = CleanedSource(config, artifact)
    if not sample:
        source.check_content(workspace.cache)
    return source


def _open_cleaned(config: CorpusConfig, workspace: Workspace, sample: bool) -> list[Member]:
    whole = _find_cleaned(config, workspace, sample)
    if not whole.names:
        return [Member("", config, whole)]
    return [Member(name, config, whole.part(name)) for name in whole.names]


@contextmanager
def naming_source(name: str) -> Iterator[None]:
    """Names a source in errors."""
    try:
        yield
    except StudioError as error:
        if not name or error.reason:
            raise
        raise type(error).like(error, problem=f"Source {name}: {error.texts['problem']}") from error
