"""Previews text in a subprocess (this module): a crashing reader can't take down the web app."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from core.config.analyse import AnalyseConfig
from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.corpus.addresses import has_address, with_local_files
from core.corpus.cleaning.preview import (
    CleanedDocument,
    CleaningPreview,
    check_arguments,
    preview_cleaning,
)
from core.corpus.files import FilesSource
from core.corpus.isolation import (
    MEMORY_BYTES,
    TIMEOUT_SECONDS,
    ask_child,
    describe_error,
    explain_error,
    limit_memory,
    raise_error,
)
from core.corpus.members import naming_source
from core.corpus.reading import CorpusPreview, merge_previews, name_preview, preview
from core.corpus.sampling import (
    CollectedSamples,
    Limits,
    SourceSample,
    chosen_sources,
    sample_corpus,
    with_source_alone,
)
from core.corpus.statistics import CorpusStatistics, SourceStatistics, analyse_samples
from core.errors import CorpusError, StudioError
from core.records.events import Reporter
from core.workspace.workspace import Workspace

ANALYSIS_SECONDS = 180.0
# After this time, counts are lower bounds.
_SCAN_SECONDS = 10.0
_CHECK_SECONDS = 1.0
_SAMPLE_CHARACTERS = 2000
_MOST_COLUMNS = 1000
# Reading the documentation takes seconds of a processor that the web app needs.
_READ_APART = ("files", "corpus", "docs")


@dataclass(frozen=True)
class CheckedFiles:
    """Problems of files, and the first table's columns."""

    problems: dict[Path, StudioError]
    columns: list[str]


