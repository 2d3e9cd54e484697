"""The points of the curves: all at first, thinned, then only new ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.config.train import TrainConfig
from core.finetuning.names import METRICS, RANDOM_INIT
from core.records.events import Reporter
from core.store import RunRow, Store
from core.training.interim import InterimEvaluation
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from ui.charts import MOST_POINTS, points_since
from ui.parts.run_charts import Chart, charts_of


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


def add_points(store: Store, names: str | Sequence[str], steps: range) -> None:
    names = [names] if isinstance(names, str) else names
    rows = [
        {"number": step + 1, "step": step, "name": name, "value": step / 7, "time": 0.0}
        for step in steps
        for name in names
    ]
    store.ingest("run", rows, [], {})


def run_of(stage: str, *names: str, **config: Any) -> RunRow:
    """Makes a run with these metrics."""
    return RunRow(id="x", stage=stage, config=config, metric_counts=dict.fromkeys(names, 1))


def titles(charts: Sequence[Chart]) -> dict[str, list[str]]:
    """Returns the labels of each chart's lines, by title."""
    return {one.title: [line.label for line in one.lines] for one in charts}


def test_run_without_metrics_has_no_curves(store: Store) -> None:
    found = points_since(store, "run", 0)
    assert (found["series"], found["after"], found["more"]) == ({}, 0, False)


def test_first_request_returns_all_points(store: Store) -> None:
    add_points(store, "loss", range(50))
    assert len(points_since(store, "run", 0)["series"]["loss"]) == 50


def test_later_requests_return_only_new_points(store: Store) -> None:
    add_points(store, "loss", range(50))
    add_points(store, "eval_loss", range(40, 41))
    first = points_since(store, "run", 0)
    known = {"after": first["after"], "shape": first["shape"]}
    assert points_since(store, "run", **known)["series"] == {}
    add_points(store, "eval_loss", range(50, 53))
    second = points_since(store, "run", **known)
    assert [step for step, *_ in second["series"]["eval_loss"]] == [50, 51, 52]
    assert "loss" not in second["series"] and "charts" not in second
    assert points_since(store, "run", second["after"], first["shape"])["series"] == {}


def test_all_points_come_again_with_the_charts_of_a_new_metric(store: Store) -> None:
    add_points(store, "loss", range(50))
    first = points_since(store, "run", 0)
    add_points(store, ["loss", "pairs_accuracy/binding"], range(50, 52))
    add_points(store, "loss", range(52, 55))
    second = points_since(store, "run", first["after"], first["shape"])
    assert [len(points) for points in second["series"].values()] == [55, 2]
    assert [one["title"] for one in second["charts"]] == ["Loss", "Syntax and semantics"]
    assert second["shape"] != first["shape"]


def test_a_long_run_is_thinned_and_keeps_its_newest_point(store: Store) -> None:
    for name in ("loss", "learning_rate", "tokens_per_second"):
        add_points(store, name, range(5000))
    series = points_since(store, "run", 0)["series"]
    assert sum(map(len, series.values())) <= MOST_POINTS
    assert all(points[-1][0] == 4999 for points in series.values())


def test_short_curves_are_whole_beside_many_others(store: Store) -> None:
    phenomena = [f"pairs_accuracy/{number}" for number in range(50)]
    sources = [f"text_{one}/{n}" for one in ("loss", "perplexity") for n in range(50)]
    add_points(store, ["loss", "learning_rate"], range(3000))
    add_points(store, [*phenomena, *sources], range(10))
    found = points_since(store, "run", 0)
    counts = {name: len(points) for name, points in found["series"].items()}
    assert all(counts[name] == 10 for name in (*phenomena, *sources))
    assert sum(counts.values()) <= MOST_POINTS and min(counts.values()) >= 10
    assert sorted(found["thinned"]) == ["learning_rate", "loss"]


