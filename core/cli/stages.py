"""The commands of the stages, quickstart, analyse and suggest."""

from __future__ import annotations

import argparse
from typing import Any

from core.cli.flags import add_fields
from core.cli.parser import add_command, add_config_file, add_run_options, parse_count, parse_hours
from core.config.analyse import AnalyseConfig
from core.config.quickstart import QuickstartConfig
from core.config.train import TrainConfig
from core.stages.registry import Stage


def add_stage(commands: Any, common: argparse.ArgumentParser, stage: Stage) -> None:
    parser = add_command(commands, common, stage.name, stage.help, "stages:run_stage")
    parser.set_defaults(stage=stage.name)
    add_run_options(parser)
    parser.add_argument(
        "--after", metavar="RUN", action="append", default=[], help="start after this run is done"
    )
    add_fields(parser, stage.config)


def add_quickstart(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Run all stages on the built-in corpus."
    parser = add_command(commands, common, "quickstart", about, "stages:run_quickstart")
    add_run_options(parser)
    add_fields(parser, QuickstartConfig)


def add_analyse(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Analyse a sample of a corpus: sizes, languages, duplicates, lines, encoding, tokens."
    parser = add_command(commands, common, "analyse", about, "analyse:run_analyse")
    add_config_file(parser)
    add_fields(parser, AnalyseConfig)


def add_suggest(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Derive size, batch size, steps and learning rate from hours, tokens or dollars."
    parser = add_command(commands, common, "suggest", about, "suggest:run_suggest")
    parser.set_defaults(stage="train")
    parser.add_argument(
        "--hours", type=parse_hours, default=None, help="time budget on this machine"
    )
    parser.add_argument(
        "--tokens", type=parse_count, default=None, help="token budget, such as 5e8"
    )
    parser.add_argument(
        "--dollars", type=parse_hours, default=None, help="money, for a machine of --topology"
    )
    parser.add_argument(
        "--topology", default="", help="TPU or GPUs, such as h100x8; empty: most FLOPs per dollar"
    )
    add_config_file(parser)
    add_fields(parser, TrainConfig)
