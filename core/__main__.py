"""The command line: `python -m core tokenizer|shards|train|push|fill-mask|generate|runs|...`."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic.fields import FieldInfo

from core.config import (
    DTYPES,
    AnalyseConfig,
    CorpusConfig,
    PreflightConfig,
    QuickstartConfig,
    StageConfig,
    TrainConfig,
    choices_of,
    field_extra,
    flag_of,
    help_of,
    load_config_file,
    plain_type,
    title_of,
    with_named_sources,
)
from core.errors import ConfigError, RunError, StudioError
from core.events import RunStopped, read_events
from core.outbound import allow_typed_hosts
from core.redaction import hide_secrets_in_output
from core.refusals import explaining_refusals
from core.stages.registry import STAGES, Stage, load_further_stages, summarize_results
from core.workspace import Workspace, artifact_kinds, expand_path, write_atomically
from core.workspace.places import guarding_workspaces, private_files

if TYPE_CHECKING:
    from core.store import RunRow, Store

EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130
_FOLLOW_SECONDS = 0.3
# Marks of the notes that the command line prints.
_SHOWN_NOTES = ("reading", "cleaning", "mixture")
_LOOK_SECONDS = 5.0
_MOST_LINES = 1_000_000
_NO_VALUE = ("none", "null", "")
# The config file's rival would take precedence.
_RIVALS = {
    "warmup_ratio": "warmup_steps",
    "num_train_epochs": "num_train_steps",
    "mixture": "shards",
    "shards": "mixture",
}
# Ambiguous: 500.000 may mean 500 or 500,000.
_DOTTED = re.compile(r"\d+(\.\d+)+")
# Glob patterns, which a shell expands unless quoted.
_PATTERNS = {"path": "--path", "validation_path": "--validation-path"}
_COLUMN_CHARACTERS = 28
_RESUMED_LIMITS = {
    "max_hours": "new limit of hours on other machines",
    "max_cost": "new limit of US dollars",
    "price_per_hour": "price of the next machine in US dollars",
}

_SWEEP_LIMITS: dict[str, tuple[type, str]] = {
    "max_runs": (int, "trials at most"),
    "max_hours": (float, "hours of all trials together"),
    "max_cost": (float, "US dollars of all trials together"),
    "parallel": (int, "trials at a time"),
}


def main(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m core", epilog: str = ""
) -> int:
    try:
        load_further_stages()
    except StudioError as error:
        return _report(error, as_json=False)
    parser = build_parser(prog, epilog)
    options = parser.parse_args(arguments)
    try:
        with explaining_refusals(), guarding_workspaces(), private_files(_workspace(options).root):
            allow_typed_hosts(_typed(options))
            return int(options.command(options))
    except StudioError as error:
        return _report(error, as_json=getattr(options, "json", False))
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED


def build_parser(prog: str = "python -m core", epilog: str = "") -> argparse.ArgumentParser:
    common = _common_options()
    parser = _Parser(
        prog=prog,
        description="Train a language model from scratch: tokenizer, shards, training and "
        "inference.",
        epilog=epilog,
        parents=[common],
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for stage in STAGES.values():
        _add_stage(commands, common, stage)
    _add_quickstart(commands, common)
    _add_analyse(commands, common)
    _add_suggest(commands, common)
    _add_fill_mask(commands, common)
    _add_generate(commands, common)
    _add_perplexity(commands, common)
    _add_classify(commands, common)
    _add_tag(commands, common)
    _add_runs(commands, common)
    _add_artifacts(commands, common)
    _add_targets(commands, common)
    _add_sweep(commands, common)
    return parser


def _run_stage(options: argparse.Namespace) -> int:
    from core.runs.client import submit

    stage = STAGES[options.stage]
    config = stage.config.parse(_stage_values(options, stage.config))
    workspace = _workspace(options)
    awaited = _awaited(options)
    at_once = stage.secret_variable in os.environ or stage.skips_queue(config, workspace)
    if at_once and not options.detach:
        _wait_for(workspace, awaited)
        return _run_here(workspace, stage.name, config, as_json=options.json)
    run_id = submit(workspace, stage.name, config, after=awaited)
    mirror = getattr(config, "mirror", "")
    if mirror and not getattr(config, "target", ""):
        _say_how_to_follow(mirror, run_id)
    if options.detach:
        return _print_detached(options, [run_id])
    return _follow(workspace, run_id, as_json=options.json)


def _run_here(workspace: Workspace, stage: str, config: StageConfig, *, as_json: bool) -> int:
    """Keeps the stage's secrets in this process."""
    from core.runs.client import catch_up
    from core.runs.folder import new_run_id
    from core.runs.local import run_here

    run_id = new_run_id(stage)
    is_interrupted = False
    # `_follow` reports errors and stops.
    try:
        with suppress(StudioError, RunStopped):
            run_here(stage, config, workspace, run_id, echo=sys.stderr)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        catch_up(workspace)
    code = _follow(workspace, run_id, as_json=as_json)
    return EXIT_INTERRUPTED if is_interrupted else code


def _say_how_to_follow(mirror: str, run_id: str) -> None:
    from core.targets.mirror import run_address

    address = run_address(mirror, run_id)
    _say(f"follow it elsewhere: {shlex.join(['studio', 'runs', 'follow', address])}")


