"""`suggest --dollars`: hardware, hours and an expected loss for money."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.__main__ import main
from core.config.train import TrainConfig
from core.training.planner import open_sizes
from core.workspace.workspace import Workspace
from tests.core.training.test_trainer import make_inputs


def ask(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, dict[str, Any]]:
    command = ["suggest", "--workspace", str(workspace.root), "--shards", "rows", "--json"]
    code = main([*command, *flags])
    return code, json.loads(capsys.readouterr().out)


def add_model(workspace: Workspace) -> None:
    config = TrainConfig(shards="rows")
    inputs = next(iter(open_sizes(config, workspace).values()))
    with workspace.new_artifact("model", "earlier", exact=False) as draft:
        (draft.folder / "config.json").write_text("{}")
        draft.config = config.model_dump(mode="json")
        draft.inputs = inputs.fingerprints
        draft.counts = {
            "eval_loss": 4.5, "frequency_baseline_loss": 6.5,
            "parameters": 5_000_000, "tokens": 400_000,
        }  # fmt: skip


def test_dollars_buy_the_most_flops_and_a_loss_scaled_from_an_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = make_inputs(tmp_path)
    code, answer = ask(workspace, capsys, "--dollars", "0.01")
    assert code == 0
    assert answer["topology"] == "v6e-1"
    assert answer["hours"] == pytest.approx(0.01 / 2.70)
    assert answer["loss"] is None
    assert answer["values"]["num_train_steps"] > 0
    add_model(workspace)
    loss = ask(workspace, capsys, "--dollars", "0.01")[1]["loss"]
    assert loss["low"] < loss["loss"] < loss["high"]
    assert loss["runs"] == ["earlier"]
    assert 0 <= loss["gain_of_half"] < 1
    assert main(
        ["suggest", "--workspace", str(workspace.root), "--shards", "rows", "--dollars", "0.01"]
    ) == 0  # fmt: skip
    said = capsys.readouterr().out
    assert "hours on v6e-1, at $2.70 per hour" in said
    assert "scaled from earlier" in said
    assert "of the gain over the unigram baseline" in said


def test_larger_budget_buys_a_larger_machine_rather_than_weeks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = make_inputs(tmp_path)
    answer = ask(workspace, capsys, "--dollars", "400")[1]
    assert answer["topology"] == "v6e-8"
    assert answer["hours"] == pytest.approx(400 / (8 * 2.70))
    assert ask(workspace, capsys, "--dollars", "5000")[1]["topology"] == "v6e-8"


def test_price_belongs_to_a_named_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = make_inputs(tmp_path)
    answer = ask(
        workspace, capsys, "--dollars", "0.01", "--topology", "l4", "--price-per-hour", "0.8"
    )[1]
    assert (answer["topology"], answer["dollars_per_hour"]) == ("l4", 0.8)
    for flags, field in (
        (["--topology", "l4"], "price_per_hour"),
        (["--price-per-hour", "0.8"], "price_per_hour"),
        (["--topology", "l4", "--price-per-hour", "-1"], "price_per_hour"),
        (["--topology", "l5"], "topology"),
        (["--hours", "1"], ""),
    ):
        code, answer = ask(workspace, capsys, "--dollars", "1", *flags)
        assert code == 2
        assert answer["error"].get("field", "") == field
