"""Executes a run on this machine, from what its mirror holds.

`core/targets/bootstrap.py` starts `python -m core.targets.machine`. On a slice of several hosts, it
runs on each: host 0 claims the incarnation and writes the mirror, and the others start from the
checkpoint that this claim names.

Exit codes: 0 the run has ended, 75 another launch can go on from its last checkpoint, others: the
run failed.

Environment: with STUDIO_MACHINE_ONCE, a launch that has claimed an incarnation isn't executed
again; targets that restart jobs by themselves set it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

from core.artifacts.checkpoint import CHECKPOINTS_FOLDER
from core.config.remote import RemoteConfig
from core.errors import ConfigError, StudioError
from core.messages.redaction import hide_secrets_in_output
from core.processes.children import module_command, with_module_paths
from core.records.events import read_events
from core.records.folder import RunFolder, RunRecord
from core.stages.registry import parse_stage_config, title_of_stage
from core.targets.blobs import place_inputs
from core.targets.errors import MirrorError, TargetError, UnavailableError
from core.targets.mirror import Listing, RunMirror, StoredCheckpoint
from core.targets.opening import open_store
from core.targets.publisher import STATE_FILE, ending_reason
from core.targets.schema import AGAIN, NEVER_SIGNED, CheckpointReference, Claim, RunSpec
from core.targets.signing import machine_keys
from core.workspace.atomic import write_atomically
from core.workspace.places import make_folder, private_files
from core.workspace.workspace import Workspace

_T = TypeVar("_T")

ONCE_VARIABLE = "STUDIO_MACHINE_ONCE"
EXIT_AGAIN = 75
# Time for the last checkpoint before the limit: a tenth of it, at most five minutes.
_SAVING_SHARE = 0.1
_MOST_SAVING_SECONDS = 300.0
_CLAIM_WITHIN_SECONDS = 1800.0
_POLL_SECONDS = 2.0
# A job that requeues itself at its limit of time would do so for ever.
_MOST_FRUITLESS_RESTARTS = 3
_TRIES = 30


def main(arguments: list[str] | None = None) -> int:
    started = time.monotonic()
    options = _parser().parse_args(arguments)
    home = Path(os.environ.get("STUDIO_MACHINE_HOME") or "~/.pretrain-studio").expanduser()
    workspace = Workspace(home / "runs" / f"{options.run}-{options.launch}-{options.host}")
    # A process of this launch that was killed with its machine may have left a part of it.
    shutil.rmtree(workspace.root, ignore_errors=True)
    make_folder(workspace.root)
    with private_files(workspace.root):
        try:
            return _execute(options, workspace, home / "blobs", started)
        except StudioError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return error.exit_code
        finally:
            shutil.rmtree(workspace.root, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m core.targets.machine")
    parser.add_argument("--mirror", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--launch", type=int, required=True)
    parser.add_argument("--spec", default="", help="SHA-256 of the run's description")
    parser.add_argument("--host", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--coordinator", default="")
    parser.add_argument("--restart", type=int, default=0, help="restarts of this launch before")
    parser.add_argument("--seconds", type=float, default=0.0, help="limit; 0: none")
    return parser


def _execute(options: argparse.Namespace, workspace: Workspace, cache: Path, started: float) -> int:
    mirror = RunMirror(open_store(options.mirror), options.run, machine_keys())
    print("studio: fetching inputs", flush=True)
    spec = _patiently(partial(mirror.read_spec, options.spec))
    mirror.signed_from = spec.signed_from or NEVER_SIGNED
    placed = _patiently(lambda: place_inputs(mirror.store, spec.inputs, workspace, cache))
    config = _config(spec, placed)
    folder = RunFolder.of(workspace, spec.id)
    make_folder(folder.path)
    claim = _claim(mirror, folder, options)
    values = {
        **config.model_dump(mode="json"),
        "mirror": options.mirror,
        **_several_hosts(options),
    }
    folder.write_record(RunRecord(spec.id, spec.stage, values, created=spec.created))
    state = {
        "offset": 0, "incarnation": claim.incarnation, "is_claimed": True,
        "signed_from": mirror.signed_from,
    }  # fmt: skip
    write_atomically(folder.path / STATE_FILE, json.dumps(state) + "\n")
    print(f"studio: {title_of_stage(spec.stage).lower()}", flush=True)
    _supervise(folder, options.seconds - (time.monotonic() - started) if options.seconds else 0.0)
    return _exit_code(folder)


def _config(spec: RunSpec, inputs: dict[str, object]) -> RemoteConfig:
    """Returns the config for this machine; raises ConfigError for a stage that stays at home."""
    config = parse_stage_config(spec.stage, {**spec.config, **inputs})
    if isinstance(config, RemoteConfig):
        return config
    raise ConfigError(
        "The run can't be executed on this machine",
        expected="a run of a stage with the option ⟬target⟭",
        received=f"a run of the stage {spec.stage}",
        fix="run this stage where its corpus is",
    )


def _several_hosts(options: argparse.Namespace) -> dict[str, object]:
    if options.hosts == 1:
        return {}
    return {
        "num_processes": options.hosts,
        "process_id": options.host,
        "coordinator_address": options.coordinator,
    }


# The claim and the checkpoint.


def _claim(mirror: RunMirror, folder: RunFolder, options: argparse.Namespace) -> Claim:
    """Claims the next incarnation, or waits for host 0's claim; restores its checkpoint."""
    if options.host:
        claim = _wait_for_claim(mirror, options.launch, options.restart)
        if claim.continues:
            listing = _patiently(mirror.look)
            wanted = claim.continues
            checkpoints = [
                checkpoint
                for checkpoint in listing.checkpoints(wanted.incarnation)
                if checkpoint.step == wanted.step
            ]
            _restore(mirror, folder, checkpoints, must=True)
        return claim
    listing = _patiently(mirror.look)
    if os.environ.get(ONCE_VARIABLE):
        _refuse_second_start(mirror, listing, options.launch)
    restored = _restore(mirror, folder, _patiently(lambda: mirror.find_checkpoints(listing)))
    continues = restored and CheckpointReference(
        incarnation=restored.incarnation, step=restored.step
    )
    if options.restart:
        _check_fruitful(mirror, listing, options.launch, restored.step if restored else -1)
    return _patiently(
        lambda: mirror.claim(
            continues or None,
            machine=socket.gethostname()[:200],
            launch=options.launch,
            restart=options.restart,
        )
    )


