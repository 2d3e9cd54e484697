"""Tests of span corruption against its definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from core.errors import ConfigError, ShardError
from core.objectives.objective import ObjectiveSettings
from core.objectives.span_corruption import SpanCorruption, compute_input_and_target_lengths
from tests.core.objectives.support import (
    EOS,
    PAD,
    SENTINEL_IDS,
    VOCAB_SIZE,
    assert_a_batch_is_a_pure_function,
    assert_seed_step_and_row_matter,
    assert_shapes,
    ordinary_rows,
    vocabulary,
)

MAX_SEQ_LENGTH, ROW_LENGTH, TARGETS_LENGTH, NOISE_TOKENS, SPANS = 128, 141, 29, 21, 7


def task_of(max_seq_length: int = MAX_SEQ_LENGTH) -> SpanCorruption:
    return SpanCorruption.create(ObjectiveSettings(max_seq_length), vocabulary())


def parts(ids: NDArray[np.int32]) -> list[list[int]]:
    """Splits ids at sentinels 0, 1, 2, … in this order, without the end token."""
    assert ids[-1] == EOS
    found: list[list[int]] = [[]]
    sentinels = SENTINEL_IDS.tolist()
    all_sentinels = set(sentinels)
    for token in ids[:-1].tolist():
        if len(found) <= len(sentinels) and token == sentinels[len(found) - 1]:
            found.append([])
        else:
            assert token not in all_sentinels
            found[-1].append(token)
    return found


def test_lengths_match_the_published_ones() -> None:
    assert compute_input_and_target_lengths(512) == (568, 114)
    assert task_of(512).row_length == 568
    assert task_of(512).predictions_per_sequence == 114
    assert task_of(512).counts.spans == 28


def test_expected_label_counts_match_the_labels() -> None:
    """Labels contain sentinels although the stored sequences do not."""
    task = task_of()
    rows = np.random.default_rng(0).integers(10, 40, (400, task.row_length)).astype(np.int32)
    counted = task.label_counts(np.bincount(rows.reshape(-1), minlength=task.vocab_size), 400)
    batch = task.batch(rows, seed=0, step=0)
    labels = np.bincount(batch["labels"].reshape(-1), minlength=task.vocab_size)
    ids = [*task.sentinel_ids, task.eos_id]
    assert counted[ids].tolist() == labels[ids].tolist()
    assert counted.sum() == pytest.approx(labels.sum(), rel=0.01)
    assert np.abs(counted - labels).max() < 0.4 * labels[10:40].mean()


@pytest.mark.parametrize("density", [0.1, 0.15, 0.25, 0.3, 0.5])
@pytest.mark.parametrize("mean_length", [2.0, 3.0, 3.5, 5.0, 10.0])
def test_stored_sequence_is_the_longest_whose_input_fits(
    density: float, mean_length: float
) -> None:
    counts = np.arange(4 * 2048)
    hidden = np.round(counts * density).astype(int)
    spans = np.round(hidden / mean_length).astype(int)
    input_lengths, target_lengths = counts - hidden + spans + 1, hidden + spans + 1

    for wanted in (*range(40, 600, 7), 512, 1024, 2048):
        tokens, targets = compute_input_and_target_lengths(wanted, density, mean_length)
        longest = int(np.flatnonzero(input_lengths[: 4 * wanted] <= wanted)[-1])
        if density == 0.5 and target_lengths[longest] > input_lengths[longest]:
            longest -= 1
            assert targets == target_lengths[longest + 1] - 1
        else:
            assert targets == target_lengths[longest]
        assert tokens == longest


@pytest.mark.parametrize("max_seq_length", [16, 64, 100, 128, 333, 512])
def test_batch_has_no_padding(max_seq_length: int) -> None:
    task = task_of(max_seq_length)
    row_length, targets_length = compute_input_and_target_lengths(max_seq_length)
    assert task.row_length == row_length
    batch = task.batch(ordinary_rows(4, row_length), seed=0, step=0)
    assert_shapes(
        task,
        batch,
        {
            "input_ids": (4, max_seq_length),
            "decoder_input_ids": (4, targets_length),
            "labels": (4, targets_length),
            "label_weights": (4, targets_length),
        },
    )
    assert not (batch["input_ids"] == PAD).any() and not (batch["labels"] == PAD).any()
    assert batch["label_weights"].all()


def test_sequence_can_be_rebuilt_from_input_and_labels() -> None:
    rows = ordinary_rows(10_000, ROW_LENGTH)
    rows[:, ::50] = EOS  # documents end within sequences
    batch = task_of().batch(rows, seed=1, step=3)
    for row, shown, asked in zip(rows, batch["input_ids"], batch["labels"], strict=True):
        kept, hidden = parts(shown), parts(asked)
        assert hidden.pop(0) == [] and kept.pop() == []  # the target begins with a sentinel,
        assert len(kept) == len(hidden) == SPANS  # and the input ends with one
        assert all(kept) and all(hidden)
        assert sum(map(len, hidden)) == NOISE_TOKENS
        together = [part for pair in zip(kept, hidden, strict=True) for part in pair]
        assert [token for part in together for token in part] == row.tolist()


def test_span_lengths_are_uniform_over_all_compositions() -> None:
    """Checks 21 masked tokens in 7 spans and 120 kept tokens in 7 parts."""
    rows = ordinary_rows(10_000, ROW_LENGTH)
    batch = task_of().batch(rows, seed=0, step=0)
    for name, items, skipped in (("labels", NOISE_TOKENS, 0), ("input_ids", 120, SPANS)):
        lengths = np.array(
            [[len(part) for n, part in enumerate(parts(ids)) if n != skipped]
             for ids in batch[name]]
        )  # fmt: skip
        assert lengths.shape == (10_000, SPANS)
        assert (lengths.sum(axis=1) == items).all()
        # The number of the C(items - 1, parts - 1) compositions in which a part has length n.
        possible = np.arange(1, items - SPANS + 2)
        ways = np.array([_choose(items - n - 1, SPANS - 2) for n in possible], float)
        share = ways / ways.sum()
        for place in range(SPANS):
            seen = np.bincount(lengths[:, place], minlength=items)[possible]
            spread = np.sqrt(10_000 * share * (1 - share)) + 1
            assert (np.abs(seen - 10_000 * share) < 5 * spread).all(), (name, place)


def test_decoder_input_is_the_labels_shifted_by_one() -> None:
    task = replace(task_of(), decoder_start_id=7)
    batch = task.batch(ordinary_rows(5, ROW_LENGTH), seed=0, step=0)
    assert (batch["decoder_input_ids"][:, 0] == 7).all()
    assert np.array_equal(batch["decoder_input_ids"][:, 1:], batch["labels"][:, :-1])
    published = task_of().batch(ordinary_rows(5, ROW_LENGTH), seed=0, step=0)
    assert (published["decoder_input_ids"][:, 0] == PAD).all()


def test_batch_is_a_pure_function_of_sequences_seed_and_step() -> None:
    assert_a_batch_is_a_pure_function(task_of(), ordinary_rows(8, ROW_LENGTH))
    assert_seed_step_and_row_matter(task_of(), ordinary_rows(1, ROW_LENGTH)[0])


def test_sequence_of_padding_has_no_label_weight() -> None:
    rows = ordinary_rows(3, ROW_LENGTH)
    rows[1] = PAD
    weights = task_of().batch(rows, seed=0, step=0)["label_weights"]
    assert weights.sum(axis=1).tolist() == [TARGETS_LENGTH, 0, TARGETS_LENGTH]


def test_empty_batch_is_accepted() -> None:
    batch = task_of().batch(np.zeros((0, ROW_LENGTH), np.int32), seed=0, step=0)
    assert batch["labels"].shape == (0, TARGETS_LENGTH)


def test_sequences_of_another_length_or_vocabulary_are_refused() -> None:
    with pytest.raises(ShardError, match=rf"{ROW_LENGTH} tokens.*128"):
        task_of().batch(ordinary_rows(2, 128), 0, 0)
    with pytest.raises(ShardError, match=str(VOCAB_SIZE)):
        task_of().batch(np.full((2, ROW_LENGTH), VOCAB_SIZE, np.int32), 0, 0)


def test_too_few_sentinels_are_refused() -> None:
    few = replace(vocabulary(), sentinel_ids=SENTINEL_IDS[:6])
    with pytest.raises(ConfigError, match=r"7 tokens <extra_id_0>.*Received: 6"):
        SpanCorruption.create(ObjectiveSettings(MAX_SEQ_LENGTH), few)


@pytest.mark.parametrize(
    "settings",
    [
        ObjectiveSettings(8),
        ObjectiveSettings(128, mlm_probability=0.0),
        ObjectiveSettings(128, mlm_probability=1.0),
        ObjectiveSettings(128, mean_noise_span_length=0.5),
        ObjectiveSettings(128, mean_noise_span_length=1.0),
        ObjectiveSettings(128, mlm_probability=0.9, mean_noise_span_length=1.5),
        ObjectiveSettings(64, mean_noise_span_length=50.0),
    ],
)
def test_settings_out_of_range_are_refused(settings: ObjectiveSettings) -> None:
    with pytest.raises(ConfigError):
        SpanCorruption.stored_sequence_length(settings)
    with pytest.raises(ConfigError):
        SpanCorruption.create(settings, vocabulary())


def _choose(items: int, chosen: int) -> int:
    from math import comb

    return comb(items, chosen)
