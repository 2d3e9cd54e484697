"""Runs on other clouds, as managed jobs of an existing SkyPilot installation.

`sky://RESOURCES`, such as `sky://A100:1?use_spot=1&cloud=gcp` or `sky://tpu-v5litepod-8?zone=ZONE`.

SkyPilot restarts a job whose machine was taken away, which cannot be switched off. Here it changes
nothing: such a job counts as ended, the follower cancels it and launches the next one. If no
follower looks, the restarted job gives up, because its launch has claimed an incarnation before:
a limit of time holds for the launch, and each restart would begin to count anew.

Source: https://docs.skypilot.co/en/latest/reference/yaml-spec.html (0.14.1)
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from core.errors import ConfigError
from core.targets.code import bootstrap_source
from core.targets.errors import TargetError
from core.targets.sky_command import Sky, SkyJob
from core.targets.target import Job, Machine, MirrorRoot, State, Status

_COORDINATOR_PORT = 8476

_STATES: dict[str, State] = {
    "PENDING": "waiting",
    "SUBMITTED": "waiting",
    # SkyPilot looks for a machine, and tries until there is one.
    "STARTING": "waiting",
    "RUNNING": "running",
    "WINDING_DOWN": "running",
    "RECOVERING": "ended",
    "CANCELLING": "ended",
    "CANCELLED": "ended",
    "SUCCEEDED": "ended",
}
# The resources that no cloud can ever give; a launch of the same job fails again.
_REFUSED = "FAILED_PRECHECKS"

_PARAMETERS = {
    "cloud": r"[a-z][a-z0-9-]{0,30}",
    "region": r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    "zone": r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    "use_spot": "0|1|true|false",
    "cpus": r"[0-9]{1,4}(\.[0-9]{1,2})?\+?",
    "memory": r"[0-9]{1,6}(\.[0-9]{1,2})?\+?",
    "disk_size": "[1-9][0-9]{0,5}",
    "instance_type": r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    "image_id": r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,250}",
    "nodes": "[1-9][0-9]{0,2}",
    "runtime_version": r"[a-z0-9][a-z0-9._-]{0,62}",
    "python": r"/[A-Za-z0-9._/+-]{1,250}",
}
_PLAIN = ("cpus", "memory", "instance_type", "image_id")
_ACCELERATOR = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}(:[0-9]{1,3}(\.[0-9]{1,3})?)?")
_CPU = "cpu"
# SkyPilot's own default is the runtime of v5p.
_RUNTIME_OF_V5E = "v2-alpha-tpuv5-lite"
# SkyPilot's names have to begin with a letter and to end with one or a digit.
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME = re.compile(r"studio-([A-Za-z0-9_-]{1,64})-([1-9][0-9]{0,5})")
_BUCKET = re.compile(
    r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/.*)?|hf://buckets/[\w.-]+/[\w.-]+(/.*)?"
)

_SCRIPT = """\
folder=$(mktemp -d) || exit 1
cat > "$folder/bootstrap.py" <<'END_OF_BOOTSTRAP'
{bootstrap}
END_OF_BOOTSTRAP
hosts=()
if [ "${{SKYPILOT_NUM_NODES:-1}}" -gt 1 ]; then
    first=$(printf '%s\\n' "$SKYPILOT_NODE_IPS" | head -n 1)
    hosts=(--host "$SKYPILOT_NODE_RANK" --hosts "$SKYPILOT_NUM_NODES" --coordinator "$first:{port}")