def _refuse_second_start(mirror: RunMirror, listing: Listing, launch: int) -> None:
    """Raises SupersededError if this launch or a later one has claimed an incarnation."""
    if listing.newest:
        claim = _patiently(partial(mirror.read_claim, listing.newest))
        if claim.launch >= launch:
            raise mirror.superseded(f"a claim of launch {claim.launch}; this is launch {launch}")


def _check_fruitful(mirror: RunMirror, listing: Listing, launch: int, step: int) -> None:
    """Raises TargetError if restart after restart of this launch gives no checkpoint."""
    numbers = range(listing.newest, max(0, listing.newest - _MOST_FRUITLESS_RESTARTS), -1)
    claims = [_patiently(partial(mirror.read_claim, number)) for number in numbers]
    begun = [claim.continues.step if claim.continues else -1 for claim in claims]
    is_fruitless = all(claim.launch == launch for claim in claims) and set(begun) == {step}
    if len(claims) == _MOST_FRUITLESS_RESTARTS and is_fruitless:
        raise TargetError(
            f"{_MOST_FRUITLESS_RESTARTS} jobs in a row have given no new checkpoint",
            expected="a job that trains at least until its first checkpoint",
            received=f"step {max(step, 0)} after each of them",
            fix="give each job more time, or save more often (⟬save_steps⟭)",
        )


