"""Sweeps run as ordinary runs, survive their driver and their worker, and keep their budget."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.__main__ import main
from core.config.sweep import SweepConfig
from core.errors import ConfigError, RunError
from core.records.events import read_events
from core.records.folder import RunFolder
from core.runs.client import choose_slots
from core.runs.start import child_environment
from core.store import RunRow, Store
from core.sweeps.client import create_sweep, parse_sweep, resume_sweep, start_sweep, stop_sweep
from core.sweeps.driver import Driver
from core.sweeps.evolution import EvolutionSampler
from core.sweeps.folder import SweepFolder, Trial
from core.sweeps.samplers import RandomSampler
from core.sweeps.space import parse_space
from core.sweeps.study import History
from core.sweeps.view import describe_sweep, list_sweeps
from core.workspace.manifests import read_manifest
from core.workspace.workspace import Workspace
from tests.core.runs.support import processes_with, stop_worker, wait_for
from tests.core.sweeps.toy_training import ToyTrainingConfig, loss_at
from tests.core.training.test_trainer import make_inputs

STAGES = "tests.core.sweeps.toy_training"
TOML = """
name = "toy"
stage = "toy_training"
method = "random"
seed = 5
max_runs = 3
[base]
steps = 2
[options.learning_rate]
min = 1e-4
max = 1.0
log = true
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setenv("STUDIO_STAGES", STAGES)
    workspace = Workspace(tmp_path / "workspace")
    yield workspace
    for identity in drivers(workspace):
        os.kill(identity.pid, signal.SIGKILL)
    stop_worker(workspace)


def drivers(workspace: Workspace) -> list[Any]:
    return processes_with(b"\0core.sweeps.driver\0--workspace\0" + str(workspace.root).encode())


def begin(workspace: Workspace, text: str) -> SweepFolder:
    folder = create_sweep(workspace, parse_sweep(text))
    start_sweep(workspace, folder)
    return folder


def until_ended(folder: SweepFolder) -> None:
    wait_for(lambda: folder.read_state().state != "running" and not folder.is_driven())


def described(workspace: Workspace, name: str = "toy") -> dict[str, Any]:
    store = Store.open(workspace)
    try:
        return describe_sweep(workspace, store, name)
    finally:
        store.close()


def kill_driver(workspace: Workspace) -> None:
    (driver,) = drivers(workspace)
    os.kill(driver.pid, signal.SIGKILL)
    wait_for(lambda: not driver.is_alive())
    wait_for(lambda: not SweepFolder.of(workspace, "toy").is_driven())


def ended(folder: SweepFolder) -> list[Trial]:
    return [one for one in folder.read_trials() if not one.is_open]


def events_of(workspace: Workspace, run: str, kind: str) -> list[dict[str, Any]]:
    events = read_events(RunFolder.of(workspace, run).events)[0]
    return [one for one in events if one["kind"] == kind]


@pytest.mark.slow(6)
@pytest.mark.long
def test_command_runs_a_sweep_and_prints_its_best_trial(
    workspace: Workspace, tmp_path: Path
) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(TOML.replace("max_runs = 3", "max_runs = 2"))
    common = ["--workspace", str(workspace.root), "--json"]
    command = [sys.executable, "-m", "core", "sweep", "--config", str(path), *common]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    values = [loss_at(ToyTrainingConfig(**one["settings"]), 2) for one in found["trials"]]
    assert [one["value"] for one in found["trials"]] == values
    assert [one["state"] for one in found["trials"]] == ["done", "done"]
    assert found["best"] == values.index(min(values)) and found["state"] == "done"
    assert found["best_settings"] == found["trials"][found["best"]]["settings"]
    assert found["spent"]["runs"] == 2 and found["spent"]["hours"] > 0
    assert "trial 1: done" in done.stderr
    shown = subprocess.run(
        [*command[:4], "show", "toy", *common], env=child_environment(), capture_output=True
    )
    assert json.loads(shown.stdout) == found
    store = Store.open(workspace)
    assert {row.name for row in store.list_runs()} == {"toy-000", "toy-001"}


@pytest.mark.long
@pytest.mark.slow(8)
def test_trials_that_all_fail_end_the_sweep(workspace: Workspace) -> None:
    text = TOML.replace("steps = 2", "steps = 2\nfails_above = 0.0").replace("= 3\n", "= 30\n", 1)
    choose_slots(workspace, 5)
    folder = begin(workspace, text)
    until_ended(folder)
    found = described(workspace)
    assert (found["state"], found["reason"], found["best"]) == ("failed", "trials_failed", None)
    assert 5 <= len(found["trials"]) < 30 and found["error"]["problem"] == "The toy fails"