fi
export STUDIO_MACHINE_ONCE=1
{exports}exec {python} "$folder/bootstrap.py" {arguments} "${{hosts[@]}}"
"""


@dataclass(frozen=True)
class SkyAddress:
    """The parts of a target's address; the parameters have the names of SkyPilot's resources.

    Attributes:
        accelerator: SkyPilot's name and, after a colon, the number; "" for a CPU.
    """

    accelerator: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, address: str) -> SkyAddress:
        """Parses `sky://RESOURCES?…`; raises ConfigError with `field="target"`."""
        try:
            parts = urlsplit(address)
            given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise _invalid(str(error)) from error
        if parts.scheme != "sky" or parts.path.strip("/") or parts.fragment:
            raise _invalid(address)
        if not _ACCELERATOR.fullmatch(parts.netloc):
            raise _invalid(f"the resources {parts.netloc}")
        # A plus sign of a query is a space, but `8+` CPUs are meant.
        values = {name: value.replace(" ", "+") for name, value in given}
        if len(values) < len(given):
            raise _invalid("a parameter twice")
        for name, value in values.items():
            if not re.fullmatch(_PARAMETERS.get(name, "(?!)"), value):
                raise _invalid(f"{name}={value}")
        return cls("" if parts.netloc.lower() == _CPU else parts.netloc, values)

    @property
    def is_tpu(self) -> bool:
        return self.accelerator.startswith("tpu-")

    @property
    def resources(self) -> dict[str, object]:
        """The `resources` of a task."""
        given = self.parameters
        resources: dict[str, object] = {name: given[name] for name in _PLAIN if name in given}
        places = [given.get(name, "*") for name in ("cloud", "region", "zone")]
        if self.is_tpu and places[0] == "*":
            places[0] = "gcp"
        if any(place != "*" for place in places):
            resources["infra"] = "/".join(places)
        if self.accelerator:
            resources["accelerators"] = self.accelerator
        if runtime := self._runtime_version():
            resources["accelerator_args"] = {"runtime_version": runtime}
        if "disk_size" in given:
            resources["disk_size"] = int(given["disk_size"])
        is_spot = given.get("use_spot") in ("1", "true")
        return {**resources, "use_spot": is_spot, "job_recovery": {"max_restarts_on_errors": 0}}

    def describe(self) -> str:
        resources = self.resources
        spot = "spot" if resources["use_spot"] else "on demand"
        return ", ".join(
            [self.accelerator or "CPU", spot, str(resources.get("infra", "any cloud"))]
        )

    def _runtime_version(self) -> str:
        is_v5e = self.accelerator.startswith("tpu-v5litepod-")
        return self.parameters.get("runtime_version", _RUNTIME_OF_V5E if is_v5e else "")


class SkyTarget:
    """Machines that SkyPilot finds at the clouds that it has access to."""

    creates_machines = True
    carries_secrets = True

    def __init__(self, address: str) -> None:
        self.address = address
        self._asked = SkyAddress.parse(address)
        self.hosts = int(self._asked.parameters.get("nodes", "1"))
        self._sky = Sky()

    def check(self) -> str:
        """Asks for the running jobs; SkyPilot itself looks for the resources after a launch."""
        running = self._sky.queue("--skip-finished", must_answer=True)
        return f"{self._asked.describe()}; {len(running)} jobs of SkyPilot are running"

    def mirror_root(self, asked: str) -> MirrorRoot:
        """Returns the asked bucket; raises ConfigError for places that the machine can't reach."""
        mirror = asked.rstrip("/")
        if not _BUCKET.fullmatch(mirror):
            raise _mirror_is_needed(asked)
        cloud = "gcp" if self._asked.is_tpu else self._asked.parameters.get("cloud", "")
        if mirror.startswith("gs://") and cloud != "gcp":
            raise ConfigError(
                "Only machines of Google Cloud can log in to a mirror at gs://",
                expected="cloud=gcp in the target's address, or a mirror at hf://buckets/",
                received=f"{self.address} with {mirror}"[:300],
                fix="add cloud=gcp, or choose another mirror",
                field="mirror",
            )
        return MirrorRoot(mirror, mirror)

    def price_per_hour(self) -> float | None:
        """Returns None: SkyPilot chooses cloud and machine after the launch."""
        return None

    def launch(self, job: Job) -> Machine:
        """Submits a managed job. The secrets are in the environment of the call only."""
        name = job_name(job.run_id, job.launch)
        with tempfile.TemporaryDirectory(prefix="studio-sky-") as folder:
            file = Path(folder, "task.yaml")
            # JSON is YAML, and needs no package for it.
            file.write_text(json.dumps(self.task(job), ensure_ascii=False, indent=1), "utf-8")
            self._sky.launch(name, file, job.secrets)
        return Machine(self.address, name, job.run_id, job.launch)

    def task(self, job: Job) -> dict[str, object]:
        """Returns the description of a job; no secret is in it."""
        python = self._asked.parameters.get("python", "")
        script = _SCRIPT.format(
            bootstrap=bootstrap_source().rstrip("\n"),
            port=_COORDINATOR_PORT,
            exports=f"export STUDIO_MACHINE_PYTHON={shlex.quote(python)}\n" if python else "",
            python=shlex.quote(python) if python else "python3",
            arguments=shlex.join(job.arguments),
        )
        return {
            "name": job_name(job.run_id, job.launch),
            "num_nodes": self.hosts,
            "resources": self._asked.resources,
            "run": script,
        }

    def find(self, run_id: str, launch: int) -> Machine | None:
        job = _newest(self._sky.queue(), job_name(run_id, launch))
        return self._machine(job) if job else None

    def state(self, machine: Machine) -> Status:
        """Asks for a job's state; raises TargetError if no cloud can ever run it."""
        job = _newest(self._sky.queue(), _checked_name(machine))
        if job is None:
            return Status("ended", "gone")
        if job.status == _REFUSED:
            raise TargetError(
                "SkyPilot can't give this machine",
                expected="resources that a cloud with a login here offers",
                received=job.reason or job.status,
                fix="correct the target's address, or log in to the cloud; try: sky check",
            )
        if job.recoveries and not job.is_over:
            return Status("ended", "SkyPilot has lost its machine and restarted it")
        state = "ended" if job.is_over else _STATES.get(job.status, "unknown")
        return Status(state, job.detail)

    def log(self, machine: Machine) -> str:
        job = _newest(self._sky.queue(), _checked_name(machine))
        return self._sky.log(job.number) if job else ""

    def cancel(self, machine: Machine) -> None:
        """Cancels all jobs of this name; SkyPilot's controller then deletes their machines."""
        name = _checked_name(machine)
        jobs = self._sky.queue("--skip-finished")
        if numbers := [job.number for job in jobs if job.name == name and not job.is_over]:
            self._sky.cancel(numbers)

    def list_machines(self) -> list[Machine]:
        jobs = self._sky.queue("--skip-finished")
        return [machine for job in jobs if (machine := self._machine(job))]

    def _machine(self, job: SkyJob) -> Machine | None:
        """Returns the machine of a job of this program; None for others."""
        named = _NAME.fullmatch(job.name)
        if named is None:
            return None
        detail = ", ".join(filter(None, [f"job {job.number}", job.resources, job.status]))
        return Machine(self.address, job.name, named[1], int(named[2]), job.submitted, detail)


