"""The command pretrain: all stages from a text to a measured model."""

from __future__ import annotations

import argparse
from typing import Any

from core.cli.flags import add_fields
from core.cli.parser import add_command, add_run_options
from core.config.pretrain import PretrainConfig


def add_pretrain(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Make a model of a text in one command; the settings follow from the text."
    parser = add_command(commands, common, "pretrain", about, "pretrain:run_pretrain")
    parser.add_argument(
        "text",
        nargs="?",
        metavar="TEXT",
        help="a file, a folder, a pattern in quotes, or a dataset on the Hub (owner/name); "
        "without it, the documentation of installed Python packages",
    )
    parser.add_argument(
        "--plan", action="store_true", help="print the plan with its reasons, and start nothing"
    )
    add_run_options(parser)
    add_fields(parser, PretrainConfig)
