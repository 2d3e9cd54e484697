"""trackio, W&B and MLflow get our figures, and can't disturb a training."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from core.config.train import TrainConfig
from core.processes import reporters
from core.records.events import read_events
from core.records.folder import RunFolder
from core.runs.client import submit
from core.workspace.locks import file_lock
from core.workspace.manifests import hash_file
from core.workspace.workspace import Workspace
from tests.core.reporting.stores import (
    Points,
    read_mlflow,
    read_trackio,
    read_wandb,
    read_wandb_summary,
)
from tests.core.runs.support import (
    begin_run,
    delete_folder,
    metrics_in_events,
    processes_with,
    stop_worker,
    wait_for,
    wait_until_ended,
)
from tests.core.training.test_trainer import make_inputs

SERVICES = tuple(reporters.SERVICES)
INSTALL = "pip install -c constraints.txt -r requirements-reporting.txt"
pytestmark = [pytest.mark.long, pytest.mark.slow(20)]
BROKEN_PACKAGE = """
class Run:
    dir, url = "/tmp", ""
    class settings: _offline = True
    def define_metric(self, *_, **__): pass
    def log(self, *_, **__): raise SystemError("the package is broken")

class Settings:
    def __init__(self, **_): pass

class errors:
    class UsageError(Exception): pass

def init(**_): return Run()
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def workspace(
    inputs: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workspace]:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    workspace = Workspace(tmp_path / "workspace")
    shutil.copytree(inputs.root, workspace.root)
    yield workspace
    stop_worker(workspace)


def start(workspace: Workspace, name: str, report_to: str = "") -> RunFolder:
    config = TrainConfig(
        name=name, preset="custom", shards="rows", engine="jax", device="cpu",
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_train_steps=200,
        per_replica_batch_size=8, eval_steps=50, save_steps=100, logging_steps=4,
        report_to=report_to,
    )  # fmt: skip
    return RunFolder.of(workspace, submit(workspace, "train", config))


def hold_when_begun(folder: RunFolder) -> int:
    """Stops the training's process after its first loss; returns its id."""
    # The utilisation of a slow start precedes it.
    wait_for(lambda: folder.events.exists() and b'"loss"' in folder.events.read_bytes())
    process = folder.read_process()
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    return process.pid


def is_reporting(folder: RunFolder, service: str) -> bool:
    with file_lock(folder.path / f"report-{service}.lock", wait=False) as is_free:
        return not is_free


def until_reported(folder: RunFolder) -> None:
    for name in SERVICES:
        wait_for(lambda name=name: not is_reporting(folder, name))


def notes_of(folder: RunFolder, service: str) -> list[str]:
    lines = folder.log.read_text().splitlines()
    start = f"note: reporting to {service}: "
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def weights_of(workspace: Workspace, name: str) -> str:
    return hash_file(workspace.folder("model") / name / "model.safetensors")


def test_figures_in_the_stores_equal_ours(workspace: Workspace, tmp_path: Path) -> None:
    for name in SERVICES:
        if importlib.util.find_spec(name) is None:
            pytest.skip(INSTALL)
    folder = start(workspace, "reported", ", ".join(SERVICES))
    assert wait_until_ended(workspace, folder.path.name).state == "done"
    until_reported(folder)
    ours = metrics_in_events(workspace, folder.path.name)
    assert len(ours) > 250 and {"loss", "eval_loss"} <= {name for name, _, _ in ours}
    results = results_at_the_end(folder, ours)
    assert ("best_step", 200, 200.0) in results
    assert read_trackio(tmp_path / "trackio") == sorted([*ours, *results])
    assert read_mlflow(workspace.root / "reports" / "mlflow") == sorted([*ours, *results])
    assert read_wandb(workspace.root / "reports" / "wandb") == ours
    assert all(len(notes_of(folder, name)) == 1 for name in SERVICES)


