"""Chooses the counted words and characters that a vocabulary is learned from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import blake2b

_COVERED_SHARE = 0.9995  # SentencePiece's default


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


def sample_words(words: Mapping[str, int], characters: int) -> dict[str, int]:
    """Samples distinct words with about `characters` characters, but loses none.

    Rare words stay in proportion to their count, so expected counts are unchanged.
    """
    level = _sampling_level(words, characters)
    if level <= 1:
        return dict(words)
    chosen = {
        word: max(count, level)
        for word, count in words.items()
        if is_drawn(word, count, level, draw=0)
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
    return sum(length * min(1.0, count / level) for count, length in sorted(lengths.items()))


def is_drawn(word: str, count: int, level: int, draw: int) -> bool:
    """Decides whether a word is in a sample; it then counts at least `level` times.

    Args:
        draw: Seed; samples of samples need different ones.
    """
    return count >= level or _drawn(word, draw) < count / level


def _drawn(word: str, draw: int) -> float:
    """Returns a pseudo-random number in [0, 1)."""
    digest = blake2b(
        word.encode("utf-8", "surrogatepass"), digest_size=8, salt=draw.to_bytes(8, "little")
    ).digest()
    return int.from_bytes(digest, "little") / 2**64


def _missing_characters(words: Iterable[str], remaining: Iterable[str]) -> dict[str, int]:
    missing = characters_of(words) - characters_of(remaining)
    return dict.fromkeys(sorted(missing), 1)


def characters_of(words: Iterable[str]) -> set[str]:
    return {character for word in words for character in word}
