"""Hugging Face Jobs as a place for runs, with the mirror in a storage bucket.

A launch is a job with the labels of its run. The token travels as the job's secret. A job is never
retried by the Hub: the follower launches the next one, which goes on from the last checkpoint.
"""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from core.errors import ConfigError
from core.hub.client import connect, without_secrets
from core.network.http import limiting_hub_requests
from core.targets.bootstrap import GRACE_SECONDS
from core.targets.code import bootstrap_source
from core.targets.errors import TargetError, UnavailableError
from core.targets.hub import OWNER, asking_hub, is_missing, read_account
from core.targets.hub_bucket import parse_bucket_address
from core.targets.target import Job, Machine, MirrorRoot, State, Status
from core.workspace.names import is_run_id

if TYPE_CHECKING:
    from huggingface_hub import HfApi, JobHardwareInfo, JobInfo

DEFAULT_IMAGE = "python:3.12"
# The Hub's own default is 30 minutes.
LONGEST_SECONDS = 24 * 3600.0
_BUCKET = "pretrain-studio"
_LABEL = {"studio": "pretrain-studio"}
_HUB = "https://huggingface.co"
_FLAVOR = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HOURS = {"second": 3600.0, "minute": 60.0, "hour": 1.0}
_STATES: dict[str, State] = {
    "SCHEDULING": "waiting",
    "RUNNING": "running",
    "COMPLETED": "ended",
    "CANCELED": "ended",
    "ERROR": "ended",
    "DELETED": "ended",
}
_ACTIVE = ["SCHEDULING", "RUNNING"]
# After a launch without an answer, its job is looked for.
_FIND_AFTER_SECONDS = (0.0, 2.0, 5.0)
_MOST_JOBS = 1_000
_LOG_LINES, _LONGEST_LINE = 400, 1_000
# The log's stream goes on while the job runs: this long a silence ends it.
_LOG_SILENCE_SECONDS = 2.0


