"""Trains a Unigram tokenizer like Hugging Face's TPU example, but keeps all whitespace.

Source:
https://github.com/huggingface/transformers/blob/v4.57.0/examples/tensorflow/language-modeling-tpu/train_unigram.py
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.errors import TokenizerError
from core.records.events import Reporter
from core.tokenizer.counting import count_texts, reported
from core.tokenizer.em import ChosenPieces, choose_pieces
from core.tokenizer.pre_tokenizers import SPACE, unigram_pre_tokenizer
from core.tokenizer.roles import Roles, parts_between
from core.tokenizer.words import characters_of, rare_characters, sample_words

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = Roles(cls="[CLS]", sep="[SEP]", unk="<unk>", pad="<pad>", mask="[MASK]")
SPECIAL_TOKENS = ("[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]")

_REPLACED = {"``": '"', "''": '"'}
_COUNTED = rf"{SPACE}{{1,32}}(?={SPACE})|{SPACE}?[^{SPACE}\n]{{1,31}}|{SPACE}|\n{{1,32}}"

_SAMPLED_CHARACTERS = 1_000_000
_SAMPLED_CHARACTERS_PER_TOKEN = 60
# Finer scores differ between processors; core.shards.fragments needs a power of two.
_UNIT_OF_SCORES = 2.0**-13


def train_unigram(
    texts: Iterable[str], vocab_size: int, reporter: Reporter, total: int | None = None
) -> Tokenizer:
    """Trains a deterministic tokenizer, smaller if the text supports fewer tokens.

    Raises:
        TokenizerError: The text has more distinct characters.
        RunStopped: The reporter asked for it.
    """
    words = count_texts(reported(texts, total, reporter), UnigramCounter())
    return train_on_words(words, vocab_size, reporter)


def train_on_words(words: Mapping[str, int], vocab_size: int, reporter: Reporter) -> Tokenizer:
    """Trains on words that a UnigramCounter has counted, as `train_unigram` does."""
    count = vocab_size - len(SPECIAL_TOKENS)
    rare = rare_characters(words, count // 2)
    if rare:
        words = without_characters(words, rare)
        reporter.warn(f"{len(rare):,} rare characters have no token and are encoded as <unk>")
    _check_room(vocab_size, len(characters_of(words)))
    return _assembled(choose_from(words, count, vocab_size, reporter))


def choose_from(
    words: Mapping[str, int], count: int, vocab_size: int, reporter: Reporter
) -> ChosenPieces:
    """Chooses pieces from sampled words, or all if the sample supports too few."""
    budget = max(_SAMPLED_CHARACTERS, vocab_size * _SAMPLED_CHARACTERS_PER_TOKEN)
    sample = sample_words(words, budget)
    chosen = choose_pieces(sample, count, _Steps(reporter))
    if chosen.possible < count and len(sample) < len(words):
        chosen = choose_pieces(words, count, _Steps(reporter))
    return chosen


@dataclass(frozen=True)
class UnigramCounter:
    """Counts the tokenizer's words."""

    def runs(self, text: str) -> list[str]:
        find = re.compile(_COUNTED).findall
        parts = parts_between(SPECIAL_TOKENS, SPACE + _normalised(text))
        return [word for part in parts for word in find(part)]

    def words_of(self, runs: Counter[str]) -> Counter[str]:
        return runs


def without_characters(words: Mapping[str, int], characters: set[str]) -> Counter[str]:
    """Drops characters, splitting words there."""
    cut = re.compile("[" + "".join(map(re.escape, sorted(characters))) + "]").split
    remaining: Counter[str] = Counter()
    for word, count in words.items():
        parts = [word] if characters.isdisjoint(word) else cut(word)
        for part in filter(None, parts):
            remaining[part] += count
    return remaining


def _normalised(text: str) -> str:
    for old, new in _REPLACED.items():
        text = text.replace(old, new)
    return text.replace(" ", SPACE)


class _Steps:
    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._done = 0

    def __call__(self, note: str) -> None:
        self._reporter.raise_if_stopped()
        self._done += 1
        self._reporter.progress(self._done, None, "steps", f"choosing tokens: {note}")


def _check_room(vocab_size: int, characters: int) -> None:
    needed = characters + len(SPECIAL_TOKENS)
    if vocab_size < needed:
        raise TokenizerError(
            "⟬vocab_size⟭ is too small for the characters of the text",
            expected=f"at least {needed:,}: {characters:,} different characters and "
            f"{len(SPECIAL_TOKENS)} special tokens",
            received=f"⟬vocab_size={vocab_size}⟭",
            fix=f"raise ⟬vocab_size⟭ well above {needed:,}, or set ⟬algorithm⟭ to "
            "⟬algorithm:byte_level_bpe⟭, which needs no token per character",
            field="vocab_size",
        )


def _assembled(chosen: ChosenPieces) -> Tokenizer:
    from tokenizers import (
        AddedToken,
        Tokenizer,
        decoders,
        models,
        normalizers,
        processors,
    )

    vocabulary = [*((token, 0.0) for token in SPECIAL_TOKENS), *rounded_scores(chosen)]
    backend = Tokenizer(models.Unigram(vocabulary, SPECIAL_TOKENS.index("<unk>")))
    backend.add_special_tokens(
        [
            AddedToken(token, lstrip=token == ROLES.mask, normalized=False, special=True)
            for token in SPECIAL_TOKENS
        ]
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(old, new) for old, new in _REPLACED.items()]
    )
    backend.pre_tokenizer = unigram_pre_tokenizer()
    backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="first", split=False)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return backend


def rounded_scores(chosen: ChosenPieces) -> list[tuple[str, float]]:
    """Rounds scores, so processors agree, and sorts them."""
    rounded: list[Any] = [
        (piece, round(score / _UNIT_OF_SCORES) * _UNIT_OF_SCORES)
        for piece, score in zip(chosen.pieces, chosen.scores, strict=True)
    ]
    rounded.sort(key=lambda entry: (-entry[1], entry[0]))
    return rounded
