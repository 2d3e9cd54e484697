"""Runs the commands of the stages and `quickstart`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress

from core.cli.fields import config_values, stage_values
from core.cli.following import Follower, follow, fresh_store
from core.cli.output import (
    EXIT_INTERRUPTED,
    print_detached,
    say,
    workspace_of,
)
from core.config.base import StageConfig
from core.config.quickstart import QuickstartConfig
from core.errors import RunError, StudioError
from core.records.events import RunStopped
from core.records.folder import new_run_id
from core.runs.chain import submit_quickstart
from core.runs.client import catch_up, submit
from core.runs.inputs import check_inputs
from core.runs.local import run_here
from core.stages.registry import STAGES
from core.store import RunRow, Store
from core.targets.mirror import run_address
from core.workspace.workspace import Workspace


def run_stage(options: argparse.Namespace) -> int:
    stage = STAGES[options.stage]
    config = stage.config.parse(stage_values(options, stage.config))
    workspace = workspace_of(options)
    awaited = _awaited(options)
    if not awaited:
        check_inputs(workspace, config)
    at_once = stage.secret_variable in os.environ or stage.skips_queue(config, workspace)
    if at_once and not options.detach:
        _wait_for(workspace, awaited, quiet=options.quiet)
        return _run_here(workspace, config, options)
    run_id = submit(workspace, stage.name, config, after=awaited)
    mirror = getattr(config, "mirror", "")
    if mirror and not getattr(config, "target", ""):
        _say_how_to_follow(mirror, run_id)
    if options.detach:
        return print_detached(options, [run_id])
    return _follow(workspace, [run_id], options)


def _follow(workspace: Workspace, runs: Sequence[str], options: argparse.Namespace) -> int:
    return follow(workspace, *runs, as_json=options.json, quiet=options.quiet, flags=options.flags)


def _run_here(workspace: Workspace, config: StageConfig, options: argparse.Namespace) -> int:
    """Keeps the stage's secrets in this process."""
    run_id = new_run_id(options.stage)
    is_interrupted = False
    # `follow` reports errors and stops.
    try:
        with suppress(StudioError, RunStopped):
            echo = None if options.quiet else sys.stderr
            run_here(options.stage, config, workspace, run_id, echo=echo)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        catch_up(workspace)
    code = _follow(workspace, [run_id], options)
    return EXIT_INTERRUPTED if is_interrupted else code


def _say_how_to_follow(mirror: str, run_id: str) -> None:
    address = run_address(mirror, run_id)
    say(f"follow it elsewhere: {shlex.join(['studio', 'runs', 'follow', address])}")


def _wait_for(workspace: Workspace, runs: Sequence[str], *, quiet: bool) -> None:
    store = Store.open(workspace)
    for run_id in runs:
        try:
            row = Follower(workspace, store, run_id, quiet=quiet).until_the_end()
        except KeyboardInterrupt:
            say("\nNothing was started.")
            raise SystemExit(EXIT_INTERRUPTED) from None
        if row.state != "done":
            raise _did_not_succeed(row)


def _did_not_succeed(row: RunRow) -> RunError:
    return RunError(
        "The run to wait for did not succeed",
        expected=f"{row.id} to be done",
        received=f"it is {row.state}",
        fix="read the error of that run, then start it again",
        field="after",
    )


def _awaited(options: argparse.Namespace) -> list[str]:
    if not options.after:
        return []
    store = fresh_store(options)
    return [store.find_run(run).id for run in options.after]


def run_quickstart(options: argparse.Namespace) -> int:
    config = QuickstartConfig.parse(config_values(options, QuickstartConfig))
    workspace = workspace_of(options)
    runs = submit_quickstart(workspace, config)
    if options.detach:
        return print_detached(options, runs)
    return _follow(workspace, runs, options)
