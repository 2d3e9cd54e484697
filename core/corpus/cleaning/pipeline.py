"""Cleans a corpus part by part; searches for duplicates and frequent lines between the passes.

Three passes over parts in files: normalise, filter, write. Whatever the number of workers, parts
and their order are the same, and so are the results. A pass finds the parts that an interrupted
cleaning has finished, see `run_once`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from core.config.clean import CleanConfig
from core.corpus.cleaning.blocks import Hashes
from core.corpus.cleaning.duplicates import DuplicateGroups
from core.corpus.cleaning.lines import frequent_lines, least_documents
from core.corpus.cleaning.pace import Pace
from core.corpus.cleaning.part_steps import (
    count_lines_of_part,
    filter_part,
    normalize_part,
    write_part,
)
from core.corpus.cleaning.part_task import (
    FILTERED,
    LINES,
    NORMALIZED,
    SPLIT_FOLDERS,
    SPOOLED,
    WRITTEN,
    PartResult,
    PartTask,
    Repeats,
    run_once,
)
from core.corpus.cleaning.report import (
    Report,
    SourceCounts,
    Tally,
    steps_in_use,
    thresholds_in_use,
)
from core.corpus.cleaning.spooling import Spooler
from core.corpus.cleaning.work_folder import WorkFolder
from core.parts.task_map import TaskMap
from core.records.events import Reporter

_NO_HASHES = np.zeros(0, np.uint64)
_NO_TALLY = Tally()


class Cleaning:
    """Cleans documents into the folders of a work folder, one per split.

    Args:
        source: Names the corpus in errors.
    """

    def __init__(
        self, config: CleanConfig, work: WorkFolder, source: str, run: TaskMap, reporter: Reporter
    ) -> None:
        self._config = config
        self._work = work
        self._source = source
        self._run = run
        self._reporter = reporter
        self._tally = Tally()
        self._count = 0
        # The named source of each part, and the counts of each.
        self._members: list[str] = []
        self._by_source: dict[str, SourceCounts] = {}

    def clean(self, spooler: Spooler) -> Report:
        """Cleans the documents that a spooler reads."""
        config = self._config
        results = self._pass(NORMALIZED, partial(normalize_part, config), spooler.tasks(self._run))
        self._count = len(results)
        repeats = self._repeats(results, NORMALIZED, 1 if config.exact_duplicates else 0)
        frequent = self._frequent_lines(repeats)
        tasks = self._tasks(repeats)
        results = self._pass(FILTERED, partial(filter_part, config, frequent), tasks, results)
        columns = config.minhash_bands + 1 if config.near_duplicates else 0
        counts = self._written(self._repeats(results, FILTERED, columns), results)
        spool = self._work.read_spool()
        assert spool, "all documents were read"
        for _, _, documents, size, member in spool.batches:
            self._counts_of(member).read.update({"documents": documents, "bytes": size})
        read = {"documents": spool.documents, "bytes": spool.bytes}
        steps, thresholds = steps_in_use(config), thresholds_in_use(config)
        return Report(read, counts, self._tally, steps, self._by_source, thresholds)

    def _counts_of(self, member: str) -> SourceCounts:
        """Returns the counts of a named source; others are not kept."""
        if not member:
            return SourceCounts()
        return self._by_source.setdefault(member, SourceCounts())

    def _task(self, number: int, repeats: Repeats | None = None) -> PartTask:
        member = self._members[number]
        return PartTask(self._work.path, number, self._source, repeats, member=member)

    def _tasks(self, repeats: Sequence[Repeats]) -> Iterator[PartTask]:
        for number, own in enumerate(repeats):
            yield self._task(number, own)

    def _written(self, repeats: list[Repeats], before: list[PartResult]) -> Counter[str]:
        for split in SPLIT_FOLDERS:
            (self._work.path / split).mkdir(exist_ok=True)
        counts: Counter[str] = Counter()
        results = self._pass(WRITTEN, write_part, self._tasks(repeats), before)
        for member, result in zip(self._members, results, strict=True):
            counts += result.counts
            self._counts_of(member).written.update(result.counts)
        return counts

    def _pass(
        self,
        step: str,
        work: Callable[[PartTask], PartResult],
        tasks: Iterable[PartTask],
        before: Sequence[PartResult] = (),
    ) -> list[PartResult]:
        """Applies a step to all parts, adds up their counts and removes what it has read.

        Args:
            before: Results of the step before, for progress.
        """
        sizes = [result.counts["bytes"] for result in before]
        pace = Pace(self._reporter, _TITLES[step], sum(sizes), "bytes", parts=len(sizes))
        done = 0
        results = []
        sent: list[PartTask] = []
        for number, result in enumerate(
            self._run(partial(run_once, step, work), _remembered(tasks, sent))
        ):
            self._tally.add(result.tally)
            if step == NORMALIZED:
                self._members.append(sent[number].member)
            self._counts_of(self._members[number]).add_removed(result.tally)
            results.append(replace(result, tally=_NO_TALLY))
            if step in _READS:
                sent[number].texts(_READS[step]).unlink(missing_ok=True)
            if before:
                done += sizes[number]
                pace.report(done, number + 1, done)
        return results

    def _repeats(self, results: list[PartResult], step: str, columns: int) -> list[Repeats]:
        """Finds the documents of each part that repeat others."""
        kinds = np.concatenate([np.zeros(0, np.uint8), *(result.kinds for result in results)])
        numbers = np.concatenate([np.zeros(0, np.int64), *(result.numbers for result in results)])
        groups = DuplicateGroups(kinds)
        for column in range(columns):
            self._reporter.raise_if_stopped()
            self._reporter.progress(column, columns, "columns", "comparing documents")
            groups.join_equal(partial(self._column, step, column))
        firsts = groups.firsts()
        known = {member: number for number, member in enumerate(dict.fromkeys(self._members))}
        own = [known[member] for member in self._members]
        origins = np.repeat(np.array(own, np.int32), [len(result.kinds) for result in results])
        repeats = []
        stop = 0
        for result in results:
            start, stop = stop, stop + len(result.kinds)
            places = np.flatnonzero(firsts[start:stop] != np.arange(start, stop))
            originals = firsts[start + places]
            elsewhere = origins[originals] != origins[start + places]
            repeats.append(Repeats(places, kinds[originals], numbers[originals], elsewhere))
        return repeats

    def _column(self, step: str, column: int) -> Iterator[Hashes]:
        for number in range(self._count):
            yield np.array(self._task(number).read_keys(step)[column])

    def _frequent_lines(self, repeats: list[Repeats]) -> Hashes:
        """Returns hashes of lines that occur in many documents, ascending."""
        if not self._config.boilerplate_lines:
            return _NO_HASHES
        counts: Counter[str] = Counter()
        for result in self._pass(LINES, count_lines_of_part, self._tasks(repeats)):
            counts += result.counts
        least = least_documents(self._config, counts["documents"])
        paths = [self._task(number).keys(LINES) for number in range(self._count)]
        return frequent_lines(paths, counts["lines"], least)


def _remembered(tasks: Iterable[PartTask], sent: list[PartTask]) -> Iterator[PartTask]:
    for task in tasks:
        sent.append(task)
        yield task


_TITLES = {
    NORMALIZED: "normalising", LINES: "counting lines", FILTERED: "filtering", WRITTEN: "writing"
}  # fmt: skip
# The texts that nobody needs after a step.
_READS = {NORMALIZED: SPOOLED, FILTERED: NORMALIZED, WRITTEN: FILTERED}
