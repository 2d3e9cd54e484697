"""The command `sweep`."""

from __future__ import annotations

import argparse
from typing import Any

from core.cli.parser import add_command

_SWEEP_LIMITS: dict[str, tuple[type, str]] = {
    "max_runs": (int, "trials at most"),
    "max_hours": (float, "hours of all trials together"),
    "max_cost": (float, "US dollars of all trials together"),
    "parallel": (int, "trials at a time"),
}


def add_sweep(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Run a stage with varied settings, and find the best ones."
    parser = add_command(commands, common, "sweep", about, "sweeps:start_sweep")
    parser.add_argument("--config", metavar="FILE", default="", help="TOML file of a new sweep")
    about = "go on with a sweep; finished trials stay"
    parser.add_argument("--resume", metavar="NAME", default="", help=about)
    parser.add_argument("--detach", action="store_true", help="return at once")
    for name, (kind, about) in _SWEEP_LIMITS.items():
        spellings = dict.fromkeys([f"--{name.replace('_', '-')}", f"--{name}"])
        parser.add_argument(*spellings, type=kind, default=None, help=about)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    add_command(actions, common, "list", "List sweeps, the newest first.", "sweeps:list_sweeps")
    about = "Show a sweep's trials, and the best one."
    showing = add_command(actions, common, "show", about, "sweeps:show_sweep")
    about = "Have a sweep save and stop its trials."
    stopping = add_command(actions, common, "stop", about, "sweeps:stop_sweep")
    for action in (showing, stopping):
        action.add_argument("name", help="the sweep's name")
