"""How text is laid out in rows, which depends on what the rows are for.

One layout exists now: documents, each between the tokenizer's own start and end tokens, run through
the rows without a gap. Where documents begin can be found again by those tokens, where words begin
by `StudioTokenizer.word_starts`, and where sentences end by decoding, as nothing is dropped. An
objective that needs longer raw rows, marks or padding gets its layout here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.config import ShardConfig

_LARGEST_UINT16_VOCABULARY = 1 << 16


@dataclass(frozen=True)
class RowLayout:
    """How rows are cut from the stream of tokens.

    Attributes:
        row_length: Tokens in a stored row, before the objective works on it.
        needs_mask_token: Whether the objective can't do without one.
    """

    row_length: int
    needs_mask_token: bool


def layout_for(config: ShardConfig) -> RowLayout:
    """Returns the layout that the config's objective wants.

    Masked language modelling replaces tokens one for one, so a row is as long as what the model
    sees.
    """
    return RowLayout(row_length=config.max_seq_length, needs_mask_token=True)


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
