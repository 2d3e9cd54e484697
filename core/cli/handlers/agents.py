"""Runs the command `mcp`."""

from __future__ import annotations

import argparse
from pathlib import Path

from core.agents.limits import Limits
from core.agents.server import serve_http, serve_stdio
from core.cli.output import EXIT_DONE, workspace_of
from core.errors import ConfigError
from core.workspace.confinement import allow_folders


def serve_agents(options: argparse.Namespace) -> int:
    workspace = workspace_of(options)
    allow_folders(options.allow or [_folder_here()])
    workspace.make_root()
    limits = Limits(options.max_runs, options.max_cost)
    if options.http:
        serve_http(workspace, limits, options.host, options.port)
    else:
        serve_stdio(workspace, limits)
    return EXIT_DONE


def _folder_here() -> Path:
    """Returns the current folder; raises ConfigError if it holds a home folder."""
    folder = Path.cwd()
    if Path.home().resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"Agents could read all of {folder}",
            expected="--allow with the folder of your texts",
            received="none, and a start in a folder with your other files",
            fix="add --allow FOLDER",
            field="allow",
        )
    return folder
