"""Lists the workspace's artifacts for menus."""

from __future__ import annotations

from core.workspace import Workspace

# Kinds that other stages read.
KINDS = ("tokenizer", "shards", "model")


def list_names(workspace: Workspace, kind: str) -> list[str]:
    """Returns the names of the artifacts of a kind, the newest first."""
    return [artifact.name for artifact in workspace.list(kind)]


def revision(workspace: Workspace, *kinds: str) -> str:
    """Returns a text that changes when an artifact comes or goes; it costs a system call a kind."""
    times = []
    for kind in kinds or KINDS:
        try:
            times.append(str(workspace.folder(kind).stat().st_mtime_ns))
        except FileNotFoundError:
            times.append("")
    return " ".join(times)


def follow_newest(names: list[str], chosen: str, known: list[str]) -> str:
    """Returns the value of a menu after its list has changed.

    The menu moves to the newest artifact, unless the user has chosen an older one or typed
    something else.

    Args:
        names: Current names, the newest first.
        chosen: The menu's value.
        known: Names when it was last filled.
    """
    # A page that was away may have forgotten what it knew.
    typed = chosen and chosen not in known and (known or chosen not in names)
    an_older_one = chosen in known[1:] and chosen in names
    if typed or an_older_one:
        return chosen
    return names[0] if names else ""
