"""Metrics equal their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from core.finetuning.metrics import (
    classification_metrics,
    pearson,
    ranks,
    regression_metrics,
    tagging_metrics,
)
from core.finetuning.spans import Scheme, Span, find_scheme


def test_binary_metrics_equal_their_formulas() -> None:
    truth = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    predicted = np.array([1, 0, 1, 0, 1, 0, 0, 1])
    found = classification_metrics(truth, predicted, 2)
    # Three true positives, one false one, one false negative, three true negatives.
    assert found["accuracy"] == 6 / 8
    assert found["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 1))
    assert found["matthews"] == pytest.approx((3 * 3 - 1 * 1) / (4 * 4 * 4 * 4) ** 0.5)
    assert found["matthews"] == pytest.approx(np.corrcoef(truth, predicted)[0, 1])
    assert found["f1_macro"] == pytest.approx(6 / 8)


def test_matthews_of_several_classes_is_the_correlation_of_indicators() -> None:
    generator = np.random.default_rng(0)
    truth, predicted = generator.integers(0, 4, (2, 200))
    predicted[:120] = truth[:120]
    one, other = np.eye(4)[truth], np.eye(4)[predicted]
    one, other = one - one.mean(axis=0), other - other.mean(axis=0)
    expected = (one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum())
    found = classification_metrics(truth, predicted, 4)
    assert found["matthews"] == pytest.approx(expected)
    assert "f1" not in found


def test_macro_f1_leaves_out_classes_that_never_occur() -> None:
    found = classification_metrics(np.array([0, 0, 1]), np.array([0, 1, 1]), 5)
    assert found["f1_macro"] == pytest.approx(2 / 3)


def test_constant_prediction_has_no_correlation() -> None:
    assert classification_metrics(np.array([0, 1]), np.array([1, 1]), 2)["matthews"] == 0
    assert pearson(np.array([1.0, 2.0]), np.array([3.0, 3.0])) == 0


def test_correlations_equal_those_of_scipy() -> None:
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 6, 100) / 2  # with ties
    predicted = truth + generator.normal(size=100)
    found = regression_metrics(truth, predicted)
    assert found["pearson"] == pytest.approx(stats.pearsonr(truth, predicted)[0])
    assert found["spearman"] == pytest.approx(stats.spearmanr(truth, predicted)[0])
    assert found["mse"] == pytest.approx(((truth - predicted) ** 2).mean())
    assert np.array_equal(ranks(truth), stats.rankdata(truth))


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (["B-PER", "I-PER", "O", "B-LOC"], [Span(0, 2, "PER"), Span(3, 4, "LOC")]),
        (["I-PER", "I-PER"], [Span(0, 2, "PER")]),
        (["B-PER", "B-PER", "I-LOC"], [Span(0, 1, "PER"), Span(1, 2, "PER"), Span(2, 3, "LOC")]),
        (["O", "O"], []),
        (["I-PER", "O", "I-PER"], [Span(0, 1, "PER"), Span(2, 3, "PER")]),
        (["B-PER", "I-PER", "B-PER"], [Span(0, 2, "PER"), Span(2, 3, "PER")]),
    ],
)
def test_spans_are_read_like_conlleval(tags: list[str], spans: list[Span]) -> None:
    assert Scheme().spans_of(tags) == spans


# As seqeval 1.2.2 reads BIOES by default.
BIOES = [
    ("B-A I-A E-A O S-B", "0-3A 4-5B"),
    ("S-A S-A", "0-1A 1-2A"),
    ("B-A E-A B-A E-A", "0-2A 2-4A"),
    ("E-A E-A", "0-1A 1-2A"),
    ("S-A I-A E-A", "0-1A 1-3A"),
    ("B-A S-A", "0-1A 1-2A"),
    ("E-A I-A O", "0-1A 1-2A"),
    ("O E-A O I-A", "1-2A 3-4A"),
    ("B-A E-B", "0-1A 1-2B"),
    ("B-A I-A O B-B", "0-2A 3-4B"),
]


@pytest.mark.parametrize(("tags", "spans"), BIOES)
def test_spans_are_read_in_bioes_and_bilou(tags: str, spans: str) -> None:
    wanted = [Span(int(one[0]), int(one[2]), one[3]) for one in spans.split()]
    assert Scheme().spans_of(tags.split()) == wanted
    bilou = tags.replace("S-", "U-").replace("E-", "L-")
    assert Scheme().spans_of(bilou.split()) == wanted


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        # As seqeval 1.2.2 reads them, some with suffix=True.
        ("O B-A I-A I-B", "1-3A 3-4B"), ("B I O B B", "0-2_ 3-4_ 4-5_"), ("I I O", "0-2_"),
        ("A-B A-I O B-B", "0-2A 3-4B"), ("A_B A_I O B-X_B", "0-2A 3-4B-X"),
        ("B_A I_A O B_X_Y", "0-2A 3-4X_Y"), ("B-X_Y I-X_Y", "0-2X_Y"), ("I-A E-A O", "0-2A"),
        ("O S-A", "1-2A"), ("B-A I-A E-A S-A O", "0-3A 3-4A"), ("B-A I-A L-A U-A O", "0-3A 3-4A"),
        ("B-A M-A E-A S-A", "0-3A 3-4A"), ("B M E S B E", "0-3_ 3-4_ 4-6_"), ("b-a i-a o", "0-2a"),
        ("B-A M-A E-A W-B O", "0-3A 3-4B"),
    ],
)  # fmt: skip
def test_schemes_of_tags_are_recognised(tags: str, spans: str) -> None:
    scheme, note = find_scheme(tags.split())
    assert scheme and not note
    wanted = [Span(int(one[0]), int(one[2]), one[3:]) for one in spans.split()]
    assert scheme.spans_of(tags.split()) == wanted


def test_tags_that_mark_no_span_are_told_and_outside() -> None:
    for tags, extra in (("B-A I-A X O", "X"), ("B I O PAD", "PAD"), ("A-B A-I A O", "A")):
        scheme, note = find_scheme(tags.split())
        assert scheme and f"The tags {extra} mark no span" in note
        assert len(scheme.spans_of(tags.split())) == 1


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        ("B-A E-A L-A", "E and L exclude each other"), ("S-A U-A", "S and U exclude"),
        ("B-A PER", "PER have no mark"), ("B- O", "B- have no mark"), ("PER LOC O", "LOC, PER"),
        ("X-A O", "X-A have no mark"), ("O", ""), ("NOUN VERB", ""), ("N S V E", ""),
    ],
)  # fmt: skip
def test_missing_figures_of_spans_are_explained(tags: str, why: str) -> None:
    scheme, note = find_scheme(tags.split())
    assert scheme is None and why in note and bool(why) == bool(note)


def test_span_of_another_scheme_needs_all_its_words() -> None:
    truth = [["B-A", "I-A", "E-A", "S-B"]]
    found = tagging_metrics(truth, [["B-A", "E-A", "E-A", "S-B"]], Scheme())
    assert (found["span_precision"], found["span_recall"]) == (1 / 3, 1 / 2)


def test_span_needs_all_its_words() -> None:
    found = tagging_metrics([["B-A", "I-A", "O", "B-B"]], [["B-A", "O", "O", "B-B"]], Scheme())
    assert found["accuracy"] == 3 / 4
    assert (found["span_precision"], found["span_recall"], found["span_f1"]) == (0.5, 0.5, 0.5)


def test_parts_of_speech_are_no_spans() -> None:
    assert "span_f1" not in tagging_metrics([["NOUN", "VERB"]], [["NOUN", "NOUN"]], None)


def test_words_without_a_tag_are_not_counted() -> None:
    found = tagging_metrics([["", "B-A", "O"], [""]], [["B-A", "B-A", "B-A"], ["O"]], Scheme())
    assert found["accuracy"] == 1 / 2
    assert (found["span_precision"], found["span_recall"]) == (0.5, 1)
