"""Measures the cost and delay of a mirror, and how long a launch takes.

The process that writes the mirror is frozen in every second window of 12 seconds of one run; the
ratio of the step times is what counts. The mirror is a folder. The delay is the time from a
metric's event on the machine until another workspace's database has it. With `--target`, two runs
are launched there, of which the first one installs the packages unless the machine has them.
`--target hf` and `--target tpu` launch them against servers on this machine that play Hugging
Face's and Google's part, with new machines each time, so that both runs install the packages.

    python -m benchmarks.remote [--windows 20] [--steps 1200] [--target ssh://host|hf|tpu]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import psutil
import pytest

from benchmarks.corpora import core, events_of, prepare_corpus
from benchmarks.sides import describe_machine
from core.records.events import read_events
from core.records.folder import RunFolder
from core.runs.client import follow_run
from core.store import Store
from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker
from tests.targets.hub_client import client_environment
from tests.targets.hub_jobs_server import JobServer
from tests.targets.tpu_server import TpuServer
from tests.targets.tpu_support import PROJECT, ZONE, sign_in

_POLL_SECONDS = 0.2
_WINDOW_SECONDS = 12.0
_WITHIN_SECONDS = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks"))
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--target", default="")
    options = parser.parse_args()
    prepare_corpus(options.folder, "docs")
    found: dict[str, Any] = {}
    if options.windows:
        found = measure_overhead(options.folder, options.windows, options.steps)
        found["delay_seconds"] = measure_delay(options.folder, 150)
    if options.target:
        with reached(options.target, options.folder) as flags:
            found["launches"] = [launch(options.folder, flags) for _ in range(2)]
    print(json.dumps(found))


@contextmanager
def reached(target: str, folder: Path) -> Iterator[list[str]]:
    """Yields the flags of a run on a target; starts a server for a target without an address."""
    # A worker that still runs has the environment that it was started with.
    stop_worker(Workspace(folder))
    if "://" in target:
        yield ["--target", target]
    elif target == "hf":
        with _hub(folder):
            yield ["--target", "hf://cpu-basic"]
    elif target == "tpu":
        with _google(folder) as address:
            yield ["--target", address, "--mirror", f"gs://bucket/{time.time_ns()}"]
    else:
        sys.exit(f"--target is an address, hf or tpu, not {target}")


@contextmanager
def _hub(folder: Path) -> Iterator[None]:
    token = "hf_AdaLovelaceAdaLovelace1815"
    with JobServer() as server, pytest.MonkeyPatch.context() as patch:
        server.add_user("ada", token)
        settings = dict(client_environment(server, folder / "hf", token))
        for name, value in settings.items():
            patch.setenv(name, value)
        for name in ("HF_HOME", "HF_TOKEN", "HF_ENDPOINT"):
            settings.pop(name)
        server.extra_environment = {**settings, **_package_settings()}
        yield


@contextmanager
def _google(folder: Path) -> Iterator[str]:
    with TpuServer() as server, pytest.MonkeyPatch.context() as patch:
        server.extra_environment |= {
            "STUDIO_MACHINE_HOME": "machine",
            "STORAGE_EMULATOR_HOST": server.url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "GCE_METADATA_IP": "{metadata_host}",
            **_package_settings(),
        }
        sign_in(server, folder, patch)
        yield f"tpu://v5litepod-8?zone={ZONE}&project={PROJECT}"


def _package_settings() -> dict[str, str]:
    """Returns this machine's settings of package indexes and certificates."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "UV_", "SSL_CERT_"))
    }


def measure_overhead(folder: Path, windows: int, steps: int) -> dict[str, Any]:
    """Returns the ratio of step times with and without a mirror, as a median over pairs of windows.

    In one run, the process that writes the mirror is frozen in every second window.
    """
    command = [sys.executable, "-m", "core", "train", *_training(steps), "--mirror"]
    training = subprocess.Popen(
        [*command, _new_mirror(folder), "--workspace", str(folder)], stdout=subprocess.DEVNULL
    )
    run_id = _wait_for_run(folder / "mirror")
    _wait_for_steps(folder, run_id)
    publisher = _publisher(folder, run_id)
    changes, used = [time.time()], _cpu_seconds(publisher)
    while training.poll() is None and len(changes) <= 2 * windows:
        (publisher.suspend if len(changes) % 2 else publisher.resume)()
        time.sleep(_WINDOW_SECONDS)
        changes.append(time.time())
    publisher.resume()
    share = (_cpu_seconds(publisher) - used) / (changes[-1] - changes[0])
    training.terminate()
    training.wait()
    ratios = _ratios(folder, run_id, changes)
    error = stdev(ratios) / len(ratios) ** 0.5
    ratio = fmean(ratios)
    print(f"step time with a mirror: {ratio:.3f} ± {error:.3f} of that without, in {len(ratios)} "
          f"pairs of windows; {share:.2%} of one core; {describe_machine()}")  # fmt: skip
    return {"step_time_ratio": ratio, "standard_error": error, "core_share": share}


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _publisher(folder: Path, run_id: str) -> psutil.Process:
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "core.runs.supervisor" in line and any(run_id in part for part in line):
            return process
    sys.exit("the process that writes the mirror was not found")


