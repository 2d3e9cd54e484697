"""Functions that tests run as tasks of a pool or a cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from core.errors import CorpusError


def square(number: int) -> int:
    time.sleep(0.02 * (number % 3))
    return number * number


def fail(_: object) -> None:
    raise CorpusError("It failed", expected="this", received="that", fix="nothing", field="path")


def time_out(number: int) -> int:
    raise TimeoutError(number)


def die(_: object) -> None:
    os._exit(3)


def die_once(marker: Path) -> str:
    """Ends the process at the first attempt."""
    if marker.exists():
        return "done"
    marker.touch()
    os._exit(3)


def zeros(count: int) -> npt.NDArray[np.float64]:
    return np.zeros(count)


def write_later(path: Path) -> None:
    path.with_suffix(".started").touch()
    time.sleep(60)
    path.touch()


def read_text(path: Path) -> str:
    return path.read_text()


def environment_of(_: object) -> dict[str, str]:
    return dict(os.environ)
