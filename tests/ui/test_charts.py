"""The points of the curves: all at first, thinned, then only new ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.store import RunRow, Store
from core.workspace import Workspace
from ui.charts import MOST_POINTS, points_since


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(Workspace(tmp_path))
    store.add_run(
        RunRow(
            id="run", stage="train", state="running", config={}, after=[], created=0.0,
            warnings=[], results={},
        )
    )  # fmt: skip
    yield store
    store.close()


def add_points(store: Store, name: str, steps: range) -> None:
    rows = [
        {"number": step + 1, "step": step, "name": name, "value": step / 7, "time": 0.0}
        for step in steps
    ]
    store.ingest("run", rows, [], {})


def test_run_without_metrics_has_no_curves(store: Store) -> None:
    found = points_since(store, "run", 0)
    assert (found["series"], found["after"], found["more"]) == ({}, 0, False)


def test_first_request_returns_all_points(store: Store) -> None:
    add_points(store, "loss", range(50))
    assert len(points_since(store, "run", 0)["series"]["loss"]) == 50


def test_later_requests_return_only_new_points(store: Store) -> None:
    add_points(store, "loss", range(50))
    first = points_since(store, "run", 0)
    assert points_since(store, "run", first["after"])["series"] == {}
    add_points(store, "eval_loss", range(50, 53))
    second = points_since(store, "run", first["after"])
    assert [step for step, *_ in second["series"]["eval_loss"]] == [50, 51, 52]
    assert "loss" not in second["series"]
    assert points_since(store, "run", second["after"])["series"] == {}


def test_a_long_run_is_thinned_and_keeps_its_newest_point(store: Store) -> None:
    for name in ("loss", "learning_rate", "tokens_per_second"):
        add_points(store, name, range(5000))
    series = points_since(store, "run", 0)["series"]
    assert sum(map(len, series.values())) <= MOST_POINTS
    assert all(points[-1][0] == 4999 for points in series.values())


def test_many_new_points_are_returned_in_portions(store: Store) -> None:
    add_points(store, "loss", range(10))
    after = points_since(store, "run", 0)["after"]
    add_points(store, "loss", range(10, 5010))
    steps = []
    more = True
    while more:
        answer = points_since(store, "run", after)
        steps += [step for step, *_ in answer["series"]["loss"]]
        after, more = answer["after"], answer["more"]
        assert len(steps) <= 5000
    assert steps == list(range(10, 5010))
