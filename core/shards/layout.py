"""Cuts token streams into sequences: packed documents, or one line each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from core.config.options import settled
from core.config.shards import ShardConfig
from core.errors import ConfigError
from core.objectives.objective import ObjectiveSettings
from core.objectives.registry import stored_sequence_length

# Unfinished sequences of best-fit packing; more wouldn't be fuller.
_MOST_OPEN = 1024
# About 100 MB of arrays.
_IDS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class SequenceLayout:
    """Settings for cutting a token stream.

    Attributes:
        row_length: Stored tokens, before the objective is applied.
        marks_sentences: Whether padding follows sentences.
    """

    row_length: int
    marks_sentences: bool = False
    line_by_line: bool = False
    ends_documents: bool = False
    best_fit: bool = False

    @property
    def pads_sequences(self) -> bool:
        """Whether sequences end with padding."""
        return self.line_by_line or self.best_fit

    @property
    def has_padding(self) -> bool:
        """True if padding is added."""
        return self.marks_sentences or self.pads_sequences


def objective_settings(config: ShardConfig) -> ObjectiveSettings:
    length = settled(config.max_seq_length)
    settings = ObjectiveSettings(length, line_by_line=config.line_by_line)
    return with_noise(settings, config.mlm_probability, config.mean_noise_span_length)


def with_noise(
    settings: ObjectiveSettings, density: float | None, span_length: float | None
) -> ObjectiveSettings:
    """Sets span corruption's noise; None means published values."""
    length = settings.mean_noise_span_length if span_length is None else span_length
    return replace(settings, mlm_probability=density, mean_noise_span_length=length)


def check_options(config: ShardConfig) -> None:
    """Raises ConfigError for options that have no effect on sequences for the objective."""
    if config.line_by_line and config.objective != "mlm":
        raise ConfigError(
            "⟬line_by_line⟭ works only for masked language modelling",
            expected="⟬objective=mlm⟭, or ⟬line_by_line=false⟭",
            received=f"⟬line_by_line⟭ with ⟬objective={config.objective}⟭",
            fix="remove ⟬line_by_line⟭",
            field="line_by_line",
        )
    if config.packing == "best_fit" and config.objective != "clm":
        raise ConfigError(
            f"packing ⟬packing:best_fit⟭ has no effect on sequences for "
            f"⟬objective:{config.objective}⟭",
            expected="⟬objective=clm⟭, or ⟬packing=stream⟭",
            received=f"⟬packing=best_fit⟭ with ⟬objective={config.objective}⟭",
            fix="set ⟬packing⟭ to stream",
            field="packing",
        )
    for name in ("mlm_probability", "mean_noise_span_length"):
        if config.objective != "span_corruption" and getattr(config, name) is not None:
            raise ConfigError(
                f"⟬{name}⟭ has no effect on sequences for ⟬objective:{config.objective}⟭",
                expected=f"⟬{name}⟭ to be empty, or ⟬objective=span_corruption⟭",
                received=f"⟬{name}={getattr(config, name):g}⟭ with ⟬objective={config.objective}⟭",
                fix=f"leave ⟬{name}⟭ empty here and set it for training",
                field=name,
            )


def layout_for(config: ShardConfig) -> SequenceLayout:
    """Returns the layout for the config's objective."""
    check_options(config)
    return SequenceLayout(
        row_length=stored_sequence_length(config.objective, objective_settings(config)),
        marks_sentences=config.objective == "denoising",
        line_by_line=config.line_by_line,
        ends_documents=config.objective == "clm",
        best_fit=config.packing == "best_fit",
    )


