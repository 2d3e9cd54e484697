"""Starts a run's reporters: one process per service, which outlives its parent."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

from core.config.base import StageConfig
from core.config.options import split_names
from core.processes.children import module_command, with_module_paths
from core.processes.environment import WEBHOOK_VARIABLE, for_reporters
from core.records.folder import RunFolder, RunRecord
from core.workspace.places import user_umask
from core.workspace.workspace import Workspace

WEBHOOK = "webhook"
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def start_reporters(workspace: Workspace, run_id: str, config: StageConfig) -> None:
    """Starts the reporters of a run that was just submitted, with this process's environment.

    Here and not only in the supervisor: tokens of this environment, and a typed webhook, are
    stored nowhere.
    """
    services = _services(getattr(config, "report_to", ""))
    webhook = str(getattr(config, "webhook", ""))
    if (services or hasattr(config, "webhook")) and _is_isolated(workspace, run_id):
        return
    for service in services:
        _start(RunFolder.of(workspace, run_id), service, dict(os.environ))
    if webhook or (hasattr(config, "webhook") and os.environ.get(WEBHOOK_VARIABLE)):
        _start(RunFolder.of(workspace, run_id), WEBHOOK, dict(os.environ), webhook)


def _is_isolated(workspace: Workspace, run_id: str) -> bool:
    folder = RunFolder.of(workspace, run_id)
    return folder.is_there() and folder.read_record().is_isolated


def start_reporters_of(folder: RunFolder, record: RunRecord) -> None:
    """Starts the reporters of a run that begins; one that runs already stays alone."""
    if record.follows:
        return  # Its own workspace reports it.
    environment = {**os.environ, **record.environment}
    for service in _services(str(record.config.get("report_to", ""))):
        _start(folder, service, environment)
    if "webhook" in record.config and os.environ.get(WEBHOOK_VARIABLE):
        _start(folder, WEBHOOK, environment)


def _services(names: str) -> list[str]:
    return list(dict.fromkeys(split_names(names)))


def _start(folder: RunFolder, service: str, environment: dict[str, str], webhook: str = "") -> None:
    """Starts one reporter; a failure is only logged."""
    selected = with_module_paths({**for_reporters(environment, service), **_THREADS})
    try:
        log = (folder.path / f"report-{service}.log").open("ab")
    except OSError:
        return
    try:
        with log:
            process = subprocess.Popen(
                module_command("core.reporting.reporter", folder.path, service),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=selected,
                umask=user_umask(),
            )
        _children[:] = [child for child in _children if child.poll() is None]
        _children.append(process)
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(webhook.encode())
    except OSError as error:
        note(folder, service, f"not started: {error}")


def note(folder: RunFolder, service: str, text: str) -> None:
    """Appends a note to the run's log, in vain if the disk is full."""
    from core.messages.redaction import redact

    with suppress(OSError), folder.log.open("a", encoding="utf-8", errors="replace") as log:
        log.write(f"note: reporting to {service}: {redact(text)}\n")


# Polling them avoids zombies.
_children: list[subprocess.Popen[bytes]] = []
