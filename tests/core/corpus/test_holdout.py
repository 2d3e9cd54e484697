import numpy as np
import pytest

from core.corpus.holdout import (
    WINDOW_WORDS,
    WindowSet,
    document_hash,
    held_out_below,
    window_hashes,
)
from tests.texts import WORDS


def words(count: int, seed: int) -> list[str]:
    return [WORDS[i] for i in np.random.default_rng(seed).integers(0, len(WORDS), count)]


def windows_of(text: str) -> set[tuple[str, ...]]:
    parts = text.lower().split()
    return {tuple(parts[n : n + WINDOW_WORDS]) for n in range(len(parts) - WINDOW_WORDS + 1)}


def test_held_out_share_matches_the_percentage() -> None:
    hashes = [document_hash(str(number).encode()) for number in range(20_000)]
    threshold = held_out_below(hashes, 5)
    assert sum(value < threshold for value in hashes) == pytest.approx(1000, rel=0.15)


@pytest.mark.parametrize("count", range(2, 12))
@pytest.mark.parametrize("percent", [0.001, 5, 50])
def test_both_splits_get_a_document_if_there_are_two_or_more(count: int, percent: float) -> None:
    for start in range(30):
        hashes = [document_hash(bytes([start, number])) for number in range(count)]
        held_out = sum(value < held_out_below(hashes, percent) for value in hashes)
        assert 0 < held_out < count


def test_single_document_is_used_for_training() -> None:
    for data in (b"a", b"b", b"c", b"d"):
        assert held_out_below([document_hash(data)] * 3, 50) == 0


def test_threshold_needs_no_more_documents_than_necessary() -> None:
    def endless():  # type: ignore[no-untyped-def]
        number = 0
        while True:
            number += 1
            yield document_hash(str(number).encode())

    assert held_out_below(endless(), 5) == int(2**64 * 0.05)


def test_shared_window_is_found_at_any_position_and_in_any_case() -> None:
    shared = words(WINDOW_WORDS, 0)
    mine = [
        " ".join(words(50, 1) + shared + words(3, 2)),
        " ".join(words(90, 3)),
        " ".join(words(40, 4) + shared[:-1] + ["different"]),
    ]
    other = ", ".join(words(30, 5)) + "\n(" + "\n".join(shared).upper() + ")!"
    found = WindowSet.of(text.encode() for text in mine).owners_sharing_with([other.encode()])
    assert found.tolist() == [0]


def test_window_does_not_span_two_documents() -> None:
    shared = words(WINDOW_WORDS, 0)
    halves = [" ".join(shared[:10]).encode(), " ".join(shared[10:]).encode()]
    mine = WindowSet.of([" ".join(shared).encode()])
    assert mine.owners_sharing_with(halves).tolist() == []
    assert mine.owners_sharing_with([b" ".join(halves)]).tolist() == [0]


def test_long_documents_are_split_without_losing_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(words(1000, seed)).encode() for seed in range(3)]
    whole = [np.concatenate(parts) for parts in zip(*window_hashes(texts), strict=True)]
    monkeypatch.setattr("core.corpus.holdout._BLOCK_BYTES", 333)
    cut = [np.concatenate(parts) for parts in zip(*window_hashes(texts), strict=True)]
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(whole[0]) == 3 * (1000 - WINDOW_WORDS + 1)


def test_overlaps_match_a_comparison_of_words() -> None:
    generator = np.random.default_rng(0)
    base = [words(200, seed) for seed in range(20)]
    mixed = []
    for _ in range(200):
        one, two = generator.integers(0, 20, 2)
        start, length = generator.integers(0, 150), generator.integers(5, 40)
        mixed.append(" ".join(words(10, int(two)) + base[one][start : start + length]))
    mine, theirs = mixed[:60], mixed[60:]
    expected = set().union(*(windows_of(text) for text in theirs))
    overlapping = [n for n, text in enumerate(mine) if windows_of(text) & expected]
    found = WindowSet.of(t.encode() for t in mine).owners_sharing_with(t.encode() for t in theirs)
    assert found.tolist() == overlapping
    assert 0 < len(overlapping) < len(mine)


def test_short_or_empty_text_shares_no_window() -> None:
    empty = WindowSet.of([b"too short", b""])
    assert empty.owners_sharing_with([b"too short"]).tolist() == []
    assert WindowSet.of([]).owners_sharing_with([b"anything"]).tolist() == []
