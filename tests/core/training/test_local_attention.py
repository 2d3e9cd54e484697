"""Local-attention initialisation: heads that attend to neighbouring tokens."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from core.training.local_attention import PositionWaves, _with_heads

# The scale of position embeddings relative to token embeddings in the hidden states.
SHARE = 0.8


def attention_of(count: int, width: int, head_size: int, side: int) -> NDArray[np.float64]:
    """Attention weights between the tokens of a sequence in one head, (count, count)."""
    waves = PositionWaves(count, width, head_size)
    length = SHARE * np.sqrt(width)
    query, key = np.moveaxis(waves.query_and_key(length, side), 1, 0)
    hidden = waves.table() * length
    logits = (hidden @ query) @ (hidden @ key).T / np.sqrt(head_size)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("width", [32, 64])
def test_similarity_of_positions_depends_only_on_their_distance(width: int) -> None:
    vectors = PositionWaves(40, width, width // 2).table()
    assert vectors.shape == (40, width)
    assert vectors.dtype == np.float32
    products = vectors @ vectors.T
    for distance in range(0, 39, 3):
        assert np.ptp(np.diagonal(products, distance)) < 1e-5
    near = products[20, 20:24]
    assert near[0] == pytest.approx(1, abs=1e-5)
    assert (np.diff(near) < 0).all()
    assert products[20, 30:].max() < 0.5


# A small, a typical and an odd size.
@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(
    ("count", "width", "head_size"), [(66, 128, 64), (130, 256, 64), (66, 99, 11)]
)
def test_head_attends_to_previous_or_next_tokens(
    count: int, width: int, head_size: int, side: int
) -> None:
    found, here = attention_of(count, width, head_size, side), count // 2
    behind, ahead = found[here, here - 4 : here].sum(), found[here, here + 1 : here + 5].sum()
    near, other = (behind, ahead) if side < 0 else (ahead, behind)
    assert near > 5 * other
    assert near > 5 * 4 / count


@pytest.mark.parametrize("count", [130, 514, 2050])
def test_nearest_tokens_get_about_half_of_the_attention_at_any_length(count: int) -> None:
    found = attention_of(count, 128, 64, -1)
    assert 0.3 < found[count // 2, count // 2 - 5 : count // 2 + 1].sum() < 0.9


def test_heads_with_the_same_direction_differ() -> None:
    waves = PositionWaves(66, 128, 64)
    first, second = (waves.query_and_key(1.0, -1) for _ in range(2))
    assert np.abs(first - second).max() > 0.1 * np.abs(first).max()


@pytest.mark.parametrize("count", [514, 50_300])
def test_long_position_table_does_not_change_the_attention(count: int) -> None:
    short, long = (PositionWaves(of, 128, 64, reach=128) for of in (130, count))
    np.testing.assert_allclose(short.table(), long.table()[:130], atol=1e-5)
    np.testing.assert_allclose(short.query_and_key(1.0, 1), long.query_and_key(1.0, 1), atol=1e-4)


@pytest.mark.parametrize(("heads", "new"), [(1, 1), (2, 2), (3, 2), (4, 2), (6, 3)])
def test_half_of_the_heads_and_at_least_two_are_initialised(heads: int, new: int) -> None:
    width = 4 * heads
    drawn = np.full((width, 3, heads, 4), 7, np.float32)
    made = _with_heads(drawn, PositionWaves(20, width, 4), 1.0, (-1, 1))
    assert made.shape == drawn.shape
    assert (made[:, 2] == 7).all()  # Values stay.
    assert [bool((made[:, :2, head] != 7).all()) for head in range(heads)] == [
        head < new for head in range(heads)
    ]
