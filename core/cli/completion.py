"""The command `completion`: scripts with which a shell completes commands, flags and choices."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from core.cli.parser import Parser, add_command


def add_completion(
    commands: Any, common: argparse.ArgumentParser, build_parser: Callable[[], Parser]
) -> None:
    about = "Print a script for completion in bash, zsh or fish."
    parser = add_command(commands, common, "completion", about, "completion:print_script")
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(build_parser=build_parser)
