"""Runs the commands of the group `runs`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from core.cli.following import follow, fresh_store
from core.cli.output import (
    EXIT_DONE,
    coloured_state,
    describe_progress,
    print_detached,
    print_file,
    print_run_id,
    workspace_of,
)
from core.errors import ConfigError
from core.records.events import read_by_step
from core.records.folder import RunFolder
from core.report import page, settings
from core.runs import client, comparison
from core.runs.search import find_runs
from core.runs.summary import run_summary
from core.store import RunRow, Store
from core.targets.errors import UnsignedMirrorError
from core.targets.saved import named_machine
from core.workspace.atomic import write_atomically
from core.workspace.names import expand_path

_COLUMN_CHARACTERS = 28


def list_runs(options: argparse.Namespace) -> int:
    store = fresh_store(options)
    rows = _matching_runs(store, options)
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


def _matching_runs(store: Store, options: argparse.Namespace) -> list[RunRow]:
    order = f" sort:{options.sort}" if options.sort else ""
    if not options.filter and not order:
        return store.list_runs(limit=options.limit)
    query = options.filter + order
    return find_runs(workspace_of(options), store, query, limit=options.limit)


def edit_run(options: argparse.Namespace) -> int:
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
    run_id = client.annotate_run(
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


def show_run(options: argparse.Namespace) -> int:
    row = fresh_store(options).find_run(options.run)
    summary = run_summary(row, workspace_of(options))
    if options.json:
        print(json.dumps(summary, ensure_ascii=False))
        return EXIT_DONE
    for name, value in {**summary, "config": row.config, "results": row.results}.items():
        print(f"{name:16} {json.dumps(value, ensure_ascii=False) if value is not None else '-'}")
    return EXIT_DONE


def compare_runs(options: argparse.Namespace) -> int:
    compared = comparison.compare_runs(workspace_of(options), fresh_store(options), options.runs)
    if options.csv:
        write_atomically(expand_path(options.csv), compared.to_csv())
    if options.json:
        print(json.dumps(compared.to_dict(), ensure_ascii=False))
        return EXIT_DONE
    header, *rows = compared.rows()
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


def print_log(options: argparse.Namespace) -> int:
    row = fresh_store(options).find_run(options.run)
    if options.search:
        lines, _ = RunFolder.of(workspace_of(options), row.id).find_in_log(options.search)
        print("\n".join(lines[-options.lines :]))
        return EXIT_DONE
    print(client.read_log_tail(workspace_of(options), row.id, options.lines))
    return EXIT_DONE


def print_samples(options: argparse.Namespace) -> int:
    row = fresh_store(options).find_run(options.run)
    samples = read_by_step(RunFolder.of(workspace_of(options), row.id).events, "samples")
    if options.json:
        print(json.dumps(samples, ensure_ascii=False))
        return EXIT_DONE
    for step_samples in samples:
        print(f"step {step_samples['step']}")
        for sample in step_samples["samples"]:
            print(f"  {_sample_line(sample)}")
    if not samples:
        print("No sample predictions. Train with --sample-predictions 3.")
    return EXIT_DONE


def _sample_line(sample: dict[str, Any]) -> str:
    if segments := sample.get("parts"):
        shown = (
            segment if isinstance(segment, str) else f"[{segment[1]} for {segment[0]}]"
            for segment in segments
        )
        return " ".join(shown)
    wanted = f" (wanted: {sample['wanted']})" if sample.get("wanted") else ""
    return f"{sample.get('given', '')} | {sample.get('text', '')}{wanted}"


def stop_run(options: argparse.Namespace) -> int:
    run_id = client.request_stop(
        workspace_of(options), options.run, "abort" if options.abort else "save"
    )
    return print_run_id(options, run_id, "was asked to stop")


def resume_run(options: argparse.Namespace) -> int:
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
    workspace = workspace_of(options)
    machine = named_machine(workspace, options.target or "")
    return client.resume_run(
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


def delete_run(options: argparse.Namespace) -> int:
    run_id = client.delete_run(workspace_of(options), options.run)
    return print_run_id(options, run_id, "is deleted")


def follow_mirror(options: argparse.Namespace) -> int:
    workspace = workspace_of(options)
    run_id = client.follow_run(workspace, options.address)
    if options.detach:
        return print_detached(options, [run_id])
    return follow(workspace, run_id, as_json=options.json, quiet=options.quiet)


def export_settings(options: argparse.Namespace) -> int:
    text = settings.settings_file(fresh_store(options).find_run(options.run))
    if not options.output:
        print(text, end="")
        return EXIT_DONE
    write_atomically(expand_path(options.output), text)
    return print_file(options, options.output)


def write_report(options: argparse.Namespace) -> int:
    row = fresh_store(options).find_run(options.run)
    path = page.write_report(workspace_of(options), row.id, options.output or f"{row.id}.html")
    return print_file(options, str(path))


def rebuild_database(options: argparse.Namespace) -> int:
    count = client.rebuild_database(workspace_of(options))
    print(json.dumps({"runs": count}) if options.json else f"{count} runs were registered")
    return EXIT_DONE
