"""Trains a byte-level BPE tokenizer like RoBERTa's.

Source: https://github.com/huggingface/transformers/tree/v4.57.0/examples/flax/language-modeling
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
from core.tokenizer.pre_tokenizers import PRE_TOKENIZATIONS, PreTokenization
from core.tokenizer.roles import Roles, parts_between, without_lone_surrogates

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = Roles(cls="<s>", sep="</s>", unk="<unk>", pad="<pad>", mask="<mask>")
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SMALLEST_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

# The same as in earlier versions.
_LONGEST_WORD = 1000

# A word begins at each: this \s includes all characters of the pre-tokenizer's.
_SPACE_BEFORE_RUN = re.compile(r" (?=\S)(?<=\S )")


def train_byte_level_bpe(
    texts: Iterable[str],
    vocab_size: int,
    min_frequency: int,
    reporter: Reporter,
    total: int | None = None,
    pre_tokenization: str = "gpt2",
) -> Tokenizer:
    """Trains a byte-level BPE tokenizer.

    Args:
        vocab_size: With special tokens and bytes.
        pre_tokenization: Name in PRE_TOKENIZATIONS.

    Raises:
        TokenizerError: The vocabulary has no room for the bytes.
        RunStopped: The reporter asked for it.
    """
    _check_room(vocab_size)
    counter = BytePairCounter(pre_tokenization)
    words = count_texts(reported(texts, total, reporter), counter)
    return train_on_words(words, vocab_size, min_frequency, reporter, pre_tokenization)


@dataclass(frozen=True)
class BytePairCounter:
    """Counts byte-level words."""

    pre_tokenization: str = "gpt2"

    def runs(self, text: str) -> list[str]:
        runs = []
        for part in parts_between(SPECIAL_TOKENS, without_lone_surrogates(text)):
            first, *others = _SPACE_BEFORE_RUN.split(part)
            runs.append(first)
            runs += [" " + run for run in others]
        return runs

    def words_of(self, runs: Counter[str]) -> Counter[str]:
        return split_runs(runs, _splitter(self.pre_tokenization))


def train_on_words(
    words: Mapping[str, int],
    vocab_size: int,
    min_frequency: int,
    reporter: Reporter,
    pre_tokenization: str = "gpt2",
) -> Tokenizer:
    """Trains on words that a BytePairCounter has counted, as `train_byte_level_bpe` does."""
    from tokenizers import pre_tokenizers

    _check_room(vocab_size)
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    on_step = merge_reporter(vocab_size, reporter)
    merges = learn_merges(words, tokens, vocab_size, min_frequency, on_step=on_step)
    return _assembled(merges, PRE_TOKENIZATIONS[pre_tokenization])


@cache
def _splitter(pre_tokenization: str) -> Tokenizer:
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = PRE_TOKENIZATIONS[pre_tokenization].pre_tokenizer(_LONGEST_WORD)
    return backend


def _assembled(merges: Merges, pre_tokenization: PreTokenization) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, processors

    vocabulary = {token: number for number, token in enumerate(merges.tokens)}
    ignores = {"ignore_merges": True} if pre_tokenization.ignores_merges else {}
    backend = Tokenizer(models.BPE(vocabulary, merges.pairs, **ignores))
    backend.add_special_tokens(
        [
            AddedToken(token, lstrip=token == ROLES.mask, normalized=False, special=True)
            for token in SPECIAL_TOKENS
        ]
    )
    backend.pre_tokenizer = pre_tokenization.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    sep, cls = (("</s>", SPECIAL_TOKENS.index("</s>")), ("<s>", SPECIAL_TOKENS.index("<s>")))
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=False)
    return backend


def _check_room(vocab_size: int) -> None:
    if vocab_size < SMALLEST_VOCAB_SIZE:
        raise TokenizerError(
            "⟬vocab_size⟭ is too small for the 256 byte tokens",
            expected=f"at least {SMALLEST_VOCAB_SIZE}: 256 byte tokens and {len(SPECIAL_TOKENS)} "
            "special tokens",
            received=f"⟬vocab_size={vocab_size}⟭",
            fix=f"raise ⟬vocab_size⟭ above {SMALLEST_VOCAB_SIZE}",
            field="vocab_size",
        )
