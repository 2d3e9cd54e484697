"""Follows a run on another machine: copies what its mirror holds into the run's folder here.

The worker starts `python -m core.targets.follower FOLDER` and restarts it if it dies. It takes the
supervisor's place: it appends events, passes on requests to stop, fetches the checkpoint and the
artifact, and writes `exit.json` at the end. The run on the other machine doesn't depend on it.

Each copied event names its place in the mirror, so that a restarted follower copies none twice.
Incarnations are read in order and never again once a newer one was begun.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from core.artifacts.checkpoint import (
    CHECKPOINTS_FOLDER,
    checkpoint_name,
    checkpoint_steps,
    words_name,
)
from core.config.targets import place_of_target
from core.config.train import TrainConfig
from core.config.word_marks import parse_word_marks
from core.errors import StudioError
from core.messages.redaction import hide_secrets_in_output
from core.network.outbound import distrust_callers
from core.processes.interruption import interrupted_by
from core.records.events import LIMIT, EventLog, StopMode, iterate_events, read_phases, read_stop
from core.records.folder import EXIT_UNUSABLE, RunFolder
from core.records.process import ProcessIdentity
from core.reporting.start import start_reporters_of
from core.stages.registry import (
    artifact_kind_of,
    load_further_stages,
    parse_stage_config,
    title_of_stage,
)
from core.targets.errors import MirrorError, NoRoomError, TargetError, UnavailableError
from core.targets.mirror import Listing, RunMirror, exit_name, heartbeat_name, log_name
from core.targets.phases import CHECKING, MOST_UNREACHABLE_SECONDS, UPLOADING, limit_of, name_of
from core.targets.received import is_hub_name
from core.targets.schema import (
    AGAIN,
    INPUT_FIELDS,
    MOST_EVENTS_BYTES,
    Exit,
    StopRequest,
    parse_events,
)
from core.workspace.atomic import write_atomically
from core.workspace.kinds import EVALUATION
from core.workspace.manifests import Artifact
from core.workspace.places import (
    WorkspaceMovedError,
    check_not_moved,
    guarding_workspaces,
    private_files,
)
from core.workspace.workspace import Workspace

if TYPE_CHECKING:
    from core.targets.launcher import Launcher

SECONDS_PER_ROUND = 3.0
SILENT_AFTER_SECONDS = 90.0
_FETCH_EVERY_SECONDS = 600.0
_MOST_RETRY_SECONDS = 60.0
# An aborted run whose machine can't be reached is left.
_ABORT_UNREACHABLE_SECONDS = 15.0
_LOOK_SECONDS = 0.3
_FIGURES_EVERY_SECONDS = 30.0
# A machine that doesn't abort within this time is deleted.
_ABORT_WITHIN_SECONDS = 60.0
_BEFORE_THE_FIRST_STEP = -1
_BYTES_PER_ROUND = 8 << 20
_HELD = ("artifact", "finished")


class _Stopped(BaseException):
    """A stop was requested while something blocked; nothing has been launched."""


class Follower:
    """Copies one run.

    Args:
        folder: The run's folder, whose record names the mirror.
        mirror: The mirror, if it is known already.
    """

    def __init__(
        self, folder: RunFolder, workspace: Workspace, mirror: RunMirror | None = None
    ) -> None:
        self._folder = folder
        self._workspace = workspace
        self._record = folder.read_record()
        self._known_mirror = mirror
        self._work = title_of_stage(self._record.stage).lower()
        # A run that is only followed never launches a machine, whatever its config says.
        is_launched = bool(self._record.target) and not self._record.follows
        self._incarnation, self._segment, self._line = _position(folder)
        self._events = EventLog(folder.events)
        self._held: list[dict[str, Any]] = []
        self._bytes = 0
        self._phase, self._since = _last_phase(folder)
        self._launcher = self._make_launcher() if is_launched else None
        self._log_version = ""
        self._heartbeat = ("", time.monotonic())
        self._is_silent = False
        self._stop_sent: StopMode | None = None
        self._stop_sent_at = 0.0
        self._fetched_at = 0.0
        self._figures: dict[str, Any] = {}
        self._figures_at = 0.0
        self._reported_at = 0.0
        self._round_began = self._failing_since = 0.0
        self._is_finishing = False

    def follow(self) -> int:
        """Copies until the run has ended; returns EXIT_UNUSABLE if another machine is to go on.

        A target or mirror that can't be reached is waited for as long as a machine may be at work,
        else for some minutes.
        """
        wait, self._failing_since, problem = SECONDS_PER_ROUND, 0.0, ""
        while True:
            self._round_began = time.monotonic()
            try:
                with interrupted_by(self._interrupt):
                    if self._round():
                        break
                wait, self._failing_since, problem = SECONDS_PER_ROUND, 0.0, ""
            except WorkspaceMovedError:
                raise
            except _Stopped:
                self._stop_without_machine()
                break
            except StudioError as error:
                self._failing_since = self._failing_since or self._round_began
                if self._is_unusable(error):
                    self._events.close()
                    return EXIT_UNUSABLE
                if not self._may_wait(error):
                    self._refuse(error)
                    break
                if self._is_left():
                    self._leave(error)
                    break
                if str(error) != problem:
                    self._tell(error)
                problem, wait = str(error), min(2 * wait, _MOST_RETRY_SECONDS)
            except OSError as error:
                # Such as a full disk. A machine at work isn't left alone because of it.
                if str(error) != problem:
                    print(f"trying again after: {error}", file=sys.stderr, flush=True)
                problem, wait = str(error), min(2 * wait, _MOST_RETRY_SECONDS)
            self._pause(wait)
        self._events.close()
        return 0

    def _is_unusable(self, error: StudioError) -> bool:
        """Returns whether the run leaves its machine, which is said then."""
        launcher = self._launcher
        is_early = self._known_mirror is None or (launcher and launcher.state.current)
        if launcher is None or not is_early or read_stop(self._folder.stop_file):
            return False
        if not launcher.is_unusable(error, time.monotonic() - self._failing_since):
            return False
        launcher.leave()
        self._tell(error)
        return True

    def _check_reachable(self) -> None:
        """Raises the target's error if the mirror doesn't show either that the machine works."""
        if self._launcher and not read_stop(self._folder.stop_file):
            self._launcher.check_reachable()

    def _restart(self) -> None:
        """Begins to copy another mirror; what was copied before doesn't count."""
        message = f"The run starts over on {place_of_target(self._record.target)}: its checkpoints "
        self._events.append("warning", message=f"{message}lie on a machine that can't be used")
        self._incarnation = self._segment = self._line = 0
        self._held = []
        self._append({"kind": "resumed", "t": time.time(), "step": _BEFORE_THE_FIRST_STEP}, (0, -1))

    def _interrupt(self) -> None:
        """Ends a call that blocks, if nothing is launched: at a stop, and after some minutes."""
        if self._launcher is None or self._launcher.state.current is not None:
            return
        if self._is_finishing or self._launcher.has_ended:
            return
        waited = time.monotonic() - self._round_began
        if waited > _LOOK_SECONDS and read_stop(self._folder.stop_file):
            raise _Stopped
        phase = self._phase[0]
        if phase == UPLOADING:
            waited = time.monotonic() - max(self._round_began, self._reported_at)
        limit = limit_of(phase)
        if phase in (CHECKING, UPLOADING) and limit and waited > limit:
            raise _no_answer(self._record.target, phase, limit)

    def _pause(self, seconds: float) -> None:
        """Waits, until a stop is requested."""
        mode, end = read_stop(self._folder.stop_file), time.monotonic() + seconds
        while time.monotonic() < end and read_stop(self._folder.stop_file) == mode:
            time.sleep(min(_LOOK_SECONDS, seconds))

    def _is_left(self) -> bool:
        """Returns whether a stopped run is left though its mirror can't be reached."""
        mode = read_stop(self._folder.stop_file)
        waited = time.monotonic() - self._failing_since
        is_given_up = mode == "abort" or (bool(mode) and self._launcher is None)
        return is_given_up and waited > _ABORT_UNREACHABLE_SECONDS

    def _leave(self, error: StudioError) -> None:
        """Ends the run here; its machine, if it has one, may go on."""
        if self._launcher:
            message = f"The machine could not be told to stop. {error} List it with: studio targets"
            self._events.append("warning", message=message, alert="unreachable")
            self._launcher.give_up(0)
            self._launcher = None
        self._stop_without_machine()

    def _tell(self, error: StudioError) -> None:
        """Shows an error that is waited out: on the page, and in the run's log."""
        print(error, file=sys.stderr, flush=True)
        with suppress(OSError), self._folder.log.open("a", encoding="utf-8") as log:
            log.write(f"trying again after: {error}\n")
        with suppress(OSError):
            self._events.append("warning", message=f"{error}", alert="unreachable")

    def _may_wait(self, error: StudioError) -> bool:
        """Returns whether a later try may succeed, such as after a new login.

        A machine at work isn't given up because its target or its mirror refuses this computer.
        """
        if isinstance(error, UnavailableError | NoRoomError):
            waited = time.monotonic() - self._failing_since
            is_early = self._launcher is not None and self._launcher.state.current is None
            patience = self._launcher.patience if self._launcher else 0.0
            return not is_early or waited < max(MOST_UNREACHABLE_SECONDS, patience)
        is_refused = isinstance(error, TargetError) and not isinstance(error, MirrorError)
        return is_refused and self._launcher is not None and self._launcher.has_machine

    def copy_events(self) -> None:
        """Copies the events that the mirror has now."""
        self._open_mirror()
        while not self._copy_events(self._mirror.look()):
            continue
        self._events.close()

    def _make_launcher(self) -> Launcher:
        # Imported here because the runs that are only followed need no launcher.
        from core.targets.launcher import Launcher

        return Launcher(
            self._folder,
            self._workspace,
            self._record,
            self._enter,
            self._report,
            self._phase_began,
            self._restart,
            self._phase[0],
        )

    def _phase_began(self, phase: str) -> float:
        """Returns when the reported phase began, as the page shows it; now for another phase."""
        is_reported = name_of(phase) == name_of(self._phase[0])
        return self._since if is_reported else time.time()

    @property
    def _mirror(self) -> RunMirror:
        assert self._known_mirror is not None
        return self._known_mirror

    def _open_mirror(self) -> None:
        if self._known_mirror is None:
            launcher = self._launcher
            follows = self._record.follows
            self._known_mirror = launcher.prepare() if launcher else RunMirror.open(follows)

    def _round(self) -> bool:
        """Copies what is new; returns True if the run has ended."""
        check_not_moved(self._folder.path)
        launcher = self._launcher
        if launcher and launcher.has_ended:
            self._folder.write_exit(launcher.state.exit_code, None)
            return True
        if launcher and launcher.state.current is None and read_stop(self._folder.stop_file):
            return self._stop_without_machine()
        self._open_mirror()
        listing = self._mirror.look()
        newest = listing.newest
        # Read before the machine's state: a run that has ended is not launched again.
        ended = self._read_exit(listing)
        is_over = ended is not None and ended.reason not in AGAIN
        if launcher and not is_over and (why := self._keep_machine(launcher, listing)):
            while not self._copy_events(listing):
                continue
            self._fetch_checkpoint(listing)
            return self._stop_without_machine(why)
        if not newest:
            self._check_reachable()
            self._enter(launcher.phase() if launcher else "waiting for the machine", 0)
            return self._is_given_up(0)
        # The exit comes after all events, but the listing may have been made in between.
        if ended:
            listing = self._mirror.look()
        if listing.newest > newest:
            return False
        has_all = self._copy_events(listing)
        self._copy_log(listing)
        self._pass_on_stop(newest)
        if not has_all:
            return False
        if ended and ended.reason not in AGAIN:
            self._end(listing, ended)
            return True
        has_exited = ended is not None or bool(launcher and launcher.waits_after(newest))
        if has_exited or (launcher and launcher.incarnations_before >= newest):
            self._check_reachable()
            self._enter_between(newest, preempted=ended is not None)
            return self._is_given_up(newest, has_exited=has_exited)
        self._watch_heartbeat(listing)
        if self._is_silent:
            self._check_reachable()
        if time.monotonic() - self._fetched_at > _FETCH_EVERY_SECONDS:
            self._fetch_checkpoint(listing)
        return (self._is_silent or launcher is not None) and self._is_given_up(newest)

    def _read_exit(self, listing: Listing) -> Exit | None:
        """Reads the newest incarnation's exit, unless an earlier launch made it."""
        newest, launcher = listing.newest, self._launcher
        if not newest or not listing.version(exit_name(newest)):
            return None
        if launcher and launcher.incarnations_before >= newest:
            return None
        return self._mirror.read_exit(newest)

    def _keep_machine(self, launcher: Launcher, listing: Listing) -> str:
        """Keeps a machine at work; returns why the run ends without one, or ""."""
        checkpoints = self._mirror.find_checkpoints(listing) if listing.newest else []
        # A count would stay the same when old checkpoints are removed.
        newest = max((checkpoint.step for checkpoint in checkpoints), default=-1) + 1
        why = launcher.keep_running(listing.newest, newest)
        if time.monotonic() - self._figures_at > _FIGURES_EVERY_SECONDS:
            self._figures_at = time.monotonic()
            self._append_figures()
        return why

    def _enter_between(self, newest: int, *, preempted: bool) -> None:
        """Reports the phase between two incarnations."""
        launcher = self._launcher
        if launcher is not None and launcher.waits_after(newest):
            self._enter(launcher.phase(), newest + 1)
        elif launcher is None or (preempted and launcher.incarnations_before < newest):
            self._enter("preempted", newest)
        else:
            self._enter(launcher.phase(), newest + 1)

    def _stop_without_machine(self, reason: str = "") -> bool:
        """Ends the run as stopped; there is no machine that could do so."""
        mode = read_stop(self._folder.stop_file)
        self._finish("stopped", reason or ("aborted" if mode == "abort" else "cancelled"))
        return True

    def _finish(self, state: str, reason: str, code: int | None = 0, **fields: Any) -> None:
        """Ends the run here; its machine is deleted first."""
        self._is_finishing = True
        if self._launcher:
            self._launcher.delete_machine()
        self._events.append("finished", state=state, reason=reason, **fields)
        if self._launcher:
            self._launcher.end(code)
            self._append_figures()
        self._folder.write_exit(code, None)

    # Events.

    def _copy_events(self, listing: Listing) -> bool:
        """Copies new events; returns False if more are left for the next round."""
        most = self._bytes + _BYTES_PER_ROUND
        for incarnation in range(max(self._incarnation, 1), listing.newest + 1):
            if incarnation > self._incarnation:
                self._begin(incarnation)
            for number in listing.segments(incarnation):
                if number >= self._segment:
                    if self._bytes >= most:
                        return False
                    self._copy_segment(incarnation, number)
        return True

    def _begin(self, incarnation: int) -> None:
        claim = self._mirror.read_claim(incarnation)
        self._incarnation, self._segment, self._line = incarnation, 0, 0
        self._held = []
        if incarnation > 1 and claim.continues is None and not claim.keeps_events:
            # Nothing of the earlier incarnations counts.
            self._append(
                {"kind": "resumed", "t": claim.time, "step": _BEFORE_THE_FIRST_STEP}, (0, -1)
            )
        self._enter("starting", incarnation)

    def _copy_segment(self, incarnation: int, number: int) -> None:
        data = self._mirror.read_segment(incarnation, number)
        self._bytes += len(data)
        if self._bytes > MOST_EVENTS_BYTES:
            raise MirrorError(
                f"{self._mirror.address} has too many events",
                expected=f"at most {MOST_EVENTS_BYTES:,} bytes",
                fix="don't follow this run: this program writes less",
            )
        events = parse_events(data, f"segment {number} of incarnation {incarnation}")
        for line, event in enumerate(events):
            if line >= self._line or number > self._segment:
                self._copy(event, number, line)
        self._segment, self._line = number + 1, 0

    def _copy(self, event: dict[str, Any], segment: int, line: int) -> None:
        kind = event["kind"]
        if kind == "started":
            self._held = []
        if kind == "remote":
            return
        if kind in _HELD:
            # Reported once the artifact is here.
            self._held.append({**event, "from": [self._incarnation, segment, line]})
            return
        if kind == "checkpoint":
            event = {**event, "path": str(self._checkpoint_path(event["step"]))}
        if kind == "kept":
            event = {**event, "path": str(self._checkpoints / words_name(event["words"]))}
        self._append(event, (segment, line))
        if kind == "progress" and self._stop_sent is None:
            is_compiling = str(event.get("note", "")).startswith("compiling")
            phase = "compiling" if is_compiling else self._work
            self._enter(
                self._launcher.with_place(phase) if self._launcher else phase, self._incarnation
            )

    def _append(self, event: dict[str, Any], place: tuple[int, int]) -> None:
        self._events.append_copy({**event, "from": [self._incarnation, *place]})

    def _enter(self, phase: str, incarnation: int = 0) -> None:
        if (phase, incarnation) == self._phase:
            return
        before, last = self._phase
        if (name_of(phase), incarnation) != (name_of(before), last):
            self._since = round(time.time(), 3)
        self._phase = phase, incarnation
        self._append_figures()

    def _append_figures(self) -> None:
        """Appends the phase with the cost so far, if one of them has changed."""
        phase, incarnation = self._phase
        figures: dict[str, Any] = {"phase": phase, "incarnation": incarnation, "since": self._since}
        if self._launcher:
            figures |= self._launcher.figures
        if figures != self._figures:
            self._figures = figures
            self._events.append("remote", **figures)

    def _report(self, done: int, total: int) -> None:
        """Reports the bytes that were uploaded, at most every second."""
        if done == total or time.monotonic() - self._reported_at > 1.0:
            self._reported_at = time.monotonic()
            self._events.append("progress", done=done, total=total, unit="bytes", note="uploading")

    # Log, heartbeat, stop and checkpoints.

    def _copy_log(self, listing: Listing) -> None:
        version = listing.version(log_name(self._incarnation))
        if version and version != self._log_version:
            write_atomically(self._folder.log, self._mirror.read_log(self._incarnation))
            self._log_version = version

    def _watch_heartbeat(self, listing: Listing) -> None:
        """Warns if the heartbeat doesn't change; the machines' clocks are not compared."""
        version = f"{self._incarnation} {listing.version(heartbeat_name(self._incarnation))}"
        now = time.monotonic()
        if version != self._heartbeat[0]:
            self._heartbeat = version, now
            self._is_silent = False
        elif now - self._heartbeat[1] > SILENT_AFTER_SECONDS and not self._is_silent:
            self._is_silent = True
            self._events.append(
                "warning",
                message=f"The machine has given no sign of life for {SILENT_AFTER_SECONDS:.0f} "
                "seconds. It may be gone, or its network is down; the run is followed on",
                alert="silent",
            )
            self._enter("lost", self._incarnation)
        self._update_place()

    def _update_place(self) -> None:
        """Reports the phase again if its machine's place has changed, such as its end."""
        phase, incarnation = name_of(self._phase[0]), self._phase[1]
        is_at_work = phase in ("compiling", self._work, "lost")
        if self._launcher and is_at_work and incarnation == self._incarnation:
            self._enter(self._launcher.with_place(phase), incarnation)

    def _pass_on_stop(self, newest: int) -> None:
        mode = read_stop(self._folder.stop_file)
        if mode and mode != self._stop_sent:
            self._mirror.write_stop(StopRequest(mode=mode, up_to_incarnation=newest))
            self._stop_sent, self._stop_sent_at = mode, time.monotonic()
            self._enter("stopping", newest)

    def _is_given_up(self, newest: int, *, has_exited: bool = False) -> bool:
        """Ends the run here if it is to be stopped and no machine is there to do so.

        Args:
            has_exited: Whether the newest incarnation has ended, and another one is to follow.
        """
        mode = read_stop(self._folder.stop_file)
        is_between = self._is_between(newest) or (has_exited and self._launcher is not None)
        is_waited_for = (
            self._launcher is not None
            and not has_exited
            and self._launcher.incarnations_before < newest
            and time.monotonic() - self._stop_sent_at < _ABORT_WITHIN_SECONDS
        )
        if mode is None or is_waited_for or (mode == "save" and not is_between):
            return False
        # A machine that hasn't claimed yet must not begin; a later resumption may.
        most = newest + 1 if is_between else max(newest, 1)
        self._mirror.write_stop(StopRequest(mode=mode, up_to_incarnation=most))
        return self._stop_without_machine("saved" if mode == "save" and newest else "")

    def _is_between(self, newest: int) -> bool:
        """Returns True if a launched run has no incarnation that could save."""
        launcher = self._launcher
        return launcher is not None and launcher.incarnations_before >= newest

    def _fetch_checkpoint(self, listing: Listing) -> None:
        """Fetches the newest checkpoint and kept models; damaged ones are passed over."""
        self._fetched_at = time.monotonic()
        if fetched := self._mirror.fetch_newest_checkpoint(listing, self._checkpoints):
            self._remove_older(fetched)
        config = parse_stage_config(self._record.stage, self._record.config)
        if isinstance(config, TrainConfig):
            marks = parse_word_marks(config.word_marks)
            self._mirror.fetch_kept_models(listing, marks, self._checkpoints)

    def _remove_older(self, newest: Path) -> None:
        for step in checkpoint_steps(newest.parent):
            if self._checkpoint_path(step) != newest:
                shutil.rmtree(self._checkpoint_path(step))

    def _checkpoint_path(self, step: int) -> Path:
        return self._checkpoints / checkpoint_name(step)

    @property
    def _checkpoints(self) -> Path:
        return self._folder.path / CHECKPOINTS_FOLDER

    # The end.

    def _end(self, listing: Listing, ended: Exit) -> None:
        if self._launcher:
            self._launcher.delete_machine()
        self._enter("fetching", self._incarnation)
        self._fetch_checkpoint(listing)
        is_aborted = read_stop(self._folder.stop_file) == "abort"
        for event in self._held:
            kind, place = event["kind"], (event["from"][1], event["from"][2])
            if kind == "artifact" and event.get("made", True):
                event = {**event, **self._fetch_artifact(listing, event["artifact"])}
            elif kind == "artifact":
                # A path there is none here.
                event = {**event, "artifact": {**event["artifact"], "path": ""}}
            if kind == "finished" and ended.reason == LIMIT:
                event = {**event, "reason": LIMIT}
            elif kind == "finished" and event.get("state") == "stopped" and is_aborted:
                # A machine that is deleted meanwhile may still save.
                event = {**event, "reason": "aborted"}
            self._append(event, place)
        self._held = []
        if self._launcher:
            self._launcher.end(ended.code)
        self._enter("done" if ended.code == 0 else "ended", self._incarnation)
        self._folder.write_exit(ended.code, ended.signal)

    def _fetch_artifact(self, listing: Listing, described: dict[str, Any]) -> dict[str, Any]:
        """Fetches what the run made into the workspace; returns the fields of its event."""
        from core.runs.execute import describe_artifact

        kind = artifact_kind_of(self._record.stage)
        files = listing.artifact(self._incarnation)
        if described["kind"] != kind or files is None:
            raise MirrorError(
                f"{self._mirror.address} lacks what the run has made",
                expected=f"a {kind}, complete with its manifest",
                received=f"a {described['kind']}" if files else "no artifact",
                fix="look on the machine that made it; its checkpoint, if it has one, is here",
            )
        if made := self._fetched_before(kind):
            self._copy_to_output(made)
            return describe_artifact(made)
        name = described["name"]
        if self._launcher is None and is_hub_name(name):
            name = f"followed-{name}"
        with self._workspace.new_artifact(kind, name, exact=False) as draft:
            manifest = self._mirror.download_artifact(self._incarnation, files, draft.folder)
            draft.fingerprint, draft.counts = manifest.fingerprint, manifest.counts
            draft.config, draft.inputs = manifest.config, manifest.inputs
            draft.run = self._record.id
            if self._launcher:
                # The names that the inputs have here.
                own = {*INPUT_FIELDS, "name"} & self._record.config.keys()
                draft.config |= {field: self._record.config[field] for field in own}
            elif kind == EVALUATION.name:
                # Figures from elsewhere must not be taken for those of a model that is here.
                draft.inputs = {}
        assert draft.artifact is not None
        self._copy_to_output(draft.artifact)
        return describe_artifact(draft.artifact)

    def _copy_to_output(self, made: Artifact) -> None:
        """Copies the model of a run that was launched from here to its output folder."""
        config = parse_stage_config(self._record.stage, self._record.config)
        if self._launcher and isinstance(config, TrainConfig):
            from core.training.export import copy_to_output

            with self._record.in_cwd():
                copy_to_output(config, made)

    def _fetched_before(self, kind: str) -> Artifact | None:
        """Returns the artifact if a follower was killed after it had fetched it.

        An earlier attempt at the run may have made another one.
        """
        own = [
            artifact
            for artifact in self._workspace.list(kind)
            if artifact.manifest.run == self._record.id
        ]
        files = self._mirror.read_artifact(self._incarnation).files if own else {}
        return next((artifact for artifact in own if artifact.manifest.files == files), None)

    def _refuse(self, error: StudioError) -> None:
        print(f"error: {error}", file=sys.stderr, flush=True)
        try:
            self._finish("failed", error.reason or "target", error.exit_code, error=error.to_dict())
        except WorkspaceMovedError:
            raise
        except StudioError as refused:
            # The run ends nevertheless; `studio targets` shows the machine.
            print(refused, file=sys.stderr, flush=True)
            if self._launcher:
                self._launcher.give_up(error.exit_code)
            self._launcher = None
            self._finish("failed", error.reason or "target", error.exit_code, error=error.to_dict())


