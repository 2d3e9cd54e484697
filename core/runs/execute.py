"""Runs one stage and reports the outcome, without queue or database."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from core.config.base import StageConfig
from core.errors import StudioError
from core.messages.redaction import hide_secrets_in_output
from core.messages.system_errors import advice_for
from core.network.outbound import distrust_callers
from core.records.events import FolderReporter, RunStopped, is_out_of_memory
from core.records.folder import RunFolder
from core.records.process import ProcessIdentity
from core.stages.registry import find_stage, load_further_stages, parse_stage_config, stage_function
from core.workspace.manifests import Artifact
from core.workspace.places import (
    WorkspaceMovedError,
    check_not_moved,
    guarding_workspaces,
    private_files,
)
from core.workspace.workspace import Workspace

EXIT_FAILED = 1


def execute_stage(
    stage: str, config: StageConfig, workspace: Workspace, reporter: FolderReporter
) -> Artifact:
    """Runs a stage and reports its events."""
    reporter.event("started", stage=stage, process=ProcessIdentity.of_this().to_json())
    try:
        artifact = stage_function(stage)(config, workspace, reporter)
    except RunStopped as stopped:
        reporter.event("finished", state="stopped", reason=_stop_reason(stopped, reporter))
        raise
    except KeyboardInterrupt:
        reporter.event("finished", state="stopped", reason="aborted")
        raise
    except BaseException as error:
        cause = _moved(workspace) or error
        reporter.event("finished", state="failed", **describe_failure(cause))
        if cause is not error:
            raise cause from error
        raise
    # Only rank 0 of several hosts has it.
    if artifact.path.exists():
        made = find_stage(stage).makes_artifact(config)
        reporter.event("artifact", made=made, **describe_artifact(artifact))
    reporter.event("finished", state="done", reason="", results=artifact.manifest.counts)
    return artifact


def _moved(workspace: Workspace) -> WorkspaceMovedError | None:
    """Finds a moved workspace, which explains any other error."""
    try:
        check_not_moved(workspace.root)
    except WorkspaceMovedError as error:
        return error
    return None


def _stop_reason(stopped: RunStopped, reporter: FolderReporter) -> str:
    if reporter.is_preempted():
        return "preempted"
    return "saved" if stopped.mode == "save" else "aborted"


def describe_artifact(artifact: Artifact) -> dict[str, Any]:
    manifest = artifact.manifest
    return {
        "artifact": {
            "kind": manifest.kind,
            "name": manifest.name,
            "path": str(artifact.path),
            "fingerprint": manifest.fingerprint,
            "created": manifest.created,
            "counts": manifest.counts,
        }
    }


def describe_failure(error: BaseException) -> dict[str, Any]:
    """Returns the reason and error of a `finished` event."""
    if isinstance(error, StudioError):
        return {"reason": error.reason or type(error).__name__, "error": error.to_dict()}
    if advice := advice_for(error):
        explained = StudioError(
            advice.problem, expected=advice.expected, received=advice.received, fix=advice.fix
        )
        return {"reason": advice.reason or "system", "error": explained.to_dict()}
    for reason, is_known in _KNOWN.items():
        if is_known(error):
            known = StudioError(_PROBLEMS[reason], received=_short(error), fix=ADVICE[reason])
            return {"reason": reason, "error": known.to_dict()}
    unknown = StudioError(
        "The stage failed with an unexpected error",
        received=f"{type(error).__name__}: {_short(error)}",
        fix="read the end of the log; this error is unexpected",
    )
    return {"reason": "error", "error": unknown.to_dict()}


def _is_data_missing(error: BaseException) -> bool:
    return isinstance(error, FileNotFoundError)


_KNOWN = {
    "out_of_memory": is_out_of_memory,
    "data_missing": _is_data_missing,
}
_PROBLEMS = {
    "out_of_memory": "The run ran out of memory",
    "data_missing": "A file that this run reads is missing",
}
ADVICE = {
    "disk_full": "free disk space (delete artifacts or runs), then resume the run",
    "out_of_memory": "use a smaller batch, shorter sequences or a smaller model",
    "data_missing": "restore the file, or choose an existing one, then resume the run",
    "process_lost": "check the logs of the other hosts, then start the run again on all hosts, "
    "or on another number of hosts; it resumes from its last checkpoint",
}


def _short(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text if len(text) <= 500 else text[:500] + "…"


def main(arguments: list[str] | None = None) -> int:
    folder = RunFolder(Path((arguments or sys.argv[1:])[0]).absolute())
    load_further_stages()
    distrust_callers()
    with guarding_workspaces():
        workspace = Workspace(folder.path.parent.parent)
        with private_files(workspace.root):
            return _execute(folder, workspace)


def _execute(folder: RunFolder, workspace: Workspace) -> int:
    with folder.lock():
        record = folder.read_record()
        if record.is_isolated:
            workspace = folder.isolated_workspace()
        elif record.cwd and Path(record.cwd).is_dir():
            os.chdir(record.cwd)
        reporter = FolderReporter(folder.path)
        _stop_on_sigterm(reporter)
        try:
            config = parse_stage_config(record.stage, record.config)
            execute_stage(record.stage, config, workspace, reporter)
        except RunStopped:
            return EXIT_FAILED
        except StudioError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return error.exit_code
        except Exception:  # noqa: BLE001 -- the process ends here; the traceback goes to the log
            traceback.print_exc()
            return EXIT_FAILED
        finally:
            reporter.close()
    return 0


def _stop_on_sigterm(reporter: FolderReporter) -> None:
    def stop(_: int, __: FrameType | None) -> None:
        reporter.preempt()

    signal.signal(signal.SIGTERM, stop)


if __name__ == "__main__":
    hide_secrets_in_output(is_log=True)
    sys.exit(main())
