"""Batches of waiting texts: little padding, few shapes, and limited size."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from core.inference.packing import MOST_TOKENS_AT_ONCE, Planner, Shape, Size, plan_row


def planner(longest: int = 512, *, shares_rows: bool = True, mask_cost: float = 0.1) -> Planner:
    return Planner(longest, mask_cost, shares_rows)


def check(shape: Shape, rows: Sequence[Sequence[int]], sizes: Sequence[Size]) -> None:
    """Checks that all texts fit, the first is included, and none occurs twice."""
    assert 0 < len(rows) <= shape.rows
    for row in rows:
        assert row
        assert sum(sizes[number].tokens for number in row) <= shape.length
        assert sum(sizes[number].masks for number in row) <= shape.masks
    chosen = [number for row in rows for number in row]
    assert 0 in chosen
    assert len(set(chosen)) == len(chosen)


@pytest.mark.parametrize("shares_rows", [True, False])
def test_every_plan_fits_its_texts(shares_rows: bool) -> None:
    choose = random.Random(0)
    for longest in (16, 100, 128, 512):
        chooses = planner(longest, shares_rows=shares_rows)
        for _ in range(200):
            sizes = []
            for _ in range(choose.choice([1, 2, 5, 40])):
                tokens = choose.randint(1, longest)
                sizes.append(Size(tokens, choose.choice([1, 1, 2, max(1, tokens // 2)])))
            shape, rows, _ = chooses.plan(sizes)
            check(shape, rows, sizes)
            assert shape.length <= longest
            assert shares_rows or all(len(row) == 1 for row in rows)


def test_single_text_has_a_row_of_about_its_length() -> None:
    shapes = [planner().plan([Size(*size)])[0] for size in ((5, 1), (20, 1), (40, 3), (400, 17))]
    assert shapes == [(1, 16, 1), (1, 24, 1), (1, 48, 4), (1, 512, 64)]
    assert planner(100).plan([Size(100, 100)])[0] == (1, 100, 100)


def test_packed_texts_leave_little_padding() -> None:
    choose = random.Random(1)
    sizes = [Size(choose.randint(10, 70), 1) for _ in range(32)]
    shape, rows, _ = planner().plan(sizes)
    text = sum(sizes[number].tokens for row in rows for number in row)
    assert text / (shape.rows * shape.length) > 0.9
    assert shape.length == 128


def test_few_waiting_texts_get_a_small_batch() -> None:
    shape, rows, _ = planner().plan([Size(20, 1)] * 4)
    assert (shape, [sorted(row) for row in rows]) == ((1, 128, 8), [[0, 1, 2, 3]])
    # A shared row would be mostly padding.
    assert planner().plan([Size(14, 1)] * 2) == ((1, 16, 1), [[0]], None)


def test_expensive_masks_get_few_slots() -> None:
    sizes = [Size(12, 1)] * 32
    cheap, dear = (planner(mask_cost=cost).plan(sizes)[0] for cost in (0.1, 100.0))
    assert cheap.masks == 8
    assert dear.masks < 8


def test_texts_that_cannot_be_packed_are_batched_by_length() -> None:
    shape, rows, _ = planner(shares_rows=False).plan([Size(30, 1)] * 9)
    assert (shape, len(rows)) == ((8, 32, 1), 8)


def test_compiled_shape_is_used_while_a_better_one_compiles() -> None:
    chooses, short = planner(), [Size(10, 1)]
    assert chooses.plan(short, [])[::2] == ((1, 16, 1), None)
    assert chooses.plan(short, [Shape(1, 16, 1)])[::2] == ((1, 16, 1), None)
    assert chooses.plan(short, [Shape(1, 96, 1), Shape(1, 64, 1)])[::2] == ((1, 64, 1), (1, 16, 1))
    # The gain is too small for compiling another shape.
    assert chooses.plan(short, [Shape(1, 24, 1)])[::2] == ((1, 24, 1), None)
    # The text does not fit, or the shape would take longer than compiling a better one.
    for other in (Shape(1, 8, 1), Shape(32, 512, 16)):
        assert chooses.plan(short, [other])[::2] == ((1, 16, 1), None)
    assert chooses.plan([Size(10, 3)], [Shape(1, 16, 1)])[::2] == ((1, 16, 4), None)


def test_waiting_texts_use_a_compiled_shape() -> None:
    sizes = [Size(20, 1)] * 32
    shape, rows, better = planner().plan(sizes, [Shape(1, 24, 1), Shape(1, 128, 4)])
    check(shape, rows, sizes)
    assert (shape, len(rows[0])) == ((1, 128, 4), 4)
    assert better == planner().plan(sizes).shape


@pytest.mark.parametrize("shares_rows", [True, False])
def test_batches_of_long_texts_are_limited(shares_rows: bool) -> None:
    for tokens, most in ((512, 32), (1024, 8), (8192, 1)):
        sizes = [Size(tokens, 1)] * 40
        shape, rows, _ = planner(8192, shares_rows=shares_rows).plan(sizes)
        check(shape, rows, sizes)
        assert len(rows) == most
        assert shape.rows * shape.length <= MOST_TOKENS_AT_ONCE


@pytest.mark.parametrize("shares_rows", [True, False])
def test_batches_with_many_masks_are_limited(shares_rows: bool) -> None:
    sizes = [Size(64, 64)] * 20
    shape, rows, _ = planner(shares_rows=shares_rows).plan(sizes)
    check(shape, rows, sizes)
    assert shape.rows * shape.masks <= 512


def test_usual_shapes_cover_typical_requests() -> None:
    usual = planner(128).usual_shapes()
    assert len(set(usual)) == len(usual) < 15
    choose = random.Random(2)
    for count in (1, 4, 16, 32):
        sizes = [Size(choose.randint(10, 60), 1) for _ in range(count)]
        assert planner(128).plan(sizes)[0] in usual
    assert all(shape.length <= 20 for shape in planner(20).usual_shapes())


def test_unpadded_row_holds_the_first_text_and_others_that_fit() -> None:
    sizes = [Size(200, 2), Size(100, 1), Size(40, 1), Size(16, 3)]
    assert plan_row(sizes) == (Shape(1, 256, 6), [[0, 2, 3]], None)
    assert plan_row([Size(400, 1), Size(1, 1)]) == (Shape(1, 400, 1), [[0]], None)
    assert plan_row([Size(12, 1)] * 50).shape == (1, 252, 21)


def test_row_has_at_most_the_limit_of_masks() -> None:
    shape, ((*chosen,),), _ = plan_row([Size(600, 500), *[Size(10, 10)] * 9])
    assert (shape.masks, chosen) == (500, [0])
    shape, ((*chosen,),), _ = plan_row([Size(10, 600), *[Size(10, 1)] * 9])
    assert (shape.masks, chosen) == (600, [0])