def _wait_for(workspace: Workspace, runs: Sequence[str]) -> None:
    from core.store import Store

    store = Store.open(workspace)
    for run_id in runs:
        try:
            row = _Follower(workspace, store, run_id).until_the_end()
        except KeyboardInterrupt:
            _say("\nNothing was started.")
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
    store = _fresh_store(options)
    return [store.find_run(run).id for run in options.after]


def _run_quickstart(options: argparse.Namespace) -> int:
    from core.runs.chain import submit_quickstart

    config = QuickstartConfig.parse(_config_values(options, QuickstartConfig))
    workspace = _workspace(options)
    runs = submit_quickstart(workspace, config)
    if options.detach:
        return _print_detached(options, runs)
    return _follow(workspace, *runs, as_json=options.json)


def _run_analyse(options: argparse.Namespace) -> int:
    from core.corpus.sampling import Limits
    from core.corpus.statistics import analyse_corpus
    from core.corpus.statistics_text import lines_of

    config = AnalyseConfig.parse(_config_values(options, AnalyseConfig))
    found = analyse_corpus(
        config.corpus,
        _workspace(options),
        tokenizer=config.tokenizer,
        limits=Limits(config.sample_mb * 1_000_000, config.sample_seconds),
    )
    if options.json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
        return EXIT_DONE
    for line in lines_of(found):
        print(line)
    return EXIT_DONE


def _run_suggest(options: argparse.Namespace) -> int:
    from core.backends.devices import estimate_memory, find_hardware, memory_per_device
    from core.backends.selection import count_devices
    from core.runs.commands import shell_line
    from core.training.planner import measure_speed, open_sizes, suggest

    workspace = _workspace(options)
    values = _stage_values(options, TrainConfig)
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
    command = shell_line("train", chosen, _named_place(workspace))
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


def _run_fill_mask(options: argparse.Namespace) -> int:
    from core.inference import fill_mask, force_cpu

    if not options.text:
        raise ConfigError(
            "The text to fill is missing",
            expected="a text with a mask token",
            received="nothing",
            fix="write the text after the model, or give it with --text",
            field="text",
        )
    force_cpu()
    predictions = fill_mask(
        options.model,
        options.text,
        options.top_k,
        workspace=_workspace(options),
        dtype=options.dtype,
    )
    if options.json:
        print(json.dumps(predictions, ensure_ascii=False))
        return EXIT_DONE
    nested = predictions if predictions and isinstance(predictions[0], list) else [predictions]
    for number, group in enumerate(nested):
        if number:
            print()
        for one in group:
            print(f"{one['score']:8.4f}  {one['token_str']!r:16}  {one['sequence']}")
    return EXIT_DONE


def _run_generate(options: argparse.Namespace) -> int:
    from core.inference import force_cpu, generate_stream

    force_cpu()
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "dtype")
    stream = generate_stream(
        options.model,
        options.text,
        workspace=_workspace(options),
        **{name: getattr(options, name) for name in names},
    )
    result = _print_as_it_comes(stream, silent=options.json)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    return EXIT_DONE


def _run_perplexity(options: argparse.Namespace) -> int:
    from core.inference import force_cpu, perplexity

    force_cpu()
    found = perplexity(
        options.model, options.text, workspace=_workspace(options), dtype=options.dtype
    )
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
        return EXIT_DONE
    for one in found["tokens"]:
        loss = "-" if one["loss"] is None else f"{one['loss']:.3f}"
        print(f"{loss:>8}  {one['token_str']!r}")
    kind = "perplexity" if found["kind"] == "exact" else "pseudo-perplexity"
    print(f"{kind} {found['perplexity']:.2f}, {found['loss']:.3f} nats per token")
    return EXIT_DONE


def _run_classify(options: argparse.Namespace) -> int:
    from core.finetuning.inference import classify
    from core.inference import force_cpu

    force_cpu()
    found = classify(
        options.model,
        options.text,
        text_pair=options.text_pair,
        workspace=_workspace(options),
        dtype=options.dtype,
    )
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
        return EXIT_DONE
    for one in found:
        print(f"{one['score']:8.4f}  {one['label']}")
    return EXIT_DONE


def _run_tag(options: argparse.Namespace) -> int:
    from core.finetuning.inference import tag
    from core.inference import force_cpu

    force_cpu()
    found = tag(options.model, options.text, workspace=_workspace(options), dtype=options.dtype)
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
        return EXIT_DONE
    for one in found:
        print(f"{one['score']:8.4f}  {one['tag']:12}  {one['word']}")
    return EXIT_DONE


def _print_as_it_comes(stream: Generator[str, None, dict[str, Any]], *, silent: bool) -> Any:
    while True:
        try:
            piece = next(stream)
        except StopIteration as end:
            print("" if silent else "\n", end="", flush=True)
            return end.value
        print("" if silent else piece, end="", flush=True)


def _list_runs(options: argparse.Namespace) -> int:
    store = _fresh_store(options)
    rows = _found_runs(store, options)
    if options.json:
        workspace = _workspace(options)
        print(json.dumps([run_summary(row, workspace) for row in rows], ensure_ascii=False))
    elif not rows:
        nothing = "No runs yet. Start with: python -m core quickstart"
        print("No run fits." if store.has_runs() else nothing)
    for row in [] if options.json else rows:
        known = " ".join(filter(None, (row.title, *(f"#{tag}" for tag in row.tags))))
        print(f"{row.id:36} {_state(row):24} {_progress(row)}  {known}".rstrip())
    return EXIT_DONE


