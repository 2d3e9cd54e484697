"""Builds shards: streams, encodes and packs a corpus in batches.

Output: train/ and validation/ with dataset-{shard}-{records}.tfrecord, tokenizer/, token_counts.npy
(training, without padding) and manifest.json.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.config import ShardConfig
from core.cores import usable_cores
from core.corpus import Corpus, LabelledDocument, open_corpus
from core.errors import ShardError
from core.events import Reporter
from core.objectives import create_objective
from core.shards.destination import new_destination
from core.shards.encode import Batcher, DocumentEncoder, Part
from core.shards.layout import (
    LineSequences,
    PackedSequences,
    SequenceLayout,
    id_dtype,
    layout_for,
    objective_settings,
)
from core.shards.read import SPLITS, TOKEN_COUNTS_FILE, TOKENIZER_FOLDER, TRAIN, VALIDATION
from core.shards.records import FixedRecords, Int64Records, RecordLayout, ShardWriter
from core.tokenizer import StudioTokenizer, load
from core.tokenizer.vocabulary import vocabulary_of
from core.workspace import Artifact, Workspace

# Each holds about 150 MB; further cores speed up single batches.
_MOST_WORKERS = 8

_REPORTED_COUNTS = ("train_rows", "validation_rows", "train_tokens", "tokens_dropped")
_ADJECTIVES = {TRAIN: "training", VALIDATION: "validation"}
_FIXES = {
    TRAIN: "add text, or lower max_seq_length",
    VALIDATION: "add text, raise validation_percent, lower max_seq_length, or set split to train "
    "to write only training sequences",
}


def build(config: ShardConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Builds shards from a corpus.

    Raises:
        ConfigError: A name is taken, or the tokenizer lacks a token.
        CorpusError, TokenizerError: The corpus or tokenizer can't be used.
        ShardError: The text is too short, or the destination not writable.
        RunStopped: Nothing is left behind.
    """
    reporter = reporter or Reporter()
    layout = layout_for(config)
    name = config.name or derive_name(config)
    with new_destination(config.output_dir, workspace) as destination:
        with workspace.new_artifact("shards", name, exact=bool(config.name)) as draft:
            tokenizer = load_tokenizer(config, workspace)
            corpus = open_corpus(config.corpus, workspace, reporter)
            folder = destination.folder(draft)
            draft.config = config.model_dump(mode="json")
            inputs = {"corpus": corpus.input_fingerprint, "tokenizer": tokenizer.fingerprint}
            draft.inputs = inputs
            counts = _write_shards(config, layout, corpus, tokenizer, folder, reporter)
            draft.counts = {**counts, "reading": corpus.reading, **corpus.cleaning}
            draft.location = destination.location
            draft.fingerprint = destination.publish(draft, reporter)
        for name, counts in draft.counts.get("sources", {}).items():
            reporter.note(f"Source {name}: {_describe_source(counts)}", reading=True)
        reporter.metrics(0, {name: draft.counts[name] for name in _REPORTED_COUNTS})
    assert draft.artifact
    return draft.artifact


def derive_name(config: ShardConfig) -> str:
    """Returns a default name such as docs-words-512."""
    tokenizer = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.tokenizer).name).strip("-.")
    kind = "" if config.objective == "mlm" else f"-{config.objective}"
    lines = "-lines" if config.line_by_line else ""
    return f"{config.corpus.short_name}-{tokenizer[:60]}-{config.max_seq_length}{kind}{lines}"


def _describe_source(counts: Mapping[str, int]) -> str:
    parts = [f"{value:,} {name.replace('_', ' ')}" for name, value in counts.items()]
    return ", ".join(parts)


def load_tokenizer(config: ShardConfig, workspace: Workspace) -> StudioTokenizer:
    """Loads the tokenizer and checks the objective's tokens."""
    tokenizer = load(config.tokenizer, workspace)
    vocabulary = vocabulary_of(tokenizer)
    create_objective(config.objective, objective_settings(config), vocabulary)
    if config.objective == "clm":
        vocabulary.require("eos_id", config.objective)
    return tokenizer


