"""The command group `machines`: machines that `--target` takes by their name."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from core.cli.output import EXIT_DONE, workspace_of
from core.cli.parser import add_command

if TYPE_CHECKING:
    from core.targets.saved import SavedMachine


def add_machines(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Save machines by name for --target, and test them."
    group = commands.add_parser("machines", help=about, description=about, parents=[common])
    actions = group.add_subparsers(title="actions", required=True, metavar="ACTION")
    about = "List the saved machines, with the answer to the last test."
    add_command(actions, common, "list", about, _list_machines)
    adding = add_command(actions, common, "add", "Save a machine, and test it.", _add_machine)
    adding.add_argument("name", help="letters, digits, dots, dashes and underscores")
    adding.add_argument("address", help="as for --target, such as ssh://me@gpu-box")
    about = "US dollars per hour, for costs and limits"
    adding.add_argument("--price-per-hour", type=float, default=None, metavar="X", help=about)
    testing = add_command(actions, common, "test", "Test a saved machine.", _test_machine)
    about = "Forget a saved machine; its runs go on."
    removing = add_command(actions, common, "remove", about, _remove_machine)
    for parser in (testing, removing):
        parser.add_argument("name", help="the machine's name")


def _list_machines(options: argparse.Namespace) -> int:
    from core.targets.saved import read_machines

    machines = read_machines(workspace_of(options))
    if options.json:
        print(json.dumps([_to_json(one) for one in machines], ensure_ascii=False))
        return EXIT_DONE
    for one in machines:
        facts = [one.state, one.price, one.target, one.check.answer if one.check else ""]
        print(f"{one.name:20} {' · '.join(filter(None, facts))}")
    if not machines:
        print("No machine is saved. Add one with: studio machines add NAME ADDRESS")
    return EXIT_DONE


def _add_machine(options: argparse.Namespace) -> int:
    from core.targets.saved import save_machine

    workspace = workspace_of(options)
    save_machine(workspace, options.address, options.name, options.price_per_hour)
    if not options.json:
        print(f"{options.name} is saved")
    return _test_machine(options)


def _test_machine(options: argparse.Namespace) -> int:
    from core.targets.saved import check_target, find_machine

    workspace = workspace_of(options)
    answer = check_target(workspace, find_machine(workspace, options.name).target)
    tested = _to_json(find_machine(workspace, options.name))
    shown = json.dumps(tested, ensure_ascii=False)
    print(shown if options.json else f"{options.name} is reachable: {answer}")
    return EXIT_DONE


def _remove_machine(options: argparse.Namespace) -> int:
    from core.targets.saved import remove_machine

    remove_machine(workspace_of(options), options.name)
    shown = json.dumps({"name": options.name})
    print(shown if options.json else f"{options.name} is removed")
    return EXIT_DONE


def _to_json(machine: SavedMachine) -> dict[str, Any]:
    return {**machine.model_dump(mode="json"), "state": machine.state}
