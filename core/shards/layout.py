"""Cuts token streams into fixed-length sequences, depending on the objective.

Documents, each between the tokenizer's start and end tokens, are packed without gaps. Those tokens
identify the documents again; `StudioTokenizer.word_starts` identifies the words. For causal
language modelling, an end token follows each document even if the tokenizer adds none. For span
corruption, stored sequences are longer than the model's inputs; for denoising, a padding token
follows each sentence. With line_by_line, each line is a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from core.config import ShardConfig
from core.errors import ConfigError
from core.objectives import ObjectiveSettings, stored_sequence_length

_LARGEST_UINT16_VOCABULARY = 1 << 16
# For line_by_line, padding included: about 100 MB of intermediate arrays.
_IDS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class SequenceLayout:
    """How sequences are cut from the token stream.

    Attributes:
        row_length: Tokens in a stored sequence, before the objective is applied.
        marks_sentences: Whether a padding token follows each sentence.
        line_by_line: Whether each line is a padded sequence.
        ends_documents: Whether to add an end token if the tokenizer puts none.
    """

    row_length: int
    marks_sentences: bool = False
    line_by_line: bool = False
    ends_documents: bool = False

    @property
    def has_padding(self) -> bool:
        """Whether the layout adds padding tokens."""
        return self.marks_sentences or self.line_by_line


def objective_settings(config: ShardConfig) -> ObjectiveSettings:
    settings = ObjectiveSettings(config.max_seq_length, line_by_line=config.line_by_line)
    return with_noise(settings, config.mlm_probability, config.mean_noise_span_length)


def with_noise(
    settings: ObjectiveSettings, density: float | None, span_length: float | None
) -> ObjectiveSettings:
    """Sets the noise parameters of span corruption; None means the published values."""
    length = settings.mean_noise_span_length if span_length is None else span_length
    return replace(settings, mlm_probability=density, mean_noise_span_length=length)


def layout_for(config: ShardConfig) -> SequenceLayout:
    """Returns the layout for the config's objective, and refuses options it doesn't support."""
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
                expected="{name} to be empty, or objective=span_corruption",
                received=f"{name}={getattr(config, name):g} with objective={config.objective}",
                fix=f"leave {name} empty here and set it for training",
                field=name,
            )
    return SequenceLayout(
        row_length=stored_sequence_length(config.objective, objective_settings(config)),
        marks_sentences=config.objective == "denoising",
        line_by_line=config.line_by_line,
        ends_documents=config.objective == "clm",
    )


def id_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest little-endian type for all ids: uint16 or uint32."""
    return np.dtype("<u2" if vocab_size <= _LARGEST_UINT16_VOCABULARY else "<u4")


def cut_sequences(tokens: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts tokens (n,) into sequences (n // row_length, row_length) and the remainder."""
    whole = len(tokens) // row_length * row_length
    return tokens[:whole].reshape(-1, row_length), tokens[whole:]


def line_sequences(
    tokens: np.ndarray, lengths: np.ndarray, row_length: int, pad_id: int, suffix_length: int = 0
) -> tuple[np.ndarray, int]:
    """Pads or truncates each line to a sequence.

    Args:
        tokens: Concatenated ids of lines with their special tokens, (n,).
        lengths: Ids in each line, (lines,); they sum to n.
        suffix_length: Special tokens at the end of a line, kept when it is truncated.

    Returns:
        The sequences (lines, row_length), of the ids' type, and the number of truncated tokens.

    Source: https://github.com/huggingface/transformers/blob/v4.57.0/examples/flax/language-modeling/run_mlm_flax.py
        (line_by_line)
    """
    kept = np.minimum(lengths, row_length)
    columns = np.arange(row_length)
    places = (np.cumsum(lengths) - lengths)[:, None] + columns
    places += (columns >= (kept - suffix_length)[:, None]) * (lengths - kept)[:, None]
    rows = np.full(places.shape, pad_id, tokens.dtype)
    real = columns < kept[:, None]
    rows[real] = tokens[places[real]]
    return rows, int((lengths - kept).sum())


@dataclass
class PackedSequences:
    """Cuts a stream into packed sequences, carrying the remainder over to the next chunk."""

    row_length: int
    _rest: NDArray = field(default_factory=lambda: np.empty(0, np.uint16))

    def take(self, tokens: NDArray) -> Iterator[NDArray]:
        """Yields the sequences that these tokens complete, (n, row_length)."""
        together = np.concatenate((self._rest, tokens)) if len(self._rest) else tokens
        rows, rest = cut_sequences(together, self.row_length)
        self._rest = rest.copy()
        yield rows

    @property
    def dropped(self) -> int:
        """Tokens that are in no sequence."""
        return len(self._rest)


@dataclass
class LineSequences:
    """Turns the lines of a stream into padded sequences.

    Attributes:
        separator_id: Follows each line; not stored.
        suffix_length: Special tokens at the end of a line.
        dropped: Tokens truncated from long lines.
    """

    row_length: int
    separator_id: int
    pad_id: int
    suffix_length: int
    dropped: int = 0
    _rest: NDArray = field(default_factory=lambda: np.empty(0, np.uint16))

    def take(self, tokens: NDArray) -> Iterator[NDArray]:
        """Yields the sequences of completed lines in chunks, (n, row_length).

        Padding can multiply the ids: 8 characters may become a sequence of 512.
        """
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
            self.dropped += cut
            start = stop
            yield rows
        self._rest = together[start:].copy()