def _no_answer(target: str, phase: str, limit: float) -> UnavailableError:
    return UnavailableError(
        f"{target} or its mirror doesn't answer ({phase})",
        expected=f"an answer within {limit / 60:.0f} minutes",
        fix="check the address, the network and whether the machine is on; then resume the run",
    )


def _position(folder: RunFolder) -> tuple[int, int, int]:
    """Returns the incarnation, segment and line to go on from."""
    position = (0, 0, 0)
    for event in iterate_events(folder.events):
        place = event.get("from")
        if isinstance(place, list) and len(place) == 3:
            position = int(place[0]), max(int(place[1]), 0), int(place[2]) + 1
    return position


def _last_phase(folder: RunFolder) -> tuple[tuple[str, int], float]:
    """Returns the newest reported phase with its incarnation, and its time."""
    phases = read_phases(folder.events)
    if not phases:
        return ("", 0), 0.0
    return (phases[-1]["phase"], phases[-1]["incarnation"]), phases[-1]["since"]


def main(arguments: list[str] | None = None) -> int:
    folder = RunFolder(Path((arguments or sys.argv[1:])[0]).absolute())
    load_further_stages()
    distrust_callers()
    signal.signal(signal.SIGTERM, _detach)
    with guarding_workspaces():
        workspace = Workspace(folder.path.parent.parent)
        with private_files(workspace.root), folder.try_lock() as held:
            return _follow(folder, workspace) if held else 0


def _follow(folder: RunFolder, workspace: Workspace) -> int:
    folder.write_processes(run=ProcessIdentity.of_this())
    try:
        # It includes the place of the Hub's login, for example.
        os.environ.update(folder.read_record().environment)
        start_reporters_of(folder, folder.read_record())
        return Follower(folder, workspace).follow()
    except WorkspaceMovedError as error:
        # A follower in the new place goes on.
        print(error, file=sys.stderr, flush=True)
    except StudioError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _detach(_: int, __: FrameType | None) -> None:
    """Leaves the run alone: a later follower goes on where this one was."""
    os._exit(0)


if __name__ == "__main__":
    hide_secrets_in_output(is_log=True)
    sys.exit(main())