def _restore(
    mirror: RunMirror, folder: RunFolder, checkpoints: list[StoredCheckpoint], *, must: bool = False
) -> StoredCheckpoint | None:
    """Downloads the first of these checkpoints that is whole."""
    parent = folder.path / CHECKPOINTS_FOLDER
    for checkpoint in checkpoints:
        try:
            _patiently(partial(mirror.fetch_checkpoint, checkpoint, parent))
        except MirrorError as error:
            if must:
                raise
            print(error, file=sys.stderr, flush=True)
        else:
            return checkpoint
    return None


def _wait_for_claim(mirror: RunMirror, launch: int, restart: int) -> Claim:
    """Waits until host 0 of this launch, or of its restart, has claimed an incarnation."""
    deadline = time.monotonic() + _CLAIM_WITHIN_SECONDS
    while time.monotonic() < deadline:
        listing: Listing = _patiently(mirror.look)
        if listing.newest:
            claim = _patiently(partial(mirror.read_claim, listing.newest))
            if (claim.launch, claim.restart) == (launch, restart):
                return claim
            if (claim.launch, claim.restart) > (launch, restart):
                raise mirror.superseded(f"launch {claim.launch}")
        time.sleep(_POLL_SECONDS)
    raise UnavailableError(
        "The first host of this slice has not started",
        expected=f"its claim within {_CLAIM_WITHIN_SECONDS / 60:.0f} minutes",
        fix="read the log of host 0; the run is launched again",
    )


def _patiently(action: Callable[[], _T]) -> _T:
    """Tries something again while the mirror can't be reached, for some minutes."""
    for left in reversed(range(_TRIES)):
        try:
            return action()
        except UnavailableError as error:
            if not left:
                raise
            print(f"trying again after: {error}", file=sys.stderr, flush=True)
            time.sleep(min(_POLL_SECONDS * (_TRIES - left), 30.0))
    raise AssertionError("unreachable")


# The run.


def _supervise(folder: RunFolder, seconds: float) -> None:
    """Runs the supervisor until it ends; asks the run to save before the limit of its time."""
    command = module_command("core.runs.supervisor", folder.path)
    # The publisher sends the end of this file to the mirror.
    with folder.log.open("ab") as file:
        supervisor = subprocess.Popen(
            command,
            env=with_module_paths(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )

    def pass_on(_: int, __: FrameType | None) -> None:
        supervisor.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)
    timer = threading.Timer(_seconds_until_saving(seconds), folder.request_stop, ["save", "limit"])
    timer.daemon = True
    if seconds:
        timer.start()
    log = threading.Thread(target=_show_log, args=(folder, supervisor), daemon=True)
    log.start()
    supervisor.wait()
    timer.cancel()
    log.join(5.0)


def _seconds_until_saving(seconds: float) -> float:
    return max(1.0, seconds - min(_SAVING_SHARE * seconds, _MOST_SAVING_SECONDS))


def _show_log(folder: RunFolder, supervisor: subprocess.Popen[bytes]) -> None:
    """Prints what the run prints, for those who look at the machine's own log."""
    position = 0
    while True:
        is_over = supervisor.poll() is not None
        if folder.log.exists():
            with folder.log.open("rb") as file:
                file.seek(position)
                data = file.read()
            position += len(data)
            sys.stdout.write(data.decode("utf-8", "replace"))
            sys.stdout.flush()
        if is_over:
            return
        time.sleep(1.0)


def _exit_code(folder: RunFolder) -> int:
    events, _ = read_events(folder.events)
    reason = ending_reason(folder, events)
    if reason in AGAIN:
        return EXIT_AGAIN
    last = events[-1] if events else {}
    return 1 if last.get("state") == "failed" else 0


if __name__ == "__main__":
    hide_secrets_in_output(is_log=True)
    sys.exit(main())