def _wait_for_steps(folder: Path, run_id: str) -> None:
    """Waits until the run has logged three times, compilation left behind."""
    deadline = time.monotonic() + _WITHIN_SECONDS
    while time.monotonic() < deadline:
        if len(_losses(folder, run_id)) >= 3:
            return
        time.sleep(_POLL_SECONDS)
    sys.exit("the run made no steps")


def _losses(folder: Path, run_id: str) -> list[tuple[float, int]]:
    """Returns the time and the step of each logged loss."""
    return [
        (event["t"], event["step"])
        for event in events_of(folder, run_id, "metrics")
        if "loss" in event["values"]
    ]


def _ratios(folder: Path, run_id: str, changes: list[float]) -> list[float]:
    """Returns for each pair of windows the step time with a mirror by that without."""
    losses = _losses(folder, run_id)
    seconds = []
    for start, stop in pairwise(changes):
        inside = [one for one in losses if start <= one[0] < stop]
        (first, step), (last, later) = inside[0], inside[-1]
        seconds.append((last - first) / (later - step))
    return [there / none for none, there in zip(seconds[::2], seconds[1::2], strict=False)]


def measure_delay(folder: Path, steps: int) -> dict[str, float]:
    """Returns the median and the largest seconds until another workspace has a metric."""
    mirror = _new_mirror(folder)
    home = Workspace(folder / "home")
    command = [sys.executable, "-m", "core", "train", *_training(steps), "--mirror", mirror]
    training = subprocess.Popen(
        [*command, "--workspace", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    run_id = _wait_for_run(Path(mirror.removeprefix("file://")))
    follow_run(home, f"{mirror}/runs/{run_id}")
    delays = _watch(home, folder, run_id, training)
    print(f"delay: median {median(delays):.1f} s, at most {max(delays):.1f} s")
    return {"median": median(delays), "most": max(delays)}


def launch(folder: Path, flags: list[str]) -> dict[str, Any]:
    """Launches a short run; returns the seconds and uploaded bytes until its first step."""
    began = time.time()
    said = core(folder, "train", *_training(20), *flags)
    events = events_of(folder, said["run"])
    uploaded = [one["done"] for one in events if one.get("note") == "uploading"]
    first = next(one["t"] for one in events if "loss" in one.get("values", {}))
    phases = [(one["phase"], round(one["since"] - began, 1)) for one in events
              if one["kind"] == "remote"]  # fmt: skip
    found = {"seconds": first - began, "bytes": max(uploaded, default=0), "phases": phases}
    print(
        f"{flags[1]}: first step after {found['seconds']:.0f} s, {found['bytes']:,.0f} bytes sent"
    )
    return found


def _training(steps: int) -> list[str]:
    return [
        "--shards", "docs", "--size", "mini", "--device", "cpu", "--per-replica-batch-size", "32",
        "--num-train-steps", str(steps), "--logging-steps", "2", "--eval-steps", str(steps),
        "--save-steps", str(steps), "--max-eval-examples", "32",
    ]  # fmt: skip


def _new_mirror(folder: Path) -> str:
    mirror = folder / "mirror"
    shutil.rmtree(mirror, ignore_errors=True)
    return f"file://{mirror.absolute()}"


def _wait_for_run(mirror: Path) -> str:
    deadline = time.monotonic() + _WITHIN_SECONDS
    while time.monotonic() < deadline:
        for path in mirror.glob("runs/*/run.json"):
            return path.parent.name
        time.sleep(_POLL_SECONDS)
    sys.exit("the run did not begin")


def _watch(
    home: Workspace, folder: Path, run_id: str, training: subprocess.Popen[bytes]
) -> list[float]:
    """Returns how many seconds after its event each step's loss was in the database of `home`."""
    seen: dict[int, float] = {}
    over = threading.Event()
    store = Store.open(home)
    while not over.is_set():
        row = store.get_run(run_id)
        now = time.time()
        for metric in store.metrics_since(run_id, names=("loss",)):
            seen.setdefault(metric.step, now)
        if training.poll() is not None and row and row.has_ended:
            over.set()
        time.sleep(_POLL_SECONDS)
    events, _ = read_events(RunFolder.of(Workspace(folder), run_id).events)
    made = {
        event["step"]: event["t"]
        for event in events
        if event["kind"] == "metrics" and "loss" in event["values"]
    }
    return [seen[step] - made[step] for step in made if step in seen]


if __name__ == "__main__":
    main()
