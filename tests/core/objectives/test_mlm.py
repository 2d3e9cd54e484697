"""Tests of masked language modelling against its definition."""

from __future__ import annotations

import time
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from numpy.typing import NDArray

from core.errors import ShardError
from core.objectives.mlm import MaskedLanguageModel, unigram_baseline
from core.objectives.sequences import document_starts

VOCAB_SIZE, MASK = 1000, 4
SPECIAL = np.array([0, 1, 2, 3, 4, 999], np.int32)
ORDINARY = np.setdiff1d(np.arange(VOCAB_SIZE), SPECIAL).astype(np.int32)
WORD_STARTS = np.arange(VOCAB_SIZE) % 3 == 0
Batch = dict[str, NDArray]


def objective(row_length: int = 64, probability: float = 0.15) -> MaskedLanguageModel:
    return MaskedLanguageModel(row_length, probability, MASK, VOCAB_SIZE, SPECIAL)


def make_rows(count: int, row_length: int = 64, seed: int = 0) -> NDArray[np.int32]:
    """Builds sequences of ordinary tokens between two special tokens."""
    generator = np.random.default_rng(seed)
    rows = ORDINARY[generator.integers(0, len(ORDINARY), (count, row_length))]
    rows[:, 0], rows[:, -1] = 0, 1
    return rows


def at_places(rows: NDArray[np.int32], batch: Batch) -> NDArray[np.int32]:
    return np.take_along_axis(rows, batch["masked_positions"], axis=1)


@pytest.mark.parametrize(
    ("row_length", "probability", "predictions"),
    [(128, 0.15, 19), (512, 0.15, 77), (64, 0.3, 19), (8, 0.01, 1), (8, 0.9, 7)],
)
def test_number_of_predictions_is_fixed(
    row_length: int, probability: float, predictions: int
) -> None:
    task = objective(row_length, probability)
    assert task.predictions_per_sequence == predictions
    batch = task.batch(make_rows(3, row_length), seed=0, step=0)
    shapes = {name: (values.dtype, values.shape) for name, values in batch.items()}
    assert shapes == {
        "input_ids": (np.int32, (3, row_length)),
        "masked_positions": (np.int32, (3, predictions)),
        "labels": (np.int32, (3, predictions)),
        "label_weights": (np.float32, (3, predictions)),
    }


def test_labels_are_the_original_tokens_and_other_tokens_are_unchanged() -> None:
    rows = make_rows(200)
    before = rows.copy()
    batch = objective().batch(rows, seed=3, step=5)
    assert np.array_equal(rows, before)
    assert np.array_equal(at_places(rows, batch), batch["labels"])
    restored = batch["input_ids"].copy()
    np.put_along_axis(restored, batch["masked_positions"], batch["labels"], axis=1)
    assert np.array_equal(restored, rows)


def test_masked_positions_are_distinct_ascending_and_never_special() -> None:
    rows = make_rows(500)
    rows[:, 10:20] = 2
    batch = objective().batch(rows, seed=1, step=1)
    assert (np.diff(batch["masked_positions"], axis=1) > 0).all()
    assert not np.isin(batch["labels"], SPECIAL).any()
    assert (batch["label_weights"] == 1).all()


def test_masked_tokens_are_80_percent_mask_10_percent_random_10_percent_kept() -> None:
    rows = make_rows(20_000)
    batch = objective().batch(rows, seed=0, step=0)
    shown, labels = at_places(batch["input_ids"], batch), batch["labels"]
    masked, kept = shown == MASK, shown == labels
    count = shown.size
    assert masked.mean() == pytest.approx(0.8, abs=4 * (0.8 * 0.2 / count) ** 0.5)
    # A random token equals the original with probability 1 / number of ordinary tokens.
    assert kept.mean() == pytest.approx(0.1 + 0.1 / len(ORDINARY), abs=4 * (0.09 / count) ** 0.5)
    random = shown[~masked & ~kept]
    assert not np.isin(random, SPECIAL).any()
    counts = np.bincount(random, minlength=VOCAB_SIZE)[ORDINARY]
    expected = len(random) / len(ORDINARY)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared == pytest.approx(len(ORDINARY), abs=5 * (2 * len(ORDINARY)) ** 0.5)


