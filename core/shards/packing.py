"""Tokenises one part of a corpus and packs it into sequences.

Whole sequences go to files of their own; the tokens that remain at the end of a part are kept for
the last file, so that only the last incomplete sequence of a split is dropped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.config.shards import ShardConfig
from core.corpus.documents import Document
from core.corpus.parts import CorpusPart, PartCounts
from core.corpus.source import Split
from core.errors import TokenizerError
from core.messages.values import byte_count
from core.records.events import Reporter
from core.shards.encode import Batcher, DocumentEncoder, Part
from core.shards.layout import (
    BestFitSequences,
    LineSequences,
    PackedSequences,
    SequenceLayout,
    layout_for,
)
from core.shards.part_uploads import UPLOADED, PartUploads
from core.shards.records import (
    FixedRecords,
    Int64Records,
    RecordLayout,
    ShardWriter,
    id_dtype,
)
from core.tokenizer.loading import StudioTokenizer

# Numbers of a part's files begin at a multiple of this.
FILES_PER_PART = 1_000_000


@dataclass(frozen=True)
class Packing:
    """How parts are tokenised and packed.

    Args:
        tokenizer: Its folder.
        fingerprint: The tokenizer's.
        threads: The number that encode at a time.
        uploads: The destination of finished parts; None: they stay here.
    """

    config: ShardConfig
    tokenizer: Path
    fingerprint: str
    splits: tuple[Split, ...]
    threads: int = 1
    uploads: PartUploads | None = None

    @property
    def layout(self) -> SequenceLayout:
        return layout_for(self.config)

    def open_tokenizer(self) -> StudioTokenizer:
        return _open_tokenizer(self.tokenizer, self.fingerprint)

    def new_packer(self, folder: Path, encoder: DocumentEncoder, first: int) -> Packer:
        """Returns a packer that writes to a folder.

        Args:
            first: Number of the first file.
        """
        tokenizer = self.open_tokenizer()
        records = _record_layout(self.config, self.layout, tokenizer)
        return Packer(
            ShardWriter(folder, records, self.config.shard_size, first),
            _cutter(self.layout, tokenizer, encoder),
            np.zeros(tokenizer.vocab_size, np.int64),
        )

    def open_encoder(self) -> DocumentEncoder:
        """Returns an encoder, which parts of one process share: it remembers words."""
        return _open_encoder(self.layout, self.tokenizer, self.fingerprint)


@lru_cache(maxsize=2)
def _open_tokenizer(folder: Path, fingerprint: str) -> StudioTokenizer:
    tokenizer = StudioTokenizer(folder, folder.name)
    if tokenizer.fingerprint != fingerprint:
        raise TokenizerError(
            f"The tokenizer {folder.name} has changed while the text was tokenised",
            expected=f"the fingerprint {fingerprint}",
            received=tokenizer.fingerprint,
            fix="build the shards again",
            field="tokenizer",
        )
    return tokenizer


@lru_cache(maxsize=1)
def _open_encoder(layout: SequenceLayout, folder: Path, fingerprint: str) -> DocumentEncoder:
    return _encoder(layout, _open_tokenizer(folder, fingerprint))


def tail_file(split: Split) -> str:
    """Returns the file with the tokens at the end of a part."""
    return f"tail-{split}.npy"


def token_counts_file(split: Split) -> str:
    return f"token-counts-{split}.npy"


def pack_part(
    packing: Packing,
    part: CorpusPart,
    folder: Path,
    reporter: Reporter | None = None,
    total: int | None = None,
) -> dict[str, Any]:
    """Packs a part into files of a folder; returns its counts as JSON.

    Args:
        reporter: Hears of documents; only in the stage's own process.
        total: Number of documents, if known.
    """
    counts = PartCounts()
    encoder = packing.open_encoder()
    first = part.number * FILES_PER_PART
    packers = {
        split: packing.new_packer(folder / split, encoder, first) for split in packing.splits
    }
    progress = DocumentProgress(counts, reporter, total)
    words: dict[Split, int] = dict.fromkeys(packing.splits, 0)
    counted = _counting_words(part.documents(counts), words)
    documents = _lines(counted) if packing.layout.line_by_line else counted
    batches = _batches(documents, encoder, packing.splits)
    for split, tokens in _encode_ahead(batches, encoder, packing.threads):
        packers[split].add(tokens)
        progress.report(len(tokens))
    for split, packer in packers.items():
        packer.writer.close()
        np.save(folder / tail_file(split), packer.tail)
        np.save(folder / token_counts_file(split), packer.token_counts)
    packed = {
        split: {
            "rows": packer.rows,
            "tokens": packer.tokens,
            "truncated": packer.truncated,
            "words": words[split],
        }
        for split, packer in packers.items()
    }
    sent = {UPLOADED: packing.uploads.send(folder)} if packing.uploads else {}
    return {"read": counts.to_json(), "packed": packed, **sent}


@dataclass
class Packer:
    """Cuts one split's tokens into sequences and writes them.

    Attributes:
        token_counts: Int64 (vocab_size,).
    """

    writer: ShardWriter
    cutter: PackedSequences | LineSequences | BestFitSequences
    token_counts: NDArray[np.int64]
    tokens: int = 0

    def add(self, tokens: NDArray) -> None:
        """Writes completed sequences and buffers the rest."""
        self.tokens += len(tokens)
        self._write(self.cutter.take(tokens))

    def finish(self) -> None:
        """Writes what is buffered, unless it is dropped."""
        self._write(self.cutter.finish())
        self.writer.close()

    def _write(self, pieces: Iterable[NDArray]) -> None:
        for rows in pieces:
            self.token_counts += np.bincount(rows.reshape(-1), minlength=len(self.token_counts))
            self.writer.write(rows)

    @property
    def rows(self) -> int:
        return self.writer.rows

    @property
    def tail(self) -> NDArray:
        """Tokens that fill no sequence yet, (n,)."""
        return self.cutter.rest

    @property
    def truncated(self) -> int:
        """Tokens cut from lines that are too long."""
        return self.cutter.truncated


class DocumentProgress:
    """Reports documents of the only part, which is packed in the stage's own process."""

    def __init__(self, counts: PartCounts, reporter: Reporter | None, total: int | None) -> None:
        self._counts = counts
        self._total = total
        self._reporter = reporter
        self._tokens = 0
        self._start = time.monotonic()

    def report(self, tokens: int) -> None:
        """Raises RunStopped after a request to stop."""
        if self._reporter is None:
            return
        self._reporter.raise_if_stopped()
        self._tokens += tokens
        read = sum(tally.bytes for tally in self._counts.splits.values())
        speed = byte_count(read / max(1e-9, time.monotonic() - self._start))
        note = f"{self._tokens:,} tokens, {speed}/s"
        self._reporter.progress(self._counts.documents, self._total, "documents", note)


