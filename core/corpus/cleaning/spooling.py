"""Writes the documents of a corpus to files, in batches that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from core.config.base import fingerprint_of
from core.config.workers import DEFAULT_PART_MB
from core.corpus.cleaned import CleanedSource
from core.corpus.cleaning import parts as batches
from core.corpus.cleaning.pace import Pace
from core.corpus.cleaning.part_task import SPOOLED, PartTask
from core.corpus.cleaning.parts import REFERENCE, TRAIN, VALIDATION, split_parts, write_batch
from core.corpus.cleaning.work_folder import Spool, WorkFolder
from core.corpus.part_steps import (
    SKIPPED,
    OpenPool,
    PartFunction,
    PartStep,
    count_skipped,
    run_step,
)
from core.corpus.parts import CorpusPart, PartCounts, plan_parts
from core.corpus.reading import Corpus
from core.corpus.source import Split
from core.parts.pool import open_pool
from core.parts.store import PartResult, PartStore
from core.parts.task_map import TaskMap
from core.records.events import Reporter

_BATCHES_PER_PART = 4
_READ_FOLDER = "read"
_INCOMPLETE = {"parts_skipped", "files_skipped"}
_NO_SPOOL = Spool(batches=[], documents=0, bytes=0)


class Spooler:
    """Spools a corpus and the corpora that it is compared with, which come first.

    Workers read a corpus that has several parts. A lone part is read in this process.

    Args:
        source: Names the corpus in errors.
    """

    def __init__(
        self,
        corpus: Corpus,
        references: Sequence[CleanedSource],
        work: WorkFolder,
        source: str,
        reporter: Reporter,
        *,
        part_mb: float = DEFAULT_PART_MB,
        skip_failing: bool,
    ) -> None:
        self._corpus = corpus
        self._references = references
        self._work = work
        self._source = source
        self._reporter = reporter
        self._part_mb = part_mb
        self._skip_failing = skip_failing

    def tasks(self, run: TaskMap) -> Iterator[PartTask]:
        """Yields a task for each batch; what an earlier attempt has read is not read again."""
        spool = self._work.read_spool()
        if spool and not self._skip_failing and spool.facts.keys() & _INCOMPLETE:
            self._work.clear(but=_READ_FOLDER)
            spool = None
        if spool is None:
            part_mb = bytes_read_at_once(self._part_mb) / 2**20
            spool = self._spool_parts(plan_parts(self._corpus.parts, part_mb), run)
            self._work.write_spool(spool)
        yield from self._tasks_of(spool)

    def _tasks_of(self, spool: Spool) -> Iterator[PartTask]:
        pace = Pace(self._reporter, "normalising", spool.bytes, "bytes", len(spool.batches))
        done = 0
        for number, (name, first, _, size, member) in enumerate(spool.batches):
            done += size
            pace.report(done, number + 1, done)
            yield PartTask(
                self._work.path, number, self._source,
                spooled=self._work.path / name, first=first, member=member,
            )  # fmt: skip

    def _spool_parts(self, planned: Sequence[CorpusPart], run: TaskMap) -> Spool:
        spool = _NO_SPOOL
        for number, batch in enumerate(
            split_parts(self._documents_of_references(), batches.PART_BYTES)
        ):
            path = PartTask(self._work.path, number, self._source).texts(SPOOLED)
            write_batch(path, batch)
            spool = spool.with_batch(path.name, 0, 0, 0)
        recipe = fingerprint_of([self._work.path.name, *(part.recipe() for part in planned)])
        store = PartStore(self._work.path / _READ_FOLDER, recipe)
        function, open_some = self._reading(planned, run)
        step = PartStep(function, store, self._skip_failing)
        read: list[tuple[Split, PartCounts]] = []
        done: list[PartResult] = []
        results = run_step(step, planned, open_some, self._reporter)
        for part, result in zip(planned, results, strict=True):
            done.append(result)
            if SKIPPED in result.values:
                continue
            spool = self._with_part(spool, part, result)
            read.append((part.split, PartCounts.from_json(result.values["read"])))
        skipped = count_skipped(done)
        self._corpus.record_parts(read, are_all=not skipped)
        return replace(spool, facts={**self._facts(), **skipped})

    def _reading(
        self, planned: Sequence[CorpusPart], run: TaskMap
    ) -> tuple[PartFunction, OpenPool]:
        """Returns how a part is read, and where."""
        function = partial(spool_part, bytes_of_batch(self._part_mb))
        if len(planned) > 1:
            return function, lambda: nullcontext(run)
        total = self._corpus.counts.get("documents")
        reported = partial(function, reporter=self._reporter, total=total)
        return reported, partial(open_pool, 1, self._reporter)

    def _with_part(self, spool: Spool, part: CorpusPart, result: PartResult) -> Spool:
        first = spool.documents
        for name, documents, size in result.values["batches"]:
            path = (result.folder / name).relative_to(self._work.path)
            spool = spool.with_batch(str(path), first, documents, size, part.source)
        return spool

    def _documents_of_references(self) -> Iterator[tuple[int, str, str]]:
        for reference in self._references:
            for text in reference.all_documents():
                yield REFERENCE, "", text

    def _facts(self) -> dict[str, Any]:
        return {"reading": self._corpus.reading, **self._corpus.cleaning}


def bytes_read_at_once(part_mb: float) -> int:
    """Returns the size of the parts that a worker reads."""
    return _BATCHES_PER_PART * bytes_of_batch(part_mb)


def bytes_of_batch(part_mb: float) -> int:
    return max(1, round(batches.PART_BYTES * part_mb / DEFAULT_PART_MB))


def spool_part(
    batch_bytes: int,
    part: CorpusPart,
    folder: Path,
    reporter: Reporter | None = None,
    total: int | None = None,
) -> dict[str, Any]:
    """Writes the documents of a part in batches; returns each one's name, documents and bytes.

    Args:
        reporter: Hears of each batch; only in the stage's own process.
        total: Number of documents, if known.
    """
    reporter = reporter or Reporter()
    pace = Pace(reporter, "reading", total, "documents")
    counts = PartCounts()
    documents = (
        (_kind_of(split), part.source, document.text) for split, document in part.documents(counts)
    )
    written = []
    done = size = 0
    for number, batch in enumerate(split_parts(documents, batch_bytes)):
        name = f"{number:06d}.npz"
        write_batch(folder / name, batch)
        batch_size = sum(len(text.encode()) for text in batch.texts)
        written.append([name, len(batch), batch_size])
        done, size = done + len(batch), size + batch_size
        reporter.raise_if_stopped()
        pace.report(done, number + 1, size)
    return {"batches": written, "read": counts.to_json()}


def _kind_of(split: Split) -> int:
    return VALIDATION if split == "validation" else TRAIN
