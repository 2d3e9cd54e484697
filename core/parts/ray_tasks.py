"""Runs on the nodes of a Ray cluster."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from core.parts.versions import check_versions, find_versions


@dataclass(frozen=True)
class Driver:
    """The process that a task works for.

    Attributes:
        name: Of its machine.
        folder: Its working folder, from which relative paths count.
    """

    name: str
    versions: Mapping[str, str]
    folder: str


def run_task(function: Callable[[Any], Any], item: Any, driver: Driver) -> Any:
    """Applies a function; raises RunError on a node with other versions than the driver."""
    check_versions(_own_versions(), driver.versions, platform.node(), driver.name)
    with suppress(OSError):  # Absolute paths don't need the folder.
        os.chdir(driver.folder)
    return function(item)


@lru_cache(maxsize=1)
def _own_versions() -> dict[str, str]:
    return find_versions()


def describe_node() -> tuple[str, dict[str, str]]:
    """Returns the node's name and versions."""
    return f"{platform.node()} (process {os.getpid()})", find_versions()
