"""Lists the workspace's artifacts for menus."""

from __future__ import annotations

from core.workspace.kinds import artifact_kinds
from core.workspace.workspace import Workspace


def list_names(workspace: Workspace, kind: str) -> list[str]:
    """Returns artifact names, newest first."""
    return [artifact.name for artifact in workspace.list(kind)]


def revision(workspace: Workspace, *kinds: str) -> str:
    """Returns a text that changes with the artifacts; one system call per kind."""
    times = []
    for kind in kinds or artifact_kinds():
        try:
            times.append(str(workspace.folder(kind).stat().st_mtime_ns))
        except FileNotFoundError:
            times.append("")
    return " ".join(times)


def follow_newest(names: list[str], chosen: str, known: list[str]) -> str:
    """Returns a menu's value: the newest unless the user chose an older one or typed another.

    Args:
        names: Newest first.
        known: Names when last filled.
    """
    # The browser may have forgotten `known`.
    typed = chosen and chosen not in known and (known or chosen not in names)
    an_older_one = chosen in known[1:] and chosen in names
    if typed or an_older_one:
        return chosen
    return names[0] if names else ""
