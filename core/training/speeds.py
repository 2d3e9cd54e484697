"""Remembers how fast runs trained on this machine, for the forecasts of later ones."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from core.config.train import TrainConfig
from core.foreign_files import parse_bounded_json
from core.workspace.atomic import write_atomically
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

_FILE = "speeds-2.json"  # Earlier versions left out the updates of the weights.
_MOST_KEPT = 100
_COMPARED = 5
# Shorter runs mostly start and compile.
_LEAST_SECONDS = 20.0
# With less of the cores, a speed says little.
_LEAST_SHARE = 0.2


def record_speed(
    workspace: Workspace,
    *,
    family: str,
    device: str,
    engine: str,
    flops: float,
    hidden_size: int,
    seconds: float,
    others: float = 0.0,
) -> None:
    """Adds a run's mean speed over its steps, validations and checkpoints.

    Args:
        flops: FLOP/s of all devices.
        others: Share of the cores that other programs took meanwhile.
    """
    if seconds < _LEAST_SECONDS or not flops > 0:
        return
    if device == "cpu":
        flops /= max(_LEAST_SHARE, 1 - others)
    entry = {
        "family": family, "device": device, "engine": engine, "flops": flops,
        "hidden_size": hidden_size,
    }  # fmt: skip
    path = _path(workspace)
    # A forecast is less precise without it, and nothing else.
    with suppress(OSError):
        make_folder(path.parent)
        write_atomically(path, json.dumps([*_read(path), entry][-_MOST_KEPT:]))


def find_speed(
    workspace: Workspace, config: TrainConfig, device: str, hidden_size: int | None = None
) -> float | None:
    """Returns the FLOP/s of the newest similar runs on this machine; None without any.

    Args:
        device: cpu, gpu or tpu.
        hidden_size: Runs of the nearest hidden size count; None: of any.
    """
    runs = [
        run
        for run in _read(_path(workspace))
        if run["device"] == device and config.engine in ("auto", run["engine"])
    ]
    runs = [run for run in runs if run["family"] == config.family] or runs
    if hidden_size and runs:
        nearest = min(abs(run["hidden_size"] - hidden_size) for run in runs)
        runs = [run for run in runs if abs(run["hidden_size"] - hidden_size) == nearest]
    return median(run["flops"] for run in runs[-_COMPARED:]) if runs else None


def _path(workspace: Workspace) -> Path:
    return workspace.cache / _FILE


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        runs = parse_bounded_json(path.read_bytes())
        return [run for run in runs if _is_run(run)]
    except (OSError, ValueError, TypeError, RecursionError):
        return []


def _is_run(run: Any) -> bool:
    try:
        names = all(isinstance(run[name], str) for name in ("family", "device", "engine"))
        return names and float(run["flops"]) > 0 and int(run["hidden_size"]) > 0
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
