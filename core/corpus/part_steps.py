"""Runs a function over the parts of a corpus, after the parts that are finished already."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.corpus.parts import CorpusPart
from core.corpus.source import Split
from core.errors import ConfigError, CorpusError, StudioError
from core.messages.values import byte_count
from core.parts.pool import BrokenPoolError
from core.parts.store import PartResult, PartStore
from core.parts.task_map import TaskMap
from core.records.events import Reporter

# Reads a part and writes files to a folder; returns JSON.
PartFunction = Callable[[CorpusPart, Path], dict[str, Any]]
OpenPool = Callable[[], AbstractContextManager[TaskMap]]

# Values of a part that wasn't read, and of one without some of its files: the errors.
SKIPPED, LEFT_OUT = "skipped", "left_out"
MOST_CRASHES = 3
# Fractions of a megabyte are shown for less text.
CRASHED = "A process ended unexpectedly; its part is done again"


@dataclass(frozen=True)
class PartStep:
    """A function of parts whose results are kept.

    Args:
        function: A module's function, so that it can be sent to another process.
        skip_failing: Whether files that can't be read are left out instead of ending the step.
            A part without any other file has the value `skipped`.
    """

    function: PartFunction
    store: PartStore
    skip_failing: bool = False

    def __call__(self, part: CorpusPart) -> PartResult:
        """Returns a finished part's result.

        Raises:
            ConfigError, CorpusError: The part can't be read; the error names it.
        """
        if finished := self.store.read(part.number):
            if self.skip_failing or is_complete(finished):
                return finished
            self.store.forget(part.number)
        with self.store.writing(part.number) as attempt:
            return self.store.finish(part.number, attempt, self._run(part, attempt))

    def _run(self, part: CorpusPart, attempt: Path) -> dict[str, Any]:
        try:
            return self.function(part, attempt)
        except (ConfigError, CorpusError) as error:
            if not self.skip_failing:
                raise _named(error, part) from error
            _empty(attempt)
            rest, errors = part.without_failing()
            if rest is None or not errors:
                return {SKIPPED: _named(error, part).to_dict()}
        try:
            values = self.function(rest, attempt)
        except (ConfigError, CorpusError) as error:
            _empty(attempt)
            return {SKIPPED: _named(error, part).to_dict()}
        return {**values, LEFT_OUT: [_named(failure, part).to_dict() for failure in errors]}


def is_complete(result: PartResult) -> bool:
    """Returns whether a part was read without leaving anything out."""
    return SKIPPED not in result.values and LEFT_OUT not in result.values


def count_skipped(results: Sequence[PartResult]) -> dict[str, int]:
    """Counts what was left out: `parts_skipped`, and `files_skipped` of other parts.

    Both are missing if nothing was.
    """
    counts = {
        "parts_skipped": sum(SKIPPED in result.values for result in results),
        "files_skipped": sum(len(result.values.get(LEFT_OUT, [])) for result in results),
    }
    return {name: count for name, count in counts.items() if count}


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def run_step(
    step: PartStep, parts: Sequence[CorpusPart], open_pool: OpenPool, reporter: Reporter
) -> Iterator[PartResult]:
    """Yields the result of each part in order; work that a crash ended is done again.

    Raises:
        ConfigError, CorpusError: A part can't be read, or all parts of a source's split were
            skipped.
        RunError: Processes end again and again.
    """
    progress = PartProgress(parts, step.store.finished_numbers(), reporter)
    skipped: dict[int, CorpusError] = {}
    done = crashes = 0  # Crashes without a finished part in between.
    while done < len(parts):
        try:
            with open_pool() as run:
                for result in run(step, parts[done:]):
                    if SKIPPED in result.values:
                        skipped[done] = _error_of(result.values[SKIPPED])
                        reporter.warn(f"A part was skipped. {skipped[done]}")
                    for stored in result.values.get(LEFT_OUT, []):
                        reporter.warn(f"A file was skipped. {_error_of(stored)}")
                    done += 1
                    crashes = 0
                    progress.report(done)
                    yield result
        except BrokenPoolError:
            crashes += 1
            if crashes >= MOST_CRASHES:
                raise
            reporter.warn(CRASHED)
    _check_any_read(step.store, parts, skipped)


def _error_of(stored: Mapping[str, Any] | str) -> CorpusError:
    """Reads a skipped part's error; earlier versions stored its text."""
    if isinstance(stored, str):
        return CorpusError(stored, expected="a readable part", received="a damaged one", fix="")
    return CorpusError(**stored)


def _check_any_read(
    store: PartStore, parts: Sequence[CorpusPart], skipped: Mapping[int, CorpusError]
) -> None:
    """Raises the first error of a split without a part that was read; these are tried again.

    Args:
        skipped: Errors by the part's place.
    """
    places: dict[tuple[str, Split], list[int]] = {}
    for place, part in enumerate(parts):
        places.setdefault((part.source, part.split), []).append(place)
    for (source, split), own in places.items():
        if not all(place in skipped for place in own):
            continue
        for place in own:
            store.forget(parts[place].number)
        raise _nothing_read(source, split, len(own), skipped[own[0]])


def _nothing_read(source: str, split: Split, count: int, first: CorpusError) -> CorpusError:
    text = "training" if split == "train" else "validation"
    whose = f"The source {source}" if source else "The corpus"
    parts = "its only part was" if count == 1 else f"all of its {count:,} parts were"
    return CorpusError.like(
        first,
        problem=f"{whose} has no {text} document: {parts} skipped",
        received=": ".join(filter(None, (first.texts["problem"], first.texts["received"]))),
    )


class PartProgress:
    """Reports parts and bytes, and how long the rest takes.

    Args:
        finished: Numbers of parts that an earlier run has finished, not only the first ones.
    """

    def __init__(
        self, parts: Sequence[CorpusPart], finished: Collection[int], reporter: Reporter
    ) -> None:
        self._sizes = [part.bytes for part in parts]
        self._is_new = [part.number not in finished for part in parts]
        self._reporter = reporter
        self._start = time.monotonic()
        if count := self._is_new.count(False):
            reporter.note(f"{count:,} of {len(parts):,} parts were finished before; they are kept")

    def report(self, done: int) -> None:
        total = len(self._sizes)
        if total == 1:
            return  # It reports its documents.
        size, whole = sum(self._sizes[:done]), sum(self._sizes)
        note = f"{byte_count(size)} of {byte_count(whole)}" if whole else ""
        new = sum(self._is_new[:done])
        seconds = time.monotonic() - self._start
        eta = seconds / new * sum(self._is_new[done:]) if new else None
        self._reporter.progress(done, total, "parts", note, eta)


def _named(error: StudioError, part: CorpusPart) -> StudioError:
    """Names a part in an error that doesn't."""
    shown = part.describe()
    problem = error.texts["problem"]
    return type(error).like(
        error, problem=problem if shown in problem else f"{problem} (in {shown})"
    )
