"""Finds places where the parts of a text encode to the same tokens as the whole."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.tokenizer.pre_tokenizers import (
    describe,
    sentencepiece_normalizer,
    sentencepiece_pre_tokenizer,
    unigram_pre_tokenizer,
)

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

# Units that UTF-8 never contains. PLACEHOLDER begins the stand-in for an uncut text.
BEGIN, END, SEAM, PLACEHOLDER, MARK = 0xFF, 0xFE, 0xFD, 0xFC, 0xFB

_SPACE, _NEWLINE = b" \n"
_SEPARATORS = np.isin(np.arange(256), [BEGIN, END, SEAM, MARK])
_WHITESPACE = np.isin(np.arange(256), list(b" \t\n\r"))
# Whitespace for some libraries only.
_OTHER_WHITESPACE = [
    character.encode()
    for character in "\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2001\u2002\u2003\u2004"
    "\u2005\u2006\u2007\u2008\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
]

# Map each character by itself.
_LOCAL_NORMALIZERS = {"NFC", "NFD", "Lowercase"}
_LOCAL_UP_TO_SPACES = _LOCAL_NORMALIZERS | {"NFKC", "NFKD", "StripAccents", "Nmt", "BertNormalizer"}
_SPLIT_AT_SPACES = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}


METASPACE = "▁"
_SENTINELS = b"<extra_id_"


@dataclass(frozen=True)
class Delimiter:
    """A special token that can separate any two texts; no text produces it."""

    text: bytes
    id: int


@dataclass(frozen=True)
class UnitRule:
    """Settings for cutting text into units.

    Attributes:
        starts: Returns unit starts in UTF-8, from 0.
        uncertain_texts: Texts with these stay whole.
        uncertain_beginnings: Documents with these prefixes stay whole.
        document_prefix: Added by the tokenizer.
        replaced: Before splitting.
        space_mark: The model's space, if it can get units directly.
    """

    starts: Callable[[Bytes], Places]
    uncertain_texts: tuple[bytes, ...]
    uncertain_places: Callable[[Bytes], Places] | None = None
    uncertain_beginnings: tuple[bytes, ...] = ()
    document_prefix: bytes = b""
    replaced: tuple[tuple[bytes, bytes], ...] = ()
    space_mark: bytes = b""

    def keeps_whole(self, texts: Sequence[bytes]) -> set[int]:
        """Returns the indices of texts that must not be cut."""
        joined = bytes([SEAM]).join(texts)
        positions = [_find_all(joined, wanted) for wanted in self.uncertain_texts]
        if self.uncertain_places is not None:
            positions.append(self.uncertain_places(np.frombuffer(joined, np.uint8)))
        uncertain_places = np.concatenate([np.empty(0, np.int64), *positions])
        numbers = {n for n, text in enumerate(texts) if self._begins_uncertainly(text)}
        if not len(uncertain_places):
            return numbers
        seams = np.flatnonzero(np.frombuffer(joined, np.uint8) == SEAM)
        return numbers | set(np.searchsorted(seams, uncertain_places).tolist())

    def splits_units(self, texts: Sequence[bytes], places: Sequence[Places]) -> set[int]:
        """Returns the indices of texts with a place within a unit."""
        joined = bytes([SEAM]).join([*texts, b""])
        lengths = np.array([len(text) + 1 for text in texts], np.int64)
        firsts = np.repeat(np.cumsum(lengths) - lengths, [len(of_text) for of_text in places])
        numbers = np.repeat(np.arange(len(texts)), [len(of_text) for of_text in places])
        everywhere = firsts + np.concatenate([np.empty(0, np.int64), *places])
        begins = np.zeros(len(joined) + 1, np.bool_)
        begins[self.starts(np.frombuffer(joined, np.uint8))] = True
        return set(numbers[~begins[everywhere]].tolist())

    def _begins_uncertainly(self, text: bytes) -> bool:
        return not text or text.startswith(self.uncertain_beginnings)

    def cut(self, text: bytes) -> tuple[bytes, Places]:
        """Applies replacements; returns the text and unit starts."""
        for old, new in self.replaced:
            text = text.replace(old, new)
        return text, self.starts(np.frombuffer(text, np.uint8))


def unit_rule(specification: dict[str, Any]) -> UnitRule | None:
    """Returns a `tokenizer.json`'s rule, if one is certain."""
    if _is_random(specification["model"]) or not _added_tokens_are_simple(specification):
        return None
    added = tuple(token["content"].encode() for token in specification["added_tokens"])
    normalizer = specification["normalizer"]
    splitter = specification["pre_tokenizer"] or {"type": "none"}
    if _splits_at_spaces(splitter) and _keeps_words_apart(normalizer, _LOCAL_UP_TO_SPACES):
        return UnitRule(starts_at_spaces, added)
    if _is_plain_byte_level(splitter) and _keeps_words_apart(normalizer, _LOCAL_NORMALIZERS):
        return UnitRule(starts_at_whitespace, added, other_whitespace)
    if splitter == describe(sentencepiece_pre_tokenizer()) and _is_of_sentencepiece(normalizer):
        texts = {_SENTINELS if text.startswith(_SENTINELS) else text for text in added}
        return UnitRule(starts_at_spaces, (*sorted(texts), b"  "), _find_new_spaces())
    if splitter == describe(unigram_pre_tokenizer()) and _keeps_words_apart(normalizer, set()):
        return _words_and_newlines_rule(added, _replacements(normalizer))
    return None