def _encoder(layout: SequenceLayout, tokenizer: StudioTokenizer) -> DocumentEncoder:
    if not layout.line_by_line:
        mark_id = tokenizer.pad_id if layout.marks_sentences else None
        end_id = tokenizer.sep_id if layout.ends_documents else None
        dtype = id_dtype(tokenizer.vocab_size)
        return DocumentEncoder(tokenizer.backend, dtype, mark_id, end_id=end_id)
    # An id outside the vocabulary.
    separator_id = tokenizer.vocab_size
    return DocumentEncoder(tokenizer.backend, id_dtype(separator_id + 1), separator_id=separator_id)


def _cutter(
    layout: SequenceLayout, tokenizer: StudioTokenizer, encoder: DocumentEncoder
) -> PackedSequences | LineSequences | BestFitSequences:
    if layout.best_fit:
        if tokenizer.pad_id is None or tokenizer.sep_id is None:
            raise TokenizerError(
                f"The tokenizer {tokenizer.reference} can't pad sequences",
                expected="a padding and an end-of-text token, for packing ⟬packing:best_fit⟭",
                fix="set ⟬packing⟭ to stream, or train a tokenizer here",
                field="packing",
            )
        return BestFitSequences(layout.row_length, tokenizer.sep_id, tokenizer.pad_id)
    if not layout.line_by_line:
        return PackedSequences(layout.row_length)
    assert tokenizer.pad_id is not None, "the objective was refused without one"
    return LineSequences(
        layout.row_length, tokenizer.vocab_size, tokenizer.pad_id, encoder.suffix_length
    )


def _record_layout(
    config: ShardConfig, layout: SequenceLayout, tokenizer: StudioTokenizer
) -> RecordLayout:
    if config.record_format == Int64Records.name:
        return Int64Records(layout.row_length, tokenizer.pad_id if layout.pads_sequences else None)
    return FixedRecords(layout.row_length, id_dtype(tokenizer.vocab_size).itemsize)


def _counting_words(
    documents: Iterable[tuple[Split, Document]], words: dict[Split, int]
) -> Iterator[tuple[Split, str]]:
    """Yields the texts of the splits in `words`, and counts words between white space."""
    for split, document in documents:
        if split in words:
            words[split] += len(document.text.split())
            yield split, document.text


def _lines(texts: Iterable[tuple[Split, str]]) -> Iterator[tuple[Split, str]]:
    for split, text in texts:
        for line in text.split("\n"):
            if line and not line.isspace():
                yield split, line


def _batches(
    documents: Iterable[tuple[Split, str]], encoder: DocumentEncoder, splits: Sequence[Split]
) -> Iterator[tuple[Split, list[Part]]]:
    batchers = {split: Batcher(encoder) for split in splits}
    for split, document in documents:
        for batch in batchers[split].add(document):
            yield split, batch
    for split, batcher in batchers.items():
        for batch in batcher.finish():
            yield split, batch


def _encode_ahead(
    batches: Iterable[tuple[Split, list[Part]]], encoder: DocumentEncoder, workers: int
) -> Iterator[tuple[Split, NDArray]]:
    """Yields batches in order, encoding later ones ahead."""
    waiting: deque[tuple[Split, Future[NDArray]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="encode") as pool:
        try:
            for split, batch in batches:
                waiting.append((split, pool.submit(encoder.encode, batch)))
                if len(waiting) > workers:
                    done_split, tokens = waiting.popleft()
                    yield done_split, tokens.result()
            while waiting:
                done_split, tokens = waiting.popleft()
                yield done_split, tokens.result()
        finally:
            pool.shutdown(cancel_futures=True)
