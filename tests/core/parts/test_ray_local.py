"""A Ray that a stage starts: results, errors, stops, and who can reach it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest

from core.errors import CorpusError, RunError
from core.parts.ray_local import private_settings
from core.parts.task_map import TaskMap
from core.parts.workers import open_workers
from core.records.events import Reporter, RunStopped, StopMode
from tests.core.parts import tasks
from tests.core.runs.support import wait_for

ROOT = Path(__file__).parents[3]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
pytestmark = [needs_ray, pytest.mark.long]


class Switch(Reporter):
    """Asks for a stop while a file exists."""

    marker: Path | None = None

    def stop_requested(self) -> StopMode | None:
        return "save" if self.marker and self.marker.exists() else None


@pytest.fixture(scope="module")
def switch() -> Switch:
    return Switch()


@pytest.fixture(scope="module")
def run(switch: Switch) -> Iterator[TaskMap]:
    """Maps tasks on a local Ray that was started beside secrets."""
    handler = signal.getsignal(signal.SIGTERM)
    os.environ["HF_TOKEN"] = "hf_secret"
    try:
        with open_workers(2, "ray", switch) as opened:
            assert os.environ["HF_TOKEN"] == "hf_secret"
            assert signal.getsignal(signal.SIGTERM) is handler
            yield opened
    finally:
        del os.environ["HF_TOKEN"]


def ray_processes() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def command_of(process: psutil.Process) -> str:
    """Returns a process's command line; "" if it has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def test_results_come_in_order(run: TaskMap) -> None:
    assert list(run(tasks.square, range(20))) == [number * number for number in range(20)]
    assert list(run(tasks.square, [])) == []


def test_arrays_of_results_can_be_changed(run: TaskMap) -> None:
    (array,) = run(tasks.zeros, [1 << 17])
    array += 1
    assert isinstance(array, np.ndarray) and array.sum() == 1 << 17