def _words_and_newlines_rule(
    added: tuple[bytes, ...], replaced: tuple[tuple[bytes, bytes], ...]
) -> UnitRule | None:
    if any(not new or new in token for _, new in replaced for token in added):
        return None
    mark = METASPACE.encode()
    return UnitRule(
        starts_at_runs,
        uncertain_texts=(*added, mark),
        # No space is added before these.
        uncertain_beginnings=tuple(old[:1] for old, _ in replaced),
        document_prefix=b" ",
        replaced=replaced,
        space_mark=mark,
    )


def find_delimiter(specification: dict[str, Any]) -> Delimiter | None:
    """Returns a special token that separates any two texts.

    It matches anywhere and never comes out of text.
    """
    model = specification["model"]
    contents = [token["content"] for token in specification["added_tokens"]]
    for token in specification["added_tokens"]:
        takes_more = token["lstrip"] or token["rstrip"] or token["single_word"]
        unknown = (model.get("unk_id"), model.get("unk_token"))
        is_unknown = token["id"] == unknown[0] or token["content"] == unknown[1]
        if takes_more or token["normalized"] or is_unknown or not token["special"]:
            continue
        if not any(_can_hide(token["content"], other) for other in contents):
            return Delimiter(token["content"].encode(), token["id"])
    return None


def starts_at_spaces(text: Bytes) -> Places:
    """Finds unit starts at spaces, as for Metaspace."""
    starts = text == _SPACE
    return _with_separators(starts, _SEPARATORS[text])


def starts_at_runs(text: Bytes) -> Places:
    """Finds unit starts of the Unigram pre-tokenizer."""
    space, newline = text == _SPACE, text == _NEWLINE
    inner = np.zeros_like(space)
    inner[1:-1] = space[:-2] & space[2:]
    starts = space & ~inner
    starts[1:] |= newline[1:] ^ newline[:-1]
    return _with_separators(starts, _SEPARATORS[text])


def starts_at_whitespace(text: Bytes) -> Places:
    r"""Finds unit starts for GPT-2's regular expression.

    All but a run's last whitespace form one word (`\s+(?!\S)`).

    Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py
    """
    white, separator = _WHITESPACE[text], _SEPARATORS[text]
    after_white = np.zeros_like(white)
    after_white[1:] = white[:-1]
    before_word = np.zeros_like(white)
    before_word[:-1] = ~(white | separator)[1:]
    return _with_separators(white & (~after_white | before_word), separator)


def other_whitespace(text: Bytes) -> Places:
    """Finds whitespace other than space, tab, newline and carriage return."""
    return _find_other_whitespace(text)


