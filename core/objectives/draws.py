"""Counter-based random numbers that depend only on seed, step and an example's position in its
batch.

Each example has a fixed offset in the generator's stream, so any slice of a global batch can be
drawn alone and no generator state needs saving. A "word" is an integer of random bits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# One increment of Philox's 256-bit counter yields four 64-bit words.
_WORDS_PER_COUNT = 4

Word = type[np.unsignedinteger]
# dtype of the words, and their number per example.
Wanted = tuple[Word, int]


class _OfThread(threading.local):
    """One reusable generator per thread: constructing one takes longer than drawing from it."""

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
        """Resets the generator as if newly constructed with a key and a counter."""
        self.key[0], self.key[1] = key
        self.counter[:] = counter
        self.generator.state = self.state


_of_thread = _OfThread()


def draw_random_bits(
    rows: int, uint64_per_example: int, *, seed: int, step: int | range, first_row: int, domain: int
) -> NDArray[np.uint64]:
    """Draws random words that are the same for an example in any slice of its batch.

    Args:
        rows: Number of examples, B.
        uint64_per_example: Words per example, W.
        seed: Seed of the run.
        step: Training step. A range stacks equally large batches, one per step.
        first_row: Position of the first example of each batch in the global batch.
        domain: Separates the draws of different purposes at the same seed and step.

    Returns:
        uint64 (B, at least W).

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
        https://doi.org/10.1145/2063384.2063405 (Philox)
    """
    counts = -(-uint64_per_example // _WORDS_PER_COUNT)
    steps = step if isinstance(step, range) else range(step, step + 1)
    words, random_raw = counts * _WORDS_PER_COUNT, _of_thread.generator.random_raw
    drawn = np.empty((len(steps), rows // len(steps) * words), np.uint64)
    for one, place in zip(steps, drawn, strict=True):
        _of_thread.begin_at((seed, one), (first_row * counts, 0, 0, domain))
        place[:] = random_raw(len(place))
    return drawn.reshape(rows, words)


def split_random_bits(drawn: NDArray[np.uint64], wanted: Sequence[Wanted]) -> list[NDArray[Any]]:
    """Splits 64-bit words (B, W) into shorter ones, (B, count) for each entry of `wanted`.

    W must be at least `num_uint64_for(wanted)`.
    """
    pieces, first = [], 0
    for dtype, count in wanted:
        last = first + num_uint64_for([(dtype, count)])
        pieces.append(drawn[:, first:last].view(dtype)[:, :count])
        first = last
    return pieces


def num_uint64_for(wanted: Sequence[Wanted]) -> int:
    """Counts the 64-bit words that hold the shorter ones."""
    return sum(-(-count * np.dtype(dtype).itemsize // 8) for dtype, count in wanted)


def position_keys(words: NDArray[Any]) -> NDArray[Any]:
    """Builds sort keys in random order, each with its column index in the low bits, (B, n).

    The columns of an example's K lowest keys are a uniform choice. Ties between equal words go to
    the lower column. All keys are below `never`, whose column is out of range.

    Args:
        words: Random words (B, n). uint16 and uint32 give keys of twice as many bits; uint64 loses
            its low bits to the column.
    """
    wide = key_type(words.dtype.type)
    bits = wide(words.shape[1].bit_length())
    columns = np.arange(words.shape[1], dtype=wide)
    keys = words >> bits if wide is words.dtype.type else words.astype(wide)
    keys <<= bits
    keys |= columns
    return keys


def key_type(word_type: Word) -> Word:
    """Returns the dtype of the keys for words of a dtype."""
    return np.uint32 if word_type is np.uint16 else np.uint64


def positions_of_keys(keys: NDArray[Any], columns: int) -> NDArray[Any]:
    """Extracts the column indices from keys; `never` gives an index of at least `columns`."""
    return keys & keys.dtype.type((1 << columns.bit_length()) - 1)


def never(keys: Word) -> Any:
    """Returns a value above every key of a dtype, for columns that must not be chosen."""
    return keys(np.iinfo(keys).max)
