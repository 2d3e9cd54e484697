"""Runs a stage in the calling process."""

from __future__ import annotations

import os
import time
from typing import TextIO

from core.config.base import StageConfig
from core.records.events import FolderReporter
from core.records.folder import RunFolder, RunRecord, new_run_id
from core.records.process import ProcessIdentity
from core.reporting.start import start_reporters
from core.runs.execute import EXIT_FAILED, execute_stage
from core.store import Store
from core.workspace.manifests import Artifact
from core.workspace.places import guarding_workspaces
from core.workspace.workspace import Workspace


def run_here(
    stage: str,
    config: StageConfig,
    workspace: Workspace,
    run_id: str = "",
    *,
    echo: TextIO | None = None,
) -> Artifact:
    """Runs a stage with a run folder; returns its artifact."""
    record = RunRecord(
        id=run_id or new_run_id(stage),
        stage=stage,
        config=config.without_secrets().model_dump(mode="json"),
        created=time.time(),
        cwd=os.getcwd(),
    )
    with guarding_workspaces():
        workspace.make_root()
        return _run_here(record, config, workspace, echo)


def _run_here(
    record: RunRecord, config: StageConfig, workspace: Workspace, echo: TextIO | None
) -> Artifact:
    folder = RunFolder.of(workspace, record.id)
    folder.write_record(record)
    folder.write_processes(run=ProcessIdentity.of_this())
    store = Store.open(workspace)
    store.add_request("register", {"run": record.id})
    store.close()
    start_reporters(workspace, record.id, config)
    reporter = FolderReporter(folder.path, echo=echo)
    code = EXIT_FAILED
    try:
        with folder.lock():
            artifact = execute_stage(record.stage, config.without_secrets(), workspace, reporter)
        code = 0
        return artifact
    finally:
        reporter.close()
        folder.write_exit(code, None)
