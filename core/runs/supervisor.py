"""Waits for one run's process, outliving the worker, and records its exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from core.errors import StudioError
from core.messages.redaction import hide_secrets_in_output
from core.processes.children import module_command, with_module_paths
from core.processes.cores import thread_settings
from core.processes.environment import for_isolated_runs, for_runs
from core.records.events import read_stop
from core.records.folder import RunFolder, RunRecord
from core.records.process import ProcessIdentity
from core.reporting.start import start_reporters_of
from core.workspace.places import (
    WorkspaceMovedError,
    find_new_location,
    forget_workspace,
    guarding_workspaces,
    make_folder,
    private_files,
    register_root,
    user_umask,
)

if TYPE_CHECKING:
    from core.targets.publisher import Publisher

ABORT_GRACE_SECONDS = 15.0
_POLL_SECONDS = 0.1
_RETRY_SECONDS = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the folder's stage in a child process."""
    folder = RunFolder(Path((arguments or sys.argv[1:])[0]).absolute())
    with guarding_workspaces():
        register_root(folder.path.parent.parent)
        with private_files(folder.path.parent.parent):
            return _supervise(folder)


def _supervise(folder: RunFolder) -> int:
    record = folder.read_record()
    child = subprocess.Popen(
        module_command("core.runs.execute", folder.path),
        stdin=subprocess.DEVNULL,
        env=with_module_paths({**thread_settings(), **_environment(folder, record)}),
        umask=user_umask(),
    )
    _pass_on_sigterm(child)
    if not record.is_isolated:
        start_reporters_of(folder, record)
    try:
        folder.write_processes(
            run=ProcessIdentity.of(child.pid), supervisor=ProcessIdentity.of_this()
        )
    except OSError:
        # Otherwise the run would be started twice.
        child.kill()
        raise
    finally:
        publisher = _start_publisher(folder, record, child)
        code = _wait(child, folder)
        _write_exit(folder, code)
        if publisher:
            publisher.finish(*_code_and_signal(code))
    return 0


def _environment(folder: RunFolder, record: RunRecord) -> dict[str, str]:
    """Returns the variables of the run's process."""
    if record.is_isolated:
        home = folder.isolated_workspace().root / "home"
        make_folder(home)
        return for_isolated_runs(os.environ, home)
    return {**for_runs(os.environ), **record.environment}


def _start_publisher(
    folder: RunFolder, record: RunRecord, child: subprocess.Popen[bytes]
) -> Publisher | None:
    if not record.config.get("mirror") or record.is_isolated:
        return None
    # Most runs have no mirror.
    from core.targets.publisher import publisher_for

    os.environ.update(record.environment)
    try:
        publisher = publisher_for(folder, record, child.kill)
    except StudioError as error:
        print(f"the run is not mirrored: {error}", file=sys.stderr, flush=True)
        return None
    if publisher:
        publisher.start()
    return publisher


def _code_and_signal(code: int) -> tuple[int | None, int | None]:
    return (code, None) if code >= 0 else (None, -code)


def _write_exit(folder: RunFolder, code: int) -> None:
    """Writes `exit.json`, if necessary after waiting for disk space."""
    while folder.path.exists():
        try:
            folder.write_exit(*_code_and_signal(code))
            return
        except WorkspaceMovedError:
            root = folder.path.parent.parent
            moved = find_new_location(root)
            if not moved:
                return
            forget_workspace(root)
            folder = RunFolder(moved / folder.path.relative_to(root))
        except OSError:
            time.sleep(_RETRY_SECONDS)


def _wait(child: subprocess.Popen[bytes], folder: RunFolder) -> int:
    abort_asked = 0.0
    while (code := child.poll()) is None:
        time.sleep(_POLL_SECONDS)
        if read_stop(folder.stop_file) != "abort":
            continue
        abort_asked = abort_asked or time.monotonic()
        if time.monotonic() - abort_asked > ABORT_GRACE_SECONDS:
            child.kill()
    return code


def _pass_on_sigterm(child: subprocess.Popen[bytes]) -> None:
    def pass_on(_: int, __: FrameType | None) -> None:
        child.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)


if __name__ == "__main__":
    hide_secrets_in_output(is_log=True)
    sys.exit(main())
