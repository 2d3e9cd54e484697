"""What the workspace holds, as the page lists it."""

from __future__ import annotations

from core.workspace import Workspace

# Those that other stages take.
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
    """Returns what a menu should show after the list behind it has changed.

    It moves to what is new, unless a person has chosen something else than the newest there was,
    or has typed what is no artifact of the workspace.

    Args:
        names: What there is now, the newest first.
        chosen: What the menu shows.
        known: What there was when it was last filled.
    """
    # A page that was away may have forgotten what it knew.
    typed = chosen and chosen not in known and (known or chosen not in names)
    an_older_one = chosen in known[1:] and chosen in names
    if typed or an_older_one:
        return chosen
    return names[0] if names else ""
