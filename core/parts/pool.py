"""Runs tasks in this process or in a pool of spawned ones, in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from core.errors import RunError
from core.parts.task_map import TaskMap
from core.processes.children import SAFE_PATH, using_settings
from core.processes.cores import usable_cores
from core.records.events import Reporter

_LOOK_SECONDS = 0.3
_WAITING_PER_WORKER = 2


class BrokenPoolError(RunError):
    """A process of a pool ended; what others have finished is kept."""


def count_workers(wanted: int | None) -> int:
    """Returns the number of processes, by default one per core.

    A script without `if __name__ == "__main__"` would start itself again in each process.
    """
    if wanted is not None:
        return wanted
    main: Any = sys.modules["__main__"]
    is_script = getattr(main, "__spec__", None) is None and hasattr(main, "__file__")
    return 1 if is_script else usable_cores()


@contextmanager
def open_pool(workers: int, reporter: Reporter) -> Iterator[TaskMap]:
    """Yields a function that maps tasks; a requested stop raises RunStopped between them."""
    if workers == 1:
        yield lambda function, items: _map_here(function, items, reporter)
        return
    context = multiprocessing.get_context("spawn")
    with using_settings(SAFE_PATH):
        pool = ProcessPoolExecutor(workers, context, _start)
        try:
            yield lambda function, items: _map_in(pool, workers, function, items, reporter)
        except BrokenProcessPool as error:
            raise _broken(workers) from error
        finally:
            # Tasks that run still write to the folder.
            pool.shutdown(wait=True, cancel_futures=True)


def _map_here(
    function: Callable[[Any], Any], items: Iterable[Any], reporter: Reporter
) -> Iterator[Any]:
    for item in items:
        reporter.raise_if_stopped()
        yield function(item)


def _map_in(
    pool: ProcessPoolExecutor,
    workers: int,
    function: Callable[[Any], Any],
    items: Iterable[Any],
    reporter: Reporter,
) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > workers * _WAITING_PER_WORKER:
            yield _result(waiting.popleft(), reporter)
    while waiting:
        yield _result(waiting.popleft(), reporter)


def _result(future: Future[Any], reporter: Reporter) -> Any:
    while True:
        reporter.raise_if_stopped()
        try:
            return future.result(_LOOK_SECONDS)
        except TimeoutError:
            # A task that failed so is done.
            if future.done():
                raise


def _start() -> None:
    # A process takes one core.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    # The process that started this one handles interrupts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _broken(workers: int) -> BrokenPoolError:
    return BrokenPoolError(
        "A process that works on parts of the corpus ended unexpectedly",
        expected=f"{workers} processes until the end",
        received="one that was killed, ran out of memory or could not start",
        fix="set ⟬workers⟭ to a lower number; in a script, call the stage below "
        'if __name__ == "__main__"',
        field="workers",
    )
