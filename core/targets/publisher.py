"""Publishes a run of this machine to a mirror, in the supervisor's process.

Training never waits for the mirror. If it can't be reached, everything is sent once it can. A newer
claim means that another process has taken over: then the run is killed, and nothing more is
written.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from core.artifacts.checkpoint import (
    CHECKPOINTS_FOLDER,
    checkpoint_name,
    checkpoint_steps,
    checkpoint_words,
    words_name,
)
from core.config.remote import RemoteConfig
from core.errors import StudioError
from core.foreign_files import read_object
from core.messages.system_errors import suppressed_if_full
from core.records.events import LIMIT, STOP_FILE, read_events, read_stop_reason
from core.records.folder import RunFolder, RunRecord
from core.stages.registry import parse_stage_config
from core.targets.blobs import Inputs, collect_inputs, upload_inputs
from core.targets.errors import SupersededError
from core.targets.mirror import Listing, RunMirror
from core.targets.opening import open_store
from core.targets.schema import (
    MOST_LOG_BYTES,
    NEVER_SIGNED,
    CheckpointReference,
    Claim,
    Exit,
    Heartbeat,
    RunSpec,
)
from core.targets.signing import description_keys, machine_keys, run_keys
from core.workspace.atomic import write_atomically
from core.workspace.locks import file_lock
from core.workspace.manifests import MANIFEST_FILE
from core.workspace.workspace import Workspace

SECONDS_PER_ROUND = 5.0
_SEGMENT_BYTES = 1 << 20
_FINISH_WITHIN_SECONDS = 3600.0
_MOST_RETRY_SECONDS = 60.0
STATE_FILE = "mirror.json"
_STAGING = ".mirror"
_LOCK_POLL_SECONDS = 0.5


class Publisher:
    """Publishes one attempt at a run as one incarnation.

    Args:
        address: The mirror's root.
        kill: Ends the run's process at once.
    """

    def __init__(
        self, folder: RunFolder, record: RunRecord, address: str, kill: Callable[[], None]
    ) -> None:
        self._folder = folder
        self._record = record
        root = folder.path.parent.parent
        known = _read_state(folder)
        # A machine signs with the key that it was given.
        keys = machine_keys() if known.get("is_claimed") else run_keys(root, record.id)
        self._mirror = RunMirror(
            open_store(address),
            record.id,
            keys,
            signed_from=int(known.get("signed_from") or NEVER_SIGNED),
        )
        self._kill = kill
        self._claim: Claim | None = None
        self._inputs: Inputs | None = None
        self._offset = 0
        self._segment = 0
        self._unconfirmed = b""
        self._heartbeats = 0
        self._log_sent = b""
        self._stop_version = ""
        self._exit: tuple[int | None, int | None] | None = None
        self._problem = ""
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._sending = threading.Lock()
        self._superseded = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, daemon=True),
            threading.Thread(target=self._send_checkpoints, daemon=True),
        ]

    def start(self) -> None:
        print(f"mirrored at {self._mirror.address}", flush=True)
        for thread in self._threads:
            thread.start()

    def finish(self, code: int | None, signal: int | None) -> None:
        """Sends the rest and the exit status; gives up after an hour without the mirror."""
        self._exit = (code, signal)
        self._ended.set()
        for thread in self._threads:
            thread.join(_FINISH_WITHIN_SECONDS)

    # The thread of events.

    def _work(self) -> None:
        with self._only_publisher():
            has_begun = self._retrying(self._begin)
            self._begun.set()
            if not has_begun:
                return
            while not self._ended.wait(SECONDS_PER_ROUND):
                self._attempt(self._round)
                if self._superseded.is_set():
                    return
            self._threads[1].join(_FINISH_WITHIN_SECONDS)
            self._retrying(self._send_end)

    @contextmanager
    def _only_publisher(self) -> Iterator[None]:
        """Waits for the publisher of an earlier attempt in the same folder."""
        while True:
            with file_lock(self._folder.path / "mirror.lock", wait=False) as held:
                if held:
                    yield
                    return
            time.sleep(_LOCK_POLL_SECONDS)

    def _begin(self) -> None:
        known = _read_state(self._folder)
        self._offset = int(known.get("offset", 0))
        if known.get("is_claimed"):
            self._claim = self._mirror.read_claim(int(known["incarnation"]))
            self._save_state()
            return
        self._inputs = _find_inputs(self._folder, self._record)
        listing = self._mirror.look()
        if not known.get("signed_from"):
            self._mirror.signed_from = listing.newest + 1
        spec = RunSpec(
            id=self._record.id,
            stage=self._record.stage,
            config={**self._record.config, **self._inputs.values},
            created=self._record.created,
            inputs=tuple(self._inputs.inputs),
            signed_from=self._mirror.signed_from,
        )
        keys = description_keys(self._folder.path.parent.parent, make=True)
        self._mirror.write_spec(spec, keys)
        claim = self._mirror.claim(
            self._continued(listing),
            keeps_events=bool(known) and listing.newest == known.get("incarnation"),
            machine=socket.gethostname()[:200],
        )
        if not claim.keeps_events:
            self._offset = 0
        self._claim = claim
        self._save_state()

    def _continued(self, listing: Listing) -> CheckpointReference | None:
        """Returns the newest mirrored checkpoint that this folder has too."""
        steps = {step for step, _ in _local_checkpoints(self._folder)}
        for checkpoint in self._mirror.find_checkpoints(listing):
            if checkpoint.step in steps:
                return CheckpointReference(incarnation=checkpoint.incarnation, step=checkpoint.step)
        return None

    def _round(self) -> None:
        listing = self._mirror.look()
        self._check_current(listing)
        self._send_events()
        self._send_log()
        self._heartbeats += 1
        self._mirror.write_heartbeat(
            self._number, Heartbeat(number=self._heartbeats, time=time.time())
        )
        self._pass_on_stop(listing)

    def _check_current(self, listing: Listing) -> None:
        try:
            self._mirror.check_newest(self._number, listing)
        except SupersededError:
            self._superseded.set()
            self._kill()
            raise

    def _send_events(self) -> None:
        """Sends the events since the last call, in segments.

        A segment whose answer was lost is sent again with the same events, so that it is known.
        """
        with self._sending:
            while data := self._unconfirmed or _complete_lines(self._folder.events, self._offset):
                self._unconfirmed = data
                self._send_segment(data)
                self._offset += len(data)
                self._unconfirmed = b""
                self._save_state()

    def _send_segment(self, data: bytes) -> None:
        while not self._mirror.create_segment(self._number, self._segment, data):
            if self._mirror.read_segment(self._number, self._segment) == data:
                break
            self._segment += 1
        self._segment += 1

    def _send_log(self) -> None:
        tail = self._folder.log_tail(400).encode()[-MOST_LOG_BYTES // 2 :]
        if tail != self._log_sent:
            self._mirror.write_log(self._number, tail)
            self._log_sent = tail

    def _pass_on_stop(self, listing: Listing) -> None:
        version = listing.version(STOP_FILE)
        if not version or version == self._stop_version:
            return
        stop = self._mirror.read_stop()
        if stop and stop.up_to_incarnation >= self._number:
            self._folder.request_stop(stop.mode)
        self._stop_version = version

    def _send_end(self) -> None:
        self._check_current(self._mirror.look())
        self._send_events()
        self._send_log()
        events, _ = read_events(self._folder.events)
        if made := _made_artifact(events):
            self._mirror.upload_artifact(made, self._number)
        code, signal = self._exit or (None, None)
        ended = Exit(
            code=code, signal=signal, time=time.time(), reason=ending_reason(self._folder, events)
        )
        self._mirror.write_exit(self._number, ended)

    # The thread of checkpoints.

    def _send_checkpoints(self) -> None:
        sent: set[int] = set()
        sent_models: set[int] = set()
        while not self._superseded.is_set():
            is_last = self._ended.wait(SECONDS_PER_ROUND)
            if is_last:
                # The run may have ended before the mirror could be reached.
                self._begun.wait(_FINISH_WITHIN_SECONDS)
            if self._claim is not None:
                if self._inputs and self._attempt(self._send_inputs):
                    self._inputs = None
                finish = self._retrying if is_last else self._attempt
                finish(lambda: self._send_newest_checkpoint(sent))
                finish(lambda: self._send_kept_models(sent_models))
            if is_last:
                return

    def _send_inputs(self) -> None:
        """Uploads what another machine needs to go on with the run."""
        assert self._inputs is not None
        upload_inputs(self._mirror.store, self._inputs, None, _no_progress)

    def _send_newest_checkpoint(self, sent: set[int]) -> None:
        local = _local_checkpoints(self._folder)
        newest = next(iter(local), None)
        if newest is None or newest[0] in sent:
            return
        step, path = newest
        listing = self._mirror.look()
        mirrored = {checkpoint.step for checkpoint in self._mirror.find_checkpoints(listing)}
        if step not in mirrored:
            with _staged(self._folder, path) as copy:
                if copy is None:
                    return
                self._send_events()
                self._mirror.upload_checkpoint(copy, self._number, step)
        sent.add(step)
        self._remove_old(listing, {step for step, _ in local})

    def _send_kept_models(self, sent: set[int]) -> None:
        parent = self._folder.path / CHECKPOINTS_FOLDER
        unsent = [words for words in checkpoint_words(parent) if words not in sent]
        mirrored = self._mirror.look().kept_models() if unsent else {}
        for words in unsent:
            if words not in mirrored:
                self._mirror.upload_kept_model(parent / words_name(words), self._number, words)
            sent.add(words)

    def _remove_old(self, listing: Listing, local_steps: set[int]) -> None:
        """Removes mirrored checkpoints of this incarnation that the run has removed."""
        for checkpoint in listing.checkpoints(self._number):
            if checkpoint.step not in local_steps:
                self._mirror.remove_checkpoint(checkpoint)

    # Both.

    @property
    def _number(self) -> int:
        assert self._claim is not None
        return self._claim.incarnation

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Does something once; a failure is printed once and tried again in the next round."""
        try:
            action()
        except SupersededError as error:
            _log(error)
            return False
        except (StudioError, OSError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _log(f"the mirror is behind: {error}")
            return False
        self._problem = ""
        return True

    def _retrying(self, action: Callable[[], None]) -> bool:
        """Does something until it succeeds; False if superseded, or ended an hour ago."""
        wait, deadline = SECONDS_PER_ROUND, 0.0
        while not self._attempt(action):
            if self._ended.is_set():
                deadline = deadline or time.monotonic() + _FINISH_WITHIN_SECONDS
            if self._superseded.is_set() or (deadline and time.monotonic() > deadline):
                return False
            time.sleep(wait)
            wait = min(2 * wait, _MOST_RETRY_SECONDS)
        return True

    def _save_state(self) -> None:
        signed_from = self._mirror.signed_from
        state = {
            "offset": self._offset, "incarnation": self._number, "signed_from": signed_from
        }  # fmt: skip
        write_atomically(self._folder.path / STATE_FILE, json.dumps(state) + "\n")


def _find_inputs(folder: RunFolder, record: RunRecord) -> Inputs:
    """Finds a run's inputs; none if they can't be read, which the run reports."""
    config = parse_stage_config(record.stage, record.config)
    assert isinstance(config, RemoteConfig)
    try:
        with record.in_cwd():
            return collect_inputs(config, Workspace(folder.path.parent.parent))
    except StudioError as error:
        _log(f"the inputs are not mirrored: {error}")
        return Inputs()


def _no_progress(done: int, total: int) -> None:
    """Ignores the progress of an upload in the background."""


def publisher_for(
    folder: RunFolder, record: RunRecord, kill: Callable[[], None]
) -> Publisher | None:
    """Returns the publisher of a run with a mirror; None without, and on all hosts but the first.

    Raises ConfigError for an invalid address.
    """
    address = record.config.get("mirror")
    rank = record.config.get("process_id") or int(os.environ.get("TPU_WORKER_ID") or 0)
    return Publisher(folder, record, str(address), kill) if address and not rank else None


def _complete_lines(path: Path, offset: int) -> bytes:
    """Reads whole lines after an offset, about a segment of them; at least one if there is one."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(_SEGMENT_BYTES)
        if b"\n" not in data:
            data += file.readline()
    return data[: data.rfind(b"\n") + 1]


def _local_checkpoints(folder: RunFolder) -> list[tuple[int, Path]]:
    """Returns steps and folders of the complete checkpoints, newest first."""
    parent = folder.path / CHECKPOINTS_FOLDER
    checkpoints = [(step, parent / checkpoint_name(step)) for step in checkpoint_steps(parent)]
    return [(step, path) for step, path in checkpoints if (path / MANIFEST_FILE).is_file()]


@contextmanager
def _staged(folder: RunFolder, checkpoint: Path) -> Iterator[Path | None]:
    """Yields a copy by hard links, which the run can't remove; None if it was removed already."""
    copy = folder.path / _STAGING / checkpoint.name
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(checkpoint, copy, copy_function=os.link)
    except (OSError, shutil.Error):
        shutil.rmtree(copy, ignore_errors=True)
        if not (checkpoint / MANIFEST_FILE).exists():
            yield None
            return
        shutil.copytree(checkpoint, copy)
    try:
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _made_artifact(events: Sequence[Mapping[str, Any]]) -> Path | None:
    """Returns the folder of the artifact that the newest attempt has made."""
    made: Path | None = None
    for event in events:
        if event["kind"] == "started":
            made = None
        elif event["kind"] == "artifact" and event.get("made", True):
            with suppress(KeyError, TypeError):
                made = Path(event["artifact"]["path"])
    return made if made and (made / MANIFEST_FILE).is_file() else None


def ending_reason(folder: RunFolder, events: Sequence[Mapping[str, Any]]) -> str:
    """Returns why a run ended; if it didn't say, "lost", or "process_lost" on several hosts."""
    last = events[-1] if events else {}
    if last.get("kind") != "finished":
        return "process_lost" if folder.read_record().config.get("num_processes") else "lost"
    reason = str(last.get("reason", ""))
    return LIMIT if reason == "saved" and read_stop_reason(folder.stop_file) == LIMIT else reason


def write_signed_from(folder: RunFolder, signed_from: int) -> None:
    """Keeps the first incarnation of a mirror that has to be signed."""
    state = {**_read_state(folder), "signed_from": signed_from}
    write_atomically(folder.path / STATE_FILE, json.dumps(state) + "\n")


def _read_state(folder: RunFolder) -> dict[str, Any]:
    return read_object(folder.path / STATE_FILE)


def _log(message: object) -> None:
    """Prints; a thread that ended here would leave the mirror without events and without an end."""
    with suppressed_if_full():
        print(message, file=sys.stderr, flush=True)