def cut_sequences(tokens: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns sequences (n // row_length, row_length) and the remainder."""
    whole = len(tokens) // row_length * row_length
    return tokens[:whole].reshape(-1, row_length), tokens[whole:]


def line_sequences(
    tokens: np.ndarray, lengths: np.ndarray, row_length: int, pad_id: int, suffix_length: int = 0
) -> tuple[np.ndarray, int]:
    """Pads or truncates each line to a sequence.

    Args:
        tokens: Concatenated lines, (n,).
        lengths: Ids per line, (lines,).
        suffix_length: Special tokens kept at truncation.

    Returns:
        Sequences (lines, row_length), and truncated tokens.

    Source:
    https://github.com/huggingface/transformers/blob/v4.57.0/examples/flax/language-modeling/run_mlm_flax.py
    """
    kept_lengths = np.minimum(lengths, row_length)
    excess = lengths - kept_lengths
    columns = np.arange(row_length)
    indices = (np.cumsum(lengths) - lengths)[:, None] + columns
    indices += (columns >= (kept_lengths - suffix_length)[:, None]) * excess[:, None]
    rows = np.full(indices.shape, pad_id, tokens.dtype)
    real = columns < kept_lengths[:, None]
    rows[real] = tokens[indices[real]]
    return rows, int(excess.sum())


@dataclass
class PackedSequences:
    """Packs a stream, carrying the remainder over."""

    row_length: int
    _rest: NDArray = field(default_factory=lambda: np.empty(0, np.uint16))

    def take(self, tokens: NDArray) -> Iterator[NDArray]:
        """Yields completed sequences, (n, row_length)."""
        together = np.concatenate((self._rest, tokens)) if len(self._rest) else tokens
        rows, rest = cut_sequences(together, self.row_length)
        self._rest = rest.copy()
        yield rows

    def finish(self) -> Iterator[NDArray]:
        """Yields nothing: an incomplete sequence is dropped."""
        yield from ()

    @property
    def rest(self) -> NDArray:
        """Tokens that fill no sequence yet, (n,)."""
        return self._rest

    @property
    def truncated(self) -> int:
        """Always 0: nothing is cut off."""
        return 0


@dataclass
class BestFitSequences:
    """Puts each document whole into the sequence with the least room for it, and pads sequences.

    Only documents longer than a sequence are cut. Source: https://arxiv.org/abs/2404.10830,
    section 3.

    Attributes:
        end_id: Ends documents.
    """

    row_length: int
    end_id: int
    pad_id: int
    truncated: int = 0
    _rest: NDArray = field(default_factory=lambda: np.empty(0, np.uint16))
    # Documents of unfinished sequences, by the room that these have.
    _open: dict[int, list[list[NDArray]]] = field(default_factory=dict)
    _open_count: int = 0

    def take(self, tokens: NDArray) -> Iterator[NDArray]:
        """Yields finished sequences, (n, row_length)."""
        together = np.concatenate((self._rest, tokens)) if len(self._rest) else tokens
        stops = np.flatnonzero(together == self.end_id) + 1
        *documents, rest = np.split(together, stops)
        self._rest = rest.copy()
        rows = [row for document in documents for row in self._place(document)]
        yield self._padded(rows, together.dtype)

    def finish(self) -> Iterator[NDArray]:
        """Yields all that is unfinished, (n, row_length)."""
        rows = self._place(self._rest)
        rows += [documents for alike in self._open.values() for documents in alike]
        dtype = self._rest.dtype
        self._rest, self._open, self._open_count = self._rest[:0], {}, 0
        yield self._padded(rows, dtype)

    @property
    def rest(self) -> NDArray:
        """Tokens of unfinished sequences, (n,)."""
        documents = [part for alike in self._open.values() for some in alike for part in some]
        return np.concatenate([*documents, self._rest])

    def _place(self, document: NDArray) -> list[list[NDArray]]:
        """Returns sequences that this document finishes."""
        length, finished = self.row_length, []
        while len(document) > length:
            finished.append([document[:length]])
            document = document[length:]
        if not len(document):
            return finished
        room = min((room for room in self._open if room >= len(document)), default=0)
        documents = self._close(room) if room else []
        documents.append(document.copy())
        left = (room or length) - len(document)
        if not left:
            return [*finished, documents]
        self._open.setdefault(left, []).append(documents)
        self._open_count += 1
        if self._open_count > _MOST_OPEN:
            finished.append(self._close(min(self._open)))
        return finished

    def _close(self, room: int) -> list[NDArray]:
        """Removes the oldest unfinished sequence with so much room."""
        documents = self._open[room].pop(0)
        self._open_count -= 1
        if not self._open[room]:
            del self._open[room]
        return documents

    def _padded(self, rows: list[list[NDArray]], dtype: np.dtype) -> NDArray:
        padded = np.full((len(rows), self.row_length), self.pad_id, dtype)
        for row, documents in zip(padded, rows, strict=True):
            tokens = np.concatenate(documents)
            row[: len(tokens)] = tokens
        return padded


@dataclass
class LineSequences:
    """Turns a stream's lines into padded sequences.

    Attributes:
        separator_id: Follows lines; not stored.
        truncated: Tokens cut from lines that are too long.
    """

    row_length: int
    separator_id: int
    pad_id: int
    suffix_length: int
    truncated: int = 0
    _rest: NDArray = field(default_factory=lambda: np.empty(0, np.uint16))

    def take(self, tokens: NDArray) -> Iterator[NDArray]:
        """Yields sequences (n, row_length) in chunks, as padding multiplies ids."""
        together = np.concatenate((self._rest, tokens)) if len(self._rest) else tokens
        ends = np.flatnonzero(together == self.separator_id)
        most = max(1, _IDS_AT_ONCE // self.row_length)
        start = 0
        for first in range(0, len(ends), most):
            some = ends[first : first + most]
            stop = int(some[-1]) + 1
            lines = together[start:stop]
            rows, cut = line_sequences(
                lines[lines != self.separator_id],
                np.diff(some, prepend=start - 1) - 1,
                self.row_length,
                self.pad_id,
                self.suffix_length,
            )
            self.truncated += cut
            start = stop
            yield rows
        self._rest = together[start:].copy()

    def finish(self) -> Iterator[NDArray]:
        """Yields nothing: each line ends with a separator."""
        yield from ()

    @property
    def rest(self) -> NDArray:
        """Ids of a line that goes on, (n,)."""
        return self._rest
