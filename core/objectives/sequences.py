"""Operations on token sequences that the objectives share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.errors import ShardError


def check_sequences(rows: NDArray[np.int32], row_length: int, vocab_size: int) -> None:
    """Raises ShardError unless length and token ids of sequences (B, L) are valid."""
    if rows.shape[1] != row_length:
        raise ShardError(
            "The sequences have the wrong length for the objective",
            expected=f"{row_length} tokens per sequence",
            received=f"{rows.shape[1]}",
            fix="build the shards again for this objective and ⟬max_seq_length⟭",
        )
    # A negative id viewed as unsigned exceeds any vocabulary size.
    if rows.size and int(rows.view(np.uint32).max()) >= vocab_size:
        raise ShardError(
            "A sequence contains a token id outside the vocabulary",
            expected=f"ids from 0 to {vocab_size - 1}",
            received=f"ids from {rows.min()} to {rows.max()}",
            fix="build the shards again with this tokenizer",
        )


def trailing_padding(rows: NDArray[np.int32], pad_id: int) -> NDArray[np.bool_]:
    """Marks the padding at the end of each sequence, (B, L)."""
    backwards = np.logical_and.accumulate(rows[:, ::-1] == pad_id, axis=1)
    return backwards[:, ::-1]


def pack_left(
    rows: NDArray[np.int32], is_kept: NDArray[np.bool_], fill: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Moves the kept tokens to the left end; returns a mask of them, too."""
    real = np.arange(rows.shape[1]) < is_kept.sum(axis=1)[:, None]
    packed = np.full_like(rows, fill)
    packed[real] = rows[is_kept]
    return packed, real


def shift_right(labels: NDArray[np.int32], decoder_start_id: int) -> NDArray[np.int32]:
    """Builds decoder inputs: the labels shifted right by one."""
    shifted = np.empty_like(labels)
    shifted[:, :1] = decoder_start_id
    shifted[:, 1:] = labels[:, :-1]
    return shifted


def document_starts(rows: NDArray[np.int32], last: int) -> NDArray[np.int32]:
    """Finds the first index of each token's document in its sequence, int32 (B, L).

    Args:
        rows: (B, L); documents end with the token `last`.
    """
    starts = np.zeros(rows.shape, np.int32)
    follows = rows[:, :-1] == last
    np.copyto(starts[:, 1:], np.arange(1, rows.shape[1], dtype=np.int32), where=follows)
    return np.maximum.accumulate(starts, axis=1)
