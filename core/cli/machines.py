"""The command group `machines`: machines that `--target` takes by their name."""

from __future__ import annotations

import argparse
from typing import Any

from core.cli.parser import add_command


def add_machines(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Save machines by name for --target, and test them."
    group = commands.add_parser(
        "machines", aliases=["pool"], help=about, description=about, parents=[common]
    )
    actions = group.add_subparsers(title="actions", required=True, metavar="ACTION")
    about = "List the saved machines, with the answer to the last test."
    add_command(actions, common, "list", about, "machines:list_machines")
    adding = add_command(
        actions, common, "add", "Save a machine, and test it.", "machines:add_machine"
    )
    adding.add_argument("name", help="letters, digits, dots, dashes and underscores")
    about = "as for --target, such as ssh://me@gpu-box; several make a pool"
    adding.add_argument("address", nargs="+", help=about)
    about = "US dollars per hour, for costs and limits"
    adding.add_argument("--price-per-hour", type=float, default=None, metavar="X", help=about)
    testing = add_command(actions, common, "test", "Test a saved machine.", "machines:test_machine")
    about = "Forget a saved machine; its runs go on."
    removing = add_command(actions, common, "remove", about, "machines:remove_machine")
    for parser in (testing, removing):
        parser.add_argument("name", help="the machine's name")
