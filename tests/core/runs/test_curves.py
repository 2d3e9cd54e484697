"""Curves keep their extremes when they are reduced, and are measured by tokens, time and cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from core.runs.curves import Curves, Frame, columns_of
from core.store import RunRow, Store
from core.workspace.workspace import Workspace

POINTS = 3000
SPIKE, DIP = 1234, 2345


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def store(workspace: Workspace) -> Iterator[Store]:
    store = Store.open(workspace)
    yield store
    store.close()


def add_run(store: Store, **values: Any) -> RunRow:
    common: dict[str, Any] = {"state": "done", "config": {}, "created": 1.0, "started": 100.0}
    row = RunRow(id="train-a", stage="train", after=[], warnings=[], results={})
    for name, value in {**common, **values}.items():
        setattr(row, name, value)
    store.add_run(row)
    return row


def add_points(store: Store, count: int = POINTS) -> RunRow:
    heights = {SPIKE: 50.0, DIP: -50.0}
    rows = [
        {
            "number": point + 1,
            "step": 10 * point,
            "name": "loss",
            "value": heights.get(point, point % 7),
            "time": 100.0 + point,
        }
        for point in range(count)
    ]
    store.ingest("train-a", rows, [], {"event_number": count})
    return store.find_run("train-a")


def test_reduced_curve_keeps_extremes_and_the_newest_point(store: Store) -> None:
    add_run(store)
    row = add_points(store)
    found = Curves(store).read(row, "loss", 100)
    assert len(found) <= 100 and found == sorted(found)
    assert (10 * SPIKE, 50.0, 100.0 + SPIKE) in found and (10 * DIP, -50.0, 100.0 + DIP) in found
    assert found[-1][0] == 10 * (POINTS - 1)


def test_sampled_curve_is_evenly_spaced(store: Store) -> None:
    add_run(store)
    found = Curves(store).read(add_points(store), "loss", 100, exact=False)
    steps = [step for step, _, _ in found]
    assert len(found) <= 100 and len({b - a for a, b in pairwise(steps)}) == 1


def test_part_of_a_curve_has_all_its_points_and_one_on_each_side(store: Store) -> None:
    add_run(store)
    found = Curves(store).read(add_points(store), "loss", 100, (505, 800))
    assert [step for step, _, _ in found] == list(range(500, 820, 10))
    whole = Curves(store).read(store.find_run("train-a"), "loss", 2 * POINTS, (-5, 1e9))
    assert len(whole) == POINTS


def test_kept_curve_is_replaced_when_points_come(store: Store) -> None:
    add_run(store)
    curves = Curves(store)
    assert len(curves.read(add_points(store, 10), "loss", 100)) == 10
    store.ingest(
        "train-a",
        [{"number": 11, "step": 100, "name": "loss", "value": 1.0, "time": 200.0}],
        [],
        {"event_number": 11},
    )
    assert len(curves.read(store.find_run("train-a"), "loss", 100)) == 11


def test_pauses_between_attempts_do_not_count(workspace: Workspace, store: Store) -> None:
    frame = Frame(None, None, ((100.0, 150.0), (1000.0, float("inf"))))
    assert [frame.elapsed_seconds(time) for time in (90, 120, 500, 1010)] == [0, 20, 50, 60]
    row = add_run(store, ended=160.0, config={"price_per_hour": 2.5}, tokens_per_step=512.0)
    found = Frame.of(workspace, row)
    assert (found.tokens_per_step, found.price_per_hour) == (512.0, 2.5)
    assert found.elapsed_seconds(1e9) == 60.0
    assert columns_of([(3, 1 / 3, 130.0)], found) == {
        "steps": [3], "values": [0.3333333], "seconds": [30.0]
    }  # fmt: skip


def test_earlier_runs_know_their_tokens_from_their_results(
    workspace: Workspace, store: Store
) -> None:
    row = add_run(store, results={"tokens": 4096.0, "num_train_steps": 8})
    assert Frame.of(workspace, row).to_dict() == {"tokens": 512.0, "price": None}
