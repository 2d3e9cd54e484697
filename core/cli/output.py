"""Output and exit codes of the commands."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, TextIO

from core.errors import StudioError
from core.messages.mentions import Mention, render
from core.workspace.workspace import Workspace

if TYPE_CHECKING:
    from core.store import RunRow

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
_STATE_STYLES = {"done": "green", "failed": "red", "running": "cyan"}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def say_error(error: StudioError, flags: Mapping[str, str] | None = None) -> None:
    """Prints an error, with a command's flags for the options that it mentions."""
    text = error.describe(partial(render, show=partial(_as_flag, flags or {})))
    say(f"{colour('error:', 'bold red', sys.stderr)} {text}")


def _as_flag(flags: Mapping[str, str], mention: Mention) -> str:
    flag = flags.get(mention.name, "")
    if not flag or mention.is_choice:
        return str(mention)
    if mention.value.lower() == "false":
        return flag.replace("--", "--no-", 1)
    return f"{flag} {mention.value}".rstrip()


def is_terminal(stream: TextIO) -> bool:
    """Returns whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def colour(text: str, style: str, stream: TextIO) -> str:
    """Colours a text on a terminal, unless NO_COLOR is set."""
    if not is_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    from rich.style import Style

    return Style.parse(style).render(text)


def report_error(
    error: StudioError, *, as_json: bool, flags: Mapping[str, str] | None = None
) -> int:
    if as_json:
        print(json.dumps({"error": error.to_dict()}, ensure_ascii=False))
    say_error(error, flags)
    return error.exit_code


def workspace_of(options: argparse.Namespace) -> Workspace:
    for name in ("json", "quiet"):
        setattr(options, name, getattr(options, name, False))
    return Workspace(getattr(options, "workspace", None))


def named_place(workspace: Workspace) -> str:
    return "" if workspace.root == Workspace().root else str(workspace.root)


def print_detached(options: argparse.Namespace, runs: list[str]) -> int:
    if options.json:
        print(
            json.dumps(
                {"run": runs[-1], "runs": runs, "state": "queued", "artifact": None, "metrics": {}}
            )
        )
    else:
        print("\n".join(runs))
    return EXIT_DONE


def print_run_id(options: argparse.Namespace, run_id: str, what: str) -> int:
    print(json.dumps({"run": run_id}) if options.json else f"{run_id} {what}")
    return EXIT_DONE


def print_file(options: argparse.Namespace, path: str) -> int:
    print(json.dumps({"run": options.run, "file": path}) if options.json else path)
    return EXIT_DONE


def describe_state(row: RunRow) -> str:
    return f"{row.state}/{row.reason}" if row.reason else row.state


def coloured_state(row: RunRow, width: int) -> str:
    """Formats a run's state for a column of a table."""
    return colour(f"{describe_state(row):{width}}", _STATE_STYLES.get(row.state, ""), sys.stdout)


def describe_progress(row: RunRow) -> str:
    facts = []
    if row.total:
        facts.append(f"{100 * row.done / row.total:.0f} % of {row.total:,.0f} {row.unit}")
    elif row.done:
        facts.append(f"{row.done:,.0f} {row.unit}")
    if row.note and not row.has_ended:
        facts.append(row.note)
    if row.eta_seconds and not row.has_ended:
        facts.append(describe_time_left(row.eta_seconds))
    return ", ".join(facts)


def describe_time_left(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute left"
    if minutes < 120:
        return f"{minutes} {'minute' if minutes == 1 else 'minutes'} left"
    return f"{seconds / 3600:.1f} hours left"
