"""Runs on a Cloud TPU: one queued resource for each launch.

`tpu://TYPE?zone=ZONE&spot=1&project=PROJECT`, such as `tpu://v5litepod-8?zone=us-west4-a`. The
mirror has to be in a bucket. A resource is deleted by its own startup script
(`core/targets/tpu_startup.sh`), and by the follower as a second line.

Source: https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.queuedResources
"""

from __future__ import annotations

import os
import re
import shlex
import time
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from core.config.topologies import TOPOLOGIES, Topology, accelerator_type, runtime_version
from core.errors import ConfigError
from core.targets.code import bootstrap_source
from core.targets.errors import TargetError, UnavailableError
from core.targets.google_api import GoogleApi, GoogleError
from core.targets.opening import open_store
from core.targets.schema import MOST_LOG_BYTES
from core.targets.target import Job, Machine, MirrorRoot, State, Status

ENDPOINT_VARIABLE = "STUDIO_TPU_ENDPOINT"
_ENDPOINT = "https://tpu.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_LABEL = {"studio": "pretrain-studio"}
_STATES: dict[str, State] = {
    "CREATING": "waiting",
    "ACCEPTED": "waiting",
    "WAITING_FOR_RESOURCES": "waiting",
    "PROVISIONING": "waiting",
    "ACTIVE": "running",
    "FAILED": "ended",
    "SUSPENDING": "ended",
    "SUSPENDED": "ended",
    "DELETING": "ended",
}
_PAGE_SIZE = 100
_MOST_PAGES = 50
_VISIBLE_WITHIN_SECONDS = 30.0
_DELETED_WITHIN_SECONDS = 60.0
_POLL_SECONDS = 1.0
# The bootstrap script has time of its own to save after the limit; the machine is deleted later.
_GRACE_SECONDS = 600
_ROUND_SECONDS = 10
_SILENT_SECONDS = 300
_COORDINATOR_PORT = 8476

