"""Options of stages that work on parts of the text in several processes."""

from __future__ import annotations

from typing import Any

from core.config.options import CLUSTER_PATTERN, option

DEFAULT_PART_MB = 64


def workers_option() -> Any:
    return option(
        None,
        "Processes that work on parts of the text; they do not change the result.",
        details="Empty: one per core; in a script, one. On a cluster, the most tasks at a time.",
        identity=False,
        ge=1,
        le=1024,
    )


def cluster_option() -> Any:
    return option(
        "",
        "Ray cluster that works on parts of the text; it does not change the result.",
        choices=("ray", "ray://auto"),
        details="ray starts Ray on this machine, ray://auto uses the cluster that this machine "
        "belongs to, and ray://host:port a server of Ray Client. Empty: processes of this machine. "
        "See docs/cluster.md.",
        identity=False,
        pattern=CLUSTER_PATTERN,
    )


def part_mb_option() -> Any:
    return option(
        DEFAULT_PART_MB,
        "Size of the parts that the text is read in, in MiB.",
        title="Part size (MiB)",
        details="A stopped run goes on after the finished parts. A process needs about eight times "
        "as much memory.",
        is_later=True,
        gt=0,
        le=65_536,
    )


def skip_failing_parts_option() -> Any:
    return option(
        False,
        "Skip parts of the text that cannot be read; they are counted.",
        details="After an error, the same command with this option goes on after the finished "
        "parts.",
        is_later=True,
    )
