"""What may befall a file: a byte that flips, an end that is cut off, the whole of it gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

FLIPS = 20


def flips_of(content: bytes, first: int = 0, last: int | None = None) -> Iterator[bytes]:
    """Yields the content with one byte changed, at 20 random places from `first` up to `last`."""
    generator = np.random.default_rng(len(content))
    for place in generator.integers(first, len(content) if last is None else last, FLIPS):
        changed = bytearray(content)
        changed[place] ^= int(generator.integers(1, 256))
        yield bytes(changed)


def damages_of(content: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Yields what is left after each damage with a word on it; None where the file is gone."""
    for changed in flips_of(content):
        yield "flipped", changed
    for size in (0, len(content) // 2, len(content) - 1):
        yield f"cut to {size} bytes", content[:size]
    yield "gone", None


def leave(path: Path, content: bytes | None) -> None:
    """Puts a file into the state that a damage left it in."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
