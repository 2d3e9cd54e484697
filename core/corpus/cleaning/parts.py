"""Keeps parts of a corpus in files, so that memory grows with a part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from core.corpus.cleaning.blocks import Flags, Places
from core.errors import CorpusError
from core.workspace.atomic import writing_whole_file

# Held-out documents precede training documents, and those of other corpora precede both.
REFERENCE, VALIDATION, TRAIN = 0, 1, 2
PART_BYTES = 16 << 20

Kinds = npt.NDArray[np.uint8]


class DamagedPartError(CorpusError):
    """A saved part can't be used."""


@dataclass(frozen=True)
class Batch:
    """Successive documents of a corpus.

    Attributes:
        numbers: Places in the corpus, from 0, apart from references, (documents,).
        kinds: REFERENCE, VALIDATION or TRAIN, (documents,).
        source: Name of their source; empty without named sources, and in files.
    """

    texts: Sequence[str]
    numbers: Places
    kinds: Kinds
    source: str = ""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def is_reference(self) -> bool:
        return bool(len(self.kinds)) and bool(self.kinds[0] == REFERENCE)

    def take(self, keep: Flags) -> Batch:
        """Returns the chosen documents."""
        texts = [self.texts[place] for place in np.flatnonzero(keep).tolist()]
        return replace(self, texts=texts, numbers=self.numbers[keep], kinds=self.kinds[keep])

    def with_texts(self, texts: Sequence[str]) -> Batch:
        return replace(self, texts=texts)


def split_parts(documents: Iterable[tuple[int, str, str]], part_bytes: int) -> Iterator[Batch]:
    """Groups (kind, source, text) into parts; references and each source have their own."""
    texts: list[str] = []
    kinds: list[int] = []
    first = size = 0
    current = ""
    for kind, source, text in documents:
        begins_own = bool(kinds) and kinds[-1] == REFERENCE != kind
        if texts and (size >= part_bytes or begins_own or source != current):
            yield _batch(texts, kinds, first, current)
            first = 0 if begins_own else first + len(texts)
            texts, kinds, size = [], [], 0
        current = source
        texts.append(text)
        kinds.append(kind)
        size += len(text) if text.isascii() else len(text.encode())
    if texts:
        yield _batch(texts, kinds, first, current)


def _batch(texts: list[str], kinds: list[int], first: int, source: str) -> Batch:
    return Batch(texts, np.arange(first, first + len(texts)), np.array(kinds, np.uint8), source)


def write_batch(path: Path, batch: Batch) -> None:
    data = [text.encode() for text in batch.texts]
    sizes = np.fromiter(map(len, data), np.int64, len(data))
    text = np.frombuffer(b"".join(data), np.uint8)
    with writing_whole_file(path) as draft, draft.open("wb") as file:
        np.savez(file, text=text, sizes=sizes, numbers=batch.numbers, kinds=batch.kinds)


def read_batch(path: Path) -> Batch:
    """Reads a part's documents; raises DamagedPartError."""
    with reading_part(path), np.load(path, allow_pickle=False) as arrays:
        data = arrays["text"].tobytes()
        stops = np.cumsum(arrays["sizes"])
        places = zip((stops - arrays["sizes"]).tolist(), stops.tolist(), strict=True)
        texts = [data[start:stop].decode() for start, stop in places]
        return Batch(texts, arrays["numbers"], arrays["kinds"])


@contextmanager
def reading_part(path: Path) -> Iterator[None]:
    """Raises DamagedPartError if a file of a part is missing or damaged."""
    try:
        yield
    # A zip file has checksums.
    except (FileNotFoundError, BadZipFile, EOFError, ValueError, KeyError, TypeError) as error:
        raise DamagedPartError(
            f"A part of the corpus in {path.parent} is missing or damaged",
            expected="the files that this cleaning wrote before it was stopped",
            received=f"{path.name}: {error}",
            fix="start the cleaning again; it begins from the start",
        ) from error