def test_masked_positions_are_uniform_over_ordinary_tokens() -> None:
    rows = make_rows(20_000)
    batch = objective().batch(rows, seed=0, step=0)
    counts = np.bincount(batch["masked_positions"].ravel(), minlength=64)
    share = 10 / 62
    assert counts[0] == counts[-1] == 0
    spread = (20_000 * share * (1 - share)) ** 0.5
    assert np.abs(counts[1:-1] - 20_000 * share).max() < 5 * spread


def test_sequence_with_too_few_tokens_has_predictions_without_weight() -> None:
    rows = np.full((3, 64), 2, np.int32)
    rows[1, 40:43] = 77
    rows[2, :30] = 77
    batch = objective().batch(rows, seed=0, step=0)
    assert batch["label_weights"].sum(axis=1).tolist() == [0, 3, 10]
    assert batch["masked_positions"][1].tolist() == [40, 41, 42] + [0] * 7
    assert np.array_equal(batch["input_ids"][0], rows[0])
    assert (batch["input_ids"][1, :40] == 2).all() and (batch["input_ids"][1, 43:] == 2).all()


def test_unused_prediction_does_not_unmask_the_first_token() -> None:
    rows = np.full((400, 8), 2, np.int32)
    rows[:, 0] = 77
    batch = objective(8, 0.5).batch(rows, seed=0, step=0)
    assert batch["label_weights"].sum(axis=1).tolist() == [1.0] * 400
    assert (batch["input_ids"][:, 0] == MASK).mean() == pytest.approx(0.8, abs=0.08)


