"""Runs the store of a Hub bucket in a process of its own, whose hf_xet knows the loopback server.

hf_xet reads its settings when its first session in a process opens, and keeps the session.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from core.targets.opening import open_store
from core.targets.store import ObjectStore
from tests.targets.hub_jobs_server import JobServer

_METHODS = ("list_objects", "read", "write", "create", "upload", "download", "remove")


class _Manager(BaseManager):
    """Passes calls to a process, each thread's at the same time, and errors back."""


_Manager.register("open_store", open_store, exposed=_METHODS)


def client_environment(server: JobServer, home: Path, token: str) -> Mapping[str, str]:
    return {**server.client_environment(home), "HF_TOKEN": token}


@contextmanager
def hub_process(server: JobServer, home: Path, token: str) -> Iterator[Any]:
    """Yields an object whose `open_store(address)` opens stores in another process."""
    manager = _Manager(ctx=multiprocessing.get_context("spawn"))
    with patch.dict(os.environ, client_environment(server, home, token)):
        manager.start()
    with manager:
        yield manager


def open_there(process: Any, address: str) -> ObjectStore:
    return cast(ObjectStore, process.open_store(address))
