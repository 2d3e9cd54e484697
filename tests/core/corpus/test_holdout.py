import re
import tracemalloc

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


def characters(low: int, high: int, count: int, seed: int) -> str:
    return "".join(map(chr, np.random.default_rng(seed).integers(low, high, count)))


HAN = characters(0x4E00, 0x9000, 4000, 0)
THAI = characters(0x0E01, 0x0E2F, 4000, 1)
KANA = characters(0x3042, 0x3094, 3000, 2) + "。" + characters(0x20000, 0x2A000, 1000, 3)
BASES = "".join(np.random.default_rng(4).choice(list("ACGT"), 4000))
CYRILLIC = characters(0x0430, 0x0450, 4000, 5)


@pytest.mark.parametrize(
    ("text", "gram"), [(HAN, 4), (THAI, 4), (KANA, 4), (BASES, 16), (CYRILLIC, 16)]
)
@pytest.mark.parametrize("size", [5, 20])
def test_windows_of_text_without_spaces_are_runs_of_characters(
    text: str, gram: int, size: int
) -> None:
    [(hashes, owners)] = window_hashes([b"", text.encode()], size)
    length = size + gram - 1
    runs = [text[place : place + length] for place in range(len(text) - length + 1)]
    assert len(hashes) == len(runs) and set(owners.tolist()) == {1}
    assert len(np.unique(hashes)) == len(set(runs))
    # Each is found alone, in another place, and in the other case.
    own = " ".join(runs[7::501]).lower().encode()
    for run, expected in zip(own.split(), hashes[7::501], strict=True):
        if len(run.decode()) > 64 or gram == 4:
            [(found, _)] = window_hashes([run], size)
            assert found.tolist() == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "고양이가 매트 위에 앉아 있었다 그리고 개가 짖었다", "大韓民國은 아름다운 나라 이다 정말로",
        "We met in Peking (北京) on a warm day", f"{'a' * 64} is a long word but not too long",
    ],
)  # fmt: skip
def test_windows_of_spaced_text_are_words(text: str) -> None:
    count = len(re.findall(r"\w+", text))
    assert sum(len(hashes) for hashes, _ in window_hashes([text.encode()], 5)) == count - 4


@pytest.mark.parametrize("text", [HAN, THAI, BASES, CYRILLIC, f"{HAN} and\n{BASES} {THAI}, {HAN}"])
@pytest.mark.parametrize("size", [301, 1500, 5000])
def test_long_words_are_split_without_losing_a_window(
    text: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [text.encode(), b"some words", text[5:].encode()]
    whole = [np.concatenate(parts) for parts in zip(*window_hashes(documents, 5), strict=True)]
    monkeypatch.setattr("core.corpus.holdout._BLOCK_BYTES", size)
    monkeypatch.setattr("core.corpus.holdout._CUT_WORD_BYTES", 600)
    cut = [np.concatenate(parts) for parts in zip(*window_hashes(documents, 5), strict=True)]
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one, other)


def test_memory_does_not_grow_with_a_word() -> None:
    tracemalloc.start()
    try:
        text = (BASES * 2000).encode()
        count = sum(len(hashes) for hashes, _ in window_hashes([text], 5))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == len(text) - 19
    assert peak < 200_000_000


def test_overlap_is_found_in_text_without_spaces() -> None:
    mine = [HAN[:500], HAN[600:700] + THAI, BASES[:300]]
    others = [HAN[650:2000], BASES[290:]]
    found = WindowSet.of(text.encode() for text in mine)
    assert found.owners_sharing_with(text.encode() for text in others).tolist() == [1]
