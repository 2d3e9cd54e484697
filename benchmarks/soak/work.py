"""The workspaces of a soak, and the user who looks after them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.soak.relay import Relay
from core.config.train import TrainConfig
from core.errors import StudioError
from core.records.events import read_events
from core.records.folder import RunFolder
from core.runs.client import resume_run, submit
from core.store import RunRow, Store
from core.sweeps.client import create_sweep, parse_sweep, resume_sweep, start_sweep
from core.sweeps.folder import SweepFolder, Trial
from core.workspace.workspace import Workspace
from tests.targets.ssh_server import SshServer

RECOVERED_WITHIN_SECONDS = 900.0
STEPS, SAVE_STEPS, LOGGING_STEPS = 10_000, 200, 20
_TICK_SECONDS = 3.0
_WARM_UP_SECONDS = 60.0
MODEL = {
    "preset": "custom", "shards": "rows", "device": "cpu", "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "per_replica_batch_size": 64,
}  # fmt: skip
TRAINING = {
    **MODEL, "num_train_steps": STEPS, "save_steps": SAVE_STEPS, "eval_steps": 1000,
    "logging_steps": LOGGING_STEPS,
}  # fmt: skip
SWEEP = """
name = "sweep-{number}"
max_runs = 6
pruner = "none"
[base]
{base}
num_train_steps = 1200
save_steps = 200
eval_steps = 400
[options.learning_rate]
min = 1e-4
max = 1e-2
log = true
"""


class Work:
    """The workspaces, and the user who looks after them.

    Attributes:
        violations: Results that must not occur.
        faults: Faults injected, by kind.
        resumed: Resumptions by the state and reason of the ended run.
        samples: For each process by its role and pid: seconds, megabytes and open files.
    """

    def __init__(self, folder: Path, server: SshServer, relay: Relay, seed: int) -> None:
        self.folder = folder
        self.home, self.watcher = Workspace(folder / "home"), Workspace(folder / "watcher")
        self.machine = folder / "ssh" / "home"
        self.server, self.relay = server, relay
        self.random = random.Random(seed)
        self.violations: list[str] = []
        self.faults: Counter[str] = Counter()
        self.resumed: Counter[str] = Counter()
        self.samples: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
        self.targets = {"local": "", "remote": f"{relay.address}?python={sys.executable}"}
        self.runs: dict[str, list[str]] = {"local": [], "remote": []}
        self.sweeps = 0
        self.following: subprocess.Popen[bytes] | None = None
        self.url, self.status_component = "", 0
        self._refused: dict[str, float] = {}
        self._sampled = 0.0

    def tend(self) -> None:
        """Looks once at everything: starts, resumes and follows what isn't at work."""
        self._try("app", self._ask_app)
        self._try("local", lambda: self._tend_run("local"))
        self._try("remote", lambda: self._tend_run("remote"))
        self._try("sweep", self._tend_sweep)
        self._try("watcher", self._tend_watcher)
        self._sample()
        time.sleep(_TICK_SECONDS)

    def _try(self, name: str, action: Callable[[], None]) -> None:
        """A user repeats what is refused, such as on a full disk, for some minutes."""
        try:
            action()
            self._refused.pop(name, None)
        except (StudioError, OSError) as error:
            if name not in self._refused:
                say(f"{name} is refused: {error}")
            since = self._refused.setdefault(name, time.monotonic())
            if time.monotonic() - since > RECOVERED_WITHIN_SECONDS:
                self.violate(f"{name} is refused for {RECOVERED_WITHIN_SECONDS:.0f} s: {error}")
                self._refused[name] = time.monotonic()

    def _tend_run(self, name: str) -> None:
        row = self.row_of(name)
        if row is None or row.state == "done":
            number = len(self.runs[name]) + 1
            config = TrainConfig(**TRAINING, name=f"{name}-{number}", target=self.targets[name])
            self.runs[name].append(submit(self.home, "train", config))
        elif row.has_ended:
            resume_run(self.home, row.id)
            error = (row.error or {}).get("problem", "")
            self.resumed[f"{name} {row.state}/{row.reason}"] += 1
            say(f"resumed {row.id}, which was {row.state}/{row.reason} at {row.done:.0f}: {error}")

    def _tend_sweep(self) -> None:
        name = f"sweep-{self.sweeps}"
        folder = SweepFolder.of(self.home, name)
        state = folder.read_state().state if folder.exists() else "done"
        if state == "running" and not folder.is_driven():
            resume_sweep(self.home, name)
            self.resumed["sweep, its driver killed"] += 1
        elif state != "running":
            if folder.exists():
                trials = Counter(one.state for one in folder.read_trials())
                say(f"{name} is {state}: {dict(trials)}")
            base = "\n".join(f"{key} = {json.dumps(value)}" for key, value in MODEL.items())
            self.sweeps += 1
            text = SWEEP.format(number=self.sweeps, base=base)
            if not SweepFolder.of(self.home, f"sweep-{self.sweeps}").exists():
                create_sweep(self.home, parse_sweep(text))
            start_sweep(self.home, SweepFolder.of(self.home, f"sweep-{self.sweeps}"))

    def _tend_watcher(self) -> None:
        """Keeps `runs follow` at work on the newest remote run, once its mirror is there."""
        if self.following and self.following.poll() is None:
            return
        run_id = self.runs["remote"][-1] if self.runs["remote"] else ""
        row = get_run(self.watcher, run_id)
        if not (self.mirror_of(run_id) / "claims").exists() or (row and row.state == "done"):
            return
        address = f"{self.relay.address}{self.mirror_of(run_id)}"
        with (self.folder / "follow.log").open("ab") as log:
            self.following = subprocess.Popen(
                [sys.executable, "-m", "core", "runs", "follow", address, "-q",
                 "--workspace", str(self.watcher.root)], stdout=log, stderr=log,
            )  # fmt: skip

    def mirror_of(self, run_id: str) -> Path:
        return self.machine / ".pretrain-studio" / "mirror" / "runs" / run_id

    def row_of(self, name: str) -> RunRow | None:
        return get_run(self.home, self.runs[name][-1]) if self.runs[name] else None

    def _ask_app(self) -> None:
        """Asks what an open page asks, upon which the app restarts a dead worker."""
        if not self.status_component:
            with urllib.request.urlopen(f"{self.url}/config", timeout=30) as answer:
                components = json.load(answer)["components"]
            self.status_component = next(
                one["id"] for one in components
                if "studio_status" in (one["props"].get("server_fns") or ())
            )  # fmt: skip
        question = {"session_hash": "soak", "component_id": self.status_component,
                    "fn_name": "studio_status", "data": {}}  # fmt: skip
        request = urllib.request.Request(
            f"{self.url}/gradio_api/component_server",
            json.dumps(question).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def processes(self, *parts: str) -> list[psutil.Process]:
        """Finds the processes with all these parts in their command lines."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if line and all(part in line for part in parts):
                    found.append(process)
        return found

    def machine_processes(self) -> list[psutil.Process]:
        """Finds what runs on the ssh server's machine, its connections included."""
        found = []
        with suppress(psutil.Error):
            found = psutil.Process(self.server.process.pid).children(recursive=True)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("HOME") == str(self.machine) and process not in found:
                    found.append(process)
        return found

    def _sample(self) -> None:
        """Keeps the memory of all processes that live as long as the work."""
        if time.monotonic() - self._sampled < 10:
            return
        self._sampled = time.monotonic()
        roles = {"app": ("app.py", str(self.home.root))}
        for workspace in (self.home, self.watcher):
            for module in ("runs.worker", "targets.follower", "sweeps.driver", "runs.supervisor"):
                roles[f"{workspace.root.name}: {module}"] = f"core.{module}", str(workspace.root)
        for role, parts in roles.items():
            for process in self.processes(*parts):
                with suppress(psutil.Error):
                    if time.time() - process.create_time() > _WARM_UP_SECONDS:
                        sample = time.time(), process.memory_info().rss / 1e6, process.num_fds()
                        self.samples.setdefault((role, process.pid), []).append(sample)

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.tend()

    def progress(self) -> dict[str, Any]:
        """Returns for each of the four what grows while it works."""
        found = {}
        for name, ids in self.runs.items():
            losses = loss_steps(self.home, ids[-1]) if ids else []
            found[name] = len(ids), losses[-1] if losses else 0
        trials = self.trials()
        last = [loss_steps(self.home, one.run)[-1:] for one in trials]
        found["sweep"] = self.sweeps, len(trials), sum(map(sum, last))
        watched = self.runs["remote"][-1:]
        losses = loss_steps(self.watcher, watched[0]) if watched else []
        found["watcher"] = len(self.runs["remote"]), losses[-1] if losses else 0
        return found

    def trials(self) -> Sequence[Trial]:
        folder = SweepFolder.of(self.home, f"sweep-{self.sweeps}")
        return folder.read_trials() if folder.exists() else []

    def has_begun(self) -> bool:
        return all(value[-1] > 0 for value in self.progress().values())

    def violate(self, text: str) -> None:
        """Keeps a result that must not occur, once."""
        if text not in self.violations:
            say(f"VIOLATION: {text}")
            self.violations.append(text)


def get_run(workspace: Workspace, run_id: str) -> RunRow | None:
    store = Store.open(workspace)
    try:
        return store.get_run(run_id)
    finally:
        store.close()


def loss_steps(workspace: Workspace, run_id: str) -> list[int]:
    """Returns the steps of all logged losses, repeated ones included."""
    path = RunFolder.of(workspace, run_id).events
    events = read_events(path)[0] if path.exists() else []
    return [one["step"] for one in events if "loss" in one.get("values", ())]


def holds_within(seconds: float, condition: Callable[[], object]) -> bool:
    """Returns whether the condition holds in time."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(1)
    return bool(holds)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
