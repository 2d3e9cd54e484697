"""Opens what works on parts: processes of this machine, or a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.parts.pool import count_workers, open_pool
from core.parts.ray_cluster import open_cluster
from core.parts.task_map import TaskMap
from core.records.events import Reporter


@contextmanager
def open_workers(
    workers: int | None, cluster: str, reporter: Reporter, *, needs_credentials: bool = False
) -> Iterator[TaskMap]:
    """Yields a function that maps tasks over parts; a requested stop raises RunStopped.

    Args:
        workers: Most tasks at a time; None: one per core.
        cluster: "" for processes, "ray" for a local Ray, or the address of a cluster.
        needs_credentials: Whether tasks use a bucket or the Hub; a local Ray then gets the
            credentials of this process, and a cluster needs its own.

    Raises:
        RunError: The cluster can't be used, or a worker is lost.
    """
    if cluster:
        with open_cluster(cluster, workers, reporter, needs_credentials=needs_credentials) as run:
            yield run
        return
    with open_pool(count_workers(workers), reporter) as run:
        yield run
