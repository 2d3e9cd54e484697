"""Helpers for the objective tests: a vocabulary, sequences, and checks for all objectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from core.objectives.objective import Objective, Vocabulary

Batch = dict[str, NDArray]

PAD, BOS, EOS, UNK, MASK = range(5)
FIRST_ORDINARY, SENTINELS = 5, 100
VOCAB_SIZE = 1000
# <extra_id_0> has the highest id, like in T5's vocabulary.
SENTINEL_IDS = np.arange(VOCAB_SIZE - 1, VOCAB_SIZE - 1 - SENTINELS, -1, dtype=np.int32)
LAST_ORDINARY = VOCAB_SIZE - SENTINELS - 1
SPECIAL_IDS = np.array([PAD, BOS, EOS, UNK, MASK, *SENTINEL_IDS], np.int32)


def vocabulary() -> Vocabulary:
    """Builds a vocabulary in which every third ordinary token begins a word."""
    starts = np.arange(VOCAB_SIZE) % 3 == 0
    starts[SPECIAL_IDS] = True
    return Vocabulary(
        size=VOCAB_SIZE,
        special_ids=SPECIAL_IDS,
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        mask_id=MASK,
        sentinel_ids=SENTINEL_IDS,
        word_starts=starts,
    )


def ordinary_rows(count: int, length: int, seed: int = 0) -> NDArray[np.int32]:
    generator = np.random.default_rng(seed)
    return generator.integers(FIRST_ORDINARY, LAST_ORDINARY + 1, (count, length), np.int32)


def marked_rows(count: int, length: int, seed: int = 0) -> NDArray[np.int32]:
    """Builds sequences of documents, with padding tokens as sentence marks."""
    generator = np.random.default_rng(seed)
    rows = ordinary_rows(count, length, seed)
    draws = generator.random(rows.shape)
    rows[draws < 0.1] = PAD
    ends = np.flatnonzero((draws > 0.985).reshape(-1)[:-1])
    rows.reshape(-1)[ends] = EOS
    rows.reshape(-1)[ends + 1] = BOS
    return rows


def assert_a_batch_is_a_pure_function(task: Objective, rows: NDArray[np.int32]) -> None:
    """Checks that sequences, seed and step alone determine the arrays, also in slices."""
    before = rows.copy()
    whole = task.batch(rows, seed=2, step=9)
    assert np.array_equal(rows, before)
    for size in (len(rows), len(rows) // 2, 1):
        parts = [
            task.batch(rows[start : start + size], seed=2, step=9, first_row=start)
            for start in range(0, len(rows), size)
        ]
        for name, values in whole.items():
            assert np.array_equal(values, np.concatenate([part[name] for part in parts])), name
    tail = rows[-len(rows) // 2 :]
    together = task.batch(np.concatenate([tail] * 3), seed=2, step=range(8, 11), first_row=5)
    alone = [task.batch(tail, seed=2, step=step, first_row=5) for step in (8, 9, 10)]
    for name, values in together.items():
        assert np.array_equal(values, np.concatenate([one[name] for one in alone])), name


def assert_seed_step_and_row_matter(task: Objective, row: NDArray[np.int32]) -> None:
    """Checks that equal sequences differ in a batch, and that seed and step change it."""
    rows = np.repeat(row[None], 20, axis=0)
    first = task.batch(rows, seed=2, step=9)["input_ids"]
    assert len({values.tobytes() for values in first}) > 15
    for seed, step in ((3, 9), (2, 10)):
        assert not np.array_equal(task.batch(rows, seed, step)["input_ids"], first)


def assert_shapes(task: Objective, batch: Batch, shapes: dict[str, Sequence[int]]) -> None:
    """Checks the names, shapes and dtypes of all arrays."""
    assert {name: values.shape for name, values in batch.items()} == shapes
    for name, values in batch.items():
        assert values.dtype == (np.float32 if name == "label_weights" else np.int32), name
    assert batch["labels"].shape[1] == task.predictions_per_sequence
