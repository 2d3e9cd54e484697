"""The commands of the stages, quickstart, analyse and suggest."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from core.cli.fields import add_fields, config_values, stage_values
from core.cli.following import Follower, follow
from core.cli.output import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    fresh_store,
    named_place,
    print_detached,
    say,
    workspace_of,
)
from core.cli.parser import add_command, add_config_file, add_run_options, parse_count, parse_hours
from core.config.analyse import AnalyseConfig
from core.config.base import StageConfig
from core.config.options import title_of
from core.config.quickstart import QuickstartConfig
from core.config.train import TrainConfig
from core.errors import RunError, StudioError
from core.records.events import RunStopped
from core.stages.registry import STAGES, Stage
from core.workspace.workspace import Workspace

if TYPE_CHECKING:
    from core.store import RunRow


def add_stage(commands: Any, common: argparse.ArgumentParser, stage: Stage) -> None:
    parser = add_command(commands, common, stage.name, stage.help, _run_stage)
    parser.set_defaults(stage=stage.name)
    add_run_options(parser)
    parser.add_argument(
        "--after", metavar="RUN", action="append", default=[], help="start after this run is done"
    )
    add_fields(parser, stage.config)


def _run_stage(options: argparse.Namespace) -> int:
    from core.runs.client import submit
    from core.runs.inputs import check_inputs

    stage = STAGES[options.stage]
    config = stage.config.parse(stage_values(options, stage.config))
    workspace = workspace_of(options)
    awaited = _awaited(options)
    if not awaited:
        check_inputs(workspace, config)
    at_once = stage.secret_variable in os.environ or stage.skips_queue(config, workspace)
    if at_once and not options.detach:
        _wait_for(workspace, awaited, quiet=options.quiet)
        return _run_here(workspace, stage.name, config, as_json=options.json, quiet=options.quiet)
    run_id = submit(workspace, stage.name, config, after=awaited)
    mirror = getattr(config, "mirror", "")
    if mirror and not getattr(config, "target", ""):
        _say_how_to_follow(mirror, run_id)
    if options.detach:
        return print_detached(options, [run_id])
    return follow(workspace, run_id, as_json=options.json, quiet=options.quiet)


def _run_here(
    workspace: Workspace, stage: str, config: StageConfig, *, as_json: bool, quiet: bool
) -> int:
    """Keeps the stage's secrets in this process."""
    from core.records.folder import new_run_id
    from core.runs.client import catch_up
    from core.runs.local import run_here

    run_id = new_run_id(stage)
    is_interrupted = False
    # `follow` reports errors and stops.
    try:
        with suppress(StudioError, RunStopped):
            run_here(stage, config, workspace, run_id, echo=None if quiet else sys.stderr)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        catch_up(workspace)
    code = follow(workspace, run_id, as_json=as_json, quiet=quiet)
    return EXIT_INTERRUPTED if is_interrupted else code


def _say_how_to_follow(mirror: str, run_id: str) -> None:
    from core.targets.mirror import run_address

    address = run_address(mirror, run_id)
    say(f"follow it elsewhere: {shlex.join(['studio', 'runs', 'follow', address])}")


def _wait_for(workspace: Workspace, runs: Sequence[str], *, quiet: bool) -> None:
    from core.store import Store

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


def add_quickstart(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Run all stages on the built-in corpus."
    parser = add_command(commands, common, "quickstart", about, _run_quickstart)
    add_run_options(parser)
    add_fields(parser, QuickstartConfig)


def _run_quickstart(options: argparse.Namespace) -> int:
    from core.runs.chain import submit_quickstart

    config = QuickstartConfig.parse(config_values(options, QuickstartConfig))
    workspace = workspace_of(options)
    runs = submit_quickstart(workspace, config)
    if options.detach:
        return print_detached(options, runs)
    return follow(workspace, *runs, as_json=options.json, quiet=options.quiet)


def add_analyse(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Analyse a sample of a corpus: sizes, languages, duplicates, lines, encoding, tokens."
    parser = add_command(commands, common, "analyse", about, _run_analyse)
    add_config_file(parser)
    add_fields(parser, AnalyseConfig)


def _run_analyse(options: argparse.Namespace) -> int:
    from core.corpus.sampling import Limits
    from core.corpus.statistics import analyse_corpus
    from core.corpus.statistics_text import lines_of

    config = AnalyseConfig.parse(config_values(options, AnalyseConfig))
    found = analyse_corpus(
        config.corpus,
        workspace_of(options),
        tokenizer=config.tokenizer,
        limits=Limits(config.sample_mb * 1_000_000, config.sample_seconds),
    )
    if options.json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
        return EXIT_DONE
    for line in lines_of(found):
        print(line)
    return EXIT_DONE


def add_suggest(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Derive size, batch size, steps and learning rate from a time or token budget."
    parser = add_command(commands, common, "suggest", about, _run_suggest)
    parser.set_defaults(stage="train")
    parser.add_argument(
        "--hours", type=parse_hours, default=None, help="time budget on this machine"
    )
    parser.add_argument(
        "--tokens", type=parse_count, default=None, help="token budget, such as 5e8"
    )
    add_config_file(parser)
    add_fields(parser, TrainConfig)


def _run_suggest(options: argparse.Namespace) -> int:
    from core.backends.devices import estimate_memory, find_hardware, memory_per_device
    from core.backends.selection import count_devices
    from core.runs.commands import shell_line
    from core.training.planner import measure_speed, open_sizes, suggest

    workspace = workspace_of(options)
    values = stage_values(options, TrainConfig)
    config = TrainConfig.parse(values)
    inputs = open_sizes(config, workspace)
    flops, devices = measure_speed(config) if options.hours else (None, None)
    memory = memory_per_device(devices) if devices else estimate_memory(config, find_hardware())
    found = suggest(
        config,
        inputs,
        hours=options.hours,
        tokens=options.tokens,
        flops=flops,
        replicas=devices.count if devices else count_devices(config),
        memory_bytes=memory,
        given=values,
    )
    chosen = TrainConfig.parse({**values, **found.values})
    command = shell_line("train", chosen, named_place(workspace))
    if options.json:
        print(json.dumps({**asdict(found), "command": command}, ensure_ascii=False))
        return EXIT_DONE
    reasons = [
        f"{title_of(name, TrainConfig.model_fields[name])} {found.values[name]}: {why}"
        for name, why in found.reasons.items()
    ]
    for line in (*([devices.describe()] if devices else []), *reasons, *found.remarks, "", command):
        print(line)
    return EXIT_DONE
