"""Writes the documents of a corpus to files, in batches that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from core.corpus import Corpus
from core.corpus.cleaned import CleanedSource
from core.corpus.cleaning import parts as batches
from core.corpus.cleaning.pace import Pace
from core.corpus.cleaning.part_task import NORMALIZED, SPOOLED, PartTask
from core.corpus.cleaning.parts import REFERENCE, TRAIN, VALIDATION, Batch, split_parts, write_batch
from core.corpus.cleaning.work_folder import Spool, WorkFolder
from core.corpus.parts import CorpusPart, PartCounts
from core.corpus.source import Split
from core.events import Reporter
from core.parts.steps import SKIPPED, PartStep, run_step
from core.parts.store import PartResult, PartStore
from core.parts.task_map import TaskMap

_BATCHES_PER_PART = 4
_READ_FOLDER = "read"
_NO_SPOOL = Spool(batches=[], documents=0, bytes=0)


class Spooler:
    """Spools a corpus and the corpora that it is compared with, which come first.

    Workers read a corpus that has several parts. A lone part is read here, while workers normalise.

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
        skip_failing: bool,
    ) -> None:
        self._corpus = corpus
        self._references = references
        self._work = work
        self._source = source
        self._reporter = reporter
        self._skip_failing = skip_failing

    def tasks(self, run: TaskMap) -> Iterator[PartTask]:
        """Yields a task for each batch; what an earlier attempt has read is not read again."""
        if spool := self._work.read_spool():
            yield from self._tasks_of(spool)
            return
        planned = self._corpus.parts(bytes_read_at_once())
        if len(planned) > 1:
            spool = self._spool_parts(planned, run)
            self._work.write_spool(spool)
            yield from self._tasks_of(spool)
            return
        yield from self._spool_here()

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
        for task, batch in self._batches_of(self._documents_of_references()):
            write_batch(task.texts(SPOOLED), batch)
            spool = spool.with_batch(task.texts(SPOOLED).name, 0, 0, 0)
        store = PartStore(self._work.path / _READ_FOLDER, self._work.path.name)
        step = PartStep(partial(spool_part, batches.PART_BYTES), store, self._skip_failing)
        read: list[tuple[Split, PartCounts]] = []
        skipped = 0
        results = run_step(step, planned, lambda: nullcontext(run), self._reporter)
        for part, result in zip(planned, results, strict=True):
            if SKIPPED in result.values:
                skipped += 1
                continue
            spool = self._with_part(spool, part, result)
            read.append((part.split, PartCounts.from_json(result.values["read"])))
        self._corpus.record_parts(read, are_all=not skipped)
        facts = {**self._facts(), **({"parts_skipped": skipped} if skipped else {})}
        return replace(spool, facts=facts)

    def _with_part(self, spool: Spool, part: CorpusPart, result: PartResult) -> Spool:
        first = spool.documents
        for name, documents, size in result.values["batches"]:
            path = (result.folder / name).relative_to(self._work.path)
            spool = spool.with_batch(str(path), first, documents, size, part.source)
        return spool

    def _spool_here(self) -> Iterator[PartTask]:
        total = self._corpus.counts.get("documents")
        pace = Pace(self._reporter, "normalising", total, "documents")
        spool = _NO_SPOOL
        for task, batch in self._batches_of(self._documents()):
            if not task.result(NORMALIZED).exists():
                write_batch(task.texts(SPOOLED), batch)
            documents, size = (0, 0) if batch.is_reference else (len(batch), _size_of(batch))
            spool = spool.with_batch(task.texts(SPOOLED).name, 0, documents, size, batch.source)
            pace.report(spool.documents, len(spool.batches), spool.bytes)
            yield task
        self._work.write_spool(replace(spool, facts=self._facts()))

    def _batches_of(
        self, documents: Iterator[tuple[int, str, str]]
    ) -> Iterator[tuple[PartTask, Batch]]:
        for number, batch in enumerate(split_parts(documents, batches.PART_BYTES)):
            yield PartTask(self._work.path, number, self._source, member=batch.source), batch

    def _documents_of_references(self) -> Iterator[tuple[int, str, str]]:
        for reference in self._references:
            for text in reference.all_documents():
                yield REFERENCE, "", text

    def _documents(self) -> Iterator[tuple[int, str, str]]:
        yield from self._documents_of_references()
        corpus = self._corpus
        found = corpus.sourced_documents() if corpus.holds_out else corpus.training_documents()
        for split, source, text in found:
            yield _kind_of(split), source, text

    def _facts(self) -> dict[str, Any]:
        return {"reading": self._corpus.reading, **self._corpus.cleaning}


def bytes_read_at_once() -> int:
    """Returns the size of the parts that a worker reads."""
    return _BATCHES_PER_PART * batches.PART_BYTES


def spool_part(batch_bytes: int, part: CorpusPart, folder: Path) -> dict[str, Any]:
    """Writes the documents of a part in batches; returns each one's name, documents and bytes."""
    counts = PartCounts()
    documents = ((_kind_of(split), part.source, one.text) for split, one in part.documents(counts))
    written = []
    for number, batch in enumerate(split_parts(documents, batch_bytes)):
        name = f"{number:06d}.npz"
        write_batch(folder / name, batch)
        written.append([name, len(batch), _size_of(batch)])
    return {"batches": written, "read": counts.to_json()}


def _kind_of(split: Split) -> int:
    return VALIDATION if split == "validation" else TRAIN


def _size_of(batch: Batch) -> int:
    return sum(len(text.encode()) for text in batch.texts)