class JobsTarget:
    """`hf://FLAVOR[?namespace=ORG&image=IMAGE]`."""

    creates_machines = True
    carries_secrets = True
    hosts = 1

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        query = parse_qs(parts.query, keep_blank_values=True)
        self._flavor = parts.netloc
        self._asked_namespace = query.get("namespace", [""])[0]
        self._image = query.get("image", [DEFAULT_IMAGE])[0]
        is_valid = (
            _FLAVOR.fullmatch(self._flavor)
            and not parts.path.strip("/")
            and not parts.fragment
            and not set(query) - {"namespace", "image"}
            and ("namespace" not in query or re.fullmatch(OWNER, self._asked_namespace))
            and _IMAGE.fullmatch(self._image)
        )
        if not is_valid:
            raise ConfigError(
                "That can't be a machine of Hugging Face Jobs",
                expected="hf://FLAVOR, perhaps with ?namespace=ORGANIZATION&image=IMAGE",
                received=address[:200],
                fix="the flavours are listed with: hf jobs hardware",
                field="target",
            )
        self.address = address
        self._api: HfApi = connect()
        self._known_name = ""

    def check(self) -> str:
        problem = "No job can be started on the Hub"
        account = read_account(self._api, problem)
        self._known_name = account.name
        if self._namespace not in account.names:
            raise ConfigError(
                problem,
                expected="your own namespace, or an organization of yours: "
                + ", ".join(sorted(account.names)),
                received=self._namespace,
                fix="correct namespace=",
                field="target",
            )
        if not account.can_write:
            raise TargetError(
                problem,
                expected="a token that may write, and start jobs",
                received=f"a token of {account.name} that may only read",
                fix="create another one at https://huggingface.co/settings/tokens",
            )
        hardware = self._hardware()
        self._list_jobs(_LABEL, _ACTIVE)
        price = hourly_price(hardware)
        rate = "price unknown" if price is None else f"${price:.2f} per hour"
        name = f"{hardware.pretty_name}, {hardware.cpu}, {hardware.ram}"
        return _plain(f"{self._flavor} ({name}), {rate}, namespace {self._namespace}")

    def mirror_root(self, asked: str) -> MirrorRoot:
        """Returns the asked bucket, or a private one of the namespace."""
        address = asked.rstrip("/") or f"hf://buckets/{self._namespace}/{_BUCKET}"
        if not address.startswith("hf://"):
            raise ConfigError(
                "A job on the Hub can't use this mirror",
                expected="hf://buckets/OWNER/NAME, or nothing",
                received=asked[:200],
                fix=f"leave it empty: hf://buckets/{self._namespace}/{_BUCKET} is used",
                field="mirror",
            )
        parse_bucket_address(address)
        return MirrorRoot(address, address)

    def price_per_hour(self) -> float | None:
        return hourly_price(self._hardware())

    def launch(self, job: Job) -> Machine:
        from huggingface_hub import get_token

        token = job.secrets.get("HF_TOKEN") or get_token()
        limit = job.whole_seconds
        seconds = limit + GRACE_SECONDS + 60 if limit else LONGEST_SECONDS
        labels = {**_LABEL, "run": job.run_id, "launch": str(job.launch)}
        try:
            with asking_hub(f"The job {job.name} can't be started", subject="job"):
                started = self._api.run_job(
                    image=self._image,
                    command=["python3", "-c", bootstrap_source(), *job.arguments],
                    env=self._environment(),
                    secrets={**job.secrets, **({"HF_TOKEN": token} if token else {})},
                    flavor=self._flavor,
                    timeout=int(seconds),
                    attempts=1,
                    name=job.name,
                    labels=labels,
                    namespace=self._namespace,
                )
                return self._machine(started, job.run_id, job.launch)
        except UnavailableError:
            # The answer may be lost, and the job started.
            for pause in _FIND_AFTER_SECONDS:
                time.sleep(pause)
                with suppress(TargetError):
                    if machine := self.find(job.run_id, job.launch):
                        return machine
            raise

    def find(self, run_id: str, launch: int) -> Machine | None:
        labels = {**_LABEL, "run": run_id, "launch": str(launch)}
        jobs = self._list_jobs(labels)
        # Should there be two, the one that still runs counts.
        jobs.sort(key=lambda job: _state(job) == "ended")
        return self._machine(jobs[0], run_id, launch) if jobs else None

    def state(self, machine: Machine) -> Status:
        job = self._inspect(machine)
        if job is None:
            return Status("ended", "the job was deleted")
        message = _plain(job.status.message or "")
        state = _state(job)
        if state == "ended":
            return Status(state, f"{_stage(job).lower()}: {message}".rstrip(": "))
        return Status(state, message)

    def log(self, machine: Machine) -> str:
        with asking_hub(f"The log of the job {machine.id} can't be read", subject="job"):
            try:
                with limiting_hub_requests(_LOG_SILENCE_SECONDS):
                    lines = self._api.fetch_job_logs(
                        job_id=_checked_id(machine),
                        namespace=self._namespace,
                        tail=_LOG_LINES,
                    )
                    text = "\n".join(line[:_LONGEST_LINE] for line in islice(lines, _LOG_LINES))
            except Exception as error:
                if is_missing(error):
                    return ""
                raise
        return without_secrets(text)

    def cancel(self, machine: Machine) -> None:
        if self.state(machine).state == "ended":
            return
        try:
            with asking_hub(f"The job {machine.id} can't be cancelled", subject="job"):
                self._api.cancel_job(job_id=_checked_id(machine), namespace=self._namespace)
        except UnavailableError:
            raise
        except TargetError:
            # It may have ended in the meantime.
            if self.state(machine).state != "ended":
                raise

    def list_machines(self) -> list[Machine]:
        machines = []
        for job in self._list_jobs(_LABEL, _ACTIVE):
            labels = job.labels or {}
            run_id, launch = str(labels.get("run", "")), str(labels.get("launch", ""))
            number = int(launch) if launch.isdecimal() and len(launch) < 7 else 0
            machines.append(self._machine(job, run_id if is_run_id(run_id) else "", number))
        return machines

    @property
    def _namespace(self) -> str:
        if not self._asked_namespace and not self._known_name:
            self._known_name = read_account(self._api, "The Hub's jobs can't be used").name
        return self._asked_namespace or self._known_name

    def _hardware(self) -> JobHardwareInfo:
        with asking_hub("The Hub's machines can't be listed"):
            hardware = {str(flavor.name): flavor for flavor in self._api.list_jobs_hardware()}
        if self._flavor in hardware:
            return hardware[self._flavor]
        known = [f"{name} ({_price(flavor)})" for name, flavor in hardware.items()]
        raise ConfigError(
            f"The Hub has no machine {self._flavor}",
            expected=", ".join(known)[:1500],
            received=self._flavor,
            fix="choose one of these",
            field="target",
        )

    def _environment(self) -> dict[str, str]:
        endpoint = (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
        environment = {} if endpoint == _HUB else {"HF_ENDPOINT": endpoint}
        if not self._flavor.startswith("cpu-"):
            # An image that isn't made for GPUs doesn't ask for the driver's libraries.
            environment["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
        return environment

    def _list_jobs(self, labels: dict[str, str], stages: list[str] | None = None) -> list[JobInfo]:
        """Returns the jobs with these labels and stages; what the Hub answers is checked."""
        with asking_hub("The jobs can't be listed", subject="job"):
            jobs = self._api.list_jobs(namespace=self._namespace, labels=labels, status=stages)
            listed_jobs = list(islice(jobs, _MOST_JOBS))
        return [
            job
            for job in listed_jobs
            if all((job.labels or {}).get(name) == value for name, value in labels.items())
            and (not stages or _stage(job) in stages)
        ]

    def _inspect(self, machine: Machine) -> JobInfo | None:
        """Returns a job; None if the Hub knows its namespace, but no such job."""
        job_id = _checked_id(machine)
        with asking_hub(f"The job {job_id} can't be found", subject="job"):
            try:
                return self._api.inspect_job(job_id=job_id, namespace=self._namespace)
            except Exception as error:
                if not is_missing(error):
                    raise
        # A wrong endpoint or a proxy would answer so as well.
        labels = {**_LABEL, "run": machine.run_id}
        return next((job for job in self._list_jobs(labels) if job.id == job_id), None)

    def _machine(self, job: JobInfo, run_id: str, launch: int) -> Machine:
        created = job.created_at.timestamp() if job.created_at else 0.0
        detail = _plain(f"{job.flavor}, {_stage(job).lower()}")
        return Machine(self.address, _checked(job.id), run_id, launch, created, detail)


def _plain(text: object) -> str:
    """Makes one short line of what the Hub says."""
    return " ".join("".join(map(_printable, str(text)[:300])).split())


def _printable(character: str) -> str:
    return character if character.isprintable() else " "


def _stage(job: JobInfo) -> str:
    return str(getattr(job.status.stage, "value", job.status.stage))


def _state(job: JobInfo) -> State:
    return _STATES.get(_stage(job), "unknown")


def hourly_price(hardware: Any) -> float | None:
    """Returns US dollars per hour; None if the Hub doesn't tell them."""
    hours = _HOURS.get(str(hardware.unit_label))
    price = hardware.unit_cost_usd
    if hours is None or not isinstance(price, (int, float)) or not 0 <= price < math.inf:
        return None
    return round(price * hours, 4)


def _price(hardware: Any) -> str:
    price = hourly_price(hardware)
    return "price unknown" if price is None else f"${price:.2f} per hour"


def _checked_id(machine: Machine) -> str:
    return _checked(machine.id)


def _checked(job_id: str) -> str:
    if not _ID.fullmatch(str(job_id)):
        raise TargetError(
            "That can't be a job's id",
            expected="letters and digits",
            received=ascii(job_id)[:100],
            fix="list the machines with: studio targets",
        )
    return str(job_id)
