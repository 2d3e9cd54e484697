"""The command `corpora`."""

from __future__ import annotations

import argparse
from typing import Any

from core.cli.parser import add_command


def add_corpora(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "List well-known open corpora by language; downloads nothing."
    parser = add_command(commands, common, "corpora", about, "corpora:list_corpora")
    about = "name or code, such as norwegian or no; empty: list the languages"
    parser.add_argument("language", nargs="?", default="", help=about)
