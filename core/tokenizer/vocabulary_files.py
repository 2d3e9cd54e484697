"""Reads which token each id stands for from the tokenizer files beside a checkpoint.

The older formats are read for this comparison only: they can't encode text here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import StudioError
from core.foreign_files import read_json, read_regular
from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.roles import TOKENIZER_FILE

_MOST_BYTES = 64 << 20
_SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
# Ids of a SentencePiece model's fourth piece, after <unk>, <s> and </s>: T5's and others';
# XLM-RoBERTa's; CamemBERT's.
_FIRST_PIECE = 3
_OFFSETS = (0, 1, 4)
# BERT's vocabularies have them for tokens of one's own.
_UNUSED = "[unused"
# Wire types of protocol buffers.
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5

Tokens = dict[int, str]


def differing_tokens(folder: Path, tokenizer: StudioTokenizer) -> int | None:
    """Counts the ids that stand for other tokens in a folder's files; None if none can be read."""
    ours = tokenizer.tokens
    readings = _readings(folder)
    return min((_count_differing(ours, reading) for reading in readings), default=None)


def _count_differing(ours: Mapping[int, str], theirs: Mapping[int, str]) -> int:
    return sum(
        theirs.get(number, token) != token
        for number, token in ours.items()
        if not theirs.get(number, "").startswith(_UNUSED)
    )


def _readings(folder: Path) -> list[Tokens]:
    """Returns the tokens by id of the first readable file, once per possible offset."""
    readers: tuple[tuple[str, Callable[[Path], list[Tokens]]], ...] = (
        (TOKENIZER_FILE, lambda path: [StudioTokenizer(path.parent).tokens]),
        ("vocab.txt", _read_lines),
        ("vocab.json", _read_table),
        *((name, _read_sentencepiece) for name in _SENTENCEPIECE_FILES),
    )
    for name, read in readers:
        if not os.path.lexists(folder / name):
            continue
        try:
            return read(folder / name)
        except (StudioError, ValueError, IndexError):
            continue
    return []


def _read_lines(path: Path) -> list[Tokens]:
    text = read_regular(path, _MOST_BYTES).decode("utf-8")
    return [dict(enumerate(text.removesuffix("\n").replace("\r\n", "\n").split("\n")))]


def _read_table(path: Path) -> list[Tokens]:
    values: dict[str, Any] = {}
    for name in (path.name, "added_tokens.json"):
        table = read_json(path.parent / name, _MOST_BYTES) if (path.parent / name).exists() else {}
        values |= table if isinstance(table, dict) else {}
    return [{number: token for token, number in values.items() if isinstance(number, int)}]


def _read_sentencepiece(path: Path) -> list[Tokens]:
    pieces = list(_pieces(read_regular(path, _MOST_BYTES)))
    if len(pieces) <= _FIRST_PIECE:
        raise ValueError("it has no pieces")
    return [
        {index + offset: piece for index, piece in enumerate(pieces) if index >= _FIRST_PIECE}
        for offset in _OFFSETS
    ]


def _pieces(data: bytes) -> Iterator[str]:
    """Yields the pieces of a `ModelProto`: field 1, whose field 1 is the text.

    Source: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
    """
    for field, content in _fields(data):
        if field == 1:
            yield next(value.decode("utf-8") for name, value in _fields(content) if name == 1)


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the fields of a message that contain bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            _, place = _varint(data, place)
            continue
        length = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind)
        if kind == _BYTES:
            length, place = _varint(data, place)
        if length is None or place + length > len(data):
            raise ValueError("it isn't a SentencePiece model")
        if kind == _BYTES:
            yield key >> 3, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        value |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not data[place - 1] & 0x80:
            return value, place
    raise ValueError("it contains a number that is too long")