@dataclass
class Packer:
    """Cuts one split's tokens into sequences and writes them.

    Attributes:
        token_counts: Int64 (vocab_size,).
    """

    writer: ShardWriter
    cutter: PackedSequences | LineSequences
    token_counts: NDArray[np.int64]
    tokens: int = 0

    def add(self, tokens: NDArray) -> None:
        """Writes completed sequences and buffers the rest."""
        self.tokens += len(tokens)
        for rows in self.cutter.take(tokens):
            self.token_counts += np.bincount(rows.reshape(-1), minlength=len(self.token_counts))
            self.writer.write(rows)

    @property
    def rows(self) -> int:
        return self.writer.rows

    @property
    def dropped(self) -> int:
        """Tokens that are in no sequence."""
        return self.cutter.dropped


class DocumentMeter:
    """Counts documents, also by named source, and reports progress."""

    def __init__(self, corpus: Corpus, splits: Sequence[str], reporter: Reporter) -> None:
        self.documents = dict.fromkeys(splits, 0)
        self.sources = {name: _no_counts(splits) for name in corpus.source_names}
        self.bytes = 0
        self.tokens = 0
        self._reporter = reporter
        self._start = time.monotonic()
        known = corpus.counts
        totals = [known.get(f"{split}_documents") for split in splits]
        self._total = None if None in totals else sum(filter(None, totals))

    def count(self, documents: Iterable[LabelledDocument]) -> Iterator[LabelledDocument]:
        """Counts passing documents."""
        for document in documents:
            size = _size_in_utf8(document.text)
            self.documents[document.split] += 1
            self.bytes += size
            if document.source:
                counts = self.sources[document.source]
                counts[f"{document.split}_documents"] += 1
                counts["bytes"] += size
            yield document

    def report(self, split: str, source: str, tokens: int) -> None:
        self.tokens += tokens
        if source:
            self.sources[source][f"{split}_tokens"] += tokens
        read = sum(self.documents.values())
        speed = self.bytes / 1e6 / self.seconds
        note = f"{self.tokens:,} tokens, {speed:.1f} MB/s"
        self._reporter.progress(read, self._total, "documents", note)

    @property
    def seconds(self) -> float:
        """Never 0."""
        return max(1e-9, time.monotonic() - self._start)


def _no_counts(splits: Sequence[str]) -> dict[str, int]:
    return dict.fromkeys(["bytes", *(f"{split}_{unit}" for split in splits
                                     for unit in ("documents", "tokens"))], 0)  # fmt: skip


def _size_in_utf8(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _write_shards(
    config: ShardConfig,
    layout: SequenceLayout,
    corpus: Corpus,
    tokenizer: StudioTokenizer,
    folder: Path,
    reporter: Reporter,
) -> dict[str, Any]:
    splits = SPLITS if config.split == "all" else (config.split,)
    records = _record_layout(config, layout, tokenizer)
    encoder = _encoder(layout, tokenizer)
    packers = {
        split: Packer(
            ShardWriter(folder / split, records, config.shard_size),
            _cutter(layout, tokenizer, encoder),
            np.zeros(tokenizer.vocab_size, np.int64),
        )
        for split in splits
    }
    meter = DocumentMeter(corpus, splits, reporter)
    documents = meter.count(_documents(corpus, splits))
    batches = _batches(_lines(documents) if layout.line_by_line else documents, encoder)
    for split, source, tokens in _encode_ahead(batches, encoder):
        reporter.raise_if_stopped()
        packers[split].add(tokens)
        meter.report(split, source, len(tokens))
    _check_sources(meter, splits)
    for split, packer in packers.items():
        packer.writer.close()
        _check_any_sequence(split, packer)
    tokenizer.copy_to(folder / TOKENIZER_FOLDER)
    if TRAIN in packers:
        token_counts = packers[TRAIN].token_counts
        if layout.has_padding:
            token_counts[tokenizer.pad_id] = 0
        np.save(folder / TOKEN_COUNTS_FILE, token_counts)
    return _counts(packers, meter, tokenizer, layout)


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
) -> PackedSequences | LineSequences:
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
        return Int64Records(layout.row_length, tokenizer.pad_id if layout.line_by_line else None)
    return FixedRecords(layout.row_length, id_dtype(tokenizer.vocab_size).itemsize)


