"""The stage that cleans a corpus into an artifact."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import orjson

from core.config import CleanConfig, CorpusConfig, split_names
from core.corpus.cleaned import CleanedSource
from core.corpus.cleaning.language import chosen_languages
from core.corpus.cleaning.parts import REFERENCE, TRAIN, VALIDATION
from core.corpus.cleaning.pipeline import Cleaning
from core.corpus.cleaning.report import Report, title_of_step
from core.corpus.reading import Corpus, open_corpus
from core.errors import CorpusError
from core.events import Reporter
from core.parts.workers import open_workers
from core.workspace import Artifact, Workspace

REPORT_FILE = "report.json"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def clean(config: CleanConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Cleans a corpus.

    Raises:
        ConfigError: A name is taken or unknown.
        CorpusError: The corpus has no text, or nothing is left of it.
        RunStopped: Nothing is left behind.
    """
    reporter = reporter or Reporter()
    name = config.name or derive_name(config)
    with workspace.new_artifact("corpus", name, exact=bool(config.name)) as draft:
        chosen_languages(config)
        references = _references(config, workspace)
        corpus = open_corpus(config.corpus, workspace, reporter)
        report = _clean(config, corpus, references, draft.folder, reporter)
        _check_any_text(report)
        draft.config = config.model_dump(mode="json")
        draft.inputs = {"corpus": corpus.input_fingerprint}
        draft.counts = {**report.summary(), "reading": corpus.reading, **corpus.cleaning}
        _write_report(report, draft.folder)
    for line in report.lines():
        reporter.note(line, cleaning=True)
    reporter.metrics(0, {name: report.kept.get(name, 0) for name in _REPORTED})
    assert draft.artifact
    return draft.artifact


_REPORTED = ("train_documents", "validation_documents", "train_bytes")


def derive_name(config: CleanConfig) -> str:
    """Returns a default name such as docs-clean."""
    corpus = config.corpus
    named = {"files": Path(corpus.path).name, "hub": corpus.dataset_name.rpartition("/")[2]}
    words = _UNSAFE.sub("-", named.get(corpus.source, corpus.corpus_name)).strip("-.")
    return f"{words[:60] or corpus.source}-clean"


def _clean(
    config: CleanConfig,
    corpus: Corpus,
    references: list[CleanedSource],
    folder: Path,
    reporter: Reporter,
) -> Report:
    with open_workers(config.workers, config.cluster, reporter) as run:
        cleaning = Cleaning(config, folder, run, reporter)
        documents = _documents(corpus, references)
        report = cleaning.clean(documents, corpus.counts.get("documents"))
    shutil.rmtree(folder / "parts")
    return report


def _references(config: CleanConfig, workspace: Workspace) -> list[CleanedSource]:
    return [
        CleanedSource(
            CorpusConfig(source="corpus", corpus_name=name),
            workspace.find_own("corpus", name, field="against"),
        )
        for name in split_names(config.against)
    ]


def _documents(corpus: Corpus, references: list[CleanedSource]) -> Iterator[tuple[int, str]]:
    for source in references:
        for text in source.all_documents():
            yield REFERENCE, text
    if not corpus.holds_out:
        for text in corpus.documents("train"):
            yield TRAIN, text
        return
    for split, text in corpus.labelled_documents():
        yield VALIDATION if split == "validation" else TRAIN, text


def _check_any_text(report: Report) -> None:
    if report.kept.get("train_documents"):
        return
    counts = report.tally.steps
    most = max(counts, key=lambda step: counts[step].removed.total(), default="")
    removed = counts[most].removed.total() if most else 0
    raise CorpusError(
        "Cleaning leaves no training document",
        expected="rules that some of the documents pass",
        received=f"{report.read['documents']:,} documents, of which the step "
        f"{title_of_step(most)} removed {removed:,}",
        fix="switch this step off or change its limits; a preview shows the reason for each "
        "document",
        field=most if most in CleanConfig.model_fields else "min_characters",
    )


def _write_report(report: Report, folder: Path) -> None:
    data = orjson.dumps(report.to_dict(), option=orjson.OPT_INDENT_2)
    (folder / REPORT_FILE).write_bytes(data)
