"""Samples the documents of a corpus, spread over each source, within limits of bytes and time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from core.config.corpus import CorpusConfig
from core.config.named_source import NamedSource
from core.corpus.addresses import has_address
from core.corpus.documents import as_document
from core.corpus.files import FilesSource
from core.corpus.hub import HubSource
from core.corpus.members import Member, choose_members, naming_source, open_members
from core.corpus.report import count_skipped
from core.corpus.source import SourcePart
from core.errors import ConfigError, CorpusError
from core.records.events import Reporter
from core.workspace.workspace import Workspace

# Places of a source at which documents are read.
_PLACES = 32
_LEAST_BYTES = 1 << 14
# Larger than any file: parts are whole files.
_ANY_SIZE = 1 << 62
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Limits:
    """Limits of a sample, over all sources.

    Attributes:
        bytes: UTF-8 text.
        seconds: Time for reading.
        documents: Number of documents.
        is_even: Whether about the same number of documents is read at each place.
    """

    bytes: int = 16 << 20
    seconds: float = 20.0
    documents: int = 50_000
    is_even: bool = False

    def share(self, count: int) -> Limits:
        """Returns the limits of one of several sources."""
        return Limits(
            max(1, self.bytes // count), self.seconds / count, max(1, self.documents // count),
            self.is_even,
        )  # fmt: skip


@dataclass(frozen=True)
class SourceSample:
    """Documents of one source, in its order.

    Attributes:
        name: Empty without named sources.
        kind: docs, files, hub or corpus.
        texts: The documents, normalised as for a run.
        total_bytes: Size of the source as stored; 0 if unknown.
        read_bytes: About how much of that was read.
        unreadable: Places at which nothing could be read, with the first error.
        is_whole: Whether all documents were read.
        skipped: Documents without text among those that were read, by reason.
        blank_lines: How many of these are lines of text files; None beside tables.
        encodings: Detected encodings of its files.
        unread: A text file of its folder that isn't read for its suffix; empty: there is none.
        unread_bytes: Size of all files with this suffix.
    """

    name: str
    kind: str
    texts: list[str]
    total_bytes: int
    read_bytes: int
    unreadable: int = 0
    error: str = ""
    is_whole: bool = False
    skipped: dict[str, int] = field(default_factory=dict)
    blank_lines: int | None = None
    encodings: list[str] = field(default_factory=list)
    unread: str = ""
    unread_bytes: int = 0

    @property
    def share(self) -> float | None:
        """Fraction of the source that was read; None if unknown."""
        if self.is_whole:
            return 1.0
        if not self.total_bytes:
            return None
        # Without the end of every part, there is more to read.
        return min(0.999, self.read_bytes / self.total_bytes)


def sample_corpus(
    config: CorpusConfig,
    workspace: Workspace,
    limits: Limits | None = None,
    *,
    keep_failing: bool = False,
) -> list[SourceSample]:
    """Reads documents of each source, from places all over it.

    A dataset on the Hub is read from its beginning, and of an address the first file.

    Args:
        keep_failing: Whether a source in which nothing can be read has an empty sample with the
            error, unless nothing else is left.

    Raises:
        ConfigError, CorpusError: A source can't be opened, or nothing in it can be read.
    """
    limits = limits or Limits()
    if config.source != "several":
        return _sample_members(config, workspace, limits)
    chosen = chosen_sources(config)
    samples = CollectedSamples(keep_failing)
    for source in chosen:
        with samples.collecting(source):
            alone = with_source_alone(config, source)
            samples.samples += _sample_members(alone, workspace, limits.share(len(chosen)))
    return samples.all()


def _sample_members(
    config: CorpusConfig, workspace: Workspace, limits: Limits
) -> list[SourceSample]:
    members = choose_members(config, open_members(config, workspace, Reporter(), sample=True))
    samples = []
    for member in members:
        with naming_source(member.name):
            samples.append(_sample(member, limits.share(len(members))))
    return samples


def chosen_sources(config: CorpusConfig) -> list[NamedSource]:
    """Returns the named sources that are read."""
    return [
        source for source in config.sources if not config.only or source.name in config.names_only
    ]


def with_source_alone(config: CorpusConfig, source: NamedSource) -> CorpusConfig:
    """Returns a corpus of one named source, in which a cleaned corpus is one source, too."""
    return config.model_copy(update={"sources": (source,), "only": ""})


class CollectedSamples:
    """The samples of several sources.

    Args:
        keep_failing: As for `sample_corpus`.
    """

    def __init__(self, keep_failing: bool) -> None:
        self.samples: list[SourceSample] = []
        self._keep_failing = keep_failing
        self._error: ConfigError | CorpusError | None = None

    @contextmanager
    def collecting(self, source: NamedSource) -> Iterator[None]:
        """Keeps the error of a source as its sample."""
        try:
            yield
        except (ConfigError, CorpusError) as error:
            if not self._keep_failing:
                raise
            self._error = self._error or error
            self.samples.append(SourceSample(source.name, source.source, [], 0, 0, 1, str(error)))

    def all(self) -> list[SourceSample]:
        """Returns the samples; raises the first error if no source has text."""
        if self._error and not any(sample.texts for sample in self.samples):
            raise self._error
        return self.samples


def _sample(member: Member, limits: Limits) -> SourceSample:
    reading = _Reading(member, limits, time.monotonic() + limits.seconds)
    sample = reading.sample()
    if not sample.texts:
        raise reading.error or _empty_error(member.config, is_table=bool(reading.rows))
    is_first_file = has_address(member.config)
    return replace(sample, total_bytes=0, is_whole=False) if is_first_file else sample


@dataclass
class _Reading:
    """Reads parts of a source, the next one always far from those before."""

    member: Member
    limits: Limits
    deadline: float
    texts: dict[int, list[str]] = field(default_factory=dict)
    left_bytes: int = 0
    left_documents: int = 0
    read_bytes: int = 0
    unreadable: int = 0
    error: ConfigError | CorpusError | None = None
    is_whole: bool = True
    without_text: int = 0
    rows: Counter[str] = field(default_factory=Counter)

    def sample(self) -> SourceSample:
        source, config = self.member.source, self.member.config
        self.left_bytes = self.limits.bytes
        self.left_documents = min(self.limits.documents, config.limit or self.limits.documents)
        total = 0
        if isinstance(source, HubSource) or config.limit:
            parts = [SourcePart(source, config.source, 0)]
        else:
            total = sum(part.bytes for part in source.parts("train", _ANY_SIZE))
            is_cut = total > self.limits.bytes or self.limits.is_even
            target = -(-total // _PLACES) if is_cut else total
            parts = list(source.parts("train", max(target, _LEAST_BYTES)))
        self._read_all(parts, total)
        texts = [text for number in sorted(self.texts) for text in self.texts[number]]
        is_whole = self.is_whole and not self.unreadable
        files = source if isinstance(source, FilesSource) else None
        return SourceSample(
            self.member.name, config.source, texts, total, self.read_bytes, self.unreadable,
            str(self.error) if self.error else "", is_whole,
            count_skipped(len(texts), self.without_text, self.rows)["skipped"],
            None if self.rows else self.without_text,
            files.detected_encodings if files else [],
            *(files.unread_text() if files else ("", 0)),
        )  # fmt: skip

    def _read_all(self, parts: Sequence[SourcePart], total: int) -> None:
        for done, number in enumerate(_far_apart(len(parts))):
            part = parts[number]
            if self._is_over():
                self.is_whole = False
                return
            share = part.bytes / total if total > self.limits.bytes else 1.0
            wanted = max(_LEAST_BYTES, round(self.limits.bytes * share))
            most = -(-self.left_documents // (len(parts) - done if self.limits.is_even else 1))
            self._read(number, part, min(wanted, self.left_bytes), most)

    def _is_over(self) -> bool:
        is_late = bool(self.texts) and time.monotonic() > self.deadline
        return self.left_bytes <= 0 or self.left_documents <= 0 or is_late

    def _read(self, number: int, part: SourcePart, most_bytes: int, most_documents: int) -> None:
        source, size, unreadable = part.source, 0, self.unreadable
        short = source.beginning("train", most_bytes) if isinstance(source, FilesSource) else None
        if short and short.bytes < part.bytes:
            part, most_bytes = short, most_bytes + short.bytes
            self.is_whole = False
        texts = self.texts.setdefault(number, [])
        for text in self._texts_of(part):
            document = as_document(text)
            texts.append(document.text)
            size += len(document.data)
            self.left_documents -= 1
            is_full = size >= most_bytes or len(texts) >= most_documents
            if is_full or time.monotonic() > self.deadline:
                self.is_whole = self.is_whole and self._has_reached_limit()
                self._count(size, min(part.bytes, size))
                return
        self._count(size, part.bytes if self.unreadable == unreadable else min(part.bytes, size))

    def _texts_of(self, part: SourcePart) -> Iterator[str]:
        """Yields the documents that aren't blank; notes the files that can't be read."""
        source = part.source
        files: Iterable[tuple[str, Iterator[str]]] = (
            source.documents_by_file("train")
            if isinstance(source, FilesSource)
            else [("", source.documents("train"))]
        )
        for _, texts in files:
            try:
                for text in texts:
                    if text and not text.isspace():
                        yield text
                    else:
                        self.without_text += 1
            except (ConfigError, CorpusError) as error:
                self.unreadable += 1
                self.error = self.error or error
        if isinstance(source, FilesSource):
            self.rows.update(source.report.rows)

    def _has_reached_limit(self) -> bool:
        """Returns whether the corpus ends here by its own limit."""
        limit = self.member.config.limit
        return self.left_documents <= 0 and limit is not None and limit <= self.limits.documents

    def _count(self, text_bytes: int, read_bytes: int) -> None:
        self.left_bytes -= text_bytes
        self.read_bytes += read_bytes


def _far_apart(count: int) -> list[int]:
    """Orders numbers so that the first ones are spread over all."""
    return sorted(range(count), key=lambda number: (number * _GOLDEN) % 1)


def _empty_error(config: CorpusConfig, *, is_table: bool) -> CorpusError:
    return CorpusError(
        "The source contains no text",
        expected="at least one document that isn't blank",
        fix="choose another text" + (", or check ⟬text_column⟭" if is_table else ""),
        field="text_column" if is_table else "source" if config.source == "docs" else "path",
    )
