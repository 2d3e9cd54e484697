"""Runs tasks as plain Ray tasks, on this machine or on a cluster."""

from __future__ import annotations

import copy
import importlib
import os
import platform
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import core
from core.errors import RunError
from core.network.outbound import allow_typed_hosts, resolve
from core.parts.ray_local import (
    hiding_secrets,
    keeping_sigterm,
    private_settings,
    ray_folder,
)
from core.parts.ray_tasks import Driver, describe_node, run_task
from core.parts.task_map import TaskMap
from core.parts.versions import check_versions, find_versions
from core.processes.children import HOME, SAFE_PATH, using_settings
from core.processes.cores import usable_cores
from core.records.events import Reporter

LOCAL, INSIDE = "ray", "ray://auto"
_CLIENT_PORT = 10001
_CONNECT_SECONDS = 10.0
# A node that is asked first installs the code.
_ANSWER_SECONDS = 180.0
_CANCEL_SECONDS = 30.0
_LOOK_SECONDS = 0.3
_WAITING_PER_CORE = 2
_MOST_RETRIES = 3
# Ray sets the threads of OpenMP and BLAS by itself.
_THREADS = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@contextmanager
def open_cluster(
    address: str, workers: int | None, reporter: Reporter, *, needs_credentials: bool = False
) -> Iterator[TaskMap]:
    """Yields a function that maps tasks over a cluster's nodes.

    Tasks of lost nodes and crashed processes run again elsewhere. An error of a task is raised.

    Args:
        address: "ray" starts a local Ray, "ray://auto" is the cluster that this machine belongs
            to, and "ray://host:port" the server of Ray Client.
        workers: Most tasks at a time; None: as many as the cluster has cores.
        needs_credentials: Whether a local Ray gets this process's credentials. A cluster never
            does: Ray writes what it is sent to logs.

    Raises:
        RunError: The cluster can't be reached, has other versions, or loses a task for good.
        RunStopped: A stop was requested; running tasks are cancelled.
    """
    with ExitStack() as stack:
        if address == LOCAL:
            ray = stack.enter_context(_local(workers, needs_credentials=needs_credentials))
        else:
            ray = stack.enter_context(_connected(address))
        versions = find_versions()
        _check_nodes(ray, versions, reporter)
        tasks = _Tasks(ray, versions, workers, reporter)
        # On a cluster, tasks that run would still write to the folder.
        stack.callback(tasks.cancel)
        yield tasks.map


@contextmanager
def _local(workers: int | None, *, needs_credentials: bool) -> Iterator[Any]:
    with ray_folder() as folder, using_settings(private_settings()):
        ray = _import_ray()
        with hiding_secrets(needs_credentials=needs_credentials):
            _init(
                ray, LOCAL, address="local", num_cpus=workers or usable_cores(), num_gpus=0,
                include_dashboard=False, _temp_dir=str(folder),
            )  # fmt: skip
        try:
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    ray = _import_ray()
    _init(ray, address, address="auto" if address == INSIDE else _resolved(address))
    try:
        yield ray
    finally:
        ray.shutdown()


def _import_ray() -> Any:
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise RunError(
            "Ray is not installed",
            expected="Ray for the option cluster",
            received=str(error),
            fix="pip install -c constraints.txt -r requirements-ray.txt",
            field="cluster",
        ) from error
    if ray.is_initialized():
        raise RunError(
            "This process is connected to Ray already",
            expected="a process without a connection",
            received="a script that called ray.init()",
            fix="call ray.shutdown() before the stage",
            field="cluster",
        )
    return ray


def _init(ray: Any, shown: str, **settings: Any) -> None:
    runtime_env = {
        "py_modules": [str(Path(core.__file__).parent)],
        "env_vars": {**_THREADS, **SAFE_PATH},
    }
    try:
        # Ray would put the current folder first in its workers' module path.
        with keeping_sigterm(), chdir(HOME):
            ray.init(
                **settings, runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR"
            )
    # Also of grpc, whose class depends on what went wrong. A user who stops the run in between
    # leaves no process behind.
    except BaseException as error:
        with suppress(Exception):
            ray.shutdown()
        if not isinstance(error, Exception):
            raise
        raise _refused(shown, error) from error


def _resolved(address: str) -> str:
    """Returns the address with an IP address to which connections are allowed."""
    allow_typed_hosts([address])
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or _CLIENT_PORT
    try:
        resolved = resolve(host, port)[0]
        with socket.create_connection((resolved, port), _CONNECT_SECONDS):
            pass
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error)) from error
    return f"ray://[{resolved}]:{port}" if ":" in resolved else f"ray://{resolved}:{port}"


