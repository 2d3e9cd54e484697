"""Runs the commands `artifacts` and `targets`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from core.cli.output import EXIT_DONE, workspace_of
from core.messages.values import byte_count
from core.runs import client
from core.runs.disk_usage import disk_usage_bytes
from core.targets.machines import delete_machine, list_machines
from core.workspace.kinds import artifact_kinds


def list_artifacts(options: argparse.Namespace) -> int:
    workspace = workspace_of(options)
    artifacts: list[dict[str, Any]] = [
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
        print(json.dumps(artifacts, ensure_ascii=False))
        return EXIT_DONE
    for artifact in artifacts:
        print(f"{artifact['kind']:10} {artifact['name']:40} {byte_count(artifact['bytes']):>8}")
    if not artifacts:
        print("No artifacts yet. Start with: python -m core quickstart")
    return EXIT_DONE


def delete_artifact(options: argparse.Namespace) -> int:
    client.delete_artifact(workspace_of(options), options.kind, options.name)
    deleted = {"kind": options.kind, "name": options.name}
    print(json.dumps(deleted) if options.json else f"{options.kind} {options.name} is deleted")
    return EXIT_DONE


def list_targets(options: argparse.Namespace) -> int:
    machines = list_machines(workspace_of(options))
    if options.json:
        print(json.dumps([asdict(machine) for machine in machines], ensure_ascii=False))
        return EXIT_DONE
    for machine in machines:
        what = (
            f"can't be asked: {machine.error}"
            if machine.error
            else f"{machine.id}  {machine.detail}"
        )
        print(f"{machine.target}  {what}")
    if not machines:
        print("No machine exists at the targets of this workspace's runs.")
    return EXIT_DONE


def delete_target(options: argparse.Namespace) -> int:
    deleted = delete_machine(workspace_of(options), options.id)
    text = json.dumps(asdict(deleted)) if options.json else f"{deleted.id} is deleted"
    print(text)
    return EXIT_DONE
