"""A target in this process, whose machines only write to the mirror."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from core.targets.target import Job, Machine, MirrorRoot, Status

ADDRESS = "ssh://fake"


@dataclass
class Place:
    """What all fake targets of a test share.

    Attributes:
        root: The mirror's address.
        states: States of the machines that exist, by id.
        at_call: Called with a method's name before and after each call.
    """

    root: str = ""
    jobs: list[Job] = field(default_factory=list)
    states: dict[str, Status] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    output: str = ""
    price: float | None = None
    at_call: Callable[[str], None] = lambda name: None
    work: Callable[[Job], None] = lambda job: None


PLACE = Place()


class FakeTarget:
    """Machines that exist until they are cancelled."""

    creates_machines = True
    carries_secrets = False
    hosts = 1

    def __init__(self, address: str) -> None:
        self.address = address

    def check(self) -> str:
        PLACE.at_call("check")
        return "fake"

    def mirror_root(self, asked: str) -> MirrorRoot:
        return MirrorRoot(PLACE.root, PLACE.root)

    def price_per_hour(self) -> float | None:
        return PLACE.price

    def launch(self, job: Job) -> Machine:
        PLACE.at_call("launch")
        assert self.find(job.run_id, job.launch) is None, "started twice"
        PLACE.jobs.append(job)
        PLACE.states[job.name] = Status("running")
        PLACE.at_call("launched")
        return Machine(self.address, job.name, job.run_id, job.launch)

    def find(self, run_id: str, launch: int) -> Machine | None:
        PLACE.at_call("find")
        id = f"{run_id}-{launch}"
        return Machine(self.address, id, run_id, launch) if id in PLACE.states else None

    def state(self, machine: Machine) -> Status:
        PLACE.at_call("state")
        job = next(one for one in PLACE.jobs if one.name == machine.id)
        if PLACE.states.get(machine.id, Status("ended")).state == "running":
            PLACE.work(job)
        return PLACE.states.get(machine.id, Status("ended", "gone"))

    def log(self, machine: Machine) -> str:
        return PLACE.output

    def cancel(self, machine: Machine) -> None:
        PLACE.at_call("cancel")
        PLACE.states.pop(machine.id, None)
        PLACE.cancelled.append(machine.id)
        PLACE.at_call("cancelled")

    def list_machines(self) -> list[Machine]:
        PLACE.at_call("list_machines")
        return [
            Machine(self.address, id, *_parts(id))
            for id, status in PLACE.states.items()
            if status.state != "ended"
        ]


def _parts(id: str) -> tuple[str, int]:
    run_id, _, launch = id.rpartition("-")
    return run_id, int(launch)
