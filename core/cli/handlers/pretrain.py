"""Runs the command `pretrain`."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from core.cli.fields import config_values
from core.cli.following import follow, fresh_store
from core.cli.output import EXIT_DONE, named_place, print_detached, say, workspace_of
from core.config.pretrain import PretrainConfig
from core.pretraining.plan import plan_pretraining
from core.pretraining.start import corpus_values, submit_pretraining, try_command
from core.report.verdicts import verdict_of
from core.workspace.workspace import Workspace


def run_pretrain(options: argparse.Namespace) -> int:
    if options.text is not None:
        vars(options).update(corpus_values(options.text))
    config = PretrainConfig.parse(config_values(options, PretrainConfig))
    workspace = workspace_of(options)
    plan = plan_pretraining(config, workspace)
    if options.plan and options.json:
        print(json.dumps(plan.to_dict(), ensure_ascii=False))
        return EXIT_DONE
    if options.plan:
        print("\n".join(plan.lines()))
        return EXIT_DONE
    for line in plan.warning_lines() if options.quiet else plan.lines():
        say(line)
    runs = submit_pretraining(workspace, config)
    if options.detach:
        return print_detached(options, runs)
    code = follow(workspace, *runs, as_json=options.json, quiet=options.quiet, flags=options.flags)
    if code == EXIT_DONE and not options.json:
        _print_verdict(options, workspace, config, runs[-1])
    return code


def _print_verdict(
    options: argparse.Namespace, workspace: Workspace, config: PretrainConfig, run_id: str
) -> None:
    row = fresh_store(options).find_run(run_id)
    verdict = verdict_of(row.stage, row.state, row.results, row.error, row.reason)
    print(f"{verdict.level[0].upper()}{verdict.level[1:]}: {verdict.sentence}.")
    folder = named_place(workspace)
    command = [
        *try_command(Path(row.artifact).name, workspace),
        *(["--workspace", folder] if folder else []),
    ]
    print(f"Try it: {shlex.join(command)}")