def test_relative_paths_count_from_the_folder_of_the_command(
    run: TaskMap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("here")
    monkeypatch.chdir(tmp_path)
    assert list(run(tasks.read_text, [Path("a.txt")])) == ["here"]


def test_ray_listens_on_loopback_only(run: TaskMap) -> None:
    list(run(tasks.square, range(4)))
    members = {os.getpid(), *(one.pid for one in ray_processes())}
    listening = [
        one.laddr.ip
        for one in psutil.net_connections("inet")
        if one.status == psutil.CONN_LISTEN and one.pid in members
    ]
    assert len(listening) >= 4
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_other_users_cannot_read_token_and_sockets(run: TaskMap) -> None:
    token = Path(private_settings()["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    sockets = [
        Path(one.laddr) for process in ray_processes() for one in process.net_connections("unix")
        if "/ray-" in str(one.laddr)
    ]  # fmt: skip
    assert sockets
    for path in sockets:
        folder = next(one for one in path.parents if one.name.startswith("ray-"))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_processes_of_ray_have_no_secrets(run: TaskMap) -> None:
    (seen,) = run(tasks.environment_of, [0])
    assert "HF_TOKEN" not in seen
    assert seen["RAYON_NUM_THREADS"] == "1" and seen["TOKENIZERS_PARALLELISM"] == "false"
    token = Path(private_settings()["RAY_AUTH_TOKEN_PATH"]).read_text()
    looked_at = 0
    for process in ray_processes():
        with suppress(psutil.NoSuchProcess):  # It has ended meanwhile.
            said = [*process.environ().values(), *process.cmdline()]
            assert not any("hf_secret" in text or token in text for text in said)
            looked_at += 1
    assert looked_at > 2


def test_process_without_the_token_is_refused(run: TaskMap, tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    code = f"import ray; ray.init({address!r}, log_to_driver=False); print('connected')"
    other = tmp_path / "token"
    other.write_text("0" * 64)
    settings = {**private_settings(), "RAY_AUTH_TOKEN_PATH": str(other)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **settings}, text=True,
        capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode and "connected" not in ended.stdout
    assert "AuthenticationError" in ended.stderr


def test_ray_sends_no_usage_data(run: TaskMap) -> None:
    from ray._common.usage import usage_lib

    # psutil can't read the environment of a process that changes its title.
    seen = []
    for process in ray_processes():
        with suppress(psutil.NoSuchProcess):  # It has ended meanwhile.
            seen.append(process.environ().get("RAY_USAGE_STATS_ENABLED"))
    assert {one for one in seen if one} == {"0"}
    (inside,) = run(tasks.environment_of, [0])
    assert inside["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not usage_lib.usage_stats_enabled()
    boards = [command for command in map(command_of, ray_processes()) if "dashboard.py" in command]
    assert all("--disable-frontend" in command for command in boards)


def test_error_of_a_task_keeps_its_fields(run: TaskMap) -> None:
    with pytest.raises(CorpusError) as failed:
        list(run(tasks.fail, [1, 2, 3]))
    assert type(failed.value) is CorpusError
    assert failed.value.to_dict() == {
        "problem": "It failed", "expected": "this", "received": "that", "fix": "nothing",
        "field": "path",
    }  # fmt: skip
    with pytest.raises(TimeoutError):
        list(run(tasks.time_out, [1]))


def test_crashed_task_runs_again(run: TaskMap, tmp_path: Path) -> None:
    assert list(run(tasks.die_once, [tmp_path / "one"])) == ["done"]


def test_task_that_always_crashes_is_reported(run: TaskMap) -> None:
    with pytest.raises(RunError, match="lost a task for good") as caught:
        list(run(tasks.die, [1]))
    assert caught.value.field == "cluster" and "4 attempts" in caught.value.expected


def test_stop_ends_the_wait(run: TaskMap, switch: Switch, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    switch.marker = paths[0].with_suffix(".started")
    try:
        with pytest.raises(RunStopped):
            list(run(tasks.write_later, paths))
    finally:
        switch.marker = None
    assert not paths[0].exists()


HOLDING = """
import time
from core.records.events import Reporter
from core.parts.workers import open_workers
with open_workers(1, "ray", Reporter()) as run:
    print(list(run(abs, [-1])), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Yields a temporary folder, since the process can't remove its own files."""
    with tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def test_ray_ends_with_the_process_that_started_it(short_folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(short_folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "[1]\n"
    children = psutil.Process(process.pid).children(recursive=True)
    # Two agents, which run no tasks, look for the others for a minute.
    children = [one for one in children if "Agent" not in one.name()]
    assert len(children) > 3
    process.kill()
    process.wait()
    assert not psutil.wait_procs(children, timeout=60)[1]


INTERRUPTED = """
import signal
import time
# A shell ignores the signal in what it starts in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
from core.records.events import Reporter
from core.parts.workers import open_workers
try:
    with open_workers(1, "ray", Reporter()):
        time.sleep(600)  # The start may have been faster than the interrupt.
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(600)
"""


def test_interrupted_start_of_ray_leaves_no_process(short_folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(short_folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], env=environment, stdout=subprocess.PIPE, text=True
    )
    own = psutil.Process(process.pid)
    try:
        wait_for(lambda: any(one.name() == "gcs_server" for one in own.children()))
        process.send_signal(signal.SIGINT)
        assert process.stdout
        assert process.stdout.readline() == "interrupted\n", f"ended with {process.poll()}"
        assert not psutil.wait_procs(own.children(recursive=True), timeout=30)[1]
        assert not list(short_folder.glob("ray-[!t]*"))
    finally:
        process.kill()
        process.wait()


def test_missing_ray_is_reported_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('No module named ray')")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, "-c", HOLDING], env={**os.environ, "PYTHONPATH": paths}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert "pip install -c constraints.txt -r requirements-ray.txt" in ended.stderr
    assert ended.returncode == 1
