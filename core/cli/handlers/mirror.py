"""Runs the commands of the group `mirror`."""

from __future__ import annotations

import argparse
import getpass
import json
import sys

from core.cli.mirror import STANDARD_INPUT
from core.cli.output import EXIT_DONE, workspace_of
from core.workspace.keys import Keys, import_key, make_keys


def print_or_import_key(options: argparse.Namespace) -> int:
    workspace = workspace_of(options)
    workspace.make_root()
    if options.imported is None:
        key = Keys(make_keys(workspace.root).secrets[:1]).format()
        print(json.dumps({"key": key}) if options.json else key)
        return EXIT_DONE
    text = options.imported
    if text == STANDARD_INPUT:
        text = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.read(1 << 16)
    import_key(workspace.root, text)
    print(json.dumps({"imported": True}) if options.json else "The key is imported.")
    return EXIT_DONE
