"""Builds the command line's parser and runs its commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from typing import Any

from core.cli.agents import add_mcp
from core.cli.artifacts import add_artifacts, add_targets
from core.cli.completion import add_completion
from core.cli.corpora import add_corpora
from core.cli.inference import add_classify, add_fill_mask, add_generate, add_perplexity, add_tag
from core.cli.machines import add_machines
from core.cli.mirror import add_mirror
from core.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, report_error, workspace_of
from core.cli.parser import Parser, build_common_options
from core.cli.pretrain import add_pretrain
from core.cli.refusals import explaining_refusals
from core.cli.runs import add_runs
from core.cli.stages import add_analyse, add_quickstart, add_stage, add_suggest
from core.cli.sweeps import add_sweep
from core.errors import StudioError
from core.network.outbound import allow_typed_hosts
from core.stages.registry import STAGES, load_further_stages
from core.workspace.places import guarding_workspaces, private_files


def main(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m core", epilog: str = ""
) -> int:
    try:
        load_further_stages()
    except StudioError as error:
        return report_error(error, as_json=False)
    parser = build_parser(prog, epilog)
    options = parser.parse_args(arguments)
    try:
        root = workspace_of(options).root
        with explaining_refusals(), guarding_workspaces(), private_files(root):
            allow_typed_hosts(_typed(options))
            return load_handler(options.handler)(options)
    except StudioError as error:
        as_json = getattr(options, "json", False)
        return report_error(error, as_json=as_json, flags=getattr(options, "flags", None))
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED


def build_parser(prog: str = "python -m core", epilog: str = "") -> Parser:
    common = build_common_options()
    parser = Parser(
        prog=prog,
        description="Train a language model from scratch: tokenizer, shards, training and "
        "inference.",
        epilog=epilog,
        parents=[common],
    )
    parser.add_argument("--version", action="version", version=f"studio {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for stage in STAGES.values():
        add_stage(commands, common, stage)
    add_pretrain(commands, common)
    add_quickstart(commands, common)
    add_analyse(commands, common)
    add_suggest(commands, common)
    add_fill_mask(commands, common)
    add_generate(commands, common)
    add_perplexity(commands, common)
    add_classify(commands, common)
    add_tag(commands, common)
    add_runs(commands, common)
    add_artifacts(commands, common)
    add_machines(commands, common)
    add_targets(commands, common)
    add_mirror(commands, common)
    add_sweep(commands, common)
    add_corpora(commands, common)
    add_mcp(commands, common)
    add_completion(commands, common, build_parser)
    return parser


def load_handler(reference: str) -> Callable[[argparse.Namespace], int]:
    """Imports the function that runs a command, such as `runs:list_runs`."""
    module, _, function = reference.partition(":")
    handler: Callable[[argparse.Namespace], int] = getattr(
        import_module(f"core.cli.handlers.{module}"), function
    )
    return handler


def _version() -> str:
    try:
        return metadata.version("pretrain-studio")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _typed(options: argparse.Namespace) -> list[Any]:
    """Returns the typed values, and the addresses of --add."""
    values = list(vars(options).values())
    added = [str(source).partition("=")[2] for source in getattr(options, "sources", [])]
    return [*values, *added]
