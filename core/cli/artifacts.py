"""The commands `artifacts` and `targets`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from core.cli.output import EXIT_DONE, workspace_of
from core.cli.parser import add_command
from core.workspace.kinds import artifact_kinds


def add_artifacts(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("artifacts", help="List and delete artifacts.")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    about = "List artifacts with their disk usage."
    add_command(actions, common, "list", about, _list_artifacts)
    deleting = add_command(actions, common, "delete", "Delete an artifact.", _delete_artifact)
    deleting.add_argument("kind", choices=artifact_kinds())
    deleting.add_argument("name")


def _list_artifacts(options: argparse.Namespace) -> int:
    from core.runs.disk_usage import disk_usage_bytes

    workspace = workspace_of(options)
    rows: list[dict[str, Any]] = [
        {
            "kind": artifact.kind,
            "name": artifact.name,
            "path": str(artifact.path),
            "bytes": disk_usage_bytes(artifact.path),
            "fingerprint": artifact.fingerprint,
        }
        for kind in artifact_kinds()
        for artifact in workspace.list(kind)
    ]
    if options.json:
        print(json.dumps(rows, ensure_ascii=False))
        return EXIT_DONE
    for row in rows:
        print(f"{row['kind']:10} {row['name']:40} {row['bytes'] / 1e6:10.1f} MB")
    if not rows:
        print("No artifacts yet. Start with: python -m core quickstart")
    return EXIT_DONE


def _delete_artifact(options: argparse.Namespace) -> int:
    from core.runs.client import delete_artifact

    delete_artifact(workspace_of(options), options.kind, options.name)
    deleted = {"kind": options.kind, "name": options.name}
    print(json.dumps(deleted) if options.json else f"{options.kind} {options.name} is deleted")
    return EXIT_DONE


def add_targets(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "List the machines of runs on other machines, or delete one."
    parser = add_command(commands, common, "targets", about, _list_targets)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    about = "End a machine's run and delete the machine."
    deleting = add_command(actions, common, "delete", about, _delete_target)
    deleting.add_argument("id", help="the machine's id, as the list shows it")


def _list_targets(options: argparse.Namespace) -> int:
    from core.targets.machines import list_machines

    found = list_machines(workspace_of(options))
    if options.json:
        print(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return EXIT_DONE
    for one in found:
        what = f"can't be asked: {one.error}" if one.error else f"{one.id}  {one.detail}"
        print(f"{one.target}  {what}")
    if not found:
        print("No machine exists at the targets of this workspace's runs.")
    return EXIT_DONE


def _delete_target(options: argparse.Namespace) -> int:
    from core.targets.machines import delete_machine

    deleted = delete_machine(workspace_of(options), options.id)
    text = json.dumps(asdict(deleted)) if options.json else f"{deleted.id} is deleted"
    print(text)
    return EXIT_DONE