def preview_apart(
    config: CorpusConfig,
    workspace: Workspace,
    documents: int = 5,
    *,
    memory_bytes: int = MEMORY_BYTES,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> CorpusPreview:
    """Previews files in a subprocess and truncates samples; raises like `preview`.

    Args:
        memory_bytes: Limit above the initial size.
    """
    if config.source == "several":
        return _preview_sources(config, workspace, documents, memory_bytes, timeout_seconds)
    if config.source not in _READ_APART:
        return preview(config, workspace, documents)
    if has_address(config):
        # The subprocess has no credentials.
        here = with_local_files(config, workspace, Reporter(), sample=True)
        seen = preview_apart(
            here, workspace, documents, memory_bytes=memory_bytes, timeout_seconds=timeout_seconds
        )
        return replace(seen, complete=False)
    question = {**_question(config, workspace, memory_bytes), "documents": documents}
    return CorpusPreview(**_preview_in(_ask(question, timeout_seconds)))


def _preview_sources(
    config: CorpusConfig,
    workspace: Workspace,
    documents: int,
    memory_bytes: int,
    timeout_seconds: float,
) -> CorpusPreview:
    chosen = chosen_sources(config)
    share = -(-documents // len(chosen))
    seen = []
    for source in chosen:
        with naming_source(source.name):
            own = preview_apart(
                config.of_source(source), workspace, share, memory_bytes=memory_bytes,
                timeout_seconds=timeout_seconds,
            )  # fmt: skip
        seen.append(name_preview(own, source.name))
    return merge_previews(seen)


def preview_cleaning_apart(
    config: CleanConfig,
    sample: int,
    workspace: Workspace,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> CleaningPreview:
    """Previews cleaning in a subprocess and truncates documents; raises like `preview_cleaning`."""
    check_arguments(config, sample, workspace)
    kinds: set[str] = {source.source for source in config.corpus.sources} or {config.corpus.source}
    if not kinds.issubset(_READ_APART):
        return _shortened(preview_cleaning(config, sample, workspace))
    question = {
        **_question(config.corpus, workspace, MEMORY_BYTES),
        "cleaning": config.model_dump(mode="json"),
        "documents": sample,
    }
    answer = _preview_in(_ask(question, timeout_seconds))
    documents = [CleanedDocument(**document) for document in answer["documents"]]
    return CleaningPreview(documents, answer["summary"])


def sample_apart(
    config: CorpusConfig,
    workspace: Workspace,
    limits: Limits,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    keep_failing: bool = False,
) -> list[SourceSample]:
    """Samples files in a subprocess; takes arguments and raises like `sample_corpus`."""
    if config.source == "several":
        return _sample_sources(config, workspace, limits, timeout_seconds, keep_failing)
    if config.source not in _READ_APART:
        return sample_corpus(config, workspace, limits, keep_failing=keep_failing)
    if has_address(config):
        # The subprocess has no credentials.
        here = with_local_files(config, workspace, Reporter(), sample=True)
        samples = sample_apart(here, workspace, limits, timeout_seconds=timeout_seconds)
        return [replace(sample, total_bytes=0, is_whole=False) for sample in samples]
    return _sample_in_child(config, workspace, limits, timeout_seconds, keep_failing)


def _sample_in_child(
    config: CorpusConfig,
    workspace: Workspace,
    limits: Limits,
    timeout_seconds: float,
    keep_failing: bool,
) -> list[SourceSample]:
    question = {
        **_question(config, workspace, MEMORY_BYTES),
        "sample": asdict(limits), "keep_failing": keep_failing,
    }  # fmt: skip
    answer = _preview_in(_ask(question, timeout_seconds))
    return [SourceSample(**sample) for sample in answer["sources"]]


def _sample_sources(
    config: CorpusConfig,
    workspace: Workspace,
    limits: Limits,
    timeout_seconds: float,
    keep_failing: bool,
) -> list[SourceSample]:
    chosen = chosen_sources(config)
    share = limits.share(len(chosen))
    samples = CollectedSamples(keep_failing)
    for source in chosen:
        with samples.collecting(source):
            if source.source == "corpus":
                alone = with_source_alone(config, source)
                samples.samples += _sample_in_child(alone, workspace, share, timeout_seconds, False)
                continue
            with naming_source(source.name):
                [own] = sample_apart(
                    config.of_source(source), workspace, share, timeout_seconds=timeout_seconds
                )
            samples.samples.append(replace(own, name=source.name))
    return samples.all()


def analyse_apart(
    config: AnalyseConfig, workspace: Workspace, *, timeout_seconds: float = ANALYSIS_SECONDS
) -> CorpusStatistics:
    """Analyses a corpus in subprocesses; raises like `analyse_corpus`."""
    began = time.monotonic()
    limits = Limits(config.sample_mb * 1_000_000, config.sample_seconds)
    samples = sample_apart(
        config.corpus, workspace, limits, timeout_seconds=timeout_seconds + limits.seconds,
        keep_failing=True,
    )  # fmt: skip
    question = {
        **_question(config.corpus, workspace, MEMORY_BYTES),
        "analyse": [asdict(sample) for sample in samples],
        "tokenizer": config.tokenizer,
    }
    statistics = _preview_in(_ask(question, timeout_seconds))
    sources = [SourceStatistics(**source) for source in statistics.pop("sources")]
    return replace(
        CorpusStatistics(**statistics, sources=sources), seconds=round(time.monotonic() - began, 2)
    )


def _preview_in(answer: dict[str, Any]) -> dict[str, Any]:
    raise_error(answer)
    return dict(answer["preview"])


def check_files(
    paths: Sequence[Path],
    config: CorpusConfig,
    workspace: Workspace,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> CheckedFiles:
    """Reads the beginning of each file in one subprocess.

    Args:
        config: Its path is ignored.
        timeout_seconds: For all files.

    Raises:
        CorpusError: The subprocess crashed or timed out.
    """
    question = _question(config, workspace, MEMORY_BYTES)
    answer = _ask({**question, "files": list(map(str, paths))}, timeout_seconds)
    problems = answer["problems"]
    return CheckedFiles(
        {path: StudioError(**problems[str(path)]) for path in paths if str(path) in problems},
        list(map(str, answer["columns"])),
    )


def list_columns(
    config: CorpusConfig, workspace: Workspace, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> list[str]:
    """Returns the first table's columns, read in a subprocess."""
    if config.source != "files" or not config.path:
        return []
    question = {**_question(config, workspace, MEMORY_BYTES), "columns": True}
    try:
        return [str(name) for name in _ask(question, timeout_seconds)["columns"]]
    except CorpusError:
        return []


def _question(config: CorpusConfig, workspace: Workspace, memory_bytes: int) -> dict[str, Any]:
    return {
        "config": config.model_dump(mode="json"),
        "root": str(workspace.root),
        "memory_bytes": memory_bytes,
    }


def _ask(question: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
    return ask_child("core.corpus.previewing", question, timeout_seconds)


def _main() -> None:
    question = orjson.loads(sys.stdin.buffer.read())
    limit_memory(question["memory_bytes"])
    config = CorpusConfig.parse(question["config"])
    if "files" in question:
        _print(_check(question["files"], config))
        return
    if "columns" in question:
        _print({"columns": _columns(config)})
        return
    try:
        read = next((read for name, read in _READERS.items() if name in question), _preview)
        answer: dict[str, Any] = {"preview": read(question)}
    except (StudioError, MemoryError) as error:
        answer = describe_error(explain_error(error, question["memory_bytes"]))
    _print(answer)


def _print(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(answer))


def _preview(question: dict[str, Any]) -> dict[str, Any]:
    seen = preview(
        CorpusConfig.parse(question["config"]), Workspace(Path(question["root"])),
        question["documents"], scan_seconds=_SCAN_SECONDS,
    )  # fmt: skip
    return {**asdict(seen), "samples": [text[:_SAMPLE_CHARACTERS] for text in seen.samples]}


def _preview_cleaning(question: dict[str, Any]) -> dict[str, Any]:
    config = CleanConfig.parse(question["cleaning"])
    workspace = Workspace(Path(question["root"]))
    return asdict(_shortened(preview_cleaning(config, question["documents"], workspace)))


def _sample(question: dict[str, Any]) -> dict[str, Any]:
    config, workspace = CorpusConfig.parse(question["config"]), Workspace(Path(question["root"]))
    limits = Limits(**question["sample"])
    samples = sample_corpus(config, workspace, limits, keep_failing=question["keep_failing"])
    return {"sources": [asdict(sample) for sample in samples]}


def _analyse(question: dict[str, Any]) -> dict[str, Any]:
    samples = [SourceSample(**sample) for sample in question["analyse"]]
    workspace = Workspace(Path(question["root"]))
    return analyse_samples(samples, workspace, question["tokenizer"]).to_dict()


_READERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "cleaning": _preview_cleaning, "sample": _sample, "analyse": _analyse,
}  # fmt: skip


def _shortened(seen: CleaningPreview) -> CleaningPreview:
    most = _SAMPLE_CHARACTERS
    documents = [
        replace(document, before=document.before[:most], after=document.after[:most])
        for document in seen.documents
    ]
    return replace(seen, documents=documents)


def _check(paths: Sequence[str], config: CorpusConfig) -> dict[str, Any]:
    alone = {
        path: config.model_copy(update={"path": path, "validation_path": "", "source": "files"})
        for path in paths
    }
    problems = {path: problem for path in paths if (problem := _problem(path, alone[path]))}
    readable = [path for path in paths if path not in problems]
    columns = (_columns(alone[path]) for path in readable or paths)
    return {"problems": problems, "columns": next(filter(None, columns), [])}


def _problem(path: str, config: CorpusConfig) -> dict[str, Any]:
    """Returns what fails, and what to do."""
    deadline = time.monotonic() + _CHECK_SECONDS
    try:
        for _ in FilesSource(config).documents("train"):
            if time.monotonic() > deadline:
                break
    except (StudioError, MemoryError) as error:
        known = explain_error(error, MEMORY_BYTES)
        problem = known.texts["problem"].replace(path, Path(path).name)
        return StudioError.like(known, problem=problem, expected="", received="").to_dict()
    return {}


def _columns(config: CorpusConfig) -> list[str]:
    with suppress(StudioError, MemoryError):
        return FilesSource(config).column_names()[:_MOST_COLUMNS]
    return []


if __name__ == "__main__":
    _main()
