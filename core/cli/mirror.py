"""The command group `mirror`: the key by which a workspace recognises its mirrors."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from typing import Any

from core.cli.output import EXIT_DONE, workspace_of
from core.cli.parser import add_command

_STANDARD_INPUT = "-"


def add_mirror(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Manage the key that signs the mirrors of this workspace's runs."
    group = commands.add_parser("mirror", help=about, description=about, parents=[common])
    actions = group.add_subparsers(required=True, metavar="ACTION")
    about = "Print the key, a secret, for another computer of yours; or import that one's."
    key = add_command(actions, common, "key", about, _print_or_import_key)
    key.add_argument(
        "--import",
        dest="imported",
        nargs="?",
        const=_STANDARD_INPUT,
        default=None,
        metavar="KEY",
        help="sign with this key from now on; without KEY, it is read from the standard input",
    )


def _print_or_import_key(options: argparse.Namespace) -> int:
    from core.workspace.keys import Keys, import_key, make_keys

    workspace = workspace_of(options)
    workspace.make_root()
    if options.imported is None:
        key = Keys(make_keys(workspace.root).secrets[:1]).format()
        print(json.dumps({"key": key}) if options.json else key)
        return EXIT_DONE
    text = options.imported
    if text == _STANDARD_INPUT:
        text = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.read(1 << 16)
    import_key(workspace.root, text)
    print(json.dumps({"imported": True}) if options.json else "The key is imported.")
    return EXIT_DONE