def _check_nodes(ray: Any, expected: dict[str, str], reporter: Reporter) -> None:
    """Raises RunError unless all nodes run tasks and have the same versions as this process."""
    on_node = importlib.import_module("ray.util.scheduling_strategies")
    describe = ray.remote(num_cpus=0, max_retries=_MOST_RETRIES)(describe_node)
    asked = []
    for node in ray.nodes():
        if node["Alive"]:
            # Soft: a node can leave in the meantime.
            place = on_node.NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
            asked.append(describe.options(scheduling_strategy=place).remote())
    for name, versions in _answers(ray, asked, reporter):
        check_versions(versions, expected, name, platform.node())


def _answers(ray: Any, asked: Sequence[Any], reporter: Reporter) -> list[Any]:
    waited = 0.0
    waiting = list(asked)
    while waiting:
        reporter.raise_if_stopped()
        if waited > _ANSWER_SECONDS:
            raise _unusable(f"no answer of {len(waiting)} nodes for {_ANSWER_SECONDS:.0f} seconds")
        waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK_SECONDS)[1]
        waited += _LOOK_SECONDS
    return [_value(ray, reference) for reference in asked]


class _Tasks:
    """Tasks on a connected cluster."""

    def __init__(
        self, ray: Any, versions: dict[str, str], workers: int | None, reporter: Reporter
    ) -> None:
        self._ray = ray
        self._versions = versions
        self._workers = workers
        self._reporter = reporter
        self._task = ray.remote(num_cpus=1, max_retries=_MOST_RETRIES)(run_task)
        self._waiting: set[Any] = set()

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        # It can contain large arrays.
        shared = self._ray.put(function)
        driver = self._ray.put(Driver(platform.node(), self._versions, os.getcwd()))
        waiting: deque[Any] = deque()
        for item in items:
            self._reporter.raise_if_stopped()
            waiting.append(self._task.remote(shared, item, driver))
            self._waiting.add(waiting[-1])
            if len(waiting) >= self._most():
                yield self._result(waiting.popleft())
        while waiting:
            yield self._result(waiting.popleft())

    def cancel(self) -> None:
        """Cancels the tasks whose results nobody waits for, and waits until they have ended."""
        waiting = list(self._waiting)
        for reference in waiting:
            with suppress(Exception):
                self._ray.cancel(reference, force=True)
        with suppress(Exception):
            self._ray.wait(waiting, num_returns=len(waiting), timeout=_CANCEL_SECONDS)
        self._waiting.clear()

    def _most(self) -> int:
        """Returns how many tasks to start before the first is done; a cluster can grow."""
        if self._workers is not None:
            return self._workers
        return _WAITING_PER_CORE * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _result(self, task: Any) -> Any:
        while not self._ray.wait([task], timeout=_LOOK_SECONDS)[0]:
            self._reporter.raise_if_stopped()
        self._waiting.discard(task)
        return _value(self._ray, task)


def _value(ray: Any, task: Any) -> Any:
    """Returns a task's result or raises its error."""
    try:
        # Arrays of Ray are read-only and keep its shared memory.
        return copy.deepcopy(ray.get(task))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause or error
        if isinstance(cause, ray.exceptions.RayError):
            raise _unusable(f"{type(cause).__name__}: {cause}") from error
        raise cause from None
    except ray.exceptions.RayError as error:
        # A killed process, a lost node, no memory.
        raise _unusable(f"{type(error).__name__}: {error}") from error


def _refused(address: str, error: Exception) -> RunError:
    received = " ".join(f"{type(error).__name__}: {error}".split())
    if "Version mismatch" not in received:
        return _unreachable(address, received)
    return RunError(
        f"The cluster {address} has another version of Python or Ray",
        expected="the same versions on this machine and on all nodes",
        received=received,
        fix="install the versions of the cluster here, or those of constraints.txt there",
        field="cluster",
    )


def _unreachable(address: str, received: str) -> RunError:
    return RunError(
        "Ray can't be started" if address == LOCAL else f"The cluster {address} can't be used",
        expected="the address of a running Ray cluster with the same versions of Python and Ray, "
        "and its token in RAY_AUTH_TOKEN_PATH if it has one",
        received=received,
        fix="check the address and that the cluster runs; ray://auto is the cluster that this "
        "machine belongs to, and ray starts one on this machine",
        field="cluster",
    )


def _unusable(received: str) -> RunError:
    return RunError(
        "The cluster lost a task for good",
        expected=f"nodes that finish a task in {_MOST_RETRIES + 1} attempts, with the packages of "
        "requirements.txt and enough memory",
        received=received,
        fix="check the nodes' logs and memory; then start the stage again",
        field="cluster",
    )
