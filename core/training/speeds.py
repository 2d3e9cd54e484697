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

_FILE = "speeds.json"
_MOST_KEPT = 100
_COMPARED = 5
# Shorter runs mostly start and compile.
_LEAST_SECONDS = 20.0


def record_speed(
    workspace: Workspace,
    *,
    family: str,
    device: str,
    engine: str,
    flops: float,
    hidden_size: int,
    seconds: float,
) -> None:
    """Adds a run's mean speed over its steps, validations and checkpoints.

    Args:
        flops: FLOP/s of all devices.
    """
    if seconds < _LEAST_SECONDS or not flops > 0:
        return
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
    found = [
        one
        for one in _read(_path(workspace))
        if one["device"] == device and config.engine in ("auto", one["engine"])
    ]
    found = [one for one in found if one["family"] == config.family] or found
    if hidden_size and found:
        nearest = min(abs(one["hidden_size"] - hidden_size) for one in found)
        found = [one for one in found if abs(one["hidden_size"] - hidden_size) == nearest]
    return median(one["flops"] for one in found[-_COMPARED:]) if found else None


def _path(workspace: Workspace) -> Path:
    return workspace.cache / _FILE


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        entries = parse_bounded_json(path.read_bytes())
        return [one for one in entries if _is_entry(one)]
    except (OSError, ValueError, TypeError, RecursionError):
        return []


def _is_entry(one: Any) -> bool:
    try:
        names = all(isinstance(one[name], str) for name in ("family", "device", "engine"))
        return names and float(one["flops"]) > 0 and int(one["hidden_size"]) > 0
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
