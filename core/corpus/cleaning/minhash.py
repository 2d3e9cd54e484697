"""MinHash signatures: documents with similar word windows get equal band keys.

Source: Broder 1997, "On the resemblance and containment of documents"; Leskovec, Rajaraman and
Ullman, Mining of Massive Datasets, section 3.4, for bands.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from core.corpus.cleaning.blocks import Hashes, Places, mix
from core.corpus.holdout import window_hashes

# Source: the increment of SplitMix64, Steele et al. 2014.
_GOLDEN = 0x9E3779B97F4A7C15
_KEY_BASE = 0xC2B2AE3D27D4EB4F
_LARGEST = np.uint64(0xFFFFFFFFFFFFFFFF)
# Larger pieces leave the processor's cache.
_PIECE = 1 << 15
# A document without windows has this key, which matches none.
NO_KEY = np.uint64(0)


def band_keys(
    documents: Iterable[bytes], count: int, *, bands: int, rows: int, words: int
) -> Hashes:
    """Returns a key per band and document, (bands, count).

    Documents whose word windows have the share s in common get an equal key in any band with
    probability 1 - (1 - s**rows)**bands.

    Args:
        count: Number of documents.
        words: Words in a window.
    """
    signatures = np.full((bands * rows, count), _LARGEST)
    for hashes, owners in window_hashes(documents, words):
        for start in range(0, len(hashes), _PIECE):
            piece = slice(start, start + _PIECE)
            _lower(signatures, mix(hashes[piece]), owners[piece])
    keys = np.zeros((bands, count), np.uint64)
    for row in range(rows):
        keys = keys * np.uint64(_KEY_BASE) + mix(signatures[row::rows])
    keys = np.maximum(mix(keys), np.uint64(1))
    keys[:, signatures[0] == _LARGEST] = NO_KEY
    return keys


def _lower(signatures: Hashes, hashes: Hashes, owners: Places) -> None:
    """Lowers signatures to the hashes' minima under each permutation."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    documents = owners[starts]
    factors, offsets = _permutations(len(signatures))
    for row, factor, offset in zip(signatures, factors, offsets, strict=True):
        minima = np.minimum.reduceat(hashes * factor + offset, starts)
        row[documents] = np.minimum(row[documents], minima)


@lru_cache(maxsize=4)
def _permutations(count: int) -> tuple[Hashes, Hashes]:
    """Returns odd factors and offsets of linear permutations modulo 2**64."""
    numbers = np.arange(1, 2 * count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    drawn = mix(mix(numbers))
    return drawn[:count] | np.uint64(1), drawn[count:]
