"""Tells whether a run goes on, also while it is queued or the worker is dead."""

from __future__ import annotations

import time
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from core.errors import StudioError
from core.records.folder import RunFolder
from core.store import RunRow, Store
from core.workspace.workspace import Workspace

# A worker notices a run's end, and requeues a preempted one, within this time.
_SETTLING_SECONDS = 30.0
# A run without a process and without a record of its end.
_SILENT_SECONDS = 120.0


class Lifecycle:
    """Watches one run from its folder and, if that doesn't tell, the database."""

    def __init__(self, folder: RunFolder, workspace: Workspace) -> None:
        self._folder = folder
        self._workspace = workspace
        self._store: Store | None = None
        self._quiet_since: float | None = None

    def has_ended(self) -> bool:
        """Returns whether the run has ended and isn't queued again."""
        if not self._folder.is_there():
            return True
        if self._folder.is_running():
            self._quiet_since = None
            return False
        row = self._row()
        if row and row.has_ended:
            return True
        if row and row.state == "queued":
            self._quiet_since = None
            return False
        has_exited = self._folder.read_exit() is not None
        return self._quiet_seconds() > (_SETTLING_SECONDS if has_exited else _SILENT_SECONDS)

    def _quiet_seconds(self) -> float:
        now = time.monotonic()
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        return now - self._quiet_since

    def _row(self) -> RunRow | None:
        with suppress(SQLAlchemyError, StudioError, OSError):
            self._store = self._store or Store.open(self._workspace)
            return self._store.get_run(self._folder.path.name)
        return None
