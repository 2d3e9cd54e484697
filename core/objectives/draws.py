"""Random words that depend on seed, step, and a row's place in its batch, and on nothing else.

A counter-based generator gives each row its words at a fixed offset, so any slice of a global batch
can be drawn by itself and there is no state to save.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Philox's counter is 256 bits, and one increment yields four words of 64 bits.
_WORDS_PER_COUNT = 4

Word = type[np.unsignedinteger]
# A type of words, and how many a row needs.
Wanted = tuple[Word, int]


class _OfThread(threading.local):
    """What each thread has for itself: to make a generator takes longer than to draw from it."""

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
        """Puts the generator in the state in which it is made with a key and a counter."""
        self.key[0], self.key[1] = key
        self.counter[:] = counter
        self.generator.state = self.state


_of_thread = _OfThread()


def draw_words(
    rows: int, words_per_row: int, *, seed: int, step: int | range, first_row: int, domain: int
) -> NDArray[np.uint64]:
    """Draws random words, the same for a row in any slice of its batch.

    Args:
        rows: Number of rows, B.
        words_per_row: Words that each needs, W.
        seed: Of the run.
        step: Of the training step. A range: the rows are as many batches of equal size, one for
            each of these steps.
        first_row: The place of the first of these rows, and of each batch, in the global batch.
        domain: Keeps one purpose's draws apart from another's with the same seed and step.

    Returns:
        uint64 (B, at least W).

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
        https://doi.org/10.1145/2063384.2063405 (Philox)
    """
    counts = -(-words_per_row // _WORDS_PER_COUNT)
    steps = step if isinstance(step, range) else range(step, step + 1)
    words, random_raw = counts * _WORDS_PER_COUNT, _of_thread.generator.random_raw
    drawn = np.empty((len(steps), rows // len(steps) * words), np.uint64)
    for one, place in zip(steps, drawn, strict=True):
        _of_thread.begin_at((seed, one), (first_row * counts, 0, 0, domain))
        place[:] = random_raw(len(place))
    return drawn.reshape(rows, words)


def split_words(drawn: NDArray[np.uint64], wanted: Sequence[Wanted]) -> list[NDArray[Any]]:
    """Cuts words of 64 bits into shorter ones.

    Args:
        drawn: uint64 (B, W), W at least `words_for(wanted)`.
        wanted: The types, and how many words of each a row needs.

    Returns:
        For each of them (B, its count).
    """
    pieces, first = [], 0
    for dtype, count in wanted:
        last = first + words_for([(dtype, count)])
        pieces.append(drawn[:, first:last].view(dtype)[:, :count])
        first = last
    return pieces


def words_for(wanted: Sequence[Wanted]) -> int:
    """Returns how many words of 64 bits so many shorter ones take."""
    return sum(-(-count * np.dtype(dtype).itemsize // 8) for dtype, count in wanted)


def place_keys(words: NDArray[Any]) -> NDArray[Any]:
    """Returns sort keys in random order that hold their own column in the low bits, (B, n).

    The K lowest of a row are K columns chosen uniformly; of equal words the first comes first. All
    keys are below `never`, which as a column is beyond the last one.

    Args:
        words: Random words (B, n): uint16 or uint32, of which keys have twice the bits, or uint64,
            whose low bits make room.
    """
    wide = key_type(words.dtype.type)
    bits = wide(words.shape[1].bit_length())
    columns = np.arange(words.shape[1], dtype=wide)
    keys = words >> bits if wide is words.dtype.type else words.astype(wide)
    keys <<= bits
    keys |= columns
    return keys


def key_type(word_type: Word) -> Word:
    """Returns the type of keys made of random words."""
    return np.uint32 if word_type is np.uint16 else np.uint64


def places_of(keys: NDArray[Any], columns: int) -> NDArray[Any]:
    """Returns the places that keys hold, of so many columns; of what is `never`, a later one."""
    return keys & keys.dtype.type((1 << columns.bit_length()) - 1)


def never(keys: Word) -> Any:
    """Returns what is above every key of a type, for what can't be chosen."""
    return keys(np.iinfo(keys).max)
