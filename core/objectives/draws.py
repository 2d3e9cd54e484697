"""Random words that depend on seed, step, and a row's place in its batch, and on nothing else.

A counter-based generator gives each row its words at a fixed offset, so any slice of a global batch
can be drawn by itself and there is no state to save.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Above every key: what can't be chosen.
NEVER = np.uint64(2**64 - 1)

# Philox's counter is 256 bits, and one increment yields four words of 64 bits.
_WORDS_PER_COUNT = 4
# More than the longest row has tokens.
_PLACE_BITS = np.uint64(20)
_PLACE_MASK = (np.uint64(1) << _PLACE_BITS) - np.uint64(1)


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
    counter = np.array([first_row * counts, 0, 0, domain], np.uint64)
    words = counts * _WORDS_PER_COUNT
    drawn = [
        np.random.Philox(key=np.array([seed, one], np.uint64), counter=counter).random_raw(
            rows // len(steps) * words
        )
        for one in steps
    ]
    return (drawn[0] if len(drawn) == 1 else np.concatenate(drawn)).reshape(rows, words)


def place_keys(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns sort keys in random order that hold their own column in the low bits, uint64 (B, n).

    The K lowest of a row are K columns chosen uniformly.
    """
    places = np.arange(words.shape[1], dtype=np.uint64)
    return (words >> _PLACE_BITS << _PLACE_BITS) | places


def places_of(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the columns that keys hold."""
    return (keys & _PLACE_MASK).astype(np.int64)
