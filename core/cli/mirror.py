"""The command group `mirror`: the key by which a workspace recognises its mirrors."""

from __future__ import annotations

import argparse
from typing import Any

from core.cli.parser import add_command

STANDARD_INPUT = "-"


def add_mirror(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Manage the key that signs the mirrors of this workspace's runs."
    group = commands.add_parser("mirror", help=about, description=about, parents=[common])
    actions = group.add_subparsers(required=True, metavar="ACTION")
    about = "Print the key, a secret, for another computer of yours; or import that one's."
    key = add_command(actions, common, "key", about, "mirror:print_or_import_key")
    key.add_argument(
        "--import",
        dest="imported",
        nargs="?",
        const=STANDARD_INPUT,
        default=None,
        metavar="KEY",
        help="sign with this key from now on; without KEY, it is read from the standard input",
    )
