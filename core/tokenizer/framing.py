"""Finds the special tokens around a text by encoding probes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from core.errors import TokenizerError
from core.tokenizer.native import native_calls

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_PROBES = ("a", "The house, and 12 more.")
_ENOUGH_PROBES = 2
_SAMPLED_TOKENS = 200


class Frame(NamedTuple):
    """The ids before and after each text."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def find_frame(backend: Tokenizer) -> Frame:
    """Finds the special tokens around a text.

    Raises:
        TokenizerError: No text gives a token, or the post-processor does anything else.
    """
    frames: list[Frame | None] = []
    with native_calls():
        for probe in _probes(backend):
            bare = backend.encode(probe, add_special_tokens=False)
            if bare.ids:
                frames.append(_frame_around(bare, backend.encode(probe)))
            if len(frames) == _ENOUGH_PROBES:
                break
    if not frames:
        raise TokenizerError(
            "The tokenizer returns no tokens for any text",
            expected="a vocabulary with tokens that occur in text",
            received=f"{backend.get_vocab_size():,} tokens, none of which any test text produces",
            fix="train a tokenizer here, or choose another one",
            field="tokenizer",
        )
    first = frames[0]
    if first is None or any(frame != first for frame in frames):
        raise TokenizerError(
            "The tokenizer has an unsupported post-processor",
            expected="a post-processor that only adds special tokens before and after a text, or "
            "none",
            received="a post-processor that changes the tokens in another way",
            fix="train a tokenizer here, or choose another one",
            field="tokenizer",
        )
    return first


def without_end(encoding: Encoding) -> list[int]:
    """Returns ids up to the text's last one."""
    end = max((place for place, is_own in enumerate(_own(encoding), 1) if is_own), default=0)
    return list(encoding.ids[:end])


def _frame_around(bare: Encoding, whole: Encoding) -> Frame | None:
    ids, own = whole.ids, _own(whole)
    if True not in own:
        return None
    start = own.index(True)
    end = len(own) - own[::-1].index(True)
    if not all(own[start:end]) or ids[start:end] != bare.ids:
        return None
    return Frame(tuple(ids[:start]), tuple(ids[end:]))


def _own(encoding: Encoding) -> list[bool]:
    return [not is_special for is_special in encoding.special_tokens_mask]


def _probes(backend: Tokenizer) -> Iterator[str]:
    yield from _PROBES
    added = backend.get_added_tokens_decoder()
    own = sorted(set(backend.get_vocab(with_added_tokens=False).values()) - added.keys())
    sample = own[:: max(1, len(own) // _SAMPLED_TOKENS)]
    texts = [text for number in sample if (text := backend.decode([number]).strip())]
    yield from texts
    yield from (f"{first} {second}" for first, second in pairwise(texts))
    # The decoder may change tokens.
    written = [str(backend.id_to_token(number)) for number in sample]
    yield from (text.strip("▁Ġ# ") for text in written)
    yield from (token.content for token in added.values())