_PARAMETERS = {
    "zone": r"[a-z]+-[a-z]+[0-9]+-[a-z]",
    "project": r"([a-z][a-z0-9.-]{0,60}[a-z0-9.]:)?[a-z][a-z0-9-]{4,28}[a-z0-9]|[0-9]{6,20}",
    "spot": "0|1|true|false",
    "runtime": r"[a-z0-9][a-z0-9._-]{0,62}",
    "network": r"[a-z0-9][a-z0-9/._-]{0,200}",
    "subnetwork": r"[a-z0-9][a-z0-9/._-]{0,200}",
    "service_account": r"[a-z0-9-]{1,63}@[a-z0-9.-]{1,200}",
}
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_RESOURCE_ID = re.compile(r"studio-([a-z0-9][a-z0-9-]{0,47})-([1-9][0-9]{0,5})")
_OPERATION = re.compile(r"projects/[\w.:-]+/locations/[\w-]+/operations/[\w-]+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


@dataclass(frozen=True)
class TpuAddress:
    """The parts of a target's address.

    Attributes:
        type: Google's accelerator type.
        project: "" for that of the credentials.
        runtime: Software version of the VM.
    """

    type: str
    zone: str
    project: str = ""
    spot: bool = True
    runtime: str = ""
    network: str = ""
    subnetwork: str = ""
    service_account: str = ""

    @classmethod
    def parse(cls, address: str) -> TpuAddress:
        """Parses `tpu://TYPE?zone=ZONE…`; raises ConfigError with `field="target"`."""
        try:
            parts = urlsplit(address)
            given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise _invalid(address, str(error)) from error
        values = dict(given)
        if parts.scheme != "tpu" or parts.path.strip("/") or parts.fragment:
            raise _invalid(address, address)
        if len(values) < len(given):
            raise _invalid(address, "a parameter twice")
        for name, value in values.items():
            if name not in _PARAMETERS:
                raise _invalid(address, f"the parameter {name}")
            if not re.fullmatch(_PARAMETERS[name], value):
                raise _invalid(address, f"{name}={value}")
        if "zone" not in values:
            raise _without_zone(address)
        kind = accelerator_type(parts.netloc)
        spot = values.pop("spot", "1") in ("1", "true")
        return cls(kind, spot=spot, **{"runtime": runtime_version(kind), **values})

    @property
    def topology(self) -> Topology | None:
        """The type's chips and hosts, if they are known."""
        return next((t for t in TOPOLOGIES.values() if t.accelerator_type == self.type), None)

    def describe(self) -> str:
        known = self.topology
        size = f" (chips: {known.chips}, hosts: {known.hosts})" if known else ""
        return f"{self.type}{size}, {'spot' if self.spot else 'on demand'}, in {self.zone}"


class TpuTarget:
    """A slice of Cloud TPU in one zone."""

    creates_machines = True
    # Whatever a startup script contains can be read by everyone who may see the project's nodes.
    carries_secrets = False

    def __init__(self, address: str) -> None:
        self.address = address
        self._asked = TpuAddress.parse(address)
        self.hosts = self._asked.topology.hosts if self._asked.topology else 1
        self._api = GoogleApi(os.environ.get(ENDPOINT_VARIABLE) or _ENDPOINT)
        self._mirror = ""

    def check(self) -> str:
        """Asks for the zone's queued resources, the type and the runtime; creates nothing."""
        asked = self._asked
        self._api.call("GET", f"{self._parent}/queuedResources", query={"pageSize": "1"})
        self._check_offered("acceleratorTypes", asked.type, "type of TPU")
        self._check_offered("runtimeVersions", asked.runtime, "runtime version")
        return f"{asked.describe()} of project {self._project}"

    def mirror_root(self, asked: str) -> MirrorRoot:
        self._mirror = asked.rstrip("/")
        _split_bucket(self._mirror)
        return MirrorRoot(self._mirror, self._mirror)

    def price_per_hour(self) -> float | None:
        """Returns None: Google's prices depend on region and contract."""
        return None

    def launch(self, job: Job) -> Machine:
        id = resource_id(job.run_id, job.launch)
        query, operation = {"queuedResourceId": id}, {}
        try:
            operation = self._api.call(
                "POST", f"{self._parent}/queuedResources", query=query, body=self._request(job)
            )
        except GoogleError as error:
            if error.code != 409:
                raise
        deadline = time.monotonic() + _VISIBLE_WITHIN_SECONDS
        while time.monotonic() < deadline:
            if machine := self.find(job.run_id, job.launch):
                return machine
            operation = self._look_at(operation)
            time.sleep(_POLL_SECONDS)
        raise UnavailableError(
            f"The queued resource {id} was requested but isn't there",
            expected=f"the resource within {_VISIBLE_WITHIN_SECONDS:.0f} seconds",
            received="404 Not Found",
            fix="look for its error in the console; it is tried again",
        )

    def find(self, run_id: str, launch: int) -> Machine | None:
        id = resource_id(run_id, launch)
        resource = self._get(id)
        if resource is None:
            return None
        machine = self._machine(resource)
        if machine is None or machine.run_id != run_id:
            raise TargetError(
                f"The queued resource {id} exists but isn't this run's",
                expected=f"a resource that this program made for {run_id}",
                fix="delete it in the console if nobody needs it",
            )
        return machine

    def state(self, machine: Machine) -> Status:
        resource = self._get(machine.id)
        if resource is None:
            return Status("ended", "deleted")
        name = _state_of(resource)
        words = _error_of(resource)
        return Status(_STATES.get(name, "unknown"), f"{name}: {words}" if words else name)

    def log(self, machine: Machine) -> str:
        mirror = self._mirror or self._mirror_of(machine)
        if not mirror:
            return ""
        name = log_name(machine.run_id, machine.launch, 0)
        data = open_store(mirror).read(name, MOST_LOG_BYTES)
        return (data or b"").decode("utf-8", "replace")

    def cancel(self, machine: Machine) -> None:
        """Deletes the resource; returns once Google has accepted that, or it is gone."""
        deadline = time.monotonic() + _DELETED_WITHIN_SECONDS
        while True:
            try:
                self._api.call("DELETE", self._name(machine.id), query={"force": "true"})
                return
            except GoogleError as error:
                if error.code == 404:
                    return
                # Another operation has to end first; it may be a deletion.
                is_busy = error.code == 409 or error.status == "FAILED_PRECONDITION"
                if not is_busy or time.monotonic() > deadline:
                    raise
            resource = self._get(machine.id)
            if resource is None or _state_of(resource) == "DELETING":
                return
            time.sleep(_POLL_SECONDS)

    def list_machines(self) -> list[Machine]:
        """Lists this program's queued resources of the zone, suspended ones included."""
        machines: list[Machine] = []
        query = {"pageSize": str(_PAGE_SIZE)}
        for _ in range(_MOST_PAGES):
            page = self._api.call("GET", f"{self._parent}/queuedResources", query=query)
            entries = page.get("queuedResources")
            for resource in entries if isinstance(entries, list) else []:
                if machine := self._machine(resource):
                    machines.append(machine)
            token = page.get("nextPageToken")
            if not token:
                break
            query["pageToken"] = str(token)
        return machines

    # Requests.

    @property
    def _project(self) -> str:
        project = self._asked.project or self._api.project
        if not project:
            raise ConfigError(
                "The project of the TPU is unknown",
                expected="a project in the target's address or in gcloud's configuration",
                fix="add &project=PROJECT to the target's address",
                field="target",
            )
        return project

    @property
    def _parent(self) -> str:
        return f"v2/projects/{self._project}/locations/{self._asked.zone}"

    def _name(self, id: str) -> str:
        if not _RESOURCE_ID.fullmatch(id):
            raise ConfigError(
                "That is no machine of this program",
                expected="a queued resource whose name begins with studio-",
                received=id[:100],
                fix="list them with: python -m core targets",
            )
        return f"{self._parent}/queuedResources/{id}"

    def _get(self, id: str) -> dict[str, Any] | None:
        try:
            return self._api.call("GET", self._name(id))
        except GoogleError as error:
            if error.code == 404:
                return None
            raise

    def _look_at(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Asks for an operation anew; raises GoogleError if it has failed."""
        name = str(operation.get("name", ""))
        if operation.get("done") is not True and _OPERATION.fullmatch(name):
            operation = self._api.call("GET", f"v2/{name}")
        error = operation.get("error")
        if isinstance(error, dict):
            status = "RESOURCE_EXHAUSTED" if error.get("code") == 8 else ""
            code = 429 if status else 400
            raise GoogleError(code, status, str(error.get("message", ""))[:500])
        return operation

    def _check_offered(self, collection: str, name: str, title: str) -> None:
        try:
            self._api.call("GET", f"{self._parent}/{collection}/{name}")
        except GoogleError as error:
            if error.code != 404:
                raise
            raise ConfigError(
                f"The zone {self._asked.zone} doesn't offer this {title}",
                expected=f"a {title} of this zone",
                received=name,
                fix="see https://cloud.google.com/tpu/docs/regions-zones for types and their zones",
                field="target",
            ) from error

    def _request(self, job: Job) -> dict[str, Any]:
        """Returns the body of the request that creates a queued resource."""
        asked, id = self._asked, resource_id(job.run_id, job.launch)
        network = {"network": asked.network, "subnetwork": asked.subnetwork}
        account = {"email": asked.service_account} if asked.service_account else {}
        resource = f"{self._api.endpoint}/{self._name(id)}"
        node = {
            "acceleratorType": asked.type,
            "runtimeVersion": asked.runtime,
            "labels": {**_LABEL, "run": _label(job.run_id), "launch": str(job.launch)},
            "metadata": {
                "startup-script": startup_script(job, resource, bootstrap_source()),
                "studio-run": job.run_id,
                "studio-mirror": job.mirror,
            },
            # Packages are fetched from the internet.
            "networkConfig": {
                **{name: value for name, value in network.items() if value},
                "enableExternalIps": True,
            },
            "serviceAccount": {**account, "scope": [_SCOPE]},
        }
        parent = self._parent.removeprefix("v2/")
        body: dict[str, Any] = {
            "tpu": {"nodeSpec": [{"parent": parent, "nodeId": id, "node": node}]}
        }
        # Without a tier the TPU is on demand.
        return {**body, "spot": {}} if asked.spot else body

    # Answers, whose shape is checked.

    def _machine(self, resource: Any) -> Machine | None:
        """Returns a machine of this program; None for others."""
        node = _node_of(resource)
        labels, metadata = _texts(node.get("labels")), _texts(node.get("metadata"))
        id = str(resource.get("name", "")).rpartition("/")[2]
        named = _RESOURCE_ID.fullmatch(id)
        if named is None or labels.get("studio", _LABEL["studio"]) != _LABEL["studio"]:
            return None
        run_id = metadata.get("studio-run", named[1])
        if not _RUN_ID.fullmatch(run_id) or id != resource_id(run_id, int(named[2])):
            return None
        detail = f"{node.get('acceleratorType', '')} {_state_of(resource)}"[:100]
        created = _seconds(resource.get("createTime"))
        return Machine(self.address, id, run_id, int(named[2]), created, detail)

    def _mirror_of(self, machine: Machine) -> str:
        mirror = _texts(_node_of(self._get(machine.id)).get("metadata")).get("studio-mirror", "")
        return mirror if mirror.startswith("gs://") else ""


def resource_id(run_id: str, launch: int) -> str:
    """Returns the id of a launch's queued resource: at most 63 of a-z, 0-9 and -."""
    name = run_id.lower()
    if name != run_id or not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,47}", name):
        name = f"{re.sub('[^a-z0-9-]', '-', name)[:36]}-{sha256(run_id.encode()).hexdigest()[:10]}"
    return f"studio-{name}-{launch}"


def log_name(run_id: str, launch: int, host: int) -> str:
    """Returns the name, in the mirror, of the log that a host of a launch uploads."""
    return f"runs/{run_id}/launches/{launch:06d}-{host}.log"


def startup_script(
    job: Job,
    resource: str,
    bootstrap: str,
    *,
    grace_seconds: int = _GRACE_SECONDS,
    round_seconds: int = _ROUND_SECONDS,
    silent_seconds: int = _SILENT_SECONDS,
) -> str:
    """Writes the script that each host runs at each boot.

    Args:
        resource: URL of the queued resource, which the script deletes at the end.
        bootstrap: Source of the bootstrap script.
        grace_seconds: Time between the job's limit and the deletion by force.
        round_seconds: Time between two uploads of the log.
        silent_seconds: Time without one after which the others take host 0 for gone.
    """
    bucket, folder = _split_bucket(job.mirror)
    log = log_name(job.run_id, job.launch, 0).removesuffix("0.log")
    values = {
        "NAME": resource_id(job.run_id, job.launch),
        "RESOURCE": resource,
        "BUCKET": bucket,
        "LOG": quote(f"{folder}/{log}" if folder else log, safe=""),
        "LIMIT_SECONDS": str(job.whole_seconds),
        "GRACE_SECONDS": str(grace_seconds),
        "ROUND_SECONDS": str(round_seconds),
        "SILENT_SECONDS": str(silent_seconds),
        "COORDINATOR_PORT": str(_COORDINATOR_PORT),
        "BOOTSTRAP": bootstrap,
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    lines.append(f"ARGUMENTS=({shlex.join(job.arguments)})")
    script = Path(__file__).with_name("tpu_startup.sh").read_text("utf-8")
    return "\n".join(["#!/bin/bash", *lines, script])


def _split_bucket(mirror: str) -> tuple[str, str]:
    """Returns bucket and folder of a gs:// address; raises ConfigError for others."""
    scheme, _, rest = mirror.partition("://")
    bucket, _, folder = rest.strip("/").partition("/")
    if scheme != "gs" or not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            "A run on a Cloud TPU needs a mirror in Google Cloud Storage",
            expected="gs://bucket/folder, best in the TPU's region",
            received=mirror[:200] or "no mirror",
            fix="give the address of a bucket: ⟬--mirror⟭ gs://bucket/folder",
            field="mirror",
        )
    return bucket, unquote(folder)


def _label(text: str) -> str:
    return re.sub("[^a-z0-9_-]", "-", text.lower())[:63]


def _node_of(resource: Any) -> dict[str, Any]:
    try:
        node = resource["tpu"]["nodeSpec"][0]["node"]
    except (KeyError, IndexError, TypeError):
        return {}
    return node if isinstance(node, dict) else {}


def _texts(values: Any) -> dict[str, str]:
    """Returns an object whose values are texts; empty if it is something else."""
    values = values if isinstance(values, dict) else {}
    return {name: text for name, text in values.items() if isinstance(text, str)}


def _state_of(resource: dict[str, Any]) -> str:
    state = resource.get("state")
    return str(state.get("state", ""))[:50] if isinstance(state, dict) else ""


def _error_of(resource: dict[str, Any]) -> str:
    """Returns Google's words on a failure; "" without one."""
    try:
        return str(resource["state"]["failedData"]["error"]["message"])[:500]
    except (KeyError, TypeError):
        return ""


def _seconds(text: Any) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def _without_zone(address: str) -> ConfigError:
    return ConfigError(
        "The address of the TPU names no zone",
        expected="a zone in which your project has a quota for this type",
        received=address[:200],
        fix="add it, as in tpu://v5litepod-8?zone=us-west4-a",
        field="target",
    )


def _invalid(address: str, received: str) -> ConfigError:
    optional = {*_PARAMETERS} - {"zone"}
    return ConfigError(
        "The address of the TPU is invalid",
        expected=f"tpu://TYPE?zone=ZONE with, if needed, {', '.join(sorted(optional))}",
        received=received[:200],
        fix="correct it, as in tpu://v5litepod-8?zone=us-west4-a&spot=1&project=my-project",
        field="target",
    )