def _found_runs(store: Store, options: argparse.Namespace) -> list[RunRow]:
    from core.runs.search import find_runs

    order = f" sort:{options.sort}" if options.sort else ""
    if not options.filter and not order:
        return store.list_runs(limit=options.limit)
    query = options.filter + order
    return find_runs(_workspace(options), store, query, limit=options.limit)


def _edit_run(options: argparse.Namespace) -> int:
    from core.runs.client import annotate_run

    store = _fresh_store(options)
    row = store.find_run(options.run)
    tags = [tag for tag in [*row.tags, *options.tag] if tag not in options.untag]
    changed = options.tag or options.untag
    if not changed and options.title is None and options.notes is None:
        raise ConfigError(
            "There is nothing to change",
            expected="at least one of --title, --tag, --untag and --notes",
            received=f"only the run {row.id}",
            fix="add one of them",
        )
    run_id = annotate_run(
        _workspace(options),
        row.id,
        title=options.title,
        tags=tags if changed else None,
        notes=options.notes,
    )
    row = store.find_run(run_id)
    known = {"run": row.id, "title": row.title, "tags": row.tags, "notes": row.notes}
    print(json.dumps(known, ensure_ascii=False) if options.json else f"{row.id} is changed")
    return EXIT_DONE


def _show_run(options: argparse.Namespace) -> int:
    row = _fresh_store(options).find_run(options.run)
    summary = run_summary(row, _workspace(options))
    if options.json:
        print(json.dumps(summary, ensure_ascii=False))
        return EXIT_DONE
    for name, value in {**summary, "config": row.config, "results": row.results}.items():
        print(f"{name:16} {json.dumps(value, ensure_ascii=False) if value is not None else '-'}")
    return EXIT_DONE


def _compare_runs(options: argparse.Namespace) -> int:
    from core.runs.comparison import compare_runs

    comparison = compare_runs(_workspace(options), _fresh_store(options), options.runs)
    if options.csv:
        write_atomically(expand_path(options.csv), comparison.to_csv())
    if options.json:
        print(json.dumps(comparison.to_dict(), ensure_ascii=False))
        return EXIT_DONE
    header, *rows = comparison.rows()
    width = max(map(len, header))
    for name, *values in zip(header, *rows, strict=True):
        print(f"{name:{width}}  " + "  ".join(f"{_short(value):28}" for value in values).rstrip())
    return EXIT_DONE


def _short(value: Any) -> str:
    """Formats a value for a column of a table."""
    if value is None or value == "":
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _COLUMN_CHARACTERS else f"{text[: _COLUMN_CHARACTERS - 1]}…"


def _print_log(options: argparse.Namespace) -> int:
    from core.runs.client import read_log_tail
    from core.runs.folder import RunFolder

    row = _fresh_store(options).find_run(options.run)
    if options.search:
        lines, _ = RunFolder.of(_workspace(options), row.id).find_in_log(options.search)
        print("\n".join(lines[-options.lines :]))
        return EXIT_DONE
    print(read_log_tail(_workspace(options), row.id, options.lines))
    return EXIT_DONE


def _print_samples(options: argparse.Namespace) -> int:
    from core.runs.folder import RunFolder

    row = _fresh_store(options).find_run(options.run)
    found = RunFolder.of(_workspace(options), row.id).samples()
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
        return EXIT_DONE
    for one in found:
        print(f"step {one['step']}")
        for sample in one["samples"]:
            print(f"  {_sample_line(sample)}")
    if not found:
        print("No sample predictions. Train with --sample-predictions 3.")
    return EXIT_DONE


def _sample_line(sample: dict[str, Any]) -> str:
    if parts := sample.get("parts"):
        shown = (one if isinstance(one, str) else f"[{one[1]} for {one[0]}]" for one in parts)
        return " ".join(shown)
    wanted = f" (wanted: {sample['wanted']})" if sample.get("wanted") else ""
    return f"{sample.get('given', '')} | {sample.get('text', '')}{wanted}"


def _stop_run(options: argparse.Namespace) -> int:
    from core.runs.client import request_stop

    run_id = request_stop(_workspace(options), options.run, "abort" if options.abort else "save")
    return _print_run_id(options, run_id, "was asked to stop")


def _follow_mirror(options: argparse.Namespace) -> int:
    from core.runs.client import follow_run

    workspace = _workspace(options)
    run_id = follow_run(workspace, options.address)
    if options.detach:
        return _print_detached(options, [run_id])
    return _follow(workspace, run_id, as_json=options.json)