class _Finder:
    def __init__(self, characters: Sequence[bytes]) -> None:
        self._is_first = np.isin(np.arange(256), [character[0] for character in characters])
        self._codes = [
            np.array([int.from_bytes(c) for c in characters if len(c) == size], np.uint32)
            for size in (1, 2, 3)
        ]

    def __call__(self, text: Bytes) -> Places:
        positions = np.flatnonzero(self._is_first[text])
        if not len(positions):
            return positions
        padded = np.concatenate((text, np.zeros(2, np.uint8)))
        first, second, third = (padded[positions + shift].astype(np.uint32) for shift in range(3))
        is_match = np.isin(first, self._codes[0])
        is_match |= np.isin(first << 8 | second, self._codes[1])
        is_match |= np.isin(first << 16 | second << 8 | third, self._codes[2])
        return positions[is_match]


_find_other_whitespace = _Finder(_OTHER_WHITESPACE)


@lru_cache(maxsize=1)
def _find_new_spaces() -> _Finder:
    """NMT and NFKC turn these into spaces, or remove them."""
    codes = [code for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    space_codes = [code for code in codes if " " in unicodedata.normalize("NFKC", chr(code))]
    control = [*range(0x20), *range(0x7F, 0xA0)]
    made_spaces = [0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD]
    every = {*space_codes, *control, *made_spaces} - {ord(" ")}
    return _Finder([chr(code).encode() for code in sorted(every)])


def _with_separators(starts: NDArray[np.bool_], separator: NDArray[np.bool_]) -> Places:
    starts |= separator
    starts[1:] |= separator[:-1]
    starts[:1] = True
    return np.flatnonzero(starts)


def _can_hide(token: str, other: str) -> bool:
    if token in other and token != other:
        return True
    return any(other.endswith(token[:length]) for length in range(1, len(token)))


def _is_random(model: dict[str, Any]) -> bool:
    return bool(model.get("dropout") or model.get("alpha"))


def _added_tokens_are_simple(specification: dict[str, Any]) -> bool:
    has_normalizer = specification["normalizer"] is not None
    return not any(
        len(token["content"].split()) != 1
        or token["rstrip"]
        or (token["normalized"] and has_normalizer)
        for token in specification["added_tokens"]
    )


def _splits_at_spaces(splitter: dict[str, Any]) -> bool:
    if splitter["type"] == "Metaspace":
        return splitter["split"] and splitter["prepend_scheme"] in ("always", "never")
    return splitter["type"] in _SPLIT_AT_SPACES


def _is_plain_byte_level(splitter: dict[str, Any]) -> bool:
    is_byte_level = splitter["type"] == "ByteLevel"
    return is_byte_level and splitter["use_regex"] and not splitter["add_prefix_space"]


def _keeps_words_apart(normalizer: dict[str, Any] | None, known: set[str]) -> bool:
    if normalizer is None:
        return True
    if normalizer["type"] == "Sequence":
        return all(_keeps_words_apart(step, known) for step in normalizer["normalizers"])
    if normalizer["type"] == "Replace":
        texts = (normalizer["pattern"].get("String", " "), normalizer["content"])
        return all(text.split() == [text] for text in texts)
    return normalizer["type"] in known


def _is_of_sentencepiece(normalizer: dict[str, Any] | None) -> bool:
    known = [describe(sentencepiece_normalizer(lower)) for lower in (False, True)]
    return normalizer in known


def _replacements(normalizer: dict[str, Any] | None) -> tuple[tuple[bytes, bytes], ...]:
    if normalizer is None:
        return ()
    if normalizer["type"] == "Sequence":
        return tuple(pair for step in normalizer["normalizers"] for pair in _replacements(step))
    return ((normalizer["pattern"]["String"].encode(), normalizer["content"].encode()),)


def _find_all(text: bytes, wanted: bytes) -> Places:
    positions = []
    position = text.find(wanted)
    while position >= 0:
        positions.append(position)
        position = text.find(wanted, position + len(wanted))
    return np.array(positions, np.int64)
