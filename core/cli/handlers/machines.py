"""Runs the commands of the group `machines`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from core.cli.output import EXIT_DONE, workspace_of
from core.targets import saved
from core.targets.saved import SavedMachine


def list_machines(options: argparse.Namespace) -> int:
    machines = saved.read_machines(workspace_of(options))
    if options.json:
        print(json.dumps([_to_json(machine) for machine in machines], ensure_ascii=False))
        return EXIT_DONE
    for machine in machines:
        facts = [
            machine.state,
            machine.price,
            machine.target,
            machine.check.answer if machine.check else "",
        ]
        print(f"{machine.name:20} {' · '.join(filter(None, facts))}")
    if not machines:
        print("No machine is saved. Add machine with: studio machines add NAME ADDRESS")
    return EXIT_DONE


def add_machine(options: argparse.Namespace) -> int:
    workspace = workspace_of(options)
    saved.save_machine(workspace, " ".join(options.address), options.name, options.price_per_hour)
    if not options.json:
        print(f"{options.name} is saved")
    return test_machine(options)


def test_machine(options: argparse.Namespace) -> int:
    workspace = workspace_of(options)
    answer = saved.check_target(workspace, saved.find_machine(workspace, options.name).target)
    tested = _to_json(saved.find_machine(workspace, options.name))
    shown = json.dumps(tested, ensure_ascii=False)
    print(shown if options.json else f"{options.name} is reachable: {answer}")
    return EXIT_DONE


def remove_machine(options: argparse.Namespace) -> int:
    saved.remove_machine(workspace_of(options), options.name)
    shown = json.dumps({"name": options.name})
    print(shown if options.json else f"{options.name} is removed")
    return EXIT_DONE


def _to_json(machine: SavedMachine) -> dict[str, Any]:
    return {**machine.model_dump(mode="json"), "state": machine.state}
