"""Co-occurrence embeddings: tokens with similar contexts have similar embeddings."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest
from numpy.typing import NDArray

from core.errors import ShardError
from core.training.cooccurrence import CooccurrenceCount, count_cooccurrences

# Special tokens.
SPECIAL = np.array([0, 1], np.int32)
FRUIT, TOOLS, EAT, WORK = (2, 3, 4), (5, 6, 7), (8, 9), (10, 11)


def rows_of(count: int = 400) -> NDArray[np.int32]:
    """Sequences of sentences about eating fruit and working with tools."""
    choose = np.random.default_rng(0)
    sentences = [
        [0, *choose.choice(things, 2), *choose.choice(deeds, 2), 1, 1]
        for things, deeds in ((FRUIT, EAT), (TOOLS, WORK))
        for _ in range(count)
    ]
    return np.array(sentences, np.int32)


class Rows:
    """Sequences in memory."""

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self._rows = rows
        self.row_length = rows.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        return self._rows[indices]


def vectors_of(rows: NDArray[np.int32], width: int = 8) -> NDArray[np.float32]:
    return count_cooccurrences(Rows(rows), (20, width), SPECIAL)


@pytest.mark.parametrize("width", [8, 300])
def test_tokens_with_similar_contexts_have_similar_embeddings(width: int) -> None:
    vectors = vectors_of(rows_of(), width)
    assert vectors.shape == (20, width)
    assert vectors.dtype == np.float32
    likeness = vectors @ vectors.T
    assert likeness[2, 3] > 0.6 > 0.3 > abs(likeness[2, 5])
    assert likeness[8, 9] > 0.6 > 0.3 > abs(likeness[8, 10])


def test_tokens_without_contexts_have_zero_embeddings() -> None:
    vectors = vectors_of(rows_of())
    lengths = np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(lengths[2:12], 1, atol=1e-5)
    assert not lengths[[0, 1, *range(12, 20)]].any()


def test_equal_sequences_give_equal_embeddings() -> None:
    first, second = (vectors_of(rows_of()) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("rows", [np.zeros((4, 6)), np.full((1, 1), 3), np.full((3, 8), 3)])
def test_uninformative_text_gives_finite_embeddings(rows: NDArray) -> None:
    vectors = vectors_of(rows.astype(np.int32))
    assert np.isfinite(vectors).all()
    assert (np.linalg.norm(vectors, axis=1) < 1.001).all()


@pytest.mark.parametrize("beside", [False, True])
def test_background_count_equals_the_foreground_count(beside: bool) -> None:
    rows = rows_of()
    words = CooccurrenceCount(Rows(rows), (20, 8), SPECIAL)
    if beside:
        words.begin()
    words.wait()
    np.testing.assert_array_equal(words.vectors(), vectors_of(rows))


def test_unreadable_sequences_are_reported_when_the_embeddings_are_requested() -> None:
    class Damaged(Rows):
        def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
            raise ShardError("A record is damaged")

    words = CooccurrenceCount(Damaged(rows_of()), (20, 8), SPECIAL)
    words.begin()
    words.wait()
    with pytest.raises(ShardError):
        words.vectors()


def test_forgotten_count_is_cancelled() -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    class Slow(Rows):
        def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
            begun.set()
            may_go_on.wait()
            return super().take(indices)

    words = CooccurrenceCount(Slow(rows_of()), (20, 8), SPECIAL)
    words.begin()
    running = words._running
    assert running
    begun.wait()
    words.forget()
    may_go_on.set()
    with pytest.raises(CancelledError):
        running.result()
    words.wait()
