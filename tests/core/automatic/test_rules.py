"""Tests that settings follow from the amount of text."""

from __future__ import annotations

import pytest

from core.automatic.rules import (
    MOST_VOCABULARY,
    USUAL_PERCENT,
    choose_sequence_length,
    choose_validation_percent,
    choose_vocab_size,
)


def test_vocabulary_grows_with_the_root_of_the_text_within_limits() -> None:
    sizes = [choose_vocab_size(letters, 80).value for letters in (10_000, 160_000, 2_560_000)]
    assert sizes == sorted(sizes)
    # Sixteen times the text has about four times the learned tokens.
    learned = [size - 85 for size in sizes]
    assert learned[1] / learned[0] == pytest.approx(4, rel=0.15)
    assert learned[2] / learned[1] == pytest.approx(4, rel=0.15)
    assert choose_vocab_size(0, 4).value == 256
    assert choose_vocab_size(10**12, 4).value == MOST_VOCABULARY
    assert all(size % 32 == 0 for size in sizes)


def test_vocabulary_holds_every_character_of_a_script_with_thousands() -> None:
    few, many = choose_vocab_size(100_000, 60), choose_vocab_size(100_000, 3_000)
    assert many.value - few.value == pytest.approx(2_940, abs=32)
    assert "3,000 different" in many.reason


@pytest.mark.parametrize("size", [50_000, 1_000_000, 200_000_000, 10**9])
def test_held_out_text_is_enough_and_never_most_of_it(size: int) -> None:
    percent = choose_validation_percent(size).value
    held_out = size * percent / 100
    assert held_out <= size / 10 + 1
    assert held_out >= min(size / 10, 500_000) * 0.95
    assert choose_validation_percent(None).value == USUAL_PERCENT


def test_longer_sequences_need_more_text() -> None:
    lengths = [choose_sequence_length(size).value for size in (60_000, 50_000_000, 2 * 10**9)]
    assert lengths == [64, 128, 128]
    assert "of text" in choose_sequence_length(60_000).reason
