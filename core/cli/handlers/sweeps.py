"""Runs the command `sweep` and its actions."""

import argparse

from core.cli.output import workspace_of
from core.sweeps import commands


def start_sweep(options: argparse.Namespace) -> int:
    return commands.run(options, workspace_of(options))


def list_sweeps(options: argparse.Namespace) -> int:
    return commands.list_all(options, workspace_of(options))


def show_sweep(options: argparse.Namespace) -> int:
    return commands.show(options, workspace_of(options))


def stop_sweep(options: argparse.Namespace) -> int:
    return commands.stop(options, workspace_of(options))
