"""The command pretrain: all stages from a text to a measured model."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from core.cli.fields import add_fields, config_values
from core.cli.following import follow
from core.cli.output import EXIT_DONE, fresh_store, named_place, print_detached, say, workspace_of
from core.cli.parser import add_command, add_run_options
from core.config.pretrain import PretrainConfig
from core.workspace.workspace import Workspace


def add_pretrain(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Make a model of a text in one command; the settings follow from the text."
    parser = add_command(commands, common, "pretrain", about, _run_pretrain)
    parser.add_argument(
        "text",
        nargs="?",
        default="",
        metavar="TEXT",
        help="a file, a folder, a pattern in quotes, or a dataset on the Hub (owner/name); "
        "without it, the documentation of installed Python packages",
    )
    parser.add_argument(
        "--plan", action="store_true", help="print the plan with its reasons, and start nothing"
    )
    add_run_options(parser)
    add_fields(parser, PretrainConfig)


def _run_pretrain(options: argparse.Namespace) -> int:
    from core.pretraining.plan import plan_pretraining
    from core.pretraining.start import corpus_values, submit_pretraining

    if options.text:
        vars(options).update(corpus_values(options.text))
    config = PretrainConfig.parse(config_values(options, PretrainConfig))
    workspace = workspace_of(options)
    plan = plan_pretraining(config, workspace)
    if options.plan and options.json:
        print(json.dumps(plan.to_dict(), ensure_ascii=False))
        return EXIT_DONE
    for line in plan.lines():
        say(line)
    if options.plan:
        return EXIT_DONE
    runs = submit_pretraining(workspace, config)
    if options.detach:
        return print_detached(options, runs)
    code = follow(workspace, *runs, as_json=options.json)
    if code == EXIT_DONE and not options.json:
        _print_verdict(options, workspace, config, runs[-1])
    return code


def _print_verdict(
    options: argparse.Namespace, workspace: Workspace, config: PretrainConfig, run_id: str
) -> None:
    from core.pretraining.start import try_command
    from core.report.verdicts import verdict_of

    row = fresh_store(options).find_run(run_id)
    verdict = verdict_of(row.stage, row.state, row.results, row.error, row.reason)
    print(f"{verdict.level[0].upper()}{verdict.level[1:]}: {verdict.sentence}.")
    place = named_place(workspace)
    command = [
        *try_command(Path(row.artifact).name, workspace),
        *(["--workspace", place] if place else []),
    ]
    print(f"Try it: {shlex.join(command)}")
