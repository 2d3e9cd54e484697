"""A first layer that looks at the tokens beside each one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from core.training.neighbours import Waves

# Of a position's part in the hidden states, beside a word's.
SHARE = 0.8


def attention_of(
    count: int, width: int, heads: int, *, looks_back: bool = False
) -> NDArray[np.float64]:
    """Returns how much each token of a row looks at each other, (N, count, count)."""
    waves = Waves(count, width, heads)
    length = SHARE * np.sqrt(width)
    found = waves.table() * length @ waves.queries_and_keys(length, looks_back=looks_back)
    queries, keys = (
        part.reshape(count, heads, -1).transpose(1, 0, 2) for part in np.split(found, 2, axis=1)
    )
    logits = queries @ keys.transpose(0, 2, 1) / np.sqrt(width // heads)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("width", [32, 64])
def test_two_positions_are_as_alike_wherever_they_are(width: int) -> None:
    vectors = Waves(40, width, 2).table()
    assert vectors.shape == (40, width)
    assert vectors.dtype == np.float32
    products = vectors @ vectors.T
    for distance in range(0, 39, 3):
        assert np.ptp(np.diagonal(products, distance)) < 1e-5
    near = products[20, 20:24]
    assert near[0] == pytest.approx(1, abs=1e-5)
    assert (np.diff(near) < 0).all()
    assert products[20, 30:].max() < 0.5


# The small, the usual, and many heads of a size that has no half.
@pytest.mark.parametrize(("count", "width", "heads"), [(66, 128, 2), (130, 256, 4), (130, 99, 9)])
def test_heads_look_behind_and_ahead_in_turn(count: int, width: int, heads: int) -> None:
    found = attention_of(count, width, heads)
    here = count // 2
    for head in range(heads):
        behind, ahead = found[head, here, here - 4 : here], found[head, here, here + 1 : here + 5]
        near, other = (behind, ahead) if head % 2 == 0 else (ahead, behind)
        assert near.sum() > 5 * other.sum()
        assert near.sum() > 4 * 4 / count


@pytest.mark.parametrize("count", [130, 514, 2050])
def test_the_nearest_weigh_about_as_much_as_all_others_however_many(count: int) -> None:
    found = attention_of(count, 128, 2)
    near = found[0, count // 2, count // 2 - 5 : count // 2 + 1].sum()
    assert 0.3 < near < 0.9


def test_where_only_what_is_behind_is_seen_all_heads_look_there() -> None:
    found = attention_of(130, 128, 2, looks_back=True)
    assert (found[:, 65, 61:65].sum(axis=1) > 0.5).all()
