"""The reporter sends each figure once, and its problems are notes in the run's log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from core.__main__ import build_parser
from core.config.options import split_names
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.processes.environment import for_reporters, for_runs, for_supervisors
from core.records.folder import RunFolder
from core.reporting import reporter as reporter_module
from core.reporting.feed import Feed, Figures
from core.reporting.lifecycle import Lifecycle
from core.reporting.reporter import RunReporter, report
from core.reporting.service import ReportedRun, ReportingError, open_service
from core.store import Store
from core.workspace.workspace import Workspace
from tests.core.runs.support import begin_run


class Sink:
    """A service that keeps what it is sent, and fails where it is told to."""

    reference, place, sends_in_part = "its-id", "its place", False

    def __init__(self, failures: int = 0) -> None:
        self.refused = ""
        self.sent: list[tuple[int, dict[str, float]]] = []
        self.ends: list[tuple[str, int, dict[str, float]]] = []
        self._failures = failures

    def send(self, figures: Sequence[Figures]) -> None:
        if self._failures:
            self._failures -= 1
            raise RuntimeError("the service is away")
        if any(self.refused in one.values for one in figures):
            raise RuntimeError("the name is bad")
        self.sent += [(one.step, one.values) for one in figures]

    def finish(self, state: str, results: Figures | None) -> None:
        assert results is not None
        self.ends.append((state, results.step, results.values))


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Sink:
    found = Sink()
    monkeypatch.setattr(reporter_module, "open_service", lambda name, run: found)
    monkeypatch.setattr(reporter_module, "_RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(reporter_module, "_POLL_SECONDS", 0.05)
    return found


def run_reporter(folder: RunFolder) -> RunReporter:
    return RunReporter(folder, folder.read_record(), "trackio")


def test_figures_are_sent_once_also_after_a_resumption(tmp_path: Path, sink: Sink) -> None:
    folder, run = begin_run(Workspace(tmp_path), "train-one")
    reporter = run_reporter(folder)
    run.metrics(1, {"loss": 3.0, "bad": float("nan")})
    run.metrics(2, {"loss": 2.0, "tokens_per_second": 10.0})
    reporter.feed.read()
    reporter.handle()
    run.event("resumed", step=1)
    run.metrics(2, {"loss": 2.0, "tokens_per_second": 11.0})
    again = run_reporter(folder)  # Another process.
    again.feed.read()
    again.handle()
    run.metrics(3, {"loss": 1.0})
    again.feed.read()
    again.handle()
    assert sink.sent == [
        (1, {"loss": 3.0}), (2, {"loss": 2.0, "tokens_per_second": 10.0}),
        (2, {"tokens_per_second": 11.0}), (3, {"loss": 1.0}),
    ]  # fmt: skip
    assert Feed(folder, "trackio").progress.reference == "its-id"


def end(folder: RunFolder) -> None:
    folder.write_exit(0, None)
    store = Store.open(Workspace(folder.path.parent.parent))
    store.add_request("register", {"run": folder.path.name})
    store.close()


def test_service_that_fails_for_a_while_gets_everything(
    tmp_path: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = begin_run(Workspace(tmp_path), "train-one")
    for step in range(1, 1200):
        run.metrics(step, {"loss": 1 / step})
    run.event("finished", state="done", reason="", results={"eval_loss": 2.0, "model": "x"})
    sink._failures = 4  # Each time all figures, then those of each metric.
    ended = iter([False] * 4)
    monkeypatch.setattr(Lifecycle, "has_ended", lambda self: next(ended, True))
    report(folder, run_reporter(folder), "trackio")
    assert [step for step, _ in sink.sent] == list(range(1, 1200))
    assert sink.ends == [("done", 1199, {"eval_loss": 2.0})]
    notes = folder.log.read_text().splitlines()
    assert notes[0] == "note: reporting to trackio: its place"
    assert notes[1:] == 2 * [
        "note: reporting to trackio: trying again after RuntimeError: the service is away"
    ]


def test_refused_metric_does_not_lose_the_others(
    tmp_path: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = begin_run(Workspace(tmp_path), "train-one")
    sink.refused = "bad"
    for step in range(1, 700):
        run.metrics(step, {"loss": 1 / step, "bad": float(step)})
        run.metrics(step, {"rate": float(step)})
    run.event("metrics", step=700, values={"huge": 10**400})
    ended = iter([False] * 20)
    monkeypatch.setattr(Lifecycle, "has_ended", lambda self: next(ended, True))
    report(folder, run_reporter(folder), "trackio")
    sent = [(name, step) for step, values in sink.sent for name in values]
    assert sorted(sent) == sorted((name, n) for name in ("loss", "rate") for n in range(1, 700))
    notes = [line for line in folder.log.read_text().splitlines() if "given up" in line]
    assert notes == ["note: reporting to trackio: given up only bad: RuntimeError: the name is bad"]


@pytest.mark.parametrize("metrics", [{}, {"loss": 1.0, "accuracy": 0.25}, {"accuracy": 0.75}])
def test_results_become_figures_of_the_last_step(
    tmp_path: Path, sink: Sink, metrics: dict[str, float]
) -> None:
    folder, run = begin_run(Workspace(tmp_path), "train-one")
    if metrics:
        run.metrics(7, metrics)
    results = {"accuracy": 0.75, "majority_accuracy": 0.5, "model": "x", "has_spans": True,
               "rates": {"0.1": 0.5}, "matthews": float("nan")}  # fmt: skip
    run.event("finished", state="done", reason="", results=results)
    reporter = run_reporter(folder)
    reporter.feed.read()
    reporter.handle()
    reporter.finish()
    sent = {} if metrics.get("accuracy") == 0.75 else {"accuracy": 0.75}
    assert sink.ends == [("done", 7 if metrics else 0, {**sent, "majority_accuracy": 0.5})]


def test_service_that_keeps_failing_is_given_up(
    tmp_path: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = begin_run(Workspace(tmp_path), "train-one")
    run.metrics(1, {"loss": 1.0})
    sink._failures = 99
    monkeypatch.setattr(Lifecycle, "has_ended", lambda self: False)
    report(folder, run_reporter(folder), "trackio")
    assert not sink.sent and "given up: RuntimeError" in folder.log.read_text()


def test_missing_package_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, run = begin_run(Workspace(tmp_path), "train-one")
    run.metrics(1, {"loss": 1.0})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(Lifecycle, "has_ended", lambda self: False)
    report(folder, RunReporter(folder, folder.read_record(), "wandb"), "wandb")
    (note,) = folder.log.read_text().splitlines()
    assert "The package wandb is not installed" in note and "requirements-reporting.txt" in note


def test_full_disk_does_not_stop_the_reporter(
    tmp_path: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = begin_run(Workspace(tmp_path), "train-one")
    run.metrics(1, {"loss": 1.0})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("core.reporting.feed.write_atomically", full)
    reporter = run_reporter(folder)
    reporter.feed.read()
    reporter.handle()
    run.metrics(2, {"loss": 1.0})
    reporter.feed.read()
    reporter.handle()
    assert [step for step, _ in sink.sent] == [1, 2]


def test_run_goes_on_while_it_is_queued_or_its_process_lives(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    folder, _ = begin_run(workspace, "train-one")
    lifecycle = Lifecycle(folder, workspace)
    assert not lifecycle.has_ended()
    folder.write_exit(0, None)
    assert not lifecycle.has_ended()  # The worker may queue it again.
    (folder.path / "run.json").unlink()
    assert lifecycle.has_ended()


def test_tokens_reach_only_their_own_reporter() -> None:
    given = {"PATH": "/bin", "WANDB_API_KEY": "a", "MLFLOW_TRACKING_TOKEN": "b",
             "STUDIO_WEBHOOK_URL": "https://c", "TRACKIO_DIR": "/d"}  # fmt: skip
    assert for_runs(given) == {"PATH": "/bin"}
    assert for_supervisors(given) == given
    assert for_reporters(given, "wandb").keys() == {"PATH", "WANDB_API_KEY"}
    assert for_reporters(given, "webhook").keys() == {"PATH", "STUDIO_WEBHOOK_URL"}


@pytest.mark.parametrize("value", ["tensorboard", "wandb;mlflow", "wandb,,x"])
def test_unknown_service_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="trackio, wandb or mlflow"):
        TrainConfig(shards="rows", report_to=value)


def test_flag_may_be_repeated_or_a_list() -> None:
    for words in (
        ["--report-to", "wandb,mlflow"],
        ["--report-to", "wandb", "--report-to", "mlflow"],
    ):
        options = build_parser().parse_args(["train", *words])
        config = TrainConfig(report_to=options.report_to)
        assert split_names(config.report_to) == ["wandb", "mlflow"]


def test_service_without_its_package_names_the_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    run = ReportedRun("train-one", "m", "p", {}, "", tmp_path)
    with pytest.raises(ReportingError, match=r"requirements-reporting\.txt"):
        open_service("mlflow", run)
