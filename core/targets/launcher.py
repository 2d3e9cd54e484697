"""Launches a run on its target and keeps a machine there until the run has ended.

The follower's process calls it. Everything that matters is in `remote.json` of the run's folder
before and after each launch, so that a restarted follower starts no second machine: it first asks
the target for the one whose answer was lost. A machine is deleted at the end of the run, at a
limit, on abort and on failure; the machine itself does so too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from core.config.options import split_references
from core.config.remote import RemoteConfig
from core.config.targets import members_of
from core.config.train import TrainConfig
from core.errors import ConfigError, RunError, StudioError
from core.foreign_files import parse_bounded_json, read_regular
from core.hub.client import parse_hub_id
from core.processes.environment import RUN_KEY_VARIABLE
from core.records.events import LIMIT
from core.records.folder import RunFolder, RunRecord
from core.stages.registry import find_stage, is_resumable, parse_stage_config
from core.targets.blobs import collect_inputs, upload_inputs
from core.targets.code import pack_code
from core.targets.errors import MirrorError, TargetError, UnavailableError
from core.targets.gathering import launch_with_others
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from core.targets.phases import (
    CAPACITY,
    CHECKING,
    STARTING_MACHINE,
    UPLOADING,
    limit_of,
    name_of,
)
from core.targets.schema import NEVER_SIGNED, RunSpec
from core.targets.signing import description_keys, run_keys
from core.targets.target import Job, Machine, Status, Target, open_target, printable
from core.workspace.atomic import write_atomically
from core.workspace.workspace import Workspace

REMOTE_FILE = "remote.json"
# The processes of a workspace that launch at the same time meet there.
_MEETING_FOLDER = "launching"
POLL_SECONDS = 10.0
# A member of a pool that can't be reached for so long is lost; one that has worked for longer is
# waited for as long again, at most an hour.
LOST_AFTER_SECONDS = 90.0
_MOST_LOST_SECONDS = 3600.0
# Launches in a row that gave no checkpoint.
MOST_FRUITLESS_LAUNCHES = 3
# A machine that is still there so long after its limit is deleted from here.
_GRACE_SECONDS = 600.0
_MOST_FILE_BYTES = 1 << 20
_SECONDS_PER_HOUR = 3600.0
_SEEN_EVERY_SECONDS = 60.0
# Fields that describe where a run is executed, and not what.
_LOCAL_FIELDS = (
    "target",
    "mirror",
    "max_hours",
    "max_cost",
    "price_per_hour",
    "output",
    "report_to",
    "webhook",
)


@dataclass
class Launch:
    """One launch.

    Attributes:
        number: Counts from 1.
        attempt: The attempt at the run that it belongs to.
        machine: None until the target has confirmed it.
        billed_from: Unix seconds at which the machine was first seen starting or running; 0: never.
        ended: Unix seconds; 0: it goes on.
        seen: Unix seconds at which the machine was last seen starting or running.
        incarnations, checkpoints: Numbers of them that the mirror had before.
        detail: Why it ended, in the target's words.
        price_per_hour: In US dollars; None if unknown.
        counted: Seconds of its work, if the target counts them.
        is_left: Whether it may go on, on a member of a pool that couldn't be reached.
    """

    number: int
    asked: float
    machine: dict[str, Any] | None = None
    billed_from: float = 0.0
    ended: float = 0.0
    seen: float = 0.0
    incarnations: int = 0
    checkpoints: int = 0
    detail: str = ""
    attempt: int = 0
    price_per_hour: float | None = None
    counted: float | None = None
    is_left: bool = False

    @property
    def seconds(self) -> float:
        """The time that is paid for."""
        if self.counted is not None:
            return self.counted
        return (self.ended or time.time()) - self.billed_from if self.billed_from else 0.0

    @property
    def cost(self) -> float | None:
        """US dollars so far; None if the price is unknown."""
        if self.price_per_hour is None:
            return None if self.billed_from else 0.0
        return self.price_per_hour * self.seconds / _SECONDS_PER_HOUR


@dataclass
class RemoteState:
    """Launches of a run and where its mirror is.

    Attributes:
        here, there: The mirror's root, from this computer and from the machine.
        code, spec: SHA-256 of the uploaded code, which all machines of an attempt run, and of the
            run's description.
        signed_from: The first incarnation that is signed; 0: the machines of an earlier version
            sign nothing.
        price_per_hour: The next machine's, in US dollars; None if unknown.
        ended_attempt: The newest attempt that has ended, with its exit code.
    """

    here: str = ""
    there: str = ""
    code: str = ""
    spec: str = ""
    signed_from: int = 0
    price_per_hour: float | None = None
    ended_attempt: int = 0
    exit_code: int | None = None
    launches: list[Launch] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(launch.seconds for launch in self.launches)

    @property
    def cost(self) -> float | None:
        """US dollars so far; None if the price of a machine is unknown."""
        if self.price_per_hour is None:
            return None
        costs = [launch.cost for launch in self.launches]
        return None if None in costs else round(sum(filter(None, costs)), 4)

    @property
    def current(self) -> Launch | None:
        last = self.launches[-1] if self.launches else None
        return last if last and not last.ended else None

    @classmethod
    def read(cls, folder: RunFolder) -> RemoteState:
        """Reads `remote.json`; an empty state if the run was never launched.

        Raises RunError if it is damaged: a new state would forget machines and their costs.
        """
        path = folder.path / REMOTE_FILE
        if not path.exists():
            return cls()
        try:
            values = parse_bounded_json(read_regular(path, _MOST_FILE_BYTES))
            launches = [
                Launch(**_known(Launch, stored_launch))
                for stored_launch in values.pop("launches", [])
            ]
            state = cls(**_known(cls, values), launches=launches)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(
                f"{path} can't be read, so the run's machines are unknown",
                expected="the JSON that this program wrote",
                received=f"{type(error).__name__}: {error}"[:300],
                fix="list the machines with: studio targets, and delete this run's; then restore "
                "the file from a copy, or go on with: runs resume ADDRESS",
            ) from error

        for launch in launches:
            # An earlier version kept one price for all.
            if launch.price_per_hour is None:
                launch.price_per_hour = state.price_per_hour
        return state

    def write(self, folder: RunFolder) -> None:
        write_atomically(folder.path / REMOTE_FILE, json.dumps(asdict(self), indent=1) + "\n")


class Launcher:
    """Launches one run.

    Args:
        enter: Reports a phase.
        began: Returns when the reported phase began, or now for another one, in Unix seconds.
        restart: Forgets what was copied from the mirror; another member of a pool has its own.
        phase: The newest reported phase, perhaps by an earlier process.
    """

    def __init__(
        self,
        folder: RunFolder,
        workspace: Workspace,
        record: RunRecord,
        enter: Callable[[str], None],
        report: Callable[[int, int], None],
        began: Callable[[str], float],
        restart: Callable[[], None],
        phase: str = "",
    ) -> None:
        config = parse_stage_config(record.stage, record.config)
        assert isinstance(config, RemoteConfig)
        self._config = config
        self._folder = folder
        self._workspace = workspace
        self._record = record
        self._enter = enter
        self._report = report
        self._began = began
        self._restart = restart
        self._target: Target = open_target(record.target)
        self.state = RemoteState.read(folder)
        self._polled = 0.0
        self._phase = phase
        self._problem: TargetError | None = None
        self._is_ending = False
        self._is_cancelled = False
        self._has_answered = False
        self._waits_after: int | None = None
        self._place = ""
        self._incarnations = 0
        self._seen_written = 0.0

    # Before the first launch.

    def prepare(self) -> RunMirror:
        """Checks the target and uploads what the machine needs. Returns the run's mirror.

        A follower that is restarted while a machine works does nothing of this again.
        """
        launch = self.state.current
        if launch and launch.attempt <= self.state.ended_attempt:
            # It couldn't be deleted when that attempt ended.
            self.end_machine("its attempt at the run has ended")
        if self.state.current is None:
            self._enter(CHECKING)
            self._check()
            self._upload()
        return self._mirror()

    def _check(self) -> None:
        answer = self._target.check()
        self._has_answered = True
        print(answer, flush=True)
        if self._is_pooled:
            self._end_left_launches()
        roots = self._target.mirror_root(self._config.mirror)
        self._check_same_mirror(roots.here)
        self.state.here, self.state.there = roots.here, roots.there
        price = self._config.price_per_hour
        self.state.price_per_hour = self._target.price_per_hour() if price is None else price
        if self._config.max_cost is not None and self.state.price_per_hour is None:
            raise ConfigError(
                "The limit of costs can't be kept",
                expected="the price of the machine per hour",
                received=f"none: {self._record.target} doesn't tell it",
                fix="set the price per hour too",
                field="price_per_hour",
            )
        if getattr(self._config, "push_to_hub", False) and not self._target.carries_secrets:
            raise ConfigError(
                "A machine of this target can't publish",
                expected="a target that a token can be sent to",
                received=f"⟬push_to_hub⟭ with {self._record.target}",
                fix="switch it off, and publish the finished model from here",
                field="push_to_hub",
            )
        if self.seconds_left() == 0:
            raise _limit_is_used_up(self._config)
        if not isinstance(self._config, TrainConfig) and self._target.hosts > 1:
            raise ConfigError(
                f"The stage {self._record.stage} runs on one host",
                expected="a target with one host",
                received=f"{self._target.hosts} hosts: {self._record.target}",
                fix="choose a smaller machine, or one node",
                field="target",
            )
        if isinstance(self._config, TrainConfig) and not self.state.launches:
            from core.training.export import check_output

            with self._record.in_cwd():
                check_output(self._config)
        self.state.write(self._folder)

    def _check_same_mirror(self, here: str) -> None:
        machines = [launch.machine for launch in self.state.launches if launch.machine]
        is_same = not machines or machines[-1].get("target") == self._target.address
        if is_same or here == self.state.here:
            return
        if self._is_pooled:
            self._start_over()
            return
        raise ConfigError(
            "This target can't continue the run",
            expected=f"a target whose machines reach the mirror {self.state.here}",
            received=f"{self._record.target}, which keeps its mirror in {here}",
            fix="resume the run on its earlier target; or from the mirror's address, here: "
            f"runs resume {self.state.here}/runs/{self._record.id}",
            field="target",
        )

    # Members of a pool.

    @property
    def _is_pooled(self) -> bool:
        return len(members_of(self._config.target)) > 1

    def _end_left_launches(self) -> None:
        """Ends what runs have left on this machine while it couldn't be reached."""
        for machine in self._target.list_machines():
            with suppress(RunError):
                state = RemoteState.read(RunFolder.of(self._workspace, machine.run_id))
                left = [launch.number for launch in state.launches if launch.is_left]
                if machine.launch in left:
                    self._target.cancel(machine)

    def _start_over(self) -> None:
        """Begins anew in the mirror of another member."""
        self._restart()
        self.state.signed_from = min(self.state.signed_from, 1)
        for launch in self.state.launches:
            launch.attempt = 0

    def is_unusable(self, error: StudioError, waited: float) -> bool:
        """Returns whether the run is to go on on another member of its pool.

        Args:
            waited: Seconds since this machine began to fail.
        """
        launch = self.state.current
        is_refused = isinstance(error, TargetError) and not isinstance(error, MirrorError)
        if not self._is_pooled or not is_refused:
            return False
        is_passing = isinstance(error, UnavailableError)
        if launch is None and not self.patience:
            # The error is that of a check or an upload; a mirror that refuses all members is none.
            is_of_mirror = self._has_answered and bool(self._config.mirror) and not is_passing
            return not is_of_mirror and (not self.state.launches or self._another_answers())
        may_leave = is_passing and (launch is None or not self._target.creates_machines)
        is_lost = waited > max(self.patience, LOST_AFTER_SECONDS)
        return is_lost and may_leave and self._another_answers()

    @property
    def patience(self) -> float:
        """Seconds for which a member with the run's checkpoints is waited for; 0: none has them.

        It is as long as it would have worked for nothing if the run started over.
        """
        last = next((launch for launch in reversed(self.state.launches) if launch.machine), None)
        is_here = last and (last.machine or {}).get("target") == self._target.address
        if last is None or not is_here or self._config.mirror or not self._is_pooled:
            return 0.0
        return min(max(last.seen - last.billed_from, LOST_AFTER_SECONDS), _MOST_LOST_SECONDS)

    def _another_answers(self) -> bool:
        """Returns whether another member answers, so that the network here isn't at fault."""
        for address in members_of(self._config.target):
            if address != self._record.target:
                with suppress(StudioError):
                    open_target(address).check()
                    return True
        return False

    def check_reachable(self) -> None:
        """Raises the target's error if the last question for the machine of a pool failed."""
        if self._is_pooled and self._problem:
            raise self._problem

    def leave(self) -> None:
        """Counts the current machine, which can't be reached, as ended, though it may go on."""
        if launch := self.state.current:
            launch.ended, launch.is_left = launch.seen or time.time(), True
            launch.detail = "it couldn't be reached"
            self.state.write(self._folder)

    def _upload(self) -> None:
        self._enter(UPLOADING)
        mirror = self._mirror()
        self._choose_signatures(mirror)
        with self._record.in_cwd():
            inputs = collect_inputs(self._config, self._workspace)
        config = {**self._record.config, **inputs.values}
        fields = type(self._config).model_fields
        config |= {name: fields[name].default for name in _LOCAL_FIELDS if name in fields}
        # The paths there give another name.
        config["name"] = config["name"] or find_stage(self._record.stage).derive_name(self._config)
        code = pack_code()
        upload_inputs(mirror.store, inputs, code, self._report)
        spec = RunSpec(
            id=self._record.id,
            stage=self._record.stage,
            config=config,
            created=self._record.created,
            inputs=tuple(inputs.inputs),
            signed_from=self.state.signed_from,
        )
        self.state.spec = mirror.write_spec(spec, description_keys(self._workspace.root, make=True))
        self.state.code = code.sha256
        self.state.write(self._folder)
        mirror.clear_stop()

    def _choose_signatures(self, mirror: RunMirror) -> None:
        """Decides from which incarnation on machines sign what they write."""
        if not self._target.carries_secrets:
            self.state.signed_from = NEVER_SIGNED
        elif self.state.signed_from in (0, NEVER_SIGNED):
            self.state.signed_from = mirror.look().newest + 1

    def _mirror(self) -> RunMirror:
        return RunMirror(
            open_store(self.state.here),
            self._record.id,
            run_keys(self._workspace.root, self._record.id),
            signed_from=self.state.signed_from or NEVER_SIGNED,
        )

    # Machines.

    def keep_running(self, incarnations: int, checkpoints: int) -> str:
        """Launches a machine if none works for the run; asks for its state now and then.

        Args:
            incarnations, checkpoints: Numbers of them in the mirror.

        Returns:
            Why the run has ended without a machine: LIMIT, "cancelled" by somebody at the target,
            or "" while it goes on.

        Raises:
            TargetError: The target refuses, or launch after launch gives no checkpoint.
        """
        self._incarnations = incarnations
        launch = self.state.current
        if launch is None:
            if self._is_cancelled:
                return "cancelled"
            if self.seconds_left() == 0:
                return LIMIT
            self._check_fruitful(checkpoints)
            number = len(self.state.launches) + 1
            launch = Launch(
                number,
                time.time(),
                incarnations=incarnations,
                checkpoints=checkpoints,
                attempt=self._folder.count_attempts(),
                price_per_hour=self.state.price_per_hour,
            )
            self.state.launches.append(launch)
            self.state.write(self._folder)
        if launch.machine is None:
            self._phase = ""
            self._enter(CAPACITY)
            self._launch(launch)
        if time.monotonic() - self._polled > POLL_SECONDS:
            self._polled = time.monotonic()
            self._try_to_look(launch)
            if incarnations <= launch.incarnations and not self._problem:
                self._end_late()
        return ""

    def phase(self) -> str:
        """Returns what the machine does before it reports to the mirror."""
        return self._phase or CAPACITY

    def waits_after(self, incarnations: int) -> bool:
        """Returns whether the current machine waits to start again after so many incarnations."""
        return self._waits_after == incarnations

    def with_place(self, phase: str) -> str:
        """Adds where the machine runs and until when, if its target tells."""
        return f"{phase} ({self._place})" if self._place else phase

    def _launch(self, launch: Launch) -> None:
        machine = self._target.find(self._record.id, launch.number)
        if machine is None:
            left = self.seconds_left()
            job = Job(
                run_id=self._record.id,
                launch=launch.number,
                mirror=self.state.there,
                code=self.state.code,
                spec=self.state.spec,
                seconds=left,
                secrets=self._secrets(),
                folder=str(self._folder.path),
            )
            machine = launch_with_others(self._target, job, self._workspace.cache / _MEETING_FOLDER)
        launch.machine = machine.to_json()
        self.state.write(self._folder)
        print(f"launch {launch.number}: {machine.id}", flush=True)

    def _try_to_look(self, launch: Launch) -> None:
        """Asks for the machine's state; it goes on if the target can't tell now."""
        try:
            self._look(launch)
            self._problem = None
        except TargetError as error:
            if str(error) != str(self._problem):
                print(error, flush=True)
            self._problem = error

    def _look(self, launch: Launch) -> None:
        machine = Machine.from_json(launch.machine or {})
        status = self._target.state(machine)
        if status.state in ("starting", "running", "ended") and not launch.billed_from:
            launch.billed_from = time.time()
            self.state.write(self._folder)
        if status.seconds is not None:
            launch.counted = status.seconds
        self._place = status.place
        self._waits_after = self._incarnations if status.state == "waiting" else None
        self._phase = self._phase_of(machine, status)
        if status.state in ("starting", "running"):
            self._see(launch)
        # One more round of the follower reads what the machine wrote last.
        if status.state == "ended" and self._is_ending:
            self._is_cancelled = status.is_cancelled
            self.end_machine(status.detail)
        self._is_ending = status.state == "ended"
        if self._is_ending:
            self._polled = 0.0
        elif self._is_overdue():
            self.end_machine("it is still there after its limit")

    def _end_late(self) -> None:
        """Ends a machine that stays in a phase for too long before it reports to the mirror.

        Raises:
            RunError: There is no capacity; another launch would wait for it too.
        """
        limit = limit_of(self._phase)
        if limit is None or time.time() - self._began(self._phase) < limit:
            return
        name = name_of(self._phase)
        if name == CAPACITY and not self._target.creates_machines:
            # A queue costs nothing, and gives up no place in it.
            return
        if name != CAPACITY:
            self.end_machine(f"{name} took more than {limit / 60:.0f} minutes")
            return
        raise RunError(
            f"{self._record.target} has given no machine",
            expected=f"one within {limit / _SECONDS_PER_HOUR:.0f} hours",
            received=self._phase,
            fix="resume the run on another place, zone or type of machine (⟬--target⟭)",
        )

    def _see(self, launch: Launch) -> None:
        """Keeps when a machine was seen at work, exactly to a minute after a restart."""
        now = time.time()
        is_old = now - self._seen_written > _SEEN_EVERY_SECONDS
        launch.seen = now
        if is_old:
            self._seen_written = now
            self.state.write(self._folder)

    def _phase_of(self, machine: Machine, status: Status) -> str:
        if status.state in ("waiting", "unseen"):
            why = printable(status.detail[:200])
            return f"{CAPACITY} ({why})" if why else CAPACITY
        if status.state not in ("starting", "running"):
            return self._phase
        try:
            lines = self._target.log(machine).splitlines()
        except TargetError:
            return self._phase
        phases = [line.removeprefix("studio: ") for line in lines if line.startswith("studio: ")]
        return self.with_place(printable(phases[-1][:100]) if phases else STARTING_MACHINE)

    def delete_machine(self) -> None:
        """Deletes the current machine, if there is one. Raises UnavailableError; try again then."""
        launch = self.state.current
        machine_values = launch and (launch.machine or self._find_again(launch))
        if machine_values:
            machine = Machine.from_json(machine_values)
            self._target_of(machine).cancel(machine)

    def end_machine(self, why: str = "") -> None:
        """Deletes the current machine and counts it as ended."""
        self.delete_machine()
        if launch := self.state.current:
            launch.ended, launch.detail = time.time(), why
            self._correct_times(launch)
            self._is_ending = False
            self._phase = ""
            print(f"launch {launch.number} has ended: {why}".rstrip(" :"), flush=True)
        self.state.write(self._folder)

    def _correct_times(self, launch: Launch) -> None:
        """Takes a launch's times from the mirror's store: this computer may have been off.

        What a machine itself says about its times decides nothing, and nothing makes the launch end
        before this computer last saw it at work.
        """
        try:
            times = self._mirror().times_of(launch.number, launch.incarnations)
        except StudioError:
            return
        started, ended = times or (0.0, 0.0)
        if started and launch.asked <= started <= launch.ended:
            launch.billed_from = min(launch.billed_from or started, started)
            seen = max(launch.seen, launch.billed_from, ended)
            launch.ended = min(launch.ended, seen)

    def give_up(self, exit_code: int | None) -> None:
        """Writes that this attempt has ended, though its machine couldn't be deleted."""
        self.state.ended_attempt = self._folder.count_attempts()
        self.state.exit_code = exit_code
        self.state.write(self._folder)

    def end(self, exit_code: int | None) -> None:
        """Deletes the machine and writes that this attempt at the run has ended."""
        self.state.ended_attempt = self._folder.count_attempts()
        self.state.exit_code = exit_code
        self.end_machine("the run has ended")
        self._cancel_left()

    def _cancel_left(self) -> None:
        """Cancels what members that the run has left still do for it, if they can be reached."""
        for launch in self.state.launches:
            if launch.is_left and launch.machine:
                machine = Machine.from_json(launch.machine)
                with suppress(StudioError):
                    self._target_of(machine).cancel(machine)
                    launch.is_left = False
        self.state.write(self._folder)

    @property
    def has_machine(self) -> bool:
        return self.state.current is not None and self.state.current.machine is not None

    @property
    def has_ended(self) -> bool:
        """Whether this attempt has ended, and only its exit wasn't written yet."""
        return self.state.ended_attempt == self._folder.count_attempts()

    @property
    def incarnations_before(self) -> int:
        """Incarnations of earlier launches, whose ends don't end the run."""
        current = self.state.current
        return current.incarnations if current else 1 << 60

    @property
    def figures(self) -> dict[str, Any]:
        """Fields of a `remote` event."""
        return {
            "launch": len(self.state.launches),
            "hours": round(self.state.seconds / _SECONDS_PER_HOUR, 4),
            "price_per_hour": self.state.price_per_hour,
            "cost": self.state.cost,
        }

    def _find_again(self, launch: Launch) -> dict[str, Any] | None:
        machine = self._target.find(self._record.id, launch.number)
        return machine.to_json() if machine else None

    def _target_of(self, machine: Machine) -> Target:
        """Returns a machine's target, which may be an earlier one of the run."""
        is_own = machine.target in ("", self._target.address)
        return self._target if is_own else open_target(machine.target)

    def machine_log(self) -> str:
        """Returns the end of the newest machine's own output; "" if it can't be read."""
        machine_values = next(
            (launch.machine for launch in reversed(self.state.launches) if launch.machine), None
        )
        try:
            machine = Machine.from_json(machine_values) if machine_values else None
            return self._target_of(machine).log(machine) if machine else ""
        except StudioError:
            return ""

    # Limits.

    def _check_fruitful(self, checkpoints: int) -> None:
        attempt = self._folder.count_attempts()
        own = [launch for launch in self.state.launches if launch.attempt == attempt]
        recent = own[-MOST_FRUITLESS_LAUNCHES:]
        if len(recent) < MOST_FRUITLESS_LAUNCHES or recent[0].checkpoints < checkpoints:
            return
        lines = [line for line in self.machine_log().splitlines() if line.strip()]
        last_lines = [*filter(None, [recent[-1].detail]), *lines[-3:]]
        saves = is_resumable(self._record.stage)
        raise TargetError(
            f"{self._record.target} has ended {MOST_FRUITLESS_LAUNCHES} machines in a row without "
            + ("a new checkpoint" if saves else "a result"),
            expected="a machine that works until "
            + ("its first checkpoint" if saves else "the run's end"),
            received=" / ".join(last_lines)[-600:] or "no output of the machine",
            fix="read the log; "
            + ("save more often (⟬save_steps⟭)" if saves else "choose machines that stay longer")
            + " if machines are taken away early; then resume the run",
        )

    def seconds_left(self) -> float | None:
        """Returns the rest of the limits in seconds, 0 if they are used up; None: no limit."""
        left = self._remaining_seconds()
        return None if left is None else max(0.0, left)

    def _remaining_seconds(self) -> float | None:
        """Returns the rest of the limits in seconds, negative beyond them; None: no limit."""
        state, limits = self.state, []
        if self._config.max_hours is not None:
            limits.append(self._config.max_hours * _SECONDS_PER_HOUR - state.seconds)
        if self._config.max_cost is not None and state.price_per_hour:
            left = self._config.max_cost - (state.cost or 0.0)
            limits.append(left / state.price_per_hour * _SECONDS_PER_HOUR)
        return min(limits) if limits else None

    def _is_overdue(self) -> bool:
        left = self._remaining_seconds()
        return left is not None and left < -_GRACE_SECONDS

    def _secrets(self) -> dict[str, str]:
        if not self._target.carries_secrets:
            return {}
        keys = run_keys(self._workspace.root, self._record.id)
        secrets = {RUN_KEY_VARIABLE: keys.format()}
        if not _needs_hub(self._config, self.state.there):
            return secrets
        from huggingface_hub import get_token

        token = get_token()
        return {**secrets, "HF_TOKEN": token} if token else secrets


def _known(model: type[Launch | RemoteState], values: dict[str, Any]) -> dict[str, Any]:
    """Drops the keys of a later version."""
    names = {known_field.name for known_field in fields(model)}
    return {name: value for name, value in values.items() if name in names}


def _needs_hub(config: RemoteConfig, mirror: str) -> bool:
    references = [str(getattr(config, name, "")) for name in ("shards", "checkpoint", "model")]
    references += split_references(str(getattr(config, "mixture", "")))
    return (
        any(getattr(config, name, "") for name in ("push_to_hub", "glue", "dataset_name"))
        or any(address.startswith("hf://") for address in (mirror, *references))
        or any(parse_hub_id(reference) is not None for reference in references)
    )


def _limit_is_used_up(config: RemoteConfig) -> ConfigError:
    name = "max_hours" if config.max_hours is not None else "max_cost"
    return ConfigError(
        "The limit of the run is used up",
        expected="a limit above what the run has used",
        received=f"{getattr(config, name):g}",
        fix="start it again with a larger limit",
        field=name,
    )
