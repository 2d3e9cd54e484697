"""The stage that cleans a corpus into an artifact."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from core.config.base import fingerprint_of
from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.config.options import split_names
from core.corpus.cleaned import CleanedSource
from core.corpus.cleaning import parts
from core.corpus.cleaning.language import chosen_languages
from core.corpus.cleaning.part_task import SPLIT_FOLDERS
from core.corpus.cleaning.parts import DamagedPartError
from core.corpus.cleaning.pipeline import Cleaning
from core.corpus.cleaning.report import Report, SourceCounts, title_of_step
from core.corpus.cleaning.spooling import Spooler, bytes_read_at_once
from core.corpus.cleaning.work_folder import WorkFolder, open_work_folder
from core.corpus.part_steps import CRASHED, MOST_CRASHES
from core.corpus.reading import Corpus, open_corpus
from core.errors import CorpusError
from core.parts.pool import BrokenPoolError
from core.parts.store import part_not_written
from core.parts.versions import find_versions
from core.parts.workers import open_workers
from core.records.events import Reporter
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace

REPORT_FILE = "report.json"
# Parts that were saved in another format are not used.
_PARTS_FORMAT = 5
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def clean(config: CleanConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Cleans a corpus.

    Raises:
        ConfigError: A name is taken or unknown.
        CorpusError: The corpus has no text, or nothing is left of it.
        RunError: The disk is full, or processes end again and again.
        RunStopped: The next cleaning with the same options and text continues.
    """
    reporter = reporter or Reporter()
    name = config.name or derive_name(config)
    with ExitStack() as stack:
        with workspace.new_artifact("corpus", name, exact=bool(config.name)) as draft:
            chosen_languages(config)
            references = _references(config, workspace)
            skipped = bytes_read_at_once(config.part_mb) if config.skip_failing_parts else None
            corpus = open_corpus(config.corpus, workspace, reporter, skipped_bytes=skipped)
            shelf = workspace.cache / "cleaning"
            recipe = _recipe(config, corpus, references)
            with _explaining_full_disk(shelf):
                work = stack.enter_context(open_work_folder(shelf, recipe))
                report = _clean(config, corpus, references, work, reporter)
                _take_over(work, draft.folder)
            draft.config = config.model_dump(mode="json")
            draft.inputs = {"corpus": corpus.input_fingerprint}
            draft.counts = {**report.summary(), **_facts_of(work)}
            _write_report(report, draft.folder)
        work.remove()
    for line in report.lines():
        reporter.note(line, cleaning=True)
    reporter.metrics(0, {name: report.written.get(name, 0) for name in _REPORTED})
    assert draft.artifact
    return draft.artifact


_REPORTED = ("train_documents", "validation_documents", "train_bytes")


def derive_name(config: CleanConfig) -> str:
    """Returns a default name such as docs-clean."""
    corpus = config.corpus
    several = "-".join(source.name for source in corpus.sources)
    named = {"files": Path(corpus.path).name, "hub": corpus.dataset_name.rpartition("/")[2],
             "several": corpus.short_name if corpus.only else several}  # fmt: skip
    words = _UNSAFE.sub("-", named.get(corpus.source, corpus.corpus_name)).strip("-.")
    return f"{words[:60] or corpus.source}-clean"


def _recipe(config: CleanConfig, corpus: Corpus, references: list[CleanedSource]) -> str:
    """Hashes what decides the bytes of all parts."""
    return fingerprint_of({
        "format": _PARTS_FORMAT, "part_bytes": parts.PART_BYTES, "versions": find_versions(),
        # Skipped parts are done again without this option; the others are the same.
        "config": config.model_copy(update={"skip_failing_parts": False}).fingerprint(),
        "corpus": corpus.input_fingerprint,
        "reading": corpus.fingerprint, "against": [reference.identity for reference in references],
    })  # fmt: skip


def _clean(
    config: CleanConfig,
    corpus: Corpus,
    references: list[CleanedSource],
    work: WorkFolder,
    reporter: Reporter,
) -> Report:
    if work.has_begun:
        reporter.note("Continuing after the finished parts of an interrupted cleaning")
    attempt = partial(_attempt, config, corpus, references, work, reporter)
    try:
        report = _retried(attempt, work, reporter)
    except DamagedPartError as error:
        if not work.has_begun:
            raise
        reporter.warn(f"Starting over: {error.problem} ({error.received})")
        work.clear()
        report = _retried(attempt, work, reporter)
    try:
        _check_any_text(report, corpus.source_names)
    except CorpusError:
        work.remove()
        raise
    return report