def _documents(corpus: Corpus, splits: Sequence[str]) -> Iterator[LabelledDocument]:
    if len(splits) > 1:
        return corpus.sourced_documents()
    return corpus.training_documents() if TRAIN in splits else corpus.validation_documents()


def _lines(documents: Iterable[LabelledDocument]) -> Iterator[LabelledDocument]:
    for document in documents:
        for line in document.text.split("\n"):
            if line and not line.isspace():
                yield document._replace(text=line)


def _batches(
    documents: Iterable[LabelledDocument], encoder: DocumentEncoder
) -> Iterator[tuple[str, str, list[Part]]]:
    """Yields split, source and batch; a batch has one source."""
    batchers: dict[str, Batcher] = {}
    sources: dict[str, str] = {}
    split: str
    for split, source, text in documents:
        if split in batchers and sources[split] != source:
            for batch in batchers.pop(split).finish():
                yield split, sources[split], batch
        sources[split] = source
        for batch in batchers.setdefault(split, Batcher(encoder)).add(text):
            yield split, source, batch
    for split, batcher in batchers.items():
        for batch in batcher.finish():
            yield split, sources[split], batch


def _encode_ahead(
    batches: Iterable[tuple[str, str, list[Part]]], encoder: DocumentEncoder
) -> Iterator[tuple[str, str, NDArray]]:
    """Yields batches in order, encoding later ones ahead."""
    workers = min(_MOST_WORKERS, usable_cores())
    waiting: deque[tuple[str, str, Future[NDArray]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="encode") as pool:
        try:
            for split, source, batch in batches:
                waiting.append((split, source, pool.submit(encoder.encode, batch)))
                if len(waiting) > workers:
                    *labels, tokens = waiting.popleft()
                    yield labels[0], labels[1], tokens.result()
            while waiting:
                *labels, tokens = waiting.popleft()
                yield labels[0], labels[1], tokens.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _check_sources(meter: DocumentMeter, splits: Sequence[str]) -> None:
    if TRAIN not in splits:
        return
    for name, counts in meter.sources.items():
        if not counts[f"{TRAIN}_documents"]:
            raise ShardError(
                f"The source {name} has no training document",
                expected="at least one that is not held out",
                received=f"{counts.get(f'{VALIDATION}_documents', 0)} documents, all held out",
                fix="add text to this source, lower validation_percent, or leave the source out",
                field="validation_percent",
            )


def _check_any_sequence(split: str, packer: Packer) -> None:
    if packer.rows:
        return
    raise ShardError(
        f"The text is too short for a single {_ADJECTIVES[split]} sequence",
        expected=f"at least {packer.cutter.row_length} tokens, the length of one sequence",
        received=f"{packer.tokens} tokens of {_ADJECTIVES[split]} text",
        fix=_FIXES[split],
        field="max_seq_length",
    )


def _counts(
    packers: Mapping[str, Packer],
    meter: DocumentMeter,
    tokenizer: StudioTokenizer,
    layout: SequenceLayout,
) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "row_length": layout.row_length,
        "vocab_size": tokenizer.vocab_size,
        "bytes": meter.bytes,
        "tokens_dropped": sum(packer.dropped for packer in packers.values()),
    }
    for split in SPLITS:
        rows = packers[split].rows if split in packers else 0
        counts |= {
            f"{split}_rows": rows,
            f"{split}_tokens": rows * layout.row_length,
            f"{split}_documents": meter.documents.get(split, 0),
        }
    return {**counts, "sources": meter.sources} if meter.sources else counts
