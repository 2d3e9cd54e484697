"""The commands `artifacts` and `targets`."""

from __future__ import annotations

import argparse
from typing import Any

from core.cli.parser import add_command
from core.workspace.kinds import artifact_kinds


def add_artifacts(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("artifacts", help="List and delete artifacts.")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    about = "List artifacts with their disk usage."
    add_command(actions, common, "list", about, "artifacts:list_artifacts")
    deleting = add_command(
        actions, common, "delete", "Delete an artifact.", "artifacts:delete_artifact"
    )
    deleting.add_argument("kind", choices=artifact_kinds())
    deleting.add_argument("name")


def add_targets(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "List the machines of runs on other machines, or delete one."
    parser = add_command(commands, common, "targets", about, "artifacts:list_targets")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    about = "End a machine's run and delete the machine."
    deleting = add_command(actions, common, "delete", about, "artifacts:delete_target")
    deleting.add_argument("id", help="the machine's id, as the list shows it")
