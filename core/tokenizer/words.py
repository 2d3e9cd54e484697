"""Counts words as a tokenizer normalises and pre-tokenizes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from core.events import Reporter
from core.tokenizer.roles import parts_between, without_lone_surrogates

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_DISTINCT_WORDS_KEPT = 1_500_000
_CHARACTERS_KEPT = 50_000_000
_DOCUMENTS_BETWEEN_REPORTS = 500
_COVERED_SHARE = 0.9995  # SentencePiece's default


def count_words(
    texts: Iterable[str], backend: Tokenizer, special_tokens: Sequence[str]
) -> Counter[str]:
    """Counts words, sampling rare ones, but losing no character.

    Args:
        backend: Its pre-tokenizer must split at whitespace first.
        special_tokens: Left out of documents.
    """
    runs: Counter[str] = Counter()
    characters = times = 0
    for text in texts:
        for part in parts_between(special_tokens, without_lone_surrogates(text)):
            normalised = backend.normalizer.normalize_str(part) if backend.normalizer else part
            runs.update(normalised.split())
            characters += len(normalised)
        if characters > _CHARACTERS_KEPT:
            characters = sum(map(len, runs))
        if len(runs) > _DISTINCT_WORDS_KEPT or characters > _CHARACTERS_KEPT:
            times += 1
            runs = sample_half_of(runs, times)
            characters = sum(map(len, runs))
    words: Counter[str] = Counter()
    for run, count in runs.items():
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(run):
            words[word] += count
    return words


def rare_characters(words: Mapping[str, int], most: int) -> set[str]:
    """Returns the rarest characters beyond `most`, if others cover 99.95 %."""
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
    """Passes texts on and reports their number."""
    number = 0
    for number, text in enumerate(texts, start=1):
        if number % _DOCUMENTS_BETWEEN_REPORTS == 0:
            reporter.raise_if_stopped()
            reporter.progress(number, total, "documents", "counting words")
        yield text
    reporter.progress(number, number, "documents", "counting words")


def sample_half_of(words: Mapping[str, int], times: int) -> Counter[str]:
    """Samples words with half of the characters, for the `times`-th time, from 1."""
    return Counter(sample_words(words, sum(map(len, words)) // 2, draw=times))


def sample_words(words: Mapping[str, int], characters: int, draw: int = 0) -> dict[str, int]:
    """Samples distinct words with about `characters` characters, but loses none.

    Rare words stay in proportion to their count, so expected counts are unchanged.

    Args:
        draw: Seed.
    """
    level = _sampling_level(words, characters)
    if level <= 1:
        return dict(words)
    chosen = {
        word: max(count, level)
        for word, count in words.items()
        if count >= level or _drawn(word, draw) < count / level
    }
    return chosen | _missing_characters(words, chosen)


def _sampling_level(words: Mapping[str, int], characters: int) -> int:
    """Words below this count are sampled."""
    lengths: Counter[int] = Counter()
    for word, count in words.items():
        lengths[count] += len(word)
    level = 1
    while _expected_characters(lengths, level) > characters:
        level += max(1, level // 8)
    return level


def _expected_characters(lengths: Mapping[int, int], level: int) -> float:
    return sum(length * min(1.0, count / level) for count, length in lengths.items())


def _drawn(word: str, draw: int) -> float:
    """Returns a pseudo-random number in [0, 1)."""
    digest = blake2b(word.encode("utf-8"), digest_size=8, salt=draw.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") / 2**64


def _missing_characters(words: Iterable[str], kept: Iterable[str]) -> dict[str, int]:
    missing = characters_of(words) - characters_of(kept)
    return dict.fromkeys(sorted(missing), 1)


def characters_of(words: Iterable[str]) -> set[str]:
    return {character for word in words for character in word}
