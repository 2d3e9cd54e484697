"""Tests that fine-tuning and evaluation over ssh give the figures of a local run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from core import EvaluateConfig, FinetuneConfig, Workspace
from core.config.remote import RemoteConfig
from core.config.sweep import SweepConfig
from core.errors import RunError
from core.records.folder import RunFolder
from core.runs.client import delete_run, request_stop, resume_run, submit
from core.store import RunRow
from core.sweeps.client import create_sweep, start_sweep, stop_sweep
from core.targets.machines import list_machines
from core.workspace.manifests import Artifact, hash_file
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.core.evaluation.test_stage import PAIRS, RUN, write_run
from tests.core.runs.support import wait_for, wait_until_ended
from tests.targets.homes import machine_processes
from tests.targets.ssh_server import SshServer
from tests.targets.test_launching import last_step, phases, row_of

pytestmark = [pytest.mark.slow(60), pytest.mark.long]
NOT_FIGURES = ("seconds", "device")
GOOD, BAD = "the good ship sails home", "a bad horse reads the book"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = Workspace(tmp_path_factory.mktemp("inputs"))
    with workspace.new_artifact("model", "words") as draft:
        write_checkpoint(draft.folder, make_tokenizer(workspace, "byte_level_bpe"))
    write_run(workspace)
    return workspace.root


def run_here_and_there(
    home: Workspace, server: SshServer, stage: str, config: RemoteConfig
) -> tuple[RunRow, RunRow]:
    """Runs a stage on this machine and over ssh; returns both rows."""
    target = f"{server.address}?python={sys.executable}"
    rows = []
    for place in ("", target):
        run_id = submit(home, stage, config.model_copy(update={"target": place}))
        rows.append(wait_until_ended(home, run_id))
        assert (rows[-1].state, rows[-1].error) == ("done", None)
    assert rows[1].remote["target"] == target
    assert list_machines(home) == []
    return rows[0], rows[1]


def figures(row: RunRow) -> dict[str, Any]:
    return {name: value for name, value in row.results.items() if name not in NOT_FIGURES}


def made(home: Workspace, kind: str, row: RunRow) -> Artifact:
    artifact = home.find(kind, Path(row.artifact).name)
    assert artifact.manifest.run == row.id
    return artifact


def test_fine_tuning_over_ssh_gives_the_model_and_the_figures_of_a_local_run(
    home: Workspace, server: SshServer, tmp_path: Path
) -> None:
    data = tmp_path / "data of mine"
    data.mkdir()
    for name, count in (("train", 40), ("test", 10)):
        rows = [f"{text} {number},{label}" for number in range(count)
                for text, label in ((GOOD, "yes"), (BAD, "no"))]  # fmt: skip
        (data / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    config = FinetuneConfig(
        model="words", train_path=str(data / "train.csv"), test_path=str(data / "test.csv"),
        learning_rates="1e-3", num_train_epochs=2, engine="jax", device="cpu",
    )  # fmt: skip
    local, remote = run_here_and_there(home, server, "finetune", config)
    assert figures(local) == figures(remote)
    assert figures(local)["model"] == "words"
    models = [made(home, "model", row) for row in (local, remote)]
    weights = {hash_file(model.path / "model.safetensors") for model in models}
    assert len(weights) == 1
    assert [model.name for model in models] == ["words-train", "words-train-2"]
    assert models[1].manifest.config["train_path"] == str(data / "train.csv")
    assert models[1].manifest.inputs == models[0].manifest.inputs
    assert not machine_processes(tmp_path)


def test_fine_tuning_is_stopped_begun_anew_and_deleted_as_a_local_run(
    home: Workspace, server: SshServer, tmp_path: Path
) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + f"{GOOD},yes\n{BAD},no\n" * 400)
    config = FinetuneConfig(
        model="words", train_path=str(tmp_path / "train.csv"), num_train_epochs=1000,
        patience=1000, engine="jax", device="cpu", max_hours=1,
        target=f"{server.address}?python={sys.executable}",
    )  # fmt: skip
    run_id = submit(home, "finetune", config)
    for reason, mode in (("saved", "save"), ("aborted", "abort")):
        wait_for(lambda: last_step(home, run_id) > 0)
        assert "fine-tuning" in phases(home, run_id)
        assert list_machines(home)
        request_stop(home, run_id, mode)
        row = wait_until_ended(home, run_id)
        assert (row.state, row.reason, row.error) == ("stopped", reason, None)
        assert list_machines(home) == [] and not machine_processes(tmp_path)
        if mode == "save":
            resume_run(home, run_id, max_hours=2)
            wait_for(lambda: row_of(home, run_id).remote["incarnation"] == 2)
    delete_run(home, run_id)
    assert not RunFolder.of(home, run_id).is_there()


@pytest.mark.parametrize("model", ["words", f"{RUN}@best"])
def test_evaluation_over_ssh_gives_the_figures_of_a_local_run(
    home: Workspace, server: SshServer, tmp_path: Path, model: str
) -> None:
    path = tmp_path / "my pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    config = EvaluateConfig(model=model, path=str(path))
    local, remote = run_here_and_there(home, server, "evaluate", config)
    about = () if model == "words" else ("model", "model_run", "step")
    there = {name: value for name, value in figures(remote).items() if name not in about}
    assert there == {name: value for name, value in figures(local).items() if name not in about}
    pairs = [made(home, "evaluation", row).path / "pairs.jsonl" for row in (local, remote)]
    assert pairs[0].read_text() == pairs[1].read_text()
    manifest = made(home, "evaluation", remote).manifest
    assert (manifest.config["model"], manifest.config["path"]) == (model, str(path))
    assert manifest.inputs == made(home, "evaluation", local).manifest.inputs


def test_held_out_texts_keep_their_names_on_another_machine(
    home: Workspace, server: SshServer, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.dat").write_text(f"{GOOD}\n{BAD} {name}\n")
    config = EvaluateConfig(
        model="words", task="text", path=str(tmp_path / "*.dat"), file_format="text"
    )
    local, remote = run_here_and_there(home, server, "evaluate", config)
    assert figures(local) == figures(remote)
    assert len(figures(local)["by_source"]) == 2
    assert RunFolder.of(home, remote.id).log.read_text()


def has_trained(home: Workspace, run_id: str) -> bool:
    try:
        return last_step(home, run_id) > 0
    except RunError:
        return False  # A trial is written down before its run.


@pytest.mark.slow(120)
def test_trials_of_a_sweep_run_on_its_target_and_stop_with_it(
    home: Workspace, server: SshServer, tmp_path: Path
) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + f"{GOOD},yes\n{BAD},no\n" * 40)
    target = f"{server.address}?python={sys.executable}"
    base = {
        "model": "words", "train_path": str(tmp_path / "train.csv"), "learning_rates": "1e-3",
        "engine": "jax", "device": "cpu", "target": target, "patience": 1000,
    }  # fmt: skip
    sweep = SweepConfig(
        name="epochs", stage="finetune", method="grid", metric="accuracy", parallel=2, base=base,
        options={"num_train_epochs": [1, 999, 1000]},
    )  # fmt: skip
    folder = create_sweep(home, sweep)
    start_sweep(home, folder)
    wait_for(
        lambda: [trial.state for trial in folder.read_trials()] == ["done", "active", "active"]
    )
    wait_for(lambda: all(has_trained(home, trial.run) for trial in folder.read_trials()[1:]))
    short, _, third = [row_of(home, trial.run) for trial in folder.read_trials()]
    assert folder.read_trials()[0].value == short.results["accuracy"]
    assert short.remote["target"] == target
    assert third.started >= short.ended
    stop_sweep(home, "epochs")
    wait_for(lambda: folder.read_state().state != "running")
    assert folder.read_state().state == "stopped"
    states = [row_of(home, trial.run).state for trial in folder.read_trials()]
    assert states == ["done", "stopped", "stopped"]
    assert list_machines(home) == [] and not machine_processes(tmp_path)