def job_name(run_id: str, launch: int) -> str:
    """Names the job of a launch; raises TargetError for a run that this program didn't name."""
    if not _RUN_ID.fullmatch(run_id) or launch < 1:
        raise TargetError(
            "That can't be a launch",
            expected="a run's id of letters, digits and -, and a number from 1",
            received=ascii(f"{run_id}-{launch}")[:100],
            fix="list the machines with: python -m core targets",
        )
    return f"studio-{run_id}-{launch}"


def _checked_name(machine: Machine) -> str:
    return job_name(machine.run_id, int(machine.launch))


def _newest(jobs: Sequence[SkyJob], name: str) -> SkyJob | None:
    """Returns a job by its name, preferably one that isn't over."""
    named_jobs = [job for job in jobs if job.name == name]
    return max(named_jobs, key=lambda job: (not job.is_over, job.number), default=None)


def _mirror_is_needed(asked: str) -> ConfigError:
    return ConfigError(
        "A run through SkyPilot needs a mirror that its machine can read",
        expected="gs://bucket/folder on Google Cloud, or hf://buckets/OWNER/NAME",
        received=asked[:200] or "no mirror",
        fix="give the address of a bucket; ⟬--mirror⟭ hf://buckets/OWNER/NAME suits every cloud",
        field="mirror",
    )


def _invalid(received: str) -> ConfigError:
    return ConfigError(
        "The address of the SkyPilot target is invalid",
        expected="sky://ACCELERATOR[:NUMBER] or sky://cpu with, if needed, "
        + ", ".join(_PARAMETERS),
        received=received[:200],
        fix="correct it, as in sky://A100:1?use_spot=1&cloud=gcp",
        field="target",
    )
