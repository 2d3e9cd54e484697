"""Training a Unigram tokenizer, as Hugging Face's TPU example has it.

From `train_unigram.py`: the normaliser, Metaspace, the special tokens and their template. Two
things differ. Whitespace is never lost: a text may begin with spaces, and a newline or a run of
spaces is a piece of its own, where the example glues a newline to the words around it. And the
pieces are chosen by `core.tokenizer.em` from the counts of words; of a large text the rare words
are sampled, so that memory and time stay bounded.

Source: https://github.com/huggingface/transformers/blob/v4.57.0/examples/tensorflow/
language-modeling-tpu/train_unigram.py
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from core.errors import TokenizerError
from core.events import Reporter
from core.tokenizer.em import ChosenPieces, choose_pieces
from core.tokenizer.roles import Roles, parts_between
from core.tokenizer.words import (
    characters_of,
    half_of,
    rare_characters,
    reported,
    sample_words,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLES = Roles(cls="[CLS]", sep="[SEP]", unk="<unk>", pad="<pad>", mask="[MASK]")
SPECIAL_TOKENS = ("[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]")

_REPLACED = {"``": '"', "''": '"'}
_SPACE = "▁"
# Words: a run of spaces without its last, a word with the space before it, a run of newlines.
_WORDS = rf"{_SPACE}+(?={_SPACE})|{_SPACE}?[^{_SPACE}\n]+|{_SPACE}|\n+"
# The same, but text without spaces is counted in parts.
_COUNTED = rf"{_SPACE}{{1,32}}(?={_SPACE})|{_SPACE}?[^{_SPACE}\n]{{1,31}}|{_SPACE}|\n{{1,32}}"

_DISTINCT_WORDS_KEPT = 1_500_000
_SAMPLED_CHARACTERS = 1_000_000
_SAMPLED_CHARACTERS_PER_TOKEN = 60
# A finer one differs between processors. As a power of two it lets scores add up exactly, which
# core.shards.fragments needs.
_UNIT_OF_SCORES = 2.0**-13


def train_unigram(
    texts: Iterable[str], vocab_size: int, reporter: Reporter, total: int | None = None
) -> Tokenizer:
    """Trains a Unigram tokenizer. The same texts give the same tokenizer.

    Args:
        texts: Documents; they are read once.
        vocab_size: Tokens to end with, special ones included.
        reporter: Hears how far it is; may stop it.
        total: How many documents there are, if known.

    Returns:
        The tokenizer; it has fewer tokens where the text doesn't support more.

    Raises:
        TokenizerError: The text has more different characters than that.
        RunStopped: The reporter was asked to stop.
    """
    count = vocab_size - len(SPECIAL_TOKENS)
    words = count_words(reported(texts, total, reporter))
    rare = rare_characters(words, count // 2)
    if rare:
        words = without_characters(words, rare)
        reporter.warn(f"{len(rare):,} rare characters have no token and will read as <unk>")
    _check_room(vocab_size, len(characters_of(words)))
    return _assembled(choose_from(words, count, vocab_size, reporter))


def choose_from(
    words: Mapping[str, int], count: int, vocab_size: int, reporter: Reporter
) -> ChosenPieces:
    """Chooses pieces from a sample of words, or from all where the sample doesn't support so many.

    Args:
        words: Words and how often each comes.
        count: How many pieces to choose.
        vocab_size: Decides how large the sample is.
        reporter: Hears how far it is; may stop it.
    """
    budget = max(_SAMPLED_CHARACTERS, vocab_size * _SAMPLED_CHARACTERS_PER_TOKEN)
    sample = sample_words(words, budget)
    chosen = choose_pieces(sample, count, _Steps(reporter))
    if chosen.possible < count and len(sample) < len(words):
        chosen = choose_pieces(words, count, _Steps(reporter))
    return chosen


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Counts the words of texts, cut as the tokenizer cuts them (very long ones in parts).

    Where there are very many different ones, the rare ones are sampled from time to time; but no
    character is forgotten.
    """
    find = re.compile(_COUNTED).findall
    words: Counter[str] = Counter()
    times = 0
    for text in texts:
        for part in parts_between(SPECIAL_TOKENS, _SPACE + _normalised(text)):
            words.update(find(part))
        if len(words) > _DISTINCT_WORDS_KEPT:
            times += 1
            words = half_of(words, times)
    return words


def without_characters(words: Mapping[str, int], characters: set[str]) -> Counter[str]:
    """Cuts words at some characters, which are left out."""
    cut = re.compile("[" + "".join(map(re.escape, sorted(characters))) + "]").split
    kept: Counter[str] = Counter()
    for word, count in words.items():
        parts = [word] if characters.isdisjoint(word) else cut(word)
        for part in filter(None, parts):
            kept[part] += count
    return kept


def _normalised(text: str) -> str:
    for old, new in _REPLACED.items():
        text = text.replace(old, new)
    return text.replace(" ", _SPACE)


class _Steps:
    """Passes the steps of choosing pieces on to a reporter."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._done = 0

    def __call__(self, note: str) -> None:
        self._reporter.raise_if_stopped()
        self._done += 1
        self._reporter.progress(self._done, None, "steps", f"choosing pieces: {note}")


def _check_room(vocab_size: int, characters: int) -> None:
    needed = characters + len(SPECIAL_TOKENS)
    if vocab_size < needed:
        raise TokenizerError(
            f"A vocabulary of {vocab_size:,} has no room for the text's characters",
            expected=f"at least {needed:,} tokens: the text has {characters:,} different "
            f"characters and there are {len(SPECIAL_TOKENS)} special tokens",
            received=f"vocab_size={vocab_size}",
            fix=f"raise vocab_size well above {needed:,}, or choose byte_level_bpe, which needs "
            "no token for a character",
            field="vocab_size",
        )


def _assembled(chosen: ChosenPieces) -> Tokenizer:
    """Puts pieces into the tokenizer they are for."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
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
    # One mark is put before every text, and taken off again by the decoder. Metaspace by itself
    # doesn't put it before a text that begins with a space, and so loses that space. In the
    # second step no text begins with a space any more: there are only marks.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(_SPACE, prepend_scheme="never", split=False),
            pre_tokenizers.Metaspace(" ", prepend_scheme="first", split=False),
            pre_tokenizers.Metaspace(_SPACE, prepend_scheme="never", split=False),
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
        ]
    )
    backend.decoder = decoders.Metaspace(_SPACE, prepend_scheme="first", split=False)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, SPECIAL_TOKENS.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return backend


def rounded_scores(chosen: ChosenPieces) -> list[tuple[str, float]]:
    """Returns pieces with their scores, the most probable first; processors agree on them."""
    rounded: list[Any] = [
        (piece, round(score / _UNIT_OF_SCORES) * _UNIT_OF_SCORES)
        for piece, score in zip(chosen.pieces, chosen.scores, strict=True)
    ]
    rounded.sort(key=lambda entry: (-entry[1], entry[0]))
    return rounded
