"""Runs `make run` as a newcomer does and waits for the page and the first training step.

Start it in a clone's root. It uses the standard library alone, since nothing is installed yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
ROOT = Path.cwd()
PAGE_WITHIN_SECONDS = 1200  # The packages are installed before the page is served.
FIRST_STEP_WITHIN_SECONDS = 600


def main() -> int:
    """Returns 0 once the page answers and the quickstart's training has made a step."""
    port = find_free_port()
    app = subprocess.Popen(["make", "run", f"PORT={port}"], cwd=ROOT, start_new_session=True)
    try:
        page = wait_for(lambda: fetch(f"http://127.0.0.1:{port}"), PAGE_WITHIN_SECONDS, "page", app)
        if b"Pretrain Studio" not in page:
            raise SystemExit("error: the page does not name Pretrain Studio")
        print(f"The page answers on port {port}.", flush=True)
        step = wait_for(read_training_step, FIRST_STEP_WITHIN_SECONDS, "training step", app)
        print(f"The quickstart has trained {step} steps.", flush=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(app.pid, signal.SIGTERM)
        app.wait()
        kill_processes_of(ROOT / "workspace")
    return 0


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(look: Callable[[], T], seconds: float, what: str, app: subprocess.Popen[bytes]) -> T:
    """Calls `look` until it returns something, the time is over, or the app has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        if app.poll() is not None:
            raise SystemExit(f"error: make run ended with exit code {app.returncode}")
        time.sleep(1)
    raise SystemExit(f"error: no {what} within {seconds} seconds")


def fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


def read_training_step() -> int:
    """Returns the step of the quickstart's training; 0 while there is none.

    Raises:
        SystemExit: A stage of the quickstart has failed.
    """
    listed = subprocess.run(
        [".venv/bin/python", "-m", "core", "runs", "list", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    runs = json.loads(listed.stdout.splitlines()[-1])
    for run in runs:
        if run["state"] not in ("queued", "running", "done"):
            raise SystemExit(f"error: the stage {run['stage']} is {run['state']}: {run}")
    return max((run["step"] or 0 for run in runs if run["stage"] == "train"), default=0)


def kill_processes_of(workspace: Path) -> None:
    """Kills the worker and the runs, which outlive the app on purpose."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(workspace).encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
