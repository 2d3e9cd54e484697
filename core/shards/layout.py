"""How text is laid out in rows, which depends on what the rows are for.

Documents, each between the tokenizer's own start and end tokens, run through the rows without a
gap. Where documents begin can be found again by those tokens, where words begin by
`StudioTokenizer.word_starts`. For causal language modelling, an end token stands after each
document also where the tokenizer puts none. For span corruption, rows are longer than what the
model sees of them; for denoising, a padding token stands after each sentence. Line by line, each
line is a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from core.config import ShardConfig
from core.errors import ConfigError
from core.objectives import ObjectiveSettings, stored_row_length

_LARGEST_UINT16_VOCABULARY = 1 << 16
# In rows that are made of lines, padding included: about 100 MB on the way.
_IDS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class RowLayout:
    """How rows are cut from the stream of tokens.

    Attributes:
        row_length: Tokens in a stored row, before the objective works on it.
        marks_sentences: Whether a padding token stands after each sentence.
        line_by_line: Whether each line is a row of its own, filled up with padding.
        ends_documents: Whether each document has an end token, though the tokenizer put none.
    """

    row_length: int
    marks_sentences: bool = False
    line_by_line: bool = False
    ends_documents: bool = False

    @property
    def has_padding(self) -> bool:
        """Whether there are padding tokens that no text gave."""
        return self.marks_sentences or self.line_by_line


def objective_settings(config: ShardConfig) -> ObjectiveSettings:
    """Returns what the objective is told that the rows are for."""
    settings = ObjectiveSettings(config.max_seq_length, line_by_line=config.line_by_line)
    return with_noise(settings, config.mlm_probability, config.mean_noise_span_length)


def with_noise(
    settings: ObjectiveSettings, density: float | None, span_length: float | None
) -> ObjectiveSettings:
    """Returns settings with what rows for span corruption are laid out for; None: as published."""
    length = settings.mean_noise_span_length if span_length is None else span_length
    return replace(settings, mlm_probability=density, mean_noise_span_length=length)


def layout_for(config: ShardConfig) -> RowLayout:
    """Returns the layout that the config's objective wants.

    Raises:
        ConfigError: The objective can't work with rows of that length, or with lines.
    """
    if config.line_by_line and config.objective != "mlm":
        raise ConfigError(
            "Only rows for masked language modelling can be lines",
            expected="objective=mlm, or line_by_line=false",
            received=f"line_by_line with objective={config.objective}",
            fix="leave line_by_line out",
            field="line_by_line",
        )
    for name in ("mlm_probability", "mean_noise_span_length"):
        if config.objective != "span_corruption" and getattr(config, name) is not None:
            raise ConfigError(
                f"{name} doesn't change how rows for {config.objective} are laid out",
                expected="it to be empty, or objective=span_corruption",
                received=f"{name}={getattr(config, name):g} with objective={config.objective}",
                fix=f"leave {name} empty here, and set it for the training",
                field=name,
            )
    return RowLayout(
        row_length=stored_row_length(config.objective, objective_settings(config)),
        marks_sentences=config.objective == "denoising",
        line_by_line=config.line_by_line,
        ends_documents=config.objective == "clm",
    )


def id_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest little-endian type that holds every id: uint16 or uint32."""
    return np.dtype("<u2" if vocab_size <= _LARGEST_UINT16_VOCABULARY else "<u4")


def cut_rows(tokens: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a stream of tokens into whole rows.

    Args:
        tokens: Ids, shape (n,).
        row_length: Tokens in a row.

    Returns:
        The rows (n // row_length, row_length), and the tokens left over, fewer than a row.
    """
    whole = len(tokens) // row_length * row_length
    return tokens[:whole].reshape(-1, row_length), tokens[whole:]


def line_rows(
    tokens: np.ndarray, lengths: np.ndarray, row_length: int, pad_id: int, suffix_length: int = 0
) -> tuple[np.ndarray, int]:
    """Makes each line a row of its own, filled up with padding.

    Args:
        tokens: The ids of lines, one after the other, with their special tokens, shape (n,).
        lengths: The number of ids of each line, shape (lines,); they add up to n.
        row_length: Tokens in a row. A longer line is cut.
        pad_id: What fills rows up.
        suffix_length: How many special tokens end a line; one that is cut keeps them.

    Returns:
        The rows (lines, row_length), of the ids' type, and the number of tokens cut off.

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
class PackedRows:
    """Cuts a stream that comes in pieces into rows; what is left of a piece begins the next row.

    Attributes:
        row_length: Tokens in a row.
    """

    row_length: int
    _rest: NDArray = field(default_factory=lambda: np.empty(0, np.uint16))

    def take(self, tokens: NDArray) -> Iterator[NDArray]:
        """Yields the rows that these tokens complete, (rows, row_length)."""
        together = np.concatenate((self._rest, tokens)) if len(self._rest) else tokens
        rows, rest = cut_rows(together, self.row_length)
        self._rest = rest.copy()
        yield rows

    @property
    def dropped(self) -> int:
        """Tokens that are in no row."""
        return len(self._rest)


@dataclass
class LineRows:
    """Makes rows of the lines of a stream that comes in pieces.

    Attributes:
        row_length: Tokens in a row.
        separator_id: What stands after each line; it is in no row.
        pad_id: What fills rows up.
        suffix_length: How many special tokens end a line.
        dropped: Tokens cut off long lines.
    """

    row_length: int
    separator_id: int
    pad_id: int
    suffix_length: int
    dropped: int = 0
    _rest: NDArray = field(default_factory=lambda: np.empty(0, np.uint16))

    def take(self, tokens: NDArray) -> Iterator[NDArray]:
        """Yields the rows of the lines that end in these tokens, some at a time, (n, row_length).

        Short lines make many more ids than they have: 8 characters may become a row of 512.
        """
        together = np.concatenate((self._rest, tokens)) if len(self._rest) else tokens
        ends = np.flatnonzero(together == self.separator_id)
        most = max(1, _IDS_AT_ONCE // self.row_length)
        start = 0
        for first in range(0, len(ends), most):
            some = ends[first : first + most]
            stop = int(some[-1]) + 1
            lines = together[start:stop]
            rows, cut = line_rows(
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