def test_each_figure_of_an_evaluation_during_training_has_a_curve(tmp_path: Path) -> None:
    """The names are those that `InterimEvaluation` reports."""
    phenomena = ("binding", "island_effects", "npi_licensing", "irregular_forms", "s-selection")
    rows = [
        {"sentence_good": "a ship", "sentence_bad": "ship a", "linguistics_term": name}
        for name in (*phenomena, "own")
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("A ship runs.\n")
    tokenizer = make_tokenizer(Workspace(tmp_path / "workspace"), "byte_level_bpe")
    config = TrainConfig(
        evaluate_every=5, evaluate_pairs_path=str(tmp_path / "pairs.jsonl"),
        evaluate_text_path=str(tmp_path / "*.txt"),
    )  # fmt: skip
    interim = InterimEvaluation(config, Reporter())
    found = interim.run(tmp_path, lambda place: write_checkpoint(place, tokenizer), print)
    assert found
    charts = charts_of(run_of("train", *found))
    drawn = [line.name for chart in charts for line in chart.lines]
    assert sorted(drawn) == sorted(found)
    assert titles(charts) == {
        "Accuracy on minimal pairs": [
            "All pairs", "Official: a tie is right", "Mean over paradigms", "Mean over phenomena",
        ],
        "Bits per byte of held-out text": [""],
        "Loss of held-out text": [""],
        "Perplexity of held-out text": [""],
        "Morphology": ["irregular forms"],
        "Syntax": ["s-selection", "island effects"],
        "Semantics": ["npi licensing"],
        "Syntax and semantics": ["binding"],
        "Other phenomena": ["own"],
        "Bits per byte by source": ["a.txt", "b.txt"],
        "Loss by source": ["a.txt", "b.txt"],
        "Perplexity by source": ["a.txt", "b.txt"],
    }  # fmt: skip
    groups = {chart.group for chart in charts}
    assert groups == {"", "Accuracy by phenomenon", "Held-out text by source"}


def test_many_phenomena_are_divided_into_readable_charts() -> None:
    names = [f"pairs_accuracy/kind_{number:02}" for number in range(20)]
    charts = charts_of(run_of("train", *names))
    assert list(titles(charts)) == [f"Phenomena, {number} of 4" for number in range(1, 5)]
    assert [len(chart.lines) for chart in charts] == [5] * 4
    assert [line.name for chart in charts for line in chart.lines] == names
    for chart in charts:
        assert len({line.color for line in chart.lines}) == len(chart.lines)


@pytest.mark.parametrize("name", list(METRICS))
def test_each_metric_of_fine_tuning_has_a_curve_beside_that_of_random_weights(name: str) -> None:
    own = ("loss", "eval_loss", "learning_rate", f"eval_{name}", "epoch")
    charts = charts_of(run_of("finetune", *own, *(f"{RANDOM_INIT}{one}" for one in own)))
    (chart,) = [one for one in charts if one.title == f"{METRICS[name]}, development set"]
    mine, random = chart.lines
    assert (mine.name, random.name) == (f"eval_{name}", f"random_init_eval_{name}")
    assert (mine.label, random.label) == ("This model", "Random weights")
    assert random.dashed and random.color != mine.color
    assert titles(charts)["Loss"] == [
        "Training", "Development set", "Training, random weights",
        "Development set, random weights",
    ]  # fmt: skip
    assert titles(charts)["Learning rate"] == ["This model", "Random weights"]


def test_loss_of_regression_has_no_unit() -> None:
    units = [
        charts_of(run_of("finetune", "loss", task=task))[0].unit
        for task in ("classification", "regression")
    ]
    assert units == ["nats", ""]


def test_evaluation_is_drawn_by_time(store: Store, tmp_path: Path) -> None:
    store.add_run(
        RunRow(
            id="other", stage="evaluate", state="running", config={}, after=[], created=0.0,
            warnings=[], results={}, metric_counts={"cpu_percent": 1, "memory_gib": 1},
        )
    )  # fmt: skip
    found = points_since(store, "other", 0)
    assert found["frame"]["steps"] is False
    assert [one["title"] for one in found["charts"]] == ["Utilisation", "Memory"]
    assert points_since(store, "run", 0)["frame"]["steps"] is True


def test_many_new_points_are_returned_in_portions(store: Store) -> None:
    add_points(store, "loss", range(10))
    first = points_since(store, "run", 0)
    after = first["after"]
    add_points(store, "loss", range(10, 5010))
    steps = []
    more = True
    while more:
        answer = points_since(store, "run", after, first["shape"])
        steps += [step for step, *_ in answer["series"]["loss"]]
        after, more = answer["after"], answer["more"]
        assert len(steps) <= 5000
    assert steps == list(range(10, 5010))
