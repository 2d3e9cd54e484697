"""Trains a byte-level BPE tokenizer like RoBERTa's.

Source: https://github.com/huggingface/transformers/tree/v4.57.0/examples/flax/language-modeling;
pre-tokenizer: https://github.com/openai/gpt-2/blob/master/src/encoder.py
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from core.errors import TokenizerError
from core.records.events import Reporter
from core.tokenizer.counters import split_runs
from core.tokenizer.counting import count_texts, reported
from core.tokenizer.merging import Merges, learn_merges, merge_reporter
from core.tokenizer.roles import Roles, parts_between, without_lone_surrogates

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = Roles(cls="<s>", sep="</s>", unk="<unk>", pad="<pad>", mask="<mask>")
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SMALLEST_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

# The same as in earlier versions.
_LONGEST_WORD = 1000
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# A word begins at each: this \s includes all characters of the pre-tokenizer's.
_SPACE_BEFORE_RUN = re.compile(r" (?=\S)(?<=\S )")


def train_byte_level_bpe(
    texts: Iterable[str],
    vocab_size: int,
    min_frequency: int,
    reporter: Reporter,
    total: int | None = None,
) -> Tokenizer:
    """Trains a byte-level BPE tokenizer.

    Args:
        vocab_size: With special tokens and bytes.

    Raises:
        TokenizerError: The vocabulary has no room for the bytes.
        RunStopped: The reporter asked for it.
    """
    _check_room(vocab_size)
    words = count_texts(reported(texts, total, reporter), BytePairCounter())
    return train_on_words(words, vocab_size, min_frequency, reporter)


@dataclass(frozen=True)
class BytePairCounter:
    """Counts byte-level words."""

    def runs(self, text: str) -> list[str]:
        runs = []
        for part in parts_between(SPECIAL_TOKENS, without_lone_surrogates(text)):
            first, *others = _SPACE_BEFORE_RUN.split(part)
            runs.append(first)
            runs += [" " + run for run in others]
        return runs

    def words_of(self, runs: Counter[str]) -> Counter[str]:
        return split_runs(runs, _splitter())


def train_on_words(
    words: Mapping[str, int], vocab_size: int, min_frequency: int, reporter: Reporter
) -> Tokenizer:
    """Trains on words that a BytePairCounter has counted, as `train_byte_level_bpe` does."""
    from tokenizers import pre_tokenizers

    _check_room(vocab_size)
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    on_step = merge_reporter(vocab_size, reporter)
    return _assembled(learn_merges(words, tokens, vocab_size, min_frequency, on_step=on_step))


@cache
def _splitter() -> Tokenizer:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS.replace("+", f"{{1,{_LONGEST_WORD}}}")), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend


def _assembled(merges: Merges) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = {token: number for number, token in enumerate(merges.tokens)}
    backend = Tokenizer(models.BPE(vocabulary, merges.pairs))
    backend.add_special_tokens(
        [
            AddedToken(token, lstrip=token == ROLES.mask, normalized=False, special=True)
            for token in SPECIAL_TOKENS
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    sep, cls = (("</s>", SPECIAL_TOKENS.index("</s>")), ("<s>", SPECIAL_TOKENS.index("<s>")))
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=False)
    return backend


def _check_room(vocab_size: int) -> None:
    if vocab_size < SMALLEST_VOCAB_SIZE:
        raise TokenizerError(
            "vocab_size is too small for the 256 byte tokens",
            expected=f"at least {SMALLEST_VOCAB_SIZE}: 256 byte tokens and {len(SPECIAL_TOKENS)} "
            "special tokens",
            received=f"vocab_size={vocab_size}",
            fix=f"raise vocab_size above {SMALLEST_VOCAB_SIZE}",
            field="vocab_size",
        )
