"""Counting the words of a text as a tokenizer of `tokenizers` normalises and cuts them.

A tokenizer that cuts at white space before it cuts anything else is asked only once about each
different run of other characters, so that counting a text takes little longer than reading it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from core.events import Reporter
from core.tokenizer.roles import parts_between

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_DISTINCT_WORDS_KEPT = 1_500_000
_DOCUMENTS_BETWEEN_REPORTS = 500
_COVERED_SHARE = 0.9995  # as by default in SentencePiece


def count_words(
    texts: Iterable[str], backend: Tokenizer, special_tokens: Sequence[str]
) -> Counter[str]:
    """Counts words as the tokenizer's model gets them.

    Where there are very many different ones, the rarest are forgotten from time to time.

    Args:
        texts: Documents; they are read once.
        backend: Normalises text, and cuts it at white space before it cuts further.
        special_tokens: Their text, where it is written out in a document, is left out.
    """
    runs: Counter[str] = Counter()
    for text in texts:
        sound = text.encode("utf-8", "replace").decode("utf-8")
        for part in parts_between(special_tokens, sound):
            normalised = backend.normalizer.normalize_str(part) if backend.normalizer else part
            runs.update(normalised.split())
        if len(runs) > _DISTINCT_WORDS_KEPT:
            runs = _without_rarest(runs)
    words: Counter[str] = Counter()
    for run, count in runs.items():
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(run):
            words[word] += count
    return words


def rare_characters(words: Mapping[str, int], most: int) -> set[str]:
    """Returns the rarest characters beyond so many, as far as the text can do without them.

    What stays covers at least 99.95 % of the text.

    Args:
        words: Words and how often each comes.
        most: How many different characters there should be.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    excess = len(counts) - most
    allowed = sum(counts.values()) * (1 - _COVERED_SHARE)
    rare: set[str] = set()
    for character, count in sorted(counts.items(), key=lambda entry: (entry[1], entry[0])):
        allowed -= count
        if len(rare) >= excess or allowed < 0:
            break
        rare.add(character)
    return rare


def reported(texts: Iterable[str], total: int | None, reporter: Reporter) -> Iterator[str]:
    """Passes texts on, and tells a reporter how many there were; it may stop them."""
    number = 0
    for number, text in enumerate(texts, start=1):
        if number % _DOCUMENTS_BETWEEN_REPORTS == 0:
            reporter.raise_if_stopped()
            reporter.progress(number, total, "documents", "counting words")
        yield text
    reporter.progress(number, number, "documents", "counting words")


def _without_rarest(words: Counter[str]) -> Counter[str]:
    """Leaves at most half of the words that may be kept."""
    level = 1
    kept = words
    while len(kept) > _DISTINCT_WORDS_KEPT // 2:
        level += 1
        kept = Counter({word: count for word, count in kept.items() if count >= level})
    return kept