def _retried(attempt: Callable[[], Report], work: WorkFolder, reporter: Reporter) -> Report:
    """Repeats an attempt that a crash ended; each begins after the finished parts."""
    crashes = finished = 0  # Crashes without a finished part in between.
    while True:
        try:
            return attempt()
        except BrokenPoolError:
            before, finished = finished, work.count_finished()
            crashes = 1 if finished > before else crashes + 1
            if crashes >= MOST_CRASHES:
                raise
            reporter.warn(CRASHED)


@contextmanager
def _explaining_full_disk(shelf: Path) -> Iterator[None]:
    """Raises RunError; errors of the sources are not OSError."""
    try:
        yield
    except OSError as error:
        raise part_not_written(shelf, error) from error


def _attempt(
    config: CleanConfig,
    corpus: Corpus,
    references: list[CleanedSource],
    work: WorkFolder,
    reporter: Reporter,
) -> Report:
    source = _source_of(config.corpus)
    spooler = Spooler(
        corpus, references, work, source, reporter,
        part_mb=config.part_mb, skip_failing=config.skip_failing_parts,
    )  # fmt: skip
    with open_workers(
        config.workers,
        config.cluster,
        reporter,
        needs_credentials=config.corpus.reads_elsewhere,
    ) as run:
        return Cleaning(config, work, source, run, reporter).clean(spooler)


def _source_of(corpus: CorpusConfig) -> str:
    named = {"files": corpus.path, "hub": corpus.dataset_name, "corpus": corpus.corpus_name,
             "several": "the corpus of several sources"}  # fmt: skip
    return named.get(corpus.source, "the documentation of the installed packages")


def _take_over(work: WorkFolder, folder: Path) -> None:
    """Links the written parts into a draft, so that they survive until it is complete."""
    for split in SPLIT_FOLDERS:
        for path in sorted((work.path / split).rglob("*.gz")):
            final = folder / path.relative_to(work.path)
            final.parent.mkdir(parents=True, exist_ok=True)
            _link(path, final)


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # The file system has no links.
        shutil.copyfile(path, target)


def _facts_of(work: WorkFolder) -> dict[str, Any]:
    spool = work.read_spool()
    return spool.facts if spool else {}


def _references(config: CleanConfig, workspace: Workspace) -> list[CleanedSource]:
    return [
        CleanedSource(
            CorpusConfig(source="corpus", corpus_name=name),
            workspace.find_own("corpus", name, field="against"),
        )
        for name in split_names(config.against)
    ]


def _check_any_text(report: Report, sources: Iterable[str]) -> None:
    for name in sources:
        counts = report.by_source.get(name, SourceCounts())
        if not counts.written["train_documents"] and not counts.removed.total():
            raise _only_held_out(name, counts.written["validation_documents"])
        if not counts.written["train_documents"]:
            raise _nothing_left(f"Cleaning leaves no training document of the source {name}",
                                counts.read["documents"], counts.removed)  # fmt: skip
    if not report.written.get("train_documents"):
        removed = {step: counts.removed.total() for step, counts in report.tally.steps.items()}
        raise _nothing_left(
            "Cleaning leaves no training document", report.read["documents"], removed
        )


def _only_held_out(name: str, documents: int) -> CorpusError:
    return CorpusError(
        f"The source {name} has no training document",
        expected="at least one that is not held out for validation",
        received=f"{documents:,} documents, all held out",
        fix="add text to this source, lower ⟬validation_percent⟭, or leave the source out",
        field="validation_percent",
    )


def _nothing_left(problem: str, read: int, removed: Mapping[str, int]) -> CorpusError:
    most = max((step for step in removed if removed[step]), key=removed.__getitem__, default="")
    by_step = f", of which the step {title_of_step(most)} removed {removed[most]:,}" if most else ""
    return CorpusError(
        problem,
        expected="rules that some of the documents pass",
        received=f"{read:,} documents{by_step}",
        fix="switch this step off, change its limits, or leave the source out; a preview shows the "
        "reason for each document",
        field=most if most in CleanConfig.model_fields else "min_characters",
    )


def _write_report(report: Report, folder: Path) -> None:
    data = orjson.dumps(report.to_dict(), option=orjson.OPT_INDENT_2)
    (folder / REPORT_FILE).write_bytes(data)
