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

    @property
    def has_padding(self) -> bool:
        """True if padding is added."""
        return self.marks_sentences or self.line_by_line


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
            "line_by_line works only for masked language modelling",
            expected="objective=mlm, or line_by_line=false",
            received=f"line_by_line with objective={config.objective}",
            fix="remove line_by_line",
            field="line_by_line",
        )
    for name in ("mlm_probability", "mean_noise_span_length"):
        if config.objective != "span_corruption" and getattr(config, name) is not None:
            raise ConfigError(
                f"{name} has no effect on sequences for {config.objective}",
                expected=f"{name} to be empty, or objective=span_corruption",
                received=f"{name}={getattr(config, name):g} with objective={config.objective}",
                fix=f"leave {name} empty here and set it for training",
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

    @property
    def rest(self) -> NDArray:
        """Tokens that fill no sequence yet, (n,)."""
        return self._rest

    @property
    def truncated(self) -> int:
        """Always 0: nothing is cut off."""
        return 0


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

    @property
    def rest(self) -> NDArray:
        """Ids of a line that goes on, (n,)."""
        return self._rest
