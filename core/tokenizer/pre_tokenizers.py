"""Normalizers and pre-tokenizers of our tokenizers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

SPACE = "▁"
_UNIGRAM_WORDS = rf"{SPACE}+(?={SPACE})|{SPACE}?[^{SPACE}\n]+|{SPACE}|\n+"

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Published files have (?i:…), which also matches the letter ſ; llama.cpp doesn't.
CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
PUBLISHED_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_OTHER_WORDS = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenization:
    """Splits of a byte-level BPE.

    Attributes:
        in_llama_cpp: llama.cpp's name.
        words: A regular expression.
        splits_digits: Whether each digit is a word, without a space.
        ignores_merges: Whether a word that is a token needs no merges.
    """

    in_llama_cpp: str
    words: str
    splits_digits: bool = False
    ignores_merges: bool = False

    def pre_tokenizer(self, longest: int | None = None) -> PreTokenizer:
        """Returns the pre-tokenizer.

        Args:
            longest: Limit on the characters of a word.
        """
        from tokenizers import Regex, pre_tokenizers

        limited = self.words
        if longest:
            limited = limited.replace("+", f"{{1,{longest}}}").replace("*", f"{{0,{longest}}}")
        is_built_in = limited == _GPT2_WORDS
        steps = [
            *([pre_tokenizers.Digits(individual_digits=True)] if self.splits_digits else []),
            *([] if is_built_in else [pre_tokenizers.Split(Regex(limited), "isolated")]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=is_built_in),
        ]
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


# Sources: https://github.com/openai/gpt-2/blob/master/src/encoder.py, and tokenizer.json of
# HuggingFaceTB/SmolLM2-135M, Qwen/Qwen2-0.5B and meta-llama/Meta-Llama-3-8B.
PRE_TOKENIZATIONS = {
    "gpt2": PreTokenization("gpt-2", _GPT2_WORDS),
    "smollm": PreTokenization("smollm", _GPT2_WORDS, splits_digits=True),
    "qwen2": PreTokenization("qwen2", _OTHER_WORDS % ""),
    "llama3": PreTokenization("llama-bpe", _OTHER_WORDS % "{1,3}", ignores_merges=True),
}


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
            pre_tokenizers.Split(Regex(_UNIGRAM_WORDS), behavior="isolated"),
        ]
    )


def describe(component: Normalizer | PreTokenizer) -> dict[str, Any]:
    """Describes a component as `tokenizer.json` does."""
    return dict(json.loads(component.__getstate__()))
