"""Trains a Unigram tokenizer for T5.

Source:
https://github.com/huggingface/transformers/blob/v4.57.0/examples/flax/language-modeling/t5_tokenizer_model.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from core.errors import TokenizerError
from core.records.events import Reporter
from core.tokenizer.counters import normalised_runs, split_runs
from core.tokenizer.counting import count_texts, reported
from core.tokenizer.em import ChosenPieces
from core.tokenizer.pre_tokenizers import (
    SPACE,
    sentencepiece_normalizer,
    sentencepiece_pre_tokenizer,
)
from core.tokenizer.roles import Roles
from core.tokenizer.unigram import choose_from, rounded_scores, without_characters
from core.tokenizer.words import rare_characters

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = Roles(sep="</s>", unk="<unk>", pad="<pad>")
SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")

_LONGEST_WORD = 32


def train_sentencepiece(
    texts: Iterable[str],
    vocab_size: int,
    reporter: Reporter,
    total: int | None = None,
    *,
    sentinels: int = 100,
    lowercase: bool = False,
) -> Tokenizer:
    """Trains a deterministic tokenizer, smaller if the text supports fewer tokens.

    Args:
        vocab_size: With special tokens and sentinels.

    Raises:
        TokenizerError: The vocabulary has no room for characters and sentinels.
        RunStopped: The reporter asked for it.
    """
    counter = SentencepieceCounter(sentinels, lowercase)
    words = count_texts(reported(texts, total, reporter), counter)
    return train_on_words(words, vocab_size, reporter, sentinels=sentinels, lowercase=lowercase)


@dataclass(frozen=True)
class SentencepieceCounter:
    """Counts the tokenizer's words."""

    sentinels: int
    lowercase: bool

    def runs(self, text: str) -> list[str]:
        names = (*SPECIAL_TOKENS, *sentinel_names(self.sentinels))
        return normalised_runs(text, names, _reading_frame(self.lowercase))

    def words_of(self, runs: Counter[str]) -> Counter[str]:
        return split_runs(runs, _reading_frame(self.lowercase))


def train_on_words(
    counted: Mapping[str, int],
    vocab_size: int,
    reporter: Reporter,
    *,
    sentinels: int,
    lowercase: bool,
) -> Tokenizer:
    """Trains on words that a SentencepieceCounter has counted, as `train_sentencepiece` does."""
    count = vocab_size - len(SPECIAL_TOKENS) - sentinels
    words = _in_parts(counted)
    words[SPACE] += 1  # it may occur only between texts
    rare = rare_characters(words, count // 2)
    if rare:
        words = without_characters(words, rare)
        reporter.warn(f"{len(rare):,} rare characters have no token and are encoded as <unk>")
    _check_room(vocab_size, sentinels, len({character for word in words for character in word}))
    chosen = choose_from(words, count, vocab_size, reporter)
    return _assembled(_frame(lowercase), chosen, sentinel_names(sentinels))


@cache
def sentinel_names(count: int) -> tuple[str, ...]:
    """Returns sentinels by ascending id: `<extra_id_0>` comes last."""
    return tuple(f"<extra_id_{number}>" for number in reversed(range(count)))


@cache
def _reading_frame(lowercase: bool) -> Tokenizer:
    return _frame(lowercase)


def _frame(lowercase: bool) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models

    backend = Tokenizer(models.Unigram())
    backend.normalizer = sentencepiece_normalizer(lowercase)
    backend.pre_tokenizer = sentencepiece_pre_tokenizer()
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    return backend


def _in_parts(words: Mapping[str, int]) -> Counter[str]:
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for start in range(0, len(word), _LONGEST_WORD):
            parts[word[start : start + _LONGEST_WORD]] += count
    return parts


def _check_room(vocab_size: int, sentinels: int, characters: int) -> None:
    needed = characters + len(SPECIAL_TOKENS) + sentinels
    if vocab_size < needed:
        raise TokenizerError(
            "⟬vocab_size⟭ is too small for the characters of the text",
            expected=f"at least {needed:,}: {characters:,} different characters, "
            f"{len(SPECIAL_TOKENS)} special tokens and {sentinels} sentinels",
            received=f"⟬vocab_size={vocab_size}⟭",
            fix=f"raise ⟬vocab_size⟭ well above {needed:,}, or lower ⟬sentinels⟭",
            field="vocab_size",
        )


def _assembled(backend: Tokenizer, chosen: ChosenPieces, sentinels: Sequence[str]) -> Tokenizer:
    from tokenizers import AddedToken, models, processors

    vocabulary = [*((token, 0.0) for token in SPECIAL_TOKENS), *rounded_scores(chosen)]
    backend.model = models.Unigram(vocabulary, SPECIAL_TOKENS.index("<unk>"))
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    # Sentinels take the space before them, as the replaced tokens did.
    backend.add_special_tokens(
        [AddedToken(token, lstrip=True, normalized=False, special=True) for token in sentinels]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="$A:0 </s>:0",
        pair="$A:0 </s>:0 $B:0 </s>:0",
        special_tokens=[("</s>", SPECIAL_TOKENS.index("</s>"))],
    )
    return backend
