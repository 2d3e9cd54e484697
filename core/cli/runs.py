"""The command `runs`."""

from __future__ import annotations

import argparse
from typing import Any

from core.cli.parser import add_command, parse_line_count

_RESUMED_LIMITS = {
    "max_hours": "new limit of hours on other machines",
    "max_cost": "new limit of US dollars",
    "price_per_hour": "price of the next machine in US dollars",
}


def add_runs(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("runs", help="List, show and stop runs.")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = add_command(actions, common, "list", "List runs, the newest first.", "runs:list_runs")
    listing.add_argument("--limit", type=parse_line_count, default=50)
    about = "runs that fit, such as 'learning_rate>1e-4 state=done text'"
    listing.add_argument("--filter", metavar="QUERY", default="", help=about)
    about = "sort by a setting or figure; -NAME sorts downwards: --sort=-eval_loss"
    listing.add_argument("--sort", metavar="NAME", default="", help=about)
    editing = _add_run_command(
        actions, common, "edit", "Change a run's title, tags and notes.", "runs:edit_run"
    )
    editing.add_argument("--title", default=None, help="name in lists; '' for the usual one")
    editing.add_argument("--tag", action="append", default=[], help="add a tag; repeatable")
    editing.add_argument("--untag", action="append", default=[], help="remove a tag; repeatable")
    editing.add_argument("--notes", default=None, help="text that replaces the notes")
    _add_run_command(actions, common, "show", "Show a run's details.", "runs:show_run")
    about = "Compare runs: the settings that differ, and all figures."
    comparing = add_command(actions, common, "compare", about, "runs:compare_runs")
    comparing.add_argument("runs", nargs="+", metavar="RUN", help="ids, or their beginnings")
    comparing.add_argument("--csv", metavar="FILE", default="", help="write the table to a file")
    log = _add_run_command(
        actions, common, "logs", "Print the end of a run's log.", "runs:print_log"
    )
    log.add_argument("--lines", type=parse_line_count, default=200)
    log.add_argument("--search", metavar="TEXT", default="", help="only lines with this text")
    about = "Print the sample predictions of a run, the newest last."
    _add_run_command(actions, common, "samples", about, "runs:print_samples")
    stop = _add_run_command(actions, common, "stop", "Ask a run to save and stop.", "runs:stop_run")
    stop.add_argument("--abort", action="store_true", help="stop without saving")
    resume = _add_run_command(actions, common, "resume", "Resume an ended run.", "runs:resume_run")
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
    _add_run_command(actions, common, "delete", "Delete an ended run.", "runs:delete_run")
    about = "Follow a run of another machine, from its mirror (train --mirror)."
    following = add_command(actions, common, "follow", about, "runs:follow_mirror")
    following.add_argument("address", help="the mirror's address, /runs/ and the run's id")
    following.add_argument("--detach", action="store_true", help="return at once")
    about = "Write a run's settings as JSON, for --config or the web app."
    export = _add_run_command(actions, common, "export", about, "runs:export_settings")
    export.add_argument("--output", metavar="FILE", default="", help="output file; default: print")
    about = "Write a run's report as one HTML file."
    report = _add_run_command(actions, common, "report", about, "runs:write_report")
    report.add_argument("--output", metavar="FILE", default="", help="default: RUN.html")
    about = "Rebuild the database from the run folders."
    add_command(actions, common, "rebuild", about, "runs:rebuild_database")


def _add_run_command(
    actions: Any,
    common: argparse.ArgumentParser,
    name: str,
    about: str,
    handler: str,
) -> argparse.ArgumentParser:
    parser = add_command(actions, common, name, about, handler)
    parser.add_argument("run", help="run id, or its beginning")
    return parser