def _list_targets(options: argparse.Namespace) -> int:
    from core.targets.machines import list_machines

    found = list_machines(_workspace(options))
    if options.json:
        print(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return EXIT_DONE
    for one in found:
        what = f"can't be asked: {one.error}" if one.error else f"{one.id}  {one.detail}"
        print(f"{one.target}  {what}")
    if not found:
        print("No machine exists at the targets of this workspace's runs.")
    return EXIT_DONE


def _delete_target(options: argparse.Namespace) -> int:
    from core.targets.machines import delete_machine

    deleted = delete_machine(_workspace(options), options.id)
    text = json.dumps(asdict(deleted)) if options.json else f"{deleted.id} is deleted"
    print(text)
    return EXIT_DONE


def _resume_run(options: argparse.Namespace) -> int:
    from core.runs.client import resume_run

    workspace = _workspace(options)
    run_id = resume_run(
        workspace,
        options.run,
        num_train_steps=options.num_train_steps,
        max_hours=options.max_hours,
        max_cost=options.max_cost,
        price_per_hour=options.price_per_hour,
        target=options.target,
    )
    if options.follow:
        return _follow(workspace, run_id, as_json=options.json)
    return _print_run_id(options, run_id, "is queued")


def _delete_run(options: argparse.Namespace) -> int:
    from core.runs.client import delete_run

    run_id = delete_run(_workspace(options), options.run)
    return _print_run_id(options, run_id, "is deleted")


def _rebuild_database(options: argparse.Namespace) -> int:
    from core.runs.client import rebuild_database

    count = rebuild_database(_workspace(options))
    print(json.dumps({"runs": count}) if options.json else f"{count} runs were registered")
    return EXIT_DONE


def _export_settings(options: argparse.Namespace) -> int:
    from core.report import settings_file

    text = settings_file(_fresh_store(options).find_run(options.run))
    if not options.output:
        print(text, end="")
        return EXIT_DONE
    write_atomically(expand_path(options.output), text)
    return _print_file(options, options.output)


def _write_report(options: argparse.Namespace) -> int:
    from core.report import write_report

    row = _fresh_store(options).find_run(options.run)
    path = write_report(_workspace(options), row.id, options.output or f"{row.id}.html")
    return _print_file(options, str(path))


def _print_file(options: argparse.Namespace, path: str) -> int:
    print(json.dumps({"run": options.run, "file": path}) if options.json else path)
    return EXIT_DONE


def _list_artifacts(options: argparse.Namespace) -> int:
    from core.disk_usage import disk_usage_bytes

    workspace = _workspace(options)
    rows: list[dict[str, Any]] = [
        {
            "kind": artifact.kind,
            "name": artifact.name,
            "path": str(artifact.path),
            "bytes": disk_usage_bytes(artifact.path),
            "fingerprint": artifact.fingerprint,
        }
        for kind in artifact_kinds()
        for artifact in workspace.list(kind)
    ]
    if options.json:
        print(json.dumps(rows, ensure_ascii=False))
        return EXIT_DONE
    for row in rows:
        print(f"{row['kind']:10} {row['name']:40} {row['bytes'] / 1e6:10.1f} MB")
    if not rows:
        print("No artifacts yet. Start with: python -m core quickstart")
    return EXIT_DONE


def _delete_artifact(options: argparse.Namespace) -> int:
    from core.runs.client import delete_artifact

    delete_artifact(_workspace(options), options.kind, options.name)
    deleted = {"kind": options.kind, "name": options.name}
    print(json.dumps(deleted) if options.json else f"{options.kind} {options.name} is deleted")
    return EXIT_DONE


def _follow(workspace: Workspace, *runs: str, as_json: bool) -> int:
    """Follows runs; returns the first non-zero exit code."""
    from core.store import Store

    store = Store.open(workspace)
    codes = []
    for run_id in runs:
        try:
            row = _Follower(workspace, store, run_id).until_the_end()
        except KeyboardInterrupt:
            _say(
                f"\n{run_id} continues in the background. "
                f"Stop it with: {_stop_line(workspace, run_id)}"
            )
            return EXIT_INTERRUPTED
        _print_end(row, as_json=as_json, is_last=run_id == runs[-1])
        codes.append(_exit_code(row))
    return next((code for code in codes if code), EXIT_DONE)


def _stop_line(workspace: Workspace, run_id: str) -> str:
    place = _named_place(workspace)
    named = ["--workspace", place] if place else []
    return shlex.join(["python", "-m", "core", "runs", "stop", run_id, *named])


def _named_place(workspace: Workspace) -> str:
    return "" if workspace.root == Workspace().root else str(workspace.root)


def _print_end(row: RunRow, *, as_json: bool, is_last: bool) -> None:
    if as_json and is_last:
        print(json.dumps(_stage_result(row), ensure_ascii=False), flush=True)
    elif row.state == "done":
        end = summarize_results(row.stage, row.results, row.artifact)
        print(end, file=sys.stderr if as_json else sys.stdout, flush=True)
    if row.error:
        _say(f"error: {StudioError(**row.error)}")


class _Follower:
    def __init__(self, workspace: Workspace, store: Store, run_id: str) -> None:
        self._workspace = workspace
        self._store = store
        self._run_id = run_id
        self._last_metric = 0
        self._last_line = ""
        self._warned = 0
        self._events_read = 0

    def until_the_end(self) -> RunRow:
        """Waits for the run's end, restarting workers; raises RunError."""
        from core.runs.client import WorkerKeeper

        keeper = WorkerKeeper(self._workspace, _LOOK_SECONDS)
        while True:
            row = self._read_row()
            self._print_news(row)
            if row.has_ended:
                return row
            keeper.look()
            time.sleep(_FOLLOW_SECONDS)

    def _read_row(self) -> RunRow:
        row = self._store.get_run(self._run_id)
        if row is None:
            raise RunError(
                f"The run {self._run_id} no longer exists",
                expected="a run to follow",
                received="no such run: the run or the database was deleted",
                fix="start it again, or rebuild the database from the run folders: python -m "
                "core runs rebuild",
            )
        return row

    def _print_news(self, row: RunRow) -> None:
        for line in self._note_lines():
            _say(line)
        for warning in row.warnings[self._warned :]:
            _say(f"warning: {warning['message']}")
        self._warned = len(row.warnings)
        for line in self._metric_lines():
            _say(line)
        line = f"{row.id}  {_state(row)}  {_progress(row)}"
        if line != self._last_line:
            self._last_line = line
            _say(line)

    def _note_lines(self) -> list[str]:
        from core.runs.folder import RunFolder

        events = RunFolder.of(self._workspace, self._run_id).events
        new, self._events_read = read_events(events, self._events_read)
        return shown_notes(new)

    def _metric_lines(self) -> list[str]:
        rows = self._store.metrics_since(self._run_id, self._last_metric)
        by_event: dict[tuple[int, int], list[str]] = {}
        for row in rows:
            self._last_metric = row.number
            by_event.setdefault((row.number, row.step), []).append(f"{row.name} {row.value:.5g}")
        return [f"  step {step}: " + ", ".join(parts) for (_, step), parts in by_event.items()]


def shown_notes(events: Iterable[dict[str, Any]]) -> list[str]:
    """Returns the notes among a run's events that the command line prints."""
    notes = [one for one in events if one["kind"] == "note"]
    return [str(one["message"]) for one in notes if any(map(one.get, _SHOWN_NOTES))]


def run_summary(row: RunRow, workspace: Workspace) -> dict[str, Any]:
    """Builds the JSON of `runs show`."""
    from core.evaluation.subject import list_run_checkpoints
    from core.runs.duration import run_seconds
    from core.runs.folder import RunFolder

    counts_steps = row.unit == "steps"
    seconds = run_seconds(workspace, row)
    return {
        "run": row.id,
        "stage": row.stage,
        "state": row.state,
        "reason": row.reason,
        "pid": row.pid,
        "exit_code": row.exit_code,
        "signal": row.signal,
        "step": int(row.done) if counts_steps else None,
        "num_train_steps": int(row.total) if counts_steps and row.total else None,
        "seconds": None if seconds is None else round(seconds, 1),
        "artifact": row.artifact or None,
        "checkpoints": list_run_checkpoints(RunFolder.of(workspace, row.id), by_step=True),
        "error": row.error,
        "mirror": row.remote.get("mirror"),
        "incarnation": row.remote.get("incarnation"),
        "phase": row.remote.get("phase"),
        "target": row.remote.get("target"),
        "cost": row.remote.get("cost"),
        "title": row.title,
        "tags": row.tags,
        "notes": row.notes,
    }


def _stage_result(row: RunRow) -> dict[str, Any]:
    is_flat = row.stage in STAGES and STAGES[row.stage].reports_top_level
    figures = row.results if is_flat else {"metrics": row.results}
    return {
        **(figures or {}),
        "run": row.id,
        "state": row.state,
        "artifact": row.artifact or None,
        **({"error": row.error} if row.error else {}),
    }


def _exit_code(row: RunRow) -> int:
    if row.state == "done":
        return EXIT_DONE
    return row.exit_code if row.exit_code and row.exit_code > 0 else EXIT_FAILED


def _common_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument(
        "--workspace",
        metavar="DIR",
        help="folder of artifacts and runs (default: STUDIO_HOME, else ./workspace)",
    )
    common.add_argument("--json", action="store_true", help="print one JSON value at the end")
    return common


def _add_stage(commands: Any, common: argparse.ArgumentParser, stage: Stage) -> None:
    parser = _add_command(commands, common, stage.name, stage.help, _run_stage)
    parser.set_defaults(stage=stage.name)
    _add_run_options(parser)
    parser.add_argument(
        "--after", metavar="RUN", action="append", default=[], help="start after this run is done"
    )
    _add_fields(parser, stage.config)


def _add_quickstart(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Run all stages on the built-in corpus."
    parser = _add_command(commands, common, "quickstart", about, _run_quickstart)
    _add_run_options(parser)
    _add_fields(parser, QuickstartConfig)


def _add_analyse(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Analyse a sample of a corpus: sizes, languages, duplicates, lines, encoding, tokens."
    parser = _add_command(commands, common, "analyse", about, _run_analyse)
    _add_config_file(parser)
    _add_fields(parser, AnalyseConfig)


def _add_suggest(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Derive size, batch size, steps and learning rate from a time or token budget."
    parser = _add_command(commands, common, "suggest", about, _run_suggest)
    parser.set_defaults(stage="train")
    parser.add_argument("--hours", type=_hours, default=None, help="time budget on this machine")
    parser.add_argument("--tokens", type=_count, default=None, help="token budget, such as 5e8")
    _add_config_file(parser)
    _add_fields(parser, TrainConfig)


def _hours(text: str) -> float:
    number = _number(text)
    if not 0 < number < math.inf:
        wanted = "a number above 0, such as 0.5"
        raise argparse.ArgumentTypeError(f"expected {wanted}; received {text}")
    return number


def _count(text: str) -> int:
    number = math.nan if _DOTTED.fullmatch(text) else _number(text)
    if not 1 <= number < math.inf or number != int(number):
        wanted = "a whole number of at least 1, such as 500000 or 5e5"
        raise argparse.ArgumentTypeError(f"expected {wanted}; received {text}")
    return int(number)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _lines(text: str) -> int:
    number = _count(text)
    if number > _MOST_LINES:
        raise argparse.ArgumentTypeError(f"expected at most {_MOST_LINES:,}; received {text}")
    return number


def _add_fill_mask(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Fill the masks of a text."
    parser = _add_command(commands, common, "fill-mask", about, _run_fill_mask)
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="text with one or more mask tokens")
    parser.add_argument("--top-k", "--top_k", type=int, default=5, help="predictions per mask")
    _add_dtype(parser)


def _add_generate(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Continue a text, or fill in its masked spans."
    parser = _add_command(commands, common, "generate", about, _run_generate)
    parser.add_argument("words", nargs="*", metavar="MODEL PROMPT")
    _add_model(parser)
    parser.add_argument("--prompt", "--text", dest="text", default="", help="text to continue")
    for name, kind, default, text in (
        ("max-new-tokens", int, 50, "maximum number of new tokens"),
        ("temperature", float, 1.0, "sampling temperature; 0: always the most probable token"),
        ("top-k", int, 0, "sample from this many most probable tokens; 0: all"),
        ("top-p", float, 1.0, "sample from the most probable tokens with this total probability"),
        ("seed", int, 0, "random seed; the same seed gives the same text"),
    ):
        spellings = dict.fromkeys([f"--{name}", f"--{name.replace('-', '_')}"])
        shown = f"{text} (default: {default})"
        parser.add_argument(*spellings, type=kind, default=default, help=shown)
    _add_dtype(parser)


def _add_perplexity(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Compute a text's perplexity, and the loss of each token."
    parser = _add_command(commands, common, "perplexity", about, _run_perplexity)
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="text to score")
    _add_dtype(parser)


def _add_classify(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Classify a text, or a pair of texts, with a fine-tuned model."
    parser = _add_command(commands, common, "classify", about, _run_classify)
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="text to classify")
    parser.add_argument(
        "--text-pair", "--text_pair", default="", help="second text, for a model of pairs"
    )
    _add_dtype(parser)


def _add_tag(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Tag the words of a text with a fine-tuned model."
    parser = _add_command(commands, common, "tag", about, _run_tag)
    parser.add_argument("words", nargs="*", metavar="MODEL TEXT")
    _add_model(parser)
    parser.add_argument("--text", default="", help="words, separated by spaces")
    _add_dtype(parser)


def _add_model(parser: argparse.ArgumentParser) -> None:
    about = "model name, folder, run's checkpoint (RUN@best) or Hub id"
    parser.add_argument("--model", default="", help=about)


def _add_dtype(parser: argparse.ArgumentParser) -> None:
    about = "precision of the computation; auto: bfloat16 if this machine computes faster in it"
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help=about)


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, rest = super().parse_known_args(args, namespace)
        if any(word.startswith("-") and " " not in word for word in rest):
            return options, rest
        if "words" in options:
            self._name_words(options, [*options.words, *rest])
            return options, []
        if rest and (flags := [flag for name, flag in _PATTERNS.items() if name in options]):
            self._refuse_expanded(flags, rest)
        return options, rest

    def _name_words(self, options: argparse.Namespace, words: list[str]) -> None:
        names = [name for name in ("model", "text") if not getattr(options, name)]
        if len(words) > len(names):
            self.error("give one model and one text (put the text in quotes)")
        for name, word in zip(names, words, strict=False):
            setattr(options, name, word)
        del options.words

    def _refuse_expanded(self, flags: list[str], rest: list[str]) -> None:
        shown = shlex.join(rest[:3]) + (" ..." if len(rest) > 3 else "")
        self.error(
            f"unrecognized arguments: {shown}; {' and '.join(flags)} take one value each: quote a "
            f"pattern, as in {flags[0]} 'data/*.txt', because the shell expands it otherwise"
        )


def _add_runs(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("runs", help="List, show and stop runs.")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = _add_command(actions, common, "list", "List runs, the newest first.", _list_runs)
    listing.add_argument("--limit", type=_lines, default=50)
    about = "runs that fit, such as 'learning_rate>1e-4 state=done text'"
    listing.add_argument("--filter", metavar="QUERY", default="", help=about)
    about = "sort by a setting or figure; -NAME sorts downwards: --sort=-eval_loss"
    listing.add_argument("--sort", metavar="NAME", default="", help=about)
    editing = _add_run_command(
        actions, common, "edit", "Change a run's title, tags and notes.", _edit_run
    )
    editing.add_argument("--title", default=None, help="name in lists; '' for the usual one")
    editing.add_argument("--tag", action="append", default=[], help="add a tag; repeatable")
    editing.add_argument("--untag", action="append", default=[], help="remove a tag; repeatable")
    editing.add_argument("--notes", default=None, help="text that replaces the notes")
    _add_run_command(actions, common, "show", "Show a run's details.", _show_run)
    about = "Compare runs: the settings that differ, and all figures."
    comparing = _add_command(actions, common, "compare", about, _compare_runs)
    comparing.add_argument("runs", nargs="+", metavar="RUN", help="ids, or their beginnings")
    comparing.add_argument("--csv", metavar="FILE", default="", help="write the table to a file")
    log = _add_run_command(actions, common, "logs", "Print the end of a run's log.", _print_log)
    log.add_argument("--lines", type=_lines, default=200)
    log.add_argument("--search", metavar="TEXT", default="", help="only lines with this text")
    about = "Print the sample predictions of a run, the newest last."
    _add_run_command(actions, common, "samples", about, _print_samples)
    stop = _add_run_command(actions, common, "stop", "Ask a run to save and stop.", _stop_run)
    stop.add_argument("--abort", action="store_true", help="stop without saving")
    resume = _add_run_command(actions, common, "resume", "Resume an ended run.", _resume_run)
    for name, about in _RESUMED_LIMITS.items():
        resume.add_argument(
            f"--{name.replace('_', '-')}", f"--{name}", type=float, default=None, help=about
        )
    about = "another target, whose machines reach the same mirror"
    resume.add_argument("--target", metavar="ADDRESS", default=None, help=about)
    resume.add_argument("--follow", action="store_true", help="print progress until the run ends")
    resume.add_argument(
        "--num-train-steps",
        "--num_train_steps",
        type=int,
        default=None,
        help="extend the run to this total number of steps",
    )
    _add_run_command(actions, common, "delete", "Delete an ended run.", _delete_run)
    about = "Follow a run of another machine, from its mirror (train --mirror)."
    following = _add_command(actions, common, "follow", about, _follow_mirror)
    following.add_argument("address", help="the mirror's address, /runs/ and the run's id")
    following.add_argument("--detach", action="store_true", help="return at once")
    about = "Write a run's settings as JSON, for --config or the web app."
    export = _add_run_command(actions, common, "export", about, _export_settings)
    export.add_argument("--output", metavar="FILE", default="", help="output file; default: print")
    about = "Write a run's report as one HTML file."
    report = _add_run_command(actions, common, "report", about, _write_report)
    report.add_argument("--output", metavar="FILE", default="", help="default: RUN.html")
    about = "Rebuild the database from the run folders."
    _add_command(actions, common, "rebuild", about, _rebuild_database)


def _add_artifacts(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("artifacts", help="List and delete artifacts.")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    about = "List artifacts with their disk usage."
    _add_command(actions, common, "list", about, _list_artifacts)
    deleting = _add_command(actions, common, "delete", "Delete an artifact.", _delete_artifact)
    deleting.add_argument("kind", choices=artifact_kinds())
    deleting.add_argument("name")


def _add_targets(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "List the machines of runs on other machines, or delete one."
    parser = _add_command(commands, common, "targets", about, _list_targets)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    about = "End a machine's run and delete the machine."
    deleting = _add_command(actions, common, "delete", about, _delete_target)
    deleting.add_argument("id", help="the machine's id, as the list shows it")


def _add_sweep(commands: Any, common: argparse.ArgumentParser) -> None:
    about = "Run a stage with varied settings, and find the best ones."
    parser = _add_command(commands, common, "sweep", about, _sweep("run"))
    parser.add_argument("--config", metavar="FILE", default="", help="TOML file of a new sweep")
    about = "go on with a sweep; finished trials stay"
    parser.add_argument("--resume", metavar="NAME", default="", help=about)
    parser.add_argument("--detach", action="store_true", help="return at once")
    for name, (kind, about) in _SWEEP_LIMITS.items():
        spellings = dict.fromkeys([f"--{name.replace('_', '-')}", f"--{name}"])
        parser.add_argument(*spellings, type=kind, default=None, help=about)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    _add_command(actions, common, "list", "List sweeps, the newest first.", _sweep("list_all"))
    about = "Show a sweep's trials, and the best one."
    showing = _add_command(actions, common, "show", about, _sweep("show"))
    about = "Have a sweep save and stop its trials."
    stopping = _add_command(actions, common, "stop", about, _sweep("stop"))
    for one in (showing, stopping):
        one.add_argument("name", help="the sweep's name")


def _sweep(name: str) -> Callable[[argparse.Namespace], int]:
    def command(options: argparse.Namespace) -> int:
        from core.sweeps import commands

        return int(getattr(commands, name)(options, _workspace(options)))

    return command


def _add_run_command(
    actions: Any,
    common: argparse.ArgumentParser,
    name: str,
    about: str,
    command: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = _add_command(actions, common, name, about, command)
    parser.add_argument("run", help="run id, or its beginning")
    return parser


def _add_command(
    commands: Any,
    common: argparse.ArgumentParser,
    name: str,
    about: str,
    command: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=about, parents=[common], allow_abbrev=False
    )
    parser.set_defaults(command=command)
    return parser


def _add_config_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        default="",
        help="JSON file with field values; flags override it",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    _add_config_file(parser)
    parser.add_argument("--detach", action="store_true", help="queue the run and return at once")


def _add_fields(parser: argparse.ArgumentParser, model: type[StageConfig]) -> None:
    groups: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if nested := _nested_model(field):
            _add_fields(parser, nested)
            continue
        is_nested = model is CorpusConfig
        heading = "corpus" if is_nested else "fields"
        group = groups.setdefault(heading, parser.add_argument_group(heading))
        _add_field(group, model, name)


def _add_field(group: Any, model: type[StageConfig], name: str) -> None:
    field = model.model_fields[name]
    flag = flag_of(name, field)
    spellings = list(dict.fromkeys([f"--{flag}", f"--{flag.replace('-', '_')}"]))
    text = f"{help_of(field)} (default: {_shown_default(model, name)})".replace("%", "%%")
    if plain_type(field)[0] is bool:
        action: Any = argparse.BooleanOptionalAction
        group.add_argument(
            *spellings, dest=name, action=action, default=argparse.SUPPRESS, help=text
        )
        return
    if field_extra(field)["is_list"]:
        group.add_argument(
            *spellings, dest=name, action=_Joined, default=argparse.SUPPRESS, help=text,
            metavar=name.upper(),
        )  # fmt: skip
        return
    if field.default == ():
        group.add_argument(
            *spellings, dest=name, action="append", default=argparse.SUPPRESS, help=text,
            metavar="NAME=ADDRESS",
        )  # fmt: skip
        return
    if name == "mixture":
        group.add_argument(
            *spellings, dest=name, nargs="+", default=argparse.SUPPRESS, help=text,
            metavar="NAME=WEIGHT",
        )  # fmt: skip
        return
    choices = choices_of(field)
    metavar = "{" + ",".join(choices) + "}" if choices else name.upper()
    group.add_argument(*spellings, dest=name, default=argparse.SUPPRESS, help=text, metavar=metavar)


class _Joined(argparse.Action):
    """Joins the values of a repeated flag with commas."""

    def __call__(self, _: Any, namespace: Any, values: Any, __: str | None = None) -> None:
        earlier = getattr(namespace, self.dest, "")
        setattr(namespace, self.dest, ", ".join(filter(None, (earlier, values))))


def _shown_default(model: type[StageConfig], name: str) -> str:
    own = model.model_fields[name].default
    filled = model.preset_values({}) if model.presets else {}
    value = filled.get(name, own)
    shown = "none" if value in (None, "", ()) else str(value)
    if name not in filled:
        return shown
    shown += f", from --preset {model.model_fields['preset'].default}"
    variants = choices_of(model.model_fields[model.variant])
    values = [model.preset_values({model.variant: one}).get(name, own) for one in variants]
    varies = any(one != value for one in values)
    return f"{shown}; depends on --{model.variant}" if varies else shown


def _stage_values(options: argparse.Namespace, model: type[StageConfig]) -> dict[str, Any]:
    values = _config_values(options, model)
    if not issubclass(model, TrainConfig):
        return values
    from core.models.finding import with_family

    # With --after, the folder may be missing; without shards, preflight opens none.
    opened = model is not PreflightConfig or bool(values.get("shards") or values.get("mixture"))
    fetch = opened and not getattr(options, "after", [])
    return with_family(values, _workspace(options), fetch=fetch)


def _config_values(options: argparse.Namespace, model: type[StageConfig]) -> dict[str, Any]:
    given = vars(options)
    values = _file_values(options.config, given.get("stage", "")) if options.config else {}
    for flag, rival in _RIVALS.items():
        if flag in given and rival not in given and values.get(rival) is not None:
            values[rival] = "" if isinstance(values[rival], str) else None
    for name, field in model.model_fields.items():
        if nested := _nested_model(field):
            parts = {**_taken(values, nested), **_as_dict(values.get(name, {}), name)}
            flags = {
                key: _value(given[key], nested.model_fields[key])
                for key in nested.model_fields
                if key in given
            }
            if nested is CorpusConfig:
                flags = with_named_sources(flags)
            parts |= nested.inferred(flags, parts)
            if parts:
                values[name] = parts
        elif name in given:
            values[name] = _value(given[name], field)
    return values


def _file_values(path: str, stage: str) -> dict[str, Any]:
    from core.report.settings import is_settings

    values = load_config_file(path)
    if not is_settings(values):
        return values
    if values["stage"] != stage:
        raise ConfigError(
            f"The config file {path} belongs to another stage",
            expected=f"settings of {stage}",
            received=f"settings of {values['stage']}",
            fix=f"use it with: python -m core {values['stage']} --config {path}",
        )
    return dict(values["config"])


def _taken(values: dict[str, Any], nested: type[StageConfig]) -> dict[str, Any]:
    return {key: values.pop(key) for key in list(values) if key in nested.model_fields}


def _as_dict(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ConfigError(
        f"{name} has an invalid value",
        expected="an object of fields",
        received=repr(value),
        field=name,
    )


def _value(value: Any, field: FieldInfo) -> Any:
    _, optional = plain_type(field)
    return None if optional and isinstance(value, str) and value.lower() in _NO_VALUE else value


def _nested_model(field: FieldInfo) -> type[StageConfig] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, StageConfig) else None


def _typed(options: argparse.Namespace) -> list[Any]:
    """Returns the typed values, and the addresses of --add."""
    values = list(vars(options).values())
    added = [str(one).partition("=")[2] for one in getattr(options, "sources", [])]
    return [*values, *added]


def _workspace(options: argparse.Namespace) -> Workspace:
    if not hasattr(options, "json"):
        options.json = False
    return Workspace(getattr(options, "workspace", None))


def _fresh_store(options: argparse.Namespace) -> Store:
    from core.runs.client import refresh
    from core.store import Store

    workspace = _workspace(options)
    refresh(workspace)
    return Store.open(workspace)


def _print_detached(options: argparse.Namespace, runs: list[str]) -> int:
    if options.json:
        print(
            json.dumps(
                {"run": runs[-1], "runs": runs, "state": "queued", "artifact": None, "metrics": {}}
            )
        )
    else:
        print("\n".join(runs))
    return EXIT_DONE


def _print_run_id(options: argparse.Namespace, run_id: str, what: str) -> int:
    print(json.dumps({"run": run_id}) if options.json else f"{run_id} {what}")
    return EXIT_DONE


def _state(row: RunRow) -> str:
    return f"{row.state}/{row.reason}" if row.reason else row.state


def _progress(row: RunRow) -> str:
    parts = []
    if row.total:
        parts.append(f"{100 * row.done / row.total:.0f} % of {row.total:,.0f} {row.unit}")
    elif row.done:
        parts.append(f"{row.done:,.0f} {row.unit}")
    if row.note and not row.has_ended:
        parts.append(row.note)
    if row.eta_seconds is not None:
        parts.append(f"{row.eta_seconds / 60:.1f} minutes left")
    return ", ".join(parts)


def _report(error: StudioError, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": error.to_dict()}, ensure_ascii=False))
    _say(f"error: {error}")
    return error.exit_code


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    hide_secrets_in_output()
    sys.exit(main())
