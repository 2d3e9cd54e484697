"""Normalizers and pre-tokenizers of our SentencePiece and Unigram tokenizers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

SPACE = "▁"
_WORDS = rf"{SPACE}+(?={SPACE})|{SPACE}?[^{SPACE}\n]+|{SPACE}|\n+"


def sentencepiece_normalizer(lowercase: bool) -> Normalizer:
    from tokenizers import Regex, normalizers

    return normalizers.Sequence(
        [
            normalizers.Nmt(),
            normalizers.NFKC(),
            normalizers.Replace(Regex(" {2,}"), " "),
            *([normalizers.Lowercase()] if lowercase else []),
        ]
    )


def sentencepiece_pre_tokenizer() -> PreTokenizer:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(SPACE, prepend_scheme="always"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Punctuation(),
        ]
    )


def unigram_pre_tokenizer() -> PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    # The decoder removes one mark, which Metaspace alone omits before a text that begins with a
    # space. The first step leaves no spaces.
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=False),
            pre_tokenizers.Metaspace(" ", prepend_scheme="first", split=False),
            pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=False),
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
        ]
    )


def describe(component: Normalizer | PreTokenizer) -> dict[str, Any]:
    """Describes a component as `tokenizer.json` does."""
    return dict(json.loads(component.__getstate__()))
