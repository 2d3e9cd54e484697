"""Random numbers that depend only on seed, step and an example's position in its batch.

Any slice of a batch can be drawn alone. A "word" is an integer of random bits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# One increment of Philox's counter yields four words.
_WORDS_PER_COUNT = 4

Word = type[np.unsignedinteger]
# dtype and number of the words.
Wanted = tuple[Word, int]


class _OfThread(threading.local):
    """One generator per thread: constructing one takes longer than drawing from it."""

    def __init__(self) -> None:
        self.generator = np.random.Philox(0)
        self.key = np.zeros(2, np.uint64)
        self.counter = np.zeros(_WORDS_PER_COUNT, np.uint64)
        self.state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self.counter, "key": self.key},
            "buffer": np.zeros(_WORDS_PER_COUNT, np.uint64),
            "buffer_pos": _WORDS_PER_COUNT,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def begin_at(self, key: tuple[int, int], counter: tuple[int, int, int, int]) -> None:
        self.key[0], self.key[1] = key
        self.counter[:] = counter
        self.generator.state = self.state


_of_thread = _OfThread()


def draw_random_bits(
    rows: int, uint64_per_example: int, *, seed: int, step: int | range, first_row: int, domain: int
) -> NDArray[np.uint64]:
    """Draws random words, uint64 (B, at least W), the same in any slice of a batch.

    Args:
        uint64_per_example: W.
        step: A range stacks equally large batches.
        first_row: Position of each batch's first example in the global batch.
        domain: Separates draws of different purposes.

    Source: https://doi.org/10.1145/2063384.2063405 (Philox)
    """
    counts = -(-uint64_per_example // _WORDS_PER_COUNT)
    steps = step if isinstance(step, range) else range(step, step + 1)
    words, random_raw = counts * _WORDS_PER_COUNT, _of_thread.generator.random_raw
    drawn = np.empty((len(steps), rows // len(steps) * words), np.uint64)
    for number, numbers in zip(steps, drawn, strict=True):
        _of_thread.begin_at((seed, number), (first_row * counts, 0, 0, domain))
        numbers[:] = random_raw(len(numbers))
    return drawn.reshape(rows, words)


def split_random_bits(drawn: NDArray[np.uint64], wanted: Sequence[Wanted]) -> list[NDArray[Any]]:
    """Splits words (B, W) into shorter ones, (B, count) each."""
    pieces, first = [], 0
    for dtype, count in wanted:
        last = first + num_uint64_for([(dtype, count)])
        pieces.append(drawn[:, first:last].view(dtype)[:, :count])
        first = last
    return pieces


def num_uint64_for(wanted: Sequence[Wanted]) -> int:
    """Counts 64-bit words for shorter ones."""
    return sum(-(-count * np.dtype(dtype).itemsize // 8) for dtype, count in wanted)


def position_keys(words: NDArray[Any]) -> NDArray[Any]:
    """Builds random sort keys with the column index in the low bits, (B, n).

    The columns of the K lowest keys are a uniform choice. Uint64 words lose low bits.
    """
    wide = key_type(words.dtype.type)
    bits = wide(words.shape[1].bit_length())
    columns = np.arange(words.shape[1], dtype=wide)
    keys = words >> bits if wide is words.dtype.type else words.astype(wide)
    keys <<= bits
    keys |= columns
    return keys


def key_type(word_type: Word) -> Word:
    """Returns the dtype of keys for words."""
    return np.uint32 if word_type is np.uint16 else np.uint64


def positions_of_keys(keys: NDArray[Any], columns: int) -> NDArray[Any]:
    """Extracts column indices; that of `never` is out of range."""
    return keys & keys.dtype.type((1 << columns.bit_length()) - 1)


def never(keys: Word) -> Any:
    """Returns a value above every key of a dtype."""
    return keys(np.iinfo(keys).max)
