"""Tests of causal language modelling against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import ShardError
from core.objectives.clm import CausalLanguageModel
from tests.core.objectives.support import (
    EOS,
    PAD,
    VOCAB_SIZE,
    assert_a_batch_is_a_pure_function,
    assert_shapes,
    ordinary_rows,
)

TASK = CausalLanguageModel(64, VOCAB_SIZE, PAD)


def test_batch_arrays_have_the_expected_shapes() -> None:
    batch = TASK.batch(ordinary_rows(3, 64), seed=0, step=0)
    assert_shapes(TASK, batch, dict.fromkeys(("input_ids", "labels", "label_weights"), (3, 64)))
    assert TASK.batch(ordinary_rows(0, 64), 0, 0)["labels"].shape == (0, 64)


def test_each_token_except_the_first_is_predicted_once() -> None:
    rows = ordinary_rows(10_000, 64)
    batch = TASK.batch(rows, seed=0, step=0)
    assert np.array_equal(batch["input_ids"], rows)
    counts = batch["label_weights"] > 0
    for row, labels, counted in list(zip(rows, batch["labels"], counts, strict=True))[:50]:
        assert [int(token) for token in labels[counted]] == [int(token) for token in row[1:]]
    assert counts[:, :-1].all() and not counts[:, -1].any()


def test_loss_matches_the_flax_example() -> None:
    rows = ordinary_rows(8, 64)
    batch = TASK.batch(rows, seed=0, step=0)
    scores = np.random.default_rng(1).standard_normal((8, 64, VOCAB_SIZE))
    surprise = np.log(np.exp(scores).sum(-1, keepdims=True)) - scores
    theirs = np.take_along_axis(surprise[:, :-1], rows[:, 1:, None], axis=2).mean()
    ours = np.take_along_axis(surprise, batch["labels"][:, :, None], axis=2)[:, :, 0]
    assert np.average(ours, weights=batch["label_weights"]) == pytest.approx(theirs)


def test_padding_is_not_predicted() -> None:
    rows = ordinary_rows(3, 64)
    rows[1, 40:] = PAD
    rows[2, :] = PAD
    weights = TASK.batch(rows, seed=0, step=0)["label_weights"]
    assert weights.sum(axis=1).tolist() == [63, 39, 0]
    assert weights[1, :39].all()


def test_end_token_that_also_pads_is_predicted_within_a_sequence() -> None:
    rows = ordinary_rows(1, 64)
    rows[0, [10, 20]] = EOS
    weights = CausalLanguageModel(64, VOCAB_SIZE, EOS).batch(rows, 0, 0)["label_weights"]
    assert weights[0, [9, 19]].tolist() == [1, 1]


def test_batch_does_not_depend_on_seed_or_step() -> None:
    rows = ordinary_rows(8, 64)
    assert_a_batch_is_a_pure_function(TASK, rows)
    first, other = TASK.batch(rows, 0, 0), TASK.batch(rows, 1, 5, first_row=3)
    assert all(np.array_equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("length", [63, 65])
def test_sequences_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(ShardError, match=f"64 tokens per sequence.*{length}"):
        TASK.batch(ordinary_rows(2, length), 0, 0)
