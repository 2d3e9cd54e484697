"""The stage that cleans a corpus into an artifact."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
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
from core.parts.pool import count_workers, open_pool
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
    several = "-".join(one.name for one in corpus.sources)
    named = {"files": Path(corpus.path).name, "hub": corpus.dataset_name.rpartition("/")[2],
             "several": corpus.short_name if corpus.only else several}  # fmt: skip
    words = _UNSAFE.sub("-", named.get(corpus.source, corpus.corpus_name)).strip("-.")
    return f"{words[:60] or corpus.source}-clean"


def _clean(
    config: CleanConfig,
    corpus: Corpus,
    references: list[CleanedSource],
    folder: Path,
    reporter: Reporter,
) -> Report:
    workers = count_workers(config.workers)
    with open_pool(workers, reporter) as run:
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


def _documents(corpus: Corpus, references: list[CleanedSource]) -> Iterator[tuple[int, str, str]]:
    for reference in references:
        for text in reference.all_documents():
            yield REFERENCE, "", text
    found = corpus.sourced_documents() if corpus.holds_out else corpus.training_documents()
    for split, source, text in found:
        yield VALIDATION if split == "validation" else TRAIN, source, text


def _check_any_text(report: Report) -> None:
    for name, one in report.by_source.items():
        if not one.kept["train_documents"]:
            raise _nothing_left(f"Cleaning leaves no training document of the source {name}",
                                one.read["documents"], one.removed)  # fmt: skip
    if not report.kept.get("train_documents"):
        removed = {step: one.removed.total() for step, one in report.tally.steps.items()}
        raise _nothing_left(
            "Cleaning leaves no training document", report.read["documents"], removed
        )


def _nothing_left(problem: str, read: int, removed: Mapping[str, int]) -> CorpusError:
    most = max(removed, key=lambda step: removed[step], default="")
    by_step = f", of which the step {title_of_step(most)} removed {removed[most]:,}" if most else ""
    return CorpusError(
        problem,
        expected="rules that some of the documents pass",
        received=f"{read:,} documents{by_step}",
        fix="switch this step off or change its limits; a preview shows the reason for each "
        "document",
        field=most if most in CleanConfig.model_fields else "min_characters",
    )


def _write_report(report: Report, folder: Path) -> None:
    data = orjson.dumps(report.to_dict(), option=orjson.OPT_INDENT_2)
    (folder / REPORT_FILE).write_bytes(data)
