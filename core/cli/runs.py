"""The command `runs`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from core.cli.following import follow
from core.cli.output import (
    EXIT_DONE,
    coloured_state,
    describe_progress,
    fresh_store,
    print_detached,
    print_file,
    print_run_id,
    workspace_of,
)
from core.cli.parser import add_command, parse_line_count
from core.errors import ConfigError
from core.workspace.atomic import write_atomically
from core.workspace.names import expand_path
from core.workspace.workspace import Workspace

if TYPE_CHECKING:
    from core.store import RunRow, Store

_COLUMN_CHARACTERS = 28
_RESUMED_LIMITS = {
    "max_hours": "new limit of hours on other machines",
    "max_cost": "new limit of US dollars",
    "price_per_hour": "price of the next machine in US dollars",
}


def add_runs(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("runs", help="List, show and stop runs.")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = add_command(actions, common, "list", "List runs, the newest first.", _list_runs)
    listing.add_argument("--limit", type=parse_line_count, default=50)
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
    comparing = add_command(actions, common, "compare", about, _compare_runs)
    comparing.add_argument("runs", nargs="+", metavar="RUN", help="ids, or their beginnings")
    comparing.add_argument("--csv", metavar="FILE", default="", help="write the table to a file")
    log = _add_run_command(actions, common, "logs", "Print the end of a run's log.", _print_log)
    log.add_argument("--lines", type=parse_line_count, default=200)
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
    about = "go on with the run of an unsigned mirror, of an earlier version, that is your own"
    resume.add_argument("--adopt", action="store_true", help=about)
    about = "copy the run of anybody's mirror; it gets only what the mirror has, and no credentials"
    resume.add_argument("--as-stranger", action="store_true", help=about)
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
    following = add_command(actions, common, "follow", about, _follow_mirror)
    following.add_argument("address", help="the mirror's address, /runs/ and the run's id")
    following.add_argument("--detach", action="store_true", help="return at once")
    about = "Write a run's settings as JSON, for --config or the web app."
    export = _add_run_command(actions, common, "export", about, _export_settings)
    export.add_argument("--output", metavar="FILE", default="", help="output file; default: print")
    about = "Write a run's report as one HTML file."
    report = _add_run_command(actions, common, "report", about, _write_report)
    report.add_argument("--output", metavar="FILE", default="", help="default: RUN.html")
    about = "Rebuild the database from the run folders."
    add_command(actions, common, "rebuild", about, _rebuild_database)


def _add_run_command(
    actions: Any,
    common: argparse.ArgumentParser,
    name: str,
    about: str,
    command: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = add_command(actions, common, name, about, command)
    parser.add_argument("run", help="run id, or its beginning")
    return parser


def _list_runs(options: argparse.Namespace) -> int:
    store = fresh_store(options)
    rows = _found_runs(store, options)
    if options.json:
        workspace = workspace_of(options)
        print(json.dumps([run_summary(row, workspace) for row in rows], ensure_ascii=False))
    elif not rows:
        nothing = "No runs yet. Start with: python -m core quickstart"
        print("No run fits." if store.has_runs() else nothing)
    for row in [] if options.json else rows:
        known = " ".join(filter(None, (row.title, *(f"#{tag}" for tag in row.tags))))
        print(f"{row.id:36} {coloured_state(row, 24)} {describe_progress(row)}  {known}".rstrip())
    return EXIT_DONE


def _found_runs(store: Store, options: argparse.Namespace) -> list[RunRow]:
    from core.runs.search import find_runs

    order = f" sort:{options.sort}" if options.sort else ""
    if not options.filter and not order:
        return store.list_runs(limit=options.limit)
    query = options.filter + order
    return find_runs(workspace_of(options), store, query, limit=options.limit)


def _edit_run(options: argparse.Namespace) -> int:
    from core.runs.client import annotate_run

    store = fresh_store(options)
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
        workspace_of(options),
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
    row = fresh_store(options).find_run(options.run)
    summary = run_summary(row, workspace_of(options))
    if options.json:
        print(json.dumps(summary, ensure_ascii=False))
        return EXIT_DONE
    for name, value in {**summary, "config": row.config, "results": row.results}.items():
        print(f"{name:16} {json.dumps(value, ensure_ascii=False) if value is not None else '-'}")
    return EXIT_DONE


def run_summary(row: RunRow, workspace: Workspace) -> dict[str, Any]:
    """Builds the JSON of `runs show`."""
    from core.artifacts.locating import list_run_checkpoints
    from core.records.folder import RunFolder
    from core.runs.duration import run_seconds

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


def _compare_runs(options: argparse.Namespace) -> int:
    from core.runs.comparison import compare_runs

    comparison = compare_runs(workspace_of(options), fresh_store(options), options.runs)
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
    from core.records.folder import RunFolder
    from core.runs.client import read_log_tail

    row = fresh_store(options).find_run(options.run)
    if options.search:
        lines, _ = RunFolder.of(workspace_of(options), row.id).find_in_log(options.search)
        print("\n".join(lines[-options.lines :]))
        return EXIT_DONE
    print(read_log_tail(workspace_of(options), row.id, options.lines))
    return EXIT_DONE


def _print_samples(options: argparse.Namespace) -> int:
    from core.records.folder import RunFolder

    row = fresh_store(options).find_run(options.run)
    found = RunFolder.of(workspace_of(options), row.id).samples()
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

    run_id = request_stop(workspace_of(options), options.run, "abort" if options.abort else "save")
    return print_run_id(options, run_id, "was asked to stop")


def _resume_run(options: argparse.Namespace) -> int:
    from core.targets.errors import UnsignedMirrorError

    workspace = workspace_of(options)
    try:
        run_id = _resume(options, adopt=options.adopt)
    except UnsignedMirrorError:
        if not sys.stdin.isatty() or not _is_own_mirror(options.run):
            raise
        run_id = _resume(options, adopt=True)
    if options.follow:
        return follow(workspace, run_id, as_json=options.json, quiet=options.quiet)
    return print_run_id(options, run_id, "is queued")


def _resume(options: argparse.Namespace, *, adopt: bool) -> str:
    from core.runs.client import resume_run
    from core.targets.saved import named_machine

    workspace = workspace_of(options)
    machine = named_machine(workspace, options.target or "")
    return resume_run(
        workspace,
        options.run,
        num_train_steps=options.num_train_steps,
        max_hours=options.max_hours,
        max_cost=options.max_cost,
        price_per_hour=options.price_per_hour,
        target=machine.target if machine else options.target,
        adopt=adopt,
        as_stranger=options.as_stranger,
    )


def _is_own_mirror(address: str) -> bool:
    print(f"Nobody has signed the run at {address}. An earlier version signed none.")
    return input("Have you started this run yourself? [y/N] ").strip().lower() in ("y", "yes")


def _delete_run(options: argparse.Namespace) -> int:
    from core.runs.client import delete_run

    run_id = delete_run(workspace_of(options), options.run)
    return print_run_id(options, run_id, "is deleted")


def _follow_mirror(options: argparse.Namespace) -> int:
    from core.runs.client import follow_run

    workspace = workspace_of(options)
    run_id = follow_run(workspace, options.address)
    if options.detach:
        return print_detached(options, [run_id])
    return follow(workspace, run_id, as_json=options.json, quiet=options.quiet)


def _export_settings(options: argparse.Namespace) -> int:
    from core.report import settings_file

    text = settings_file(fresh_store(options).find_run(options.run))
    if not options.output:
        print(text, end="")
        return EXIT_DONE
    write_atomically(expand_path(options.output), text)
    return print_file(options, options.output)


def _write_report(options: argparse.Namespace) -> int:
    from core.report import write_report

    row = fresh_store(options).find_run(options.run)
    path = write_report(workspace_of(options), row.id, options.output or f"{row.id}.html")
    return print_file(options, str(path))


def _rebuild_database(options: argparse.Namespace) -> int:
    from core.runs.client import rebuild_database

    count = rebuild_database(workspace_of(options))
    print(json.dumps({"runs": count}) if options.json else f"{count} runs were registered")
    return EXIT_DONE