def results_at_the_end(folder: RunFolder, ours: Points) -> Points:
    """Returns the numbers of a run's results as figures of its last step, without known ones."""
    events, _ = read_events(folder.events, 0)
    (results,) = (one["results"] for one in events if one["kind"] == "finished")
    step = max(step for _, step, _ in ours)
    numbers = [
        (name, step, float(value))
        for name, value in results.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return [one for one in numbers if one not in ours]


REPORT = """
import sys
from pathlib import Path
from core.reporting.reporter import RunReporter
from core.records.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
reporter = RunReporter(folder, folder.read_record(), sys.argv[2])
reporter.feed.read()
reporter.handle()
reporter.finish()
"""


@pytest.mark.parametrize("service", SERVICES)
def test_results_of_a_fine_tuning_reach_each_service(
    tmp_path: Path, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(service) is None:
        pytest.skip(INSTALL)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder, run = begin_run(Workspace(tmp_path), "finetune-one")
    losses = {"loss": 0.5, "loss/web": 0.25, "loss/web/de": 0.125, "share/web": 1.0, "share": 2.0}
    run.metrics(3, losses)
    results = {"accuracy": 0.75, "accuracy/web": 0.5, "majority_accuracy": 0.5}
    more = {"labels": ["a", "b"], "learning_rates": {"0.001": 0.75}}
    run.event("finished", state="done", reason="", results={**results, **more})
    subprocess.run([sys.executable, "-c", REPORT, str(folder.path), service], check=True)
    figures = sorted((name, 3, value) for name, value in {**losses, **results}.items())
    if service == "mlflow":  # A later process finds what the first one has made.
        run.metrics(4, {"loss/web": 0.2, "share": 3.0})
        subprocess.run([sys.executable, "-c", REPORT, str(folder.path), service], check=True)
        figures = sorted([*figures, ("loss/web", 4, 0.2), ("share", 4, 3.0)])
    if service == "wandb":
        summary = read_wandb_summary(tmp_path / "reports" / "wandb")
        assert [(name, 3, summary.get(name)) for name, _, _ in figures] == figures
    elif service == "mlflow":
        assert read_mlflow(tmp_path / "reports" / "mlflow") == figures
    else:
        assert read_trackio(tmp_path / "trackio") == figures


@pytest.fixture(scope="module")
def weights_without_services(
    inputs: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    workspace = Workspace(tmp_path_factory.mktemp("plain") / "workspace")
    shutil.copytree(inputs.root, workspace.root)
    folder = start(workspace, "plain")
    assert wait_until_ended(workspace, folder.path.name).state == "done"
    yield weights_of(workspace, "plain")
    stop_worker(workspace)


@pytest.mark.parametrize("fault", ["removed", "full"])
def test_stores_removed_or_full_do_not_change_the_training(
    workspace: Workspace, tmp_path: Path, fault: str, weights_without_services: str
) -> None:
    for name in SERVICES:
        if importlib.util.find_spec(name) is None:
            pytest.skip(INSTALL)
    folder = start(workspace, "disturbed", ",".join(SERVICES))
    training = hold_when_begun(folder)
    for name in SERVICES:
        wait_for(lambda name=name: notes_of(folder, name))
    stores = [tmp_path / "trackio", *(workspace.root / "reports").glob("*")]
    assert len(stores) == 3 and all(any(one.rglob("*.*")) for one in stores)
    if fault == "removed":
        for store in stores:
            delete_folder(store)
    else:
        fill_disk_of_mlflow(workspace)
        fill_disk_of_processes(folder, "trackio", "wandb")
    os.kill(training, signal.SIGCONT)
    assert wait_until_ended(workspace, folder.path.name).state == "done"
    assert weights_of(workspace, "disturbed") == weights_without_services
    if fault == "full":
        wait_for(lambda: "No space" in " ".join(notes_of(folder, "mlflow")))
    end_reporters(folder)


def test_broken_package_does_not_change_the_training(
    workspace: Workspace,
    tmp_path: Path,
    weights_without_services: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / "packages" / "wandb.py"
    package.parent.mkdir()
    package.write_text(BROKEN_PACKAGE)
    paths = [str(package.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    folder = start(workspace, "disturbed", "wandb")
    training = hold_when_begun(folder)
    wait_for(lambda: "trying again" in " ".join(notes_of(folder, "wandb")))
    os.kill(training, signal.SIGCONT)
    assert wait_until_ended(workspace, folder.path.name).state == "done"
    assert weights_of(workspace, "disturbed") == weights_without_services
    problem = "SystemError: the package is broken"
    wait_for(lambda: problem in " ".join(notes_of(folder, "wandb")))
    end_reporters(folder)


def reporter_command(folder: RunFolder, service: str = "") -> bytes:
    return f"core.reporting.reporter\0{folder.path}\0{service}".encode()


def end_reporters(folder: RunFolder) -> None:
    for process in processes_with(reporter_command(folder)):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def fill_disk_of_mlflow(workspace: Workspace) -> None:
    """Lets MLflow write its losses to a full device."""
    store = workspace.root / "reports" / "mlflow"
    wait_for(lambda: list(store.glob("*/*/metrics/loss")))
    (path,) = store.glob("*/*/metrics/loss")
    path.unlink()
    path.symlink_to("/dev/full")


def fill_disk_of_processes(folder: RunFolder, *services: str) -> None:
    """Lets no file of these reporters grow."""
    for service in services:
        (found,) = processes_with(reporter_command(folder, service))
        reporter = psutil.Process(found.pid)
        for process in [reporter, *reporter.children(recursive=True)]:
            process.rlimit(psutil.RLIMIT_FSIZE, (1, 1))
