"""Shared by all tests: options, the order of tests, compilation caches, a clean environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

import ui  # noqa: F401  Before Gradio, whose import then takes half as long.
from tests.fuzz.counting import FuzzCounts
from tests.thorough import THOROUGH

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
# gcsfs reads this once; otherwise each file system waits for a minute.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # The tests' Hub doesn't support Xet.
_KEPT = ("STUDIO_TEST_",)
_JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"
_TENSORFLOW_CACHE = (
    "--tf_xla_persistent_cache_directory={} --tf_xla_persistent_cache_device_types=CPU"
)
_SLOW_SECONDS = 10
_LONG_SECONDS = 3  # Of a test that is marked as long alone.
_DYING_SECONDS = 5
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
# The models are tiny: XLA compiles them in less than half the time without optimisations.
_COMPILED_QUICKLY = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)


def pytest_configure(config: pytest.Config) -> None:
    """Makes XLA compile quickly, with one compilation cache for the processes of all tests."""
    config.pluginmanager.register(FuzzCounts(), "fuzz-counts")
    config.pluginmanager.register(_Deaths(), "deaths")
    if not hasattr(config, "workerinput"):
        os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *_COMPILED_QUICKLY))
        os.environ[_JAX_CACHE] = tempfile.mkdtemp(prefix="compiled-")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        of_tensorflow = Path(os.environ[_JAX_CACHE]) / "tensorflow"
        of_tensorflow.mkdir()
        os.environ["TF_XLA_FLAGS"] = _TENSORFLOW_CACHE.format(of_tensorflow)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the compilation cache."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[_JAX_CACHE], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip", action="store_true", help="fail if any test is skipped, naming why"
    )
    parser.addoption("--write-passed", metavar="FILE", help="write the ids of passed tests")
    parser.addoption("--passed", metavar="FILE", help="leave out the tests that FILE lists")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests, and puts files with slow tests first.

    Left out are thorough tests unless they are requested, and those that passed before. Parallel
    workers end at about the same time if the slow files come first.
    """
    file = config.getoption("--passed")
    passed = set(Path(file).read_text("utf-8").splitlines()) if file else set()
    left_out = {item for item in items if item.nodeid in passed or is_left_out(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    seconds: Counter[Path] = Counter()
    for item in items:
        if slow := item.get_closest_marker("slow"):
            seconds[item.path] += slow.args[0] if slow.args else _SLOW_SECONDS
        elif item.get_closest_marker("long"):
            seconds[item.path] += _LONG_SECONDS
    items.sort(key=lambda item: -seconds[item.path])


class _FileScheduling(LoadFileScheduling):
    """Goes on after a worker's death, where xdist may wait forever.

    A worker starts a test when it has another one or is told to end. xdist gives one file to the
    worker that replaces a dead one, and queues the dead worker's finished files again.
    """

    def _reschedule(self, node: WorkerController) -> None:
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class _Deaths:
    """Names how a worker died; a test whose worker was killed from outside has a second try.

    xdist runs the test of a dead worker once more anyway. A machine without memory kills the
    largest process, which says nothing about the test that this was in.
    """

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._tried: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object) -> None:
        if error:
            with suppress(subprocess.TimeoutExpired):
                code = node.gateway._io.popen.wait(_DYING_SECONDS)
                self._codes[node.gateway.id] = code
                print(f"\n{node.gateway.id} ended with {code}, minus a signal's number", flush=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        is_killed = self._codes.get(report.node.gateway.id) in _FROM_OUTSIDE
        if is_killed and crashitem not in self._tried:
            self._tried.add(crashitem)
            report.outcome = "again"  # type: ignore[assignment]

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("begun again", "A", "AGAIN") if report.outcome == "again" else None


def is_left_out(item: pytest.Item) -> bool:
    """Whether a test belongs to `make test-thorough` only."""
    return not THOROUGH and item.get_closest_marker("thorough") is not None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    file = session.config.getoption("--write-passed")
    if file and reporter and not hasattr(session.config, "workerinput"):
        passed = [report.nodeid for report in reporter.stats.get("passed", [])]
        Path(file).write_text("".join(f"{one}\n" for one in passed), "utf-8")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if session.config.getoption("--fail-on-skip") and skipped and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Removes the user's STUDIO_ variables from the environment."""
    for name in list(os.environ):
        if name.startswith("STUDIO_") and not name.startswith(_KEPT):
            monkeypatch.delenv(name)
    yield
