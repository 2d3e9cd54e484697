"""The command `sweep`: starts, follows, shows and stops sweeps."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from core.errors import ConfigError, StudioError
from core.runs.client import refresh
from core.store import Store
from core.sweeps.client import (
    LIMITS,
    create_sweep,
    load_sweep,
    resume_sweep,
    start_sweep,
    stop_sweep,
)
from core.sweeps.folder import SweepFolder
from core.sweeps.view import describe_sweep, list_sweeps
from core.workspace.workspace import Workspace

_FOLLOW_SECONDS = 0.3
_EXIT_DONE, _EXIT_FAILED, _EXIT_INTERRUPTED = 0, 1, 130
_COLUMN_CHARACTERS = 24


def run(options: argparse.Namespace, workspace: Workspace) -> int:
    """Starts or resumes a sweep and follows it."""
    if bool(options.config) == bool(options.resume):
        raise ConfigError(
            "The sweep to run is missing" if not options.config else "There are two sweeps to run",
            expected="--config FILE for a new sweep, or --resume NAME",
            received="both" if options.config else "neither",
            fix="give one of them",
            field="config",
        )
    limits = {name: value for name in LIMITS if (value := getattr(options, name)) is not None}
    if options.resume:
        folder = resume_sweep(workspace, options.resume, limits or None)
    else:
        config = load_sweep(options.config)
        folder = create_sweep(workspace, config.parse({**config.model_dump(), **limits}))
        start_sweep(workspace, folder)
    if options.detach:
        print(json.dumps({"sweep": folder.name}) if options.json else folder.name)
        return _EXIT_DONE
    return _follow(workspace, folder, as_json=options.json, quiet=options.quiet)


def show(options: argparse.Namespace, workspace: Workspace) -> int:
    refresh(workspace)
    sweep = _described(workspace, options.name)
    print(json.dumps(sweep, ensure_ascii=False) if options.json else table(sweep))
    return _EXIT_DONE


def list_all(options: argparse.Namespace, workspace: Workspace) -> int:
    sweeps = list_sweeps(workspace)
    if options.json:
        print(json.dumps(sweeps, ensure_ascii=False))
        return _EXIT_DONE
    for sweep in sweeps:
        best = sweep.get("best_value")
        value = "" if best is None else f"{sweep['metric']} {best:.5g}"
        trials = sum(sweep.get("counts", {}).values())
        print(f"{sweep['sweep']:36} {sweep['state']:12} {trials:5} trials  {value}".rstrip())
    if not sweeps:
        print("No sweeps yet. Start with: python -m core sweep --config FILE")
    return _EXIT_DONE


def stop(options: argparse.Namespace, workspace: Workspace) -> int:
    folder = stop_sweep(workspace, options.name)
    name = folder.name
    print(json.dumps({"sweep": name}) if options.json else f"{name} was asked to stop")
    return _EXIT_DONE


def table(sweep: Mapping[str, Any]) -> str:
    """Formats a sweep's trials for a terminal, the best one first."""
    names = list(sweep["options"])
    rows = [["trial", "state", sweep["metric"], *names, "run"]]
    for trial in _best_first(sweep):
        mark = " *" if trial["number"] == sweep["best"] else ""
        settings = [_short(trial["settings"][name]) for name in names]
        state = f"{trial['state']}/{trial['reason']}" if trial["reason"] else trial["state"]
        rows.append(
            [f"{trial['number']}{mark}", state, _short(trial["value"]), *settings, trial["run"]]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in rows]  # fmt: skip
    spent = sweep["spent"]
    cost = "" if spent["cost"] is None else f", {spent['cost']:.2f} US dollars"
    state = f"{sweep['state']} {sweep['reason']}".strip()
    goal = f"{sweep['metric']} to {sweep['direction']}"
    used = f"{spent['runs']} trials, {spent['hours']:.2f} hours{cost}"
    head = f"{sweep['sweep']}: {state}; {used}; {goal}"
    return "\n".join([head, *lines])


def _best_first(sweep: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    sign = 1 if sweep["direction"] == "minimize" else -1

    def place(trial: Mapping[str, Any]) -> tuple[bool, bool, float]:
        value = trial["value"]
        return trial["state"] != "done", value is None, sign * (value or 0.0)

    return sorted(sweep["trials"], key=place)


def _short(value: Any) -> str:
    if value is None or value == "":
        return "-"
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _COLUMN_CHARACTERS else f"{text[: _COLUMN_CHARACTERS - 1]}…"


def _described(workspace: Workspace, name: str) -> dict[str, Any]:
    store = Store.open(workspace)
    try:
        return describe_sweep(workspace, store, name)
    finally:
        store.close()


def _follow(workspace: Workspace, folder: SweepFolder, *, as_json: bool, quiet: bool) -> int:
    """Prints the driver's log until the sweep has ended."""
    try:
        _print_log(folder, quiet=quiet)
    except KeyboardInterrupt:
        _say(f"\n{folder.name} continues in the background. "
             f"Stop it with: studio sweep stop {folder.name}")  # fmt: skip
        return _EXIT_INTERRUPTED
    sweep = _described(workspace, folder.name)
    print(json.dumps(sweep, ensure_ascii=False) if as_json else table(sweep), flush=True)
    if sweep["state"] == "interrupted":
        _say(f"error: the sweep's driver has died; go on with: studio sweep --resume {folder.name}")
    if sweep["error"]:
        _say(f"error: {StudioError(**sweep['error'])}")
    return _EXIT_DONE if sweep["state"] == "done" else _EXIT_FAILED


def _print_log(folder: SweepFolder, *, quiet: bool) -> None:
    place = 0
    while True:
        is_driven = folder.is_driven()
        with folder.log.open("rb") as file:
            file.seek(place)
            text = file.read()
            place += len(text)
        if text and not quiet:
            print(text.decode("utf-8", "replace"), end="", file=sys.stderr, flush=True)
        if not is_driven:
            return
        time.sleep(_FOLLOW_SECONDS)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
