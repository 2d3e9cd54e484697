"""Counts the words of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from core.events import Reporter
from core.parts.pool import TaskMap, open_pool
from core.tokenizer.counters import WordCounter, WordTally, counts_file
from core.tokenizer.merged_counts import CountLimits, merge_counts

DEFAULT_MEMORY_GB = 2.0
_DOCUMENTS_BETWEEN_REPORTS = 500


def count_texts(
    texts: Iterable[str], counter: WordCounter, memory_gb: float = DEFAULT_MEMORY_GB
) -> dict[str, int]:
    """Counts words in this process; above the limit of memory, samples rare ones."""
    with TemporaryDirectory(prefix="studio-") as name:
        folder = Path(name)
        tally = WordTally(counter, folder, memory_gb)
        for text in texts:
            tally.add(text)
        paths = [folder / counts_file(number) for number in range(tally.close())]
        return merge_counts(paths, folder, CountLimits.of(memory_gb), _this_process)


def _this_process() -> AbstractContextManager[TaskMap]:
    return open_pool(1, Reporter())


def reported(texts: Iterable[str], total: int | None, reporter: Reporter) -> Iterator[str]:
    """Passes texts on and reports their number."""
    number = 0
    for number, text in enumerate(texts, start=1):
        if number % _DOCUMENTS_BETWEEN_REPORTS == 0:
            reporter.raise_if_stopped()
            reporter.progress(number, total, "documents", "counting words")
        yield text
    reporter.progress(number, number, "documents", "counting words")