def test_batch_is_a_pure_function_of_sequences_seed_and_step() -> None:
    rows = make_rows(16)
    first, again = (objective().batch(rows, seed=2, step=9) for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    for other in ({"seed": 3, "step": 9}, {"seed": 2, "step": 10}):
        changed = objective().batch(rows, **other)
        assert not np.array_equal(first["masked_positions"], changed["masked_positions"])


@pytest.mark.parametrize("pieces", [2, 4, 8])
def test_slice_of_a_batch_is_masked_as_in_the_whole_batch(pieces: int) -> None:
    rows = make_rows(16)
    whole = objective().batch(rows, seed=2, step=9)
    size = len(rows) // pieces
    parts = [
        objective().batch(rows[start : start + size], seed=2, step=9, first_row=start)
        for start in range(0, len(rows), size)
    ]
    for name, values in whole.items():
        assert np.array_equal(values, np.concatenate([part[name] for part in parts]))


def test_equal_sequences_are_masked_differently() -> None:
    rows = np.repeat(make_rows(1), 50, axis=0)
    places = objective().batch(rows, seed=0, step=0)["masked_positions"]
    assert len({tuple(row) for row in places}) > 45


def test_empty_batch_is_accepted() -> None:
    batch = objective().batch(np.zeros((0, 64), np.int32), seed=0, step=0)
    assert batch["masked_positions"].shape == (0, 10)


@pytest.mark.parametrize("wrong", [-1, VOCAB_SIZE, 60_000])
def test_token_outside_the_vocabulary_is_refused(wrong: int) -> None:
    rows = make_rows(4)
    rows[2, 5] = wrong
    with pytest.raises(ShardError, match=str(wrong)):
        objective().batch(rows, seed=0, step=0)


def test_unigram_baseline_is_the_cross_entropy_of_smoothed_counts() -> None:
    counts = np.array([3, 0, 6, 0], np.int64)
    labels = np.array([[0, 1, 2], [2, 2, 3]], np.int32)
    weights = np.array([[1, 1, 1], [1, 0, 0]], np.float32)
    # Add-one smoothed counts: 4, 1, 7 and 1 of 13.
    expected = -np.mean([np.log(4 / 13), np.log(1 / 13), np.log(7 / 13), np.log(7 / 13)])
    assert unigram_baseline(counts, labels, weights) == pytest.approx(expected)


@pytest.mark.parametrize(("rows", "row_length"), [(64, 128), (8, 512)])
def test_masking_takes_a_small_part_of_the_step_time(rows: int, row_length: int) -> None:
    task, data = objective(row_length), make_rows(rows, row_length)
    times = []
    for step in range(20):
        start = time.process_time()
        task.batch(data, seed=0, step=step)
        times.append(time.process_time() - start)
    assert min(times) < 0.002  # A training step of `mini` takes a hundred times as long.


def whole_words(row_length: int = 64, probability: float = 0.15) -> MaskedLanguageModel:
    """Builds an objective whose vocabulary begins a word at every third token."""
    return replace(objective(row_length, probability), word_starts=WORD_STARTS)


def words_of(row: NDArray[np.int32]) -> list[list[int]]:
    """Groups positions into words; special tokens end a word and belong to none."""
    words: list[list[int]] = []
    goes_on = False
    for place, token in enumerate(row.tolist()):
        if token in SPECIAL:
            goes_on = False
        elif token % 3 == 0 or not goes_on:
            words.append([place])
            goes_on = True
        else:
            words[-1].append(place)
    return words


def words_hidden_in_part(row: NDArray[np.int32], places: list[int]) -> list[list[bool]]:
    """Lists, for each partly masked word, which of its tokens are masked."""
    words = [[place in places for place in word] for word in words_of(row)]
    return [word for word in words if any(word) and not all(word)]


@pytest.mark.slow(3)
def test_whole_words_are_masked_except_a_truncated_last_word() -> None:
    rows = make_rows(10_000)
    batch = whole_words().batch(rows, seed=0, step=0)
    assert (batch["label_weights"] == 1).all() and batch["labels"].shape == (10_000, 10)
    assert np.array_equal(at_places(rows, batch), batch["labels"])
    places = batch["masked_positions"]
    cut = [words_hidden_in_part(*row) for row in zip(rows, places.tolist(), strict=True)]
    assert sum(map(len, cut)) > 1000
    assert max(map(len, cut)) == 1
    assert all(chosen == sorted(chosen, reverse=True) for words in cut for chosen in words)


def test_words_are_masked_with_the_same_probability_whatever_their_length() -> None:
    row = make_rows(1)
    row[0, 1:-1] = [6, 9, 10, 12, 13, 16, 18, 19, 22, 25] * 6 + [27, 30]
    rows = np.repeat(row, 20_000, axis=0)
    places = whole_words().batch(rows, seed=0, step=0)["masked_positions"]
    words = words_of(row[0])
    firsts = [word[0] for word in words]
    counts = np.bincount(places.ravel(), minlength=64)[firsts]
    # Truncation keeps the first token masked, so short and long words are equally likely.
    assert counts == pytest.approx(np.full(len(firsts), counts.mean()), rel=0.06)


def test_word_truncated_at_a_sequence_or_special_token_border_is_masked_whole() -> None:
    """The rest of a word after the start of a sequence or a special token counts as a word."""
    row = np.array([[7, 8, 2, 7, 8, 2, 6, 7]], np.int32)
    rows = np.repeat(row, 2000, axis=0)
    places = whole_words(8, 0.25).batch(rows, seed=0, step=0)["masked_positions"]
    assert {tuple(pair) for pair in places.tolist()} == {(0, 1), (3, 4), (6, 7)}


def padded(row_length: int = 64, probability: float = 0.15) -> MaskedLanguageModel:
    return replace(objective(row_length, probability), pad_id=3)


@pytest.mark.parametrize("task", [padded(), replace(padded(), word_starts=WORD_STARTS)])
def test_padded_line_has_its_share_masked_and_padding_unchanged(task: MaskedLanguageModel) -> None:
    rows = make_rows(64 * 50)
    lengths = np.arange(1, 65).repeat(50)
    rows[np.arange(64) >= lengths[:, None]] = 3
    batch = task.batch(rows, seed=0, step=0)
    assert np.array_equal(batch["attention_mask"], np.arange(64) < lengths[:, None])
    assert batch["attention_mask"].dtype == np.int32
    for row, shown, length, places, labels, weights in zip(
        rows, batch["input_ids"], lengths.tolist(), batch["masked_positions"], batch["labels"],
        batch["label_weights"], strict=True,
    ):  # fmt: skip
        real = weights > 0
        maskable = [place for place in range(length) if row[place] not in SPECIAL]
        assert real.sum() == min(len(maskable), max(1, round(0.15 * length)))
        assert set(places[real].tolist()) <= set(maskable)
        if task.word_starts is not None:
            assert len(words_hidden_in_part(row, places[real].tolist())) <= 1
        assert (shown[length:] == 3).all()
        restored = shown.copy()
        restored[places[real]] = labels[real]
        assert np.array_equal(restored, row)


def test_whole_words_are_masked_in_long_lines() -> None:
    rows = make_rows(500, 512)
    rows[:, 300:] = 3
    task = replace(padded(512), word_starts=WORD_STARTS)
    batch = task.batch(rows, seed=0, step=0)
    assert (batch["label_weights"].sum(axis=1) == 45).all()
    for row, places in zip(rows, batch["masked_positions"][:, :45].tolist(), strict=True):
        assert len(words_hidden_in_part(row, places)) <= 1


def test_documents_start_after_the_token_that_ends_the_previous_one() -> None:
    rows = np.array([[7, 8, 1, 0, 9, 9, 1, 0], [0, 9, 9, 9, 9, 9, 1, 1]], np.int32)
    starts = document_starts(rows, last=1)
    assert starts.tolist() == [[0, 0, 0, 3, 3, 3, 3, 7], [0, 0, 0, 0, 0, 0, 0, 7]]
    assert starts.dtype == np.int32


def test_documents_that_are_separated_are_masked_as_before() -> None:
    rows = make_rows(50)
    rows[:, 30], rows[:, 31] = 1, 0
    together = objective().batch(rows, seed=3, step=5)
    apart = replace(objective(), document_ends=1).batch(rows, seed=3, step=5)
    assert (apart.pop("text_starts") == np.where(np.arange(64) < 31, 0, 31)).all()
    assert all(np.array_equal(apart[name], together[name]) for name in together | apart)


def test_full_sequences_are_masked_the_same_with_and_without_a_padding_token() -> None:
    rows = make_rows(500)
    with_padding, without = (task.batch(rows, 1, 2) for task in (padded(), objective()))
    assert all(np.array_equal(with_padding[name], values) for name, values in without.items())
    assert set(with_padding) - set(without) == {"attention_mask"}


def test_masks_are_the_same_as_in_earlier_versions() -> None:
    """Other masks would change resumed runs and make validation losses incomparable."""
    rows = np.random.default_rng(0).integers(0, 1000, (33, 64)).astype(np.int32)
    rows[3] = 0
    task = MaskedLanguageModel(64, 0.15, 4, 1000, np.arange(6, dtype=np.int32))
    batch = task.batch(rows, 4, 7, first_row=4)
    digest = sha256(b"".join(values.tobytes() for values in batch.values())).hexdigest()
    assert list(batch) == ["input_ids", "masked_positions", "labels", "label_weights"]
    assert digest[:16] == "2ea9f32ea0856c69"


def test_sequences_of_another_length_are_refused() -> None:
    with pytest.raises(ShardError, match=r"64 tokens per sequence.*128"):
        objective().batch(make_rows(2, 128), seed=0, step=0)