def test_resumed_sweep_tries_again_after_its_failures(workspace: Workspace) -> None:
    folder = create_sweep(workspace, parse_sweep(TOML.replace("max_runs = 3", "max_runs = 12")))
    for number in range(5):
        folder.write_trial(Trial(number, {}, "", f"toy-{number}", "failed"))
    driver = Driver(workspace, folder)
    assert not driver._has_failed()
    driver.trials += [Trial(number, {}, "", f"toy-{number}", "failed") for number in range(5, 9)]
    assert not driver._has_failed()
    driver.trials.append(Trial(9, {}, "", "toy-9", "failed"))
    assert driver._has_failed()


def test_missing_sweep_and_wrong_commands_are_errors(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--workspace", str(workspace.root)]
    for words, problem in (
        (["--resume", "nothing"], "The sweep nothing was not found"),
        (["show", "nothing"], "The sweep nothing was not found"),
        (["stop", "../runs"], "The name is not valid"),
        ([], "The sweep to run is missing"),
    ):
        assert main(["sweep", *words, *place]) in (1, 2)
        assert problem in capsys.readouterr().err
    assert main(["sweep", "list", *place]) == 0
    assert "No sweeps yet" in capsys.readouterr().out


def test_damaged_sweep_is_listed_with_its_error(workspace: Workspace) -> None:
    folder = create_sweep(workspace, parse_sweep(TOML))
    (folder.path / "sweep.json").write_text("{")
    (found,) = list_sweeps(workspace)
    assert found["state"] == "damaged" and "can't be read" in found["error"]["problem"]
    with pytest.raises(RunError, match="can't be read"):
        described(workspace)


@pytest.mark.thorough
@pytest.mark.slow(60)
def test_sweep_of_twelve_runs_survives_two_kills_and_a_dead_worker(workspace: Workspace) -> None:
    """Kills the driver twice, then the worker with the run's process; the right runs are pruned."""
    pytest.importorskip("optuna", reason="pip install -r requirements-sweeps.txt")
    text = TOML.replace(
        "max_runs = 3",
        'max_runs = 12\npruner = "median"\nwarmup_trials = 3\nwarmup_validations = 1',
    ).replace("steps = 2", "steps = 6\npause_seconds = 0.3")
    folder = begin(workspace, text)
    kill_driver_after(workspace, folder, trials=1)
    # The first three trials are never pruned, so this one has to go on.
    wait_for(lambda: len(ended(folder)) == 2 and running_step(workspace, folder) >= 1)
    run = folder.read_trials()[-1].run
    stop_worker(workspace)
    process = RunFolder.of(workspace, run).read_process()
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    kill_driver_after(workspace, folder, trials=5)
    until_ended(folder)

    trials = folder.read_trials()
    config = parse_sweep(text)
    assert [one.settings for one in trials] == expected_settings(config)
    assert [one.state for one in trials] == expected_states(trials)
    assert {one.state for one in trials} == {"done", "pruned"}
    store = Store.open(workspace)
    assert sorted(row.id for row in store.list_runs()) == sorted(one.run for one in trials)
    for one in trials:
        starts = events_of(workspace, one.run, "started")
        steps = [event["step"] for event in events_of(workspace, one.run, "metrics")]
        assert len(starts) == (2 if one.run == run else 1)
        assert steps == list(range(1, len(steps) + 1))  # No step was repeated.
    assert [one.restarts for one in trials if one.run == run] == [1]


def kill_driver_after(workspace: Workspace, folder: SweepFolder, trials: int) -> None:
    wait_for(lambda: len(ended(folder)) >= trials)
    kill_driver(workspace)
    assert described(workspace)["state"] == "interrupted"
    resume_sweep(workspace, "toy")


def running_step(workspace: Workspace, folder: SweepFolder) -> int:
    newest = folder.read_trials()[-1]
    return len(events_of(workspace, newest.run, "metrics")) if newest.is_open else 0


def expected_settings(config: SweepConfig) -> list[dict[str, Any]]:
    space = parse_space(ToyTrainingConfig, config.base, config.options, is_grid=False)
    sampler = RandomSampler(space, config.seed)
    return [sampler.settings(number) or {} for number in range(config.max_runs)]


def expected_states(trials: list[Trial] | Any) -> list[str]:
    """Applies the median rule to the known losses, without Optuna."""
    finished: list[Callable[[int], float]] = []
    states = []
    for one in trials:
        loss = lambda step, one=one: loss_at(ToyTrainingConfig(**one.settings), step)  # noqa: E731
        is_worse = len(finished) >= 3 and any(
            loss(step) > statistics.median(other(step) for other in finished)
            for step in range(1, 7)
        )
        states.append("pruned" if is_worse else "done")
        finished += [] if is_worse else [loss]
    return states


@pytest.mark.long
@pytest.mark.slow(20)
def test_stopped_sweep_goes_on_with_its_trials_and_a_larger_budget(workspace: Workspace) -> None:
    text = TOML.replace("steps = 2", "steps = 3\npause_seconds = 0.5")
    folder = begin(workspace, text.replace("max_runs = 3", "max_runs = 2"))
    wait_for(lambda: len(ended(folder)) == 1 and len(folder.read_trials()) == 2)
    wait_for(lambda: running_step(workspace, folder) >= 1)
    stop_sweep(workspace, "toy")
    until_ended(folder)
    assert folder.read_state().state == "stopped"
    assert [one.state for one in folder.read_trials()] == ["done", "paused"]
    with pytest.raises(RunError, match="can't be stopped"):
        stop_sweep(workspace, "toy")
    resume_sweep(workspace, "toy", {"max_runs": 3})
    until_ended(folder)
    trials = folder.read_trials()
    assert [one.state for one in trials] == ["done"] * 3
    assert len(events_of(workspace, trials[1].run, "started")) == 2
    assert [event["step"] for event in events_of(workspace, trials[1].run, "metrics")] == [1, 2, 3]


@pytest.mark.long
@pytest.mark.slow(30)
def test_trial_that_the_budget_interrupts_goes_on_with_a_larger_one(workspace: Workspace) -> None:
    text = TOML.replace("steps = 2", "steps = 25\npause_seconds = 0.3")
    folder = begin(workspace, text.replace("= 3\n", f"= 2\nmax_hours = {2 / 3600}\nparallel = 1\n"))
    until_ended(folder)
    found = described(workspace)
    assert (found["state"], found["reason"], found["best"]) == ("done", "max_hours", None)
    assert [(one["state"], one["reason"]) for one in found["trials"]] == [("paused", "max_hours")]
    assert found["trials"][0]["value"]
    run, used = found["trials"][0]["run"], folder.read_trials()[0].hours
    with pytest.raises(ConfigError, match="has used up max_hours") as caught:
        resume_sweep(workspace, "toy", {"max_hours": used})
    assert caught.value.field == "max_hours"

    record = folder.read_record()
    limited = record.config.model_copy(update={"max_hours": used})
    folder.write_record(replace(record, config=limited))
    resume_sweep(workspace, "toy")  # A used-up budget resumes nothing, not for an instant.
    until_ended(folder)
    assert [one["state"] for one in described(workspace)["trials"]] == ["paused"]
    assert len(events_of(workspace, run, "started")) == 1

    resume_sweep(workspace, "toy", {"max_hours": 1.0})
    until_ended(folder)
    trials = folder.read_trials()
    assert [(one.state, one.reason) for one in trials] == [("done", "")] * 2
    assert len(events_of(workspace, run, "started")) == 2
    assert [one["step"] for one in events_of(workspace, run, "metrics")] == list(range(1, 26))
    best = min(trials, key=lambda one: one.value or math.inf)
    assert described(workspace)["best"] == best.number


def test_trial_that_an_earlier_version_ended_with_the_budget_is_open_again(
    workspace: Workspace,
) -> None:
    folder = create_sweep(workspace, parse_sweep(TOML))
    for number, reason in enumerate(("max_hours", "max_cost", "saved")):
        folder.write_trial(Trial(number, {}, "", f"toy-{number}", "stopped", reason))
    assert [one.state for one in Driver(workspace, folder).trials] == [
        "paused",
        "paused",
        "stopped",
    ]


@pytest.mark.parametrize("state", ["lost", "stopped"])
def test_run_that_dies_or_stops_as_the_budget_ends_is_kept_for_a_larger_one(
    workspace: Workspace, state: str
) -> None:
    folder = create_sweep(workspace, parse_sweep(f"max_hours = 1.0\n{TOML}"))
    store = Store.open(workspace)
    add_row(store, "toy-0", state=state, started=1.0, ended=3601.0)
    folder.write_trial(Trial(0, {"learning_rate": 0.1}, "", "toy-0"))
    assert not Driver(workspace, folder).work()
    (trial,) = folder.read_trials()
    assert (trial.state, trial.reason, trial.hours) == ("paused", "max_hours", 1.0)
    assert folder.read_state().reason == "max_hours"
    # It isn't resumed for an instant, either.
    assert not Driver(workspace, folder).work()
    assert folder.read_trials() == [trial] and not store.pending_requests()


def add_row(store: Store, id: str, **values: Any) -> None:
    """Adds a run of the toy stage."""
    row = RunRow(id=id, stage="toy_training", config={}, after=[], created=1.0, name="")
    for name, value in {"warnings": [], "results": {}, "remote": {}, **values}.items():
        setattr(row, name, value)
    store.add_run(row)


@pytest.mark.long
@pytest.mark.slow(40)
def test_halving_prunes_the_right_runs(workspace: Workspace) -> None:
    pytest.importorskip("optuna", reason="pip install -r requirements-sweeps.txt")
    pruner = 'pruner = "halving"\nreduction_factor = 2\nwarmup_validations = 1\nparallel = 1'
    text = TOML.replace("= 3\n", f"= 8\n{pruner}\n", 1)
    folder = begin(workspace, text.replace("steps = 2", "steps = 5\nwaits_for_pruner = true"))
    until_ended(folder)
    trials = folder.read_trials()
    expected = expected_halving(trials, steps=5, factor=2)
    found = [(one.state, len(events_of(workspace, one.run, "metrics"))) for one in trials]
    assert found == expected
    assert {("done", 5), ("pruned", 1)} <= set(expected) and ("pruned", 2) in expected
    best = min(range(8), key=lambda number: loss_of(trials[number], 5))
    assert described(workspace)["best"] == best and trials[best].state == "done"


def loss_of(trial: Trial, step: int) -> float:
    return loss_at(ToyTrainingConfig(**trial.settings), step)


def expected_halving(trials: Sequence[Trial], steps: int, factor: int) -> list[tuple[str, int]]:
    """Applies successive halving to the known losses, without Optuna.

    Returns:
        The state of each trial, and its number of validations.
    """
    reached: dict[int, list[float]] = {}
    found: list[tuple[str, int]] = []
    for one in trials:
        found.append(("done", steps))
        rung = 1
        while rung <= steps:
            others = reached.setdefault(rung, [])
            others.append(loss_of(one, rung))
            kept = sorted(others)[: max(1, len(others) // factor)]
            if others[-1] > kept[-1]:
                found[-1] = ("pruned", rung)
                break
            rung *= factor
    return found


@pytest.mark.long
@pytest.mark.slow(40)
def test_evolution_goes_on_where_a_killed_driver_ended(workspace: Workspace) -> None:
    pytest.importorskip("cmaes", reason="pip install -r requirements-sweeps.txt")
    text = TOML.replace("random", "cmaes").replace("= 3\n", "= 10\nparallel = 1\n", 1)
    folder = begin(workspace, text)
    kill_driver_after(workspace, folder, trials=5)
    until_ended(folder)
    trials = folder.read_trials()
    assert [one.state for one in trials] == ["done"] * 10
    config = parse_sweep(text)
    space = parse_space(ToyTrainingConfig, config.base, config.options, is_grid=False)
    known: list[History] = []
    for one in trials:
        suggested = EvolutionSampler(config, space).suggest(len(known), known)
        assert suggested == (one.settings, one.sampler_state)
        known.append(
            History(one.settings, "done", loss_of(one, 2), sampler_state=one.sampler_state)
        )
    assert [one.sampler_state["generation"] for one in trials] == [0] * 4 + [1] * 4 + [2] * 2


REAL = """
name = "real"
method = "grid"
[base]
shards = "rows"
preset = "custom"
engine = "tensorflow"
device = "cpu"
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
num_train_steps = 20
per_replica_batch_size = 8
eval_steps = 10
[options]
learning_rate = [1e-9, 1e-2]
"""


@pytest.mark.thorough
@pytest.mark.slow(30)
def test_grid_of_two_trainings_finds_the_better_learning_rate(tmp_path: Path) -> None:
    workspace = make_inputs(tmp_path / "workspace")
    folder = begin(workspace, REAL)
    try:
        until_ended(folder)
    finally:
        stop_worker(workspace)
    found = described(workspace, "real")
    assert (found["state"], found["reason"], found["best"]) == ("done", "all_settings", 1)
    for one in found["trials"]:
        counts = read_manifest(workspace.folder("model") / one["name"]).counts
        assert one["value"] == counts["eval_loss"] == one["figures"]["eval_loss"]
        assert one["figures"]["num_train_steps"] == 20
