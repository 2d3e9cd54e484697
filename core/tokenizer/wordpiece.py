"""Trains a WordPiece tokenizer like BERT's, deterministically.

The trainer of `tokenizers` breaks ties by hash order unless it gets characters in order.

Source: Devlin et al., https://arxiv.org/abs/1810.04805;
https://github.com/google-research/bert/blob/master/tokenization.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from core.errors import TokenizerError
from core.records.events import Reporter
from core.tokenizer.counters import normalised_runs, split_runs
from core.tokenizer.counting import count_texts, reported
from core.tokenizer.merging import learn_merges, merge_reporter
from core.tokenizer.roles import Roles
from core.tokenizer.words import rare_characters

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = Roles(cls="[CLS]", sep="[SEP]", unk="[UNK]", pad="[PAD]", mask="[MASK]")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_PREFIX = "##"
_LONGEST_WORD = 100
# Each takes up to two tokens, which leaves half for longer ones.
_SHARE_OF_CHARACTERS = 4
# Above this, long words explain a small vocabulary.
_MOSTLY = 0.5


def train_wordpiece(
    texts: Iterable[str],
    vocab_size: int,
    min_frequency: int,
    reporter: Reporter,
    total: int | None = None,
    *,
    lowercase: bool = False,
    strip_accents: bool | None = None,
) -> Tokenizer:
    """Trains a WordPiece tokenizer, smaller if the text supports fewer tokens.

    Args:
        strip_accents: None: if text is lower-cased, as BERT does.

    Raises:
        TokenizerError: Too many distinct characters, or mostly too long words.
        RunStopped: The reporter asked for it.
    """
    counter = WordpieceCounter(lowercase, strip_accents)
    words = count_texts(reported(texts, total, reporter), counter)
    return train_on_words(
        words, vocab_size, min_frequency, reporter,
        lowercase=lowercase, strip_accents=strip_accents,
    )  # fmt: skip


@dataclass(frozen=True)
class WordpieceCounter:
    """Counts the tokenizer's words."""

    lowercase: bool
    strip_accents: bool | None

    def runs(self, text: str) -> list[str]:
        return normalised_runs(
            text, SPECIAL_TOKENS, _reading_frame(self.lowercase, self.strip_accents)
        )

    def words_of(self, runs: Counter[str]) -> Counter[str]:
        return split_runs(runs, _reading_frame(self.lowercase, self.strip_accents))


def train_on_words(
    words: Mapping[str, int],
    vocab_size: int,
    min_frequency: int,
    reporter: Reporter,
    *,
    lowercase: bool,
    strip_accents: bool | None,
) -> Tokenizer:
    """Trains on words that a WordpieceCounter has counted, as `train_wordpiece` does."""
    unreadable = _share_too_long(words, reporter)
    rare = rare_characters(words, vocab_size // _SHARE_OF_CHARACTERS)
    if rare:
        reporter.warn(f"Words with one of {len(rare):,} rare characters are encoded as [UNK]")
    known = {
        word: count
        for word, count in words.items()
        if len(word) <= _LONGEST_WORD and rare.isdisjoint(word)
    }
    characters = _character_tokens(known)
    _check_room(vocab_size, len(characters))
    vocabulary = _merged(known, characters, vocab_size, min_frequency, reporter)
    if unreadable > _MOSTLY and len(vocabulary) < vocab_size:
        raise _too_long(unreadable, len(vocabulary), vocab_size)
    return _assembled(_frame(lowercase, strip_accents), vocabulary)


def _share_too_long(words: Mapping[str, int], reporter: Reporter) -> float:
    lengths = {word: len(word) * count for word, count in words.items()}
    too_long = sum(length for word, length in lengths.items() if len(word) > _LONGEST_WORD)
    if not too_long:
        return 0.0
    share = too_long / sum(lengths.values())
    reporter.warn(
        f"{share:.1%} of the text is encoded as [UNK]: WordPiece supports words of at most "
        f"{_LONGEST_WORD} characters. byte_level_bpe and unigram support longer words"
    )
    return share


def _too_long(share: float, possible: int, vocab_size: int) -> TokenizerError:
    return TokenizerError(
        "WordPiece ignores words that are too long, and the rest of the text doesn't support a "
        f"vocabulary of {vocab_size:,}",
        expected=f"words of at most {_LONGEST_WORD} characters between spaces and punctuation. "
        "WordPiece encodes longer words as [UNK]",
        received=f"{share:.1%} of the text in words longer than {_LONGEST_WORD} characters; the "
        f"rest supports {possible:,} tokens",
        fix="set ⟬algorithm⟭ to ⟬algorithm:byte_level_bpe⟭ or unigram, which support words of any "
        "length, or split the text with spaces",
        field="algorithm",
    )


@cache
def _reading_frame(lowercase: bool, strip_accents: bool | None) -> Tokenizer:
    return _frame(lowercase, strip_accents)


def _frame(lowercase: bool, strip_accents: bool | None) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    backend = Tokenizer(models.WordPiece(unk_token=ROLES.unk))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(_PREFIX)
    return backend


def _character_tokens(words: Iterable[str]) -> list[str]:
    first = {character for word in words for character in word}
    inner = {_PREFIX + character for word in words for character in word[1:]}
    return sorted(first) + sorted(inner)


def _merged(
    words: Mapping[str, int],
    characters: list[str],
    vocab_size: int,
    min_frequency: int,
    reporter: Reporter,
) -> dict[str, int]:
    tokens = [*SPECIAL_TOKENS, *characters]
    on_step = merge_reporter(vocab_size, reporter)
    merges = learn_merges(words, tokens, vocab_size, min_frequency, prefix=_PREFIX, on_step=on_step)
    return {token: number for number, token in enumerate(merges.tokens)}


def _check_room(vocab_size: int, characters: int) -> None:
    needed = characters + len(SPECIAL_TOKENS)
    if vocab_size < needed:
        raise TokenizerError(
            "⟬vocab_size⟭ is too small for the characters of the text",
            expected=f"at least {needed:,}: {characters:,} for characters at the beginning of "
            f"words and inside, and {len(SPECIAL_TOKENS)} special tokens",
            received=f"⟬vocab_size={vocab_size}⟭",
            fix=f"raise ⟬vocab_size⟭ well above {needed:,}, or set ⟬algorithm⟭ to "
            "⟬algorithm:byte_level_bpe⟭, which needs no token per character",
            field="vocab_size",
        )


def _assembled(backend: Tokenizer, vocabulary: dict[str, int]) -> Tokenizer:
    from tokenizers import AddedToken, models, processors

    backend.model = models.WordPiece(
        vocabulary,
        unk_token=ROLES.unk,
        continuing_subword_prefix=_PREFIX,
        max_input_chars_per_word=_LONGEST_WORD,
    )
    backend.add_special_tokens(
        [
            AddedToken(token, lstrip=token == ROLES.mask, normalized=False, special=True)
            for token in SPECIAL_TOKENS
        ]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return backend
