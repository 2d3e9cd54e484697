import math
from collections import Counter

import numpy as np
import pytest

from core.tokenizer.em import choose_pieces
from tests.texts import sentences


def words_of(count: int, seed: int = 0) -> Counter[str]:
    return Counter(f"▁{word}" for text in sentences(count, seed) for word in text.split())


def best_cut(word: str, scores: dict[str, float]) -> float:
    """Computes the score of the best segmentation of a word by dynamic programming."""
    best = [0.0] + [-math.inf] * len(word)
    for end in range(1, len(word) + 1):
        for start in range(end):
            score = scores.get(word[start:end], -math.inf)
            best[end] = max(best[end], best[start] + score)
    return best[-1]


def expected_counts(word: str, scores: dict[str, float]) -> tuple[Counter[str], float]:
    """Computes expected piece counts and the total probability over all segmentations."""
    ways: list[tuple[float, list[str]]] = []

    def cut(rest: str, taken: list[str], total: float) -> None:
        if not rest:
            ways.append((math.exp(total), taken))
        for end in range(1, len(rest) + 1):
            if rest[:end] in scores:
                cut(rest[end:], [*taken, rest[:end]], total + scores[rest[:end]])

    cut(word, [], 0.0)
    together = sum(probability for probability, _ in ways)
    expected: Counter[str] = Counter()
    for probability, taken in ways:
        for piece in taken:
            expected[piece] += probability / together  # type: ignore[assignment]
    return expected, together


def test_expected_counts_match_a_sum_over_all_segmentations() -> None:
    from core.tokenizer import em

    words = Counter({"banana": 3, "bandana": 2, "an": 5, "ab": 1})
    text = em._Text.of(words)
    model = em._Model(text, em._find_seeds(text, 100, lambda note: None))
    strings = [text.string(int(s), int(n)) for s, n in zip(model._starts, model._lengths)]  # noqa: B905
    scores = dict(zip(strings, model.scores.tolist(), strict=True))
    expected, log_total = model._lattice.expected(np.exp(model.scores))
    by_hand: Counter[str] = Counter()
    by_hand_log = 0.0
    for word, count in words.items():
        counts, total = expected_counts(word, scores)
        by_hand_log += count * math.log(total)
        for piece, value in counts.items():
            by_hand[piece] += count * value  # type: ignore[assignment]
    assert dict(zip(strings, expected.tolist(), strict=True)) == pytest.approx(
        {piece: by_hand[piece] for piece in strings}
    )
    assert log_total == pytest.approx(by_hand_log)
    alternatives = model._alternatives()
    for number, piece in enumerate(strings[model._characters :]):
        others = {other: score for other, score in scores.items() if other != piece}
        assert alternatives[number] == pytest.approx(best_cut(piece, others))


def test_best_segmentations_are_correct_after_pruning() -> None:
    from core.tokenizer import em

    text = em._Text.of(words_of(200))
    model = em._Model(text, em._find_seeds(text, 10_000, lambda note: None))
    model.estimate(2, least=0)
    model.prune(len(model.scores) // 2)
    strings = [text.string(int(s), int(n)) for s, n in zip(model._starts, model._lengths)]  # noqa: B905
    scores = dict(zip(strings, model.scores.tolist(), strict=True))
    best = model._lattice.best(model.scores)
    words = [text.string(int(s), int(n)) for s, n in zip(text.starts, text.lengths)]  # noqa: B905
    assert best.tolist() == pytest.approx([best_cut(word, scores) for word in words])
    alternatives = model._alternatives()
    for number, piece in list(enumerate(strings[model._characters :]))[::7]:
        others = {other: score for other, score in scores.items() if other != piece}
        assert alternatives[number] == pytest.approx(best_cut(piece, others))


def test_requested_number_of_pieces_is_chosen_if_the_text_supports_it() -> None:
    words = words_of(400)
    possible = choose_pieces(words, 10_000).possible
    assert 100 < possible < 2000
    for count in (possible, possible - 1, possible // 2, 60):
        chosen = choose_pieces(words, count)
        assert len(chosen.pieces) == len(set(chosen.pieces)) == count
        assert chosen.possible == possible
    assert len(choose_pieces(words, possible + 1).pieces) == possible


def test_all_characters_and_frequent_words_become_pieces() -> None:
    words = words_of(400) + Counter({"▁q": 1, "z": 1, "☃": 1})
    chosen = choose_pieces(words, 90)
    assert {character for word in words for character in word} <= set(chosen.pieces)
    assert "▁the" in chosen.pieces and "▁mountain" in chosen.pieces
    assert chosen.scores == sorted(chosen.scores, reverse=True)


def test_pieces_do_not_depend_on_the_order_of_words() -> None:
    words = words_of(300)
    backwards = Counter(dict(reversed(words.items())))
    assert choose_pieces(words, 80) == choose_pieces(backwards, 80)


def test_very_long_words_of_rare_characters_give_finite_scores() -> None:
    generator = np.random.default_rng(0)
    codes = generator.integers(0x4E00, 0x5E00, (300, 200)).astype(np.uint32)
    words = Counter({row.tobytes().decode("utf-32-le"): 1 for row in codes})
    words["▁the"] = 10_000_000
    chosen = choose_pieces(words, 6000)
    assert np.isfinite(chosen.scores).all()
    assert "▁the" in chosen.pieces


def test_single_word_is_accepted() -> None:
    assert choose_pieces({"a": 1}, 1).pieces == ["a"]
    assert choose_pieces({"a": 1}, 5).possible == 1


def test_choosing_can_be_stopped() -> None:
    class Stop(Exception):
        pass

    def stop(note: str) -> None:
        raise Stop

    with pytest.raises(Stop):
        choose_pieces({"aa": 2}, 2, stop)
