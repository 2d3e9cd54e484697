"""Counts the words of texts, and of a corpus by its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from core.config.base import fingerprint_of
from core.config.tokenizer import TokenizerConfig
from core.corpus.part_steps import SKIPPED, OpenPool, PartStep, count_skipped, run_step
from core.corpus.parts import CorpusPart, PartCounts, count_useful, plan_parts
from core.corpus.reading import Corpus
from core.corpus.source import Split
from core.messages.system_errors import in_temporary_folder
from core.parts.pool import count_workers, open_pool
from core.parts.store import PartResult, open_own_store
from core.parts.versions import find_versions
from core.parts.workers import open_workers
from core.processes.cores import usable_cores
from core.records.events import Reporter
from core.tokenizer.counters import WordCounter, WordTally, counts_file
from core.tokenizer.merged_counts import CountLimits, merge_counts

DEFAULT_MEMORY_GB = 2.0
# Increment when the same settings yield other counts.
_FORMAT = 1
_DOCUMENTS_BETWEEN_REPORTS = 500


def count_texts(
    texts: Iterable[str], counter: WordCounter, memory_gb: float = DEFAULT_MEMORY_GB
) -> dict[str, int]:
    """Counts words in this process; above the limit of memory, samples rare ones."""
    with in_temporary_folder(), TemporaryDirectory(prefix="studio-") as name:
        folder = Path(name)
        tally = WordTally(counter, folder, memory_gb)
        for text in texts:
            tally.add(text)
        paths = [folder / counts_file(number) for number in range(tally.close())]
        reporter = Reporter()
        pool = partial(open_pool, 1, reporter)
        return merge_counts(paths, folder, CountLimits.of(memory_gb), pool, reporter)


@contextmanager
def count_corpus(
    config: TokenizerConfig,
    counter: WordCounter,
    corpus: Corpus,
    cache: Path,
    reporter: Reporter,
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Counts words of training documents; a stopped stage goes on after the finished parts.

    The counts are kept until the block ends without an error: a smaller vocabulary after an error
    needs no counting.

    Yields:
        Counts by word, and counts of what was skipped.

    Raises:
        CorpusError: A part can't be read.
        RunError: Processes end again and again.
        RunStopped: The reporter asked for it.
    """
    planned = plan_parts(corpus.parts, config.part_mb)
    parts = [part for part in planned if part.split == "train"]
    with open_own_store(cache, "tokenizer", _recipe(config, counter, corpus, parts)) as store:
        useful = count_useful(config.workers, config.part_mb, parts)
        processes = config.workers if config.cluster else useful
        function = partial(count_part, counter, config.memory_gb, processes)
        if len(parts) == 1 and not config.cluster:
            total = corpus.counts.get("train_documents")
            function = partial(function, reporter=reporter, total=total)
        step = PartStep(function, store, config.skip_failing_parts)
        open_some = _pool_opener(config, useful, reporter)
        results = list(run_step(step, parts, open_some, reporter))
        read = [result for result in results if SKIPPED not in result.values]
        counts: list[tuple[Split, PartCounts]] = [
            ("train", PartCounts.from_json(result.values["read"])) for result in read
        ]
        skipped = count_skipped(results)
        corpus.record_parts(counts, are_all=not skipped)
        merged = store.folder / "merged"
        merged.mkdir(exist_ok=True)
        limits = CountLimits.of(config.memory_gb)
        open_all = _pool_opener(config, count_workers(config.workers), reporter)
        words = merge_counts(_paths_of(read), merged, limits, open_all, reporter)
        yield words, skipped
        store.remove()


def _pool_opener(config: TokenizerConfig, workers: int, reporter: Reporter) -> OpenPool:
    return partial(
        open_workers,
        config.workers if config.cluster else workers,
        config.cluster,
        reporter,
        needs_credentials=config.corpus.reads_elsewhere,
    )


def count_part(
    counter: WordCounter,
    memory_gb: float,
    processes: int | None,
    part: CorpusPart,
    folder: Path,
    reporter: Reporter | None = None,
    total: int | None = None,
) -> dict[str, Any]:
    """Counts words of a part's training documents into files of a folder.

    Args:
        memory_gb: Limit for all processes of this machine.
        processes: Their number; None: one per core, as on a node of a cluster.
        reporter: Hears of documents; only in the stage's own process.
        total: Number of documents, if known.

    Returns:
        JSON: what was read, and the number of files.
    """
    counts = PartCounts()
    tally = WordTally(counter, folder, memory_gb / (processes or usable_cores()))
    texts = (document.text for split, document in part.documents(counts) if split == "train")
    for text in reported(texts, total, reporter or Reporter()):
        tally.add(text)
    return {"read": counts.to_json(), "files": tally.close()}


def reported(texts: Iterable[str], total: int | None, reporter: Reporter) -> Iterator[str]:
    """Passes texts on and reports their number."""
    number = 0
    for number, text in enumerate(texts, start=1):
        if number % _DOCUMENTS_BETWEEN_REPORTS == 0:
            reporter.raise_if_stopped()
            reporter.progress(number, total, "documents", "counting words")
        yield text
    reporter.progress(number, number, "documents", "counting words")


def _recipe(
    config: TokenizerConfig, counter: WordCounter, corpus: Corpus, parts: list[CorpusPart]
) -> str:
    return fingerprint_of(
        {
            "format": _FORMAT,
            "counter": repr(counter),
            "versions": find_versions(),
            "corpus": corpus.fingerprint,
            "parts": [part.recipe() for part in parts],
        }
    )


def _paths_of(results: Iterable[PartResult]) -> list[Path]:
    return [
        result.folder / counts_file(number)
        for result in results
        for number in range(result.values["files"])
    ]
