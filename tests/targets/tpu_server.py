"""A small server that plays Google's side of a run on Cloud TPU.

One loopback port answers the Cloud TPU API v2 (queued resources, nodes, operations) and Cloud
Storage (see `BucketServer`). A resource that becomes ACTIVE runs the node's startup script on each
of its hosts, in real processes; each host has a metadata server on a port of its own. Requests that
no route answers are noted in `unknown_requests`, which a test should find empty.

Source: https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.queuedResources and
https://cloud.google.com/compute/docs/metadata/overview
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from core.config.topologies import TOPOLOGIES
from tests.core.shards.bucket import BucketHandler, BucketServer
from tests.targets.tpu_host import SCOPE, Host
from tests.targets.tpu_request import ApiError, parse_request

# The address at which a service account's key becomes an access token, and that token.
TOKEN_PATH = "/token"
USER_TOKEN = "token-of-the-user"
_TO_ACTIVE = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
# What every zone here offers.
_ACCELERATOR_TYPES = tuple(topology.accelerator_type for topology in TOPOLOGIES.values())
_RUNTIME_VERSIONS = ("tpu-ubuntu2204-base", "v2-alpha-tpuv5", "v2-alpha-tpuv5-lite")
_TRANSIENT = (*_TO_ACTIVE[:-1], "SUSPENDING", "DELETING")
_DELAY_SECONDS = 0.05
_PROJECT_NUMBER = "123456789012"
_REFUSALS = {
    "quota": (
        429,
        "Quota limit 'TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI' has been exceeded.",
    ),
    "forbidden": (403, "Permission 'tpu.queuedresources.create' denied."),
    "internal": (500, "Internal error encountered."),
    "unavailable": (503, "The service is currently unavailable."),
}
_ONLY_CREATING = ("quota", "quota later", "no capacity")
_ANY_FAILURE = (*_REFUSALS, "quota later", "no capacity", "lost answer")


@dataclass
class QueuedResource:
    """A queued resource with its node.

    Attributes:
        parent: projects/PROJECT/locations/ZONE.
        id: The last part of its name.
        body: The request that created it.
        hosts: Its machines, from ACTIVE on.
        error: The cause of FAILED.
        initiator: USER or SERVICE, from the first preemption or deletion on.
        without_capacity: Whether provisioning fails.
        turns: How many times it was preempted or deleted; threads that began earlier stop.
    """

    parent: str
    id: str
    body: dict[str, Any]
    state: str = "CREATING"
    hosts: list[Host] = field(default_factory=list)
    error: dict[str, Any] | None = None
    initiator: str = ""
    without_capacity: bool = False
    turns: int = 0
    created: str = field(default_factory=lambda: _now())

    @property
    def name(self) -> str:
        return f"{self.parent}/queuedResources/{self.id}"

    @property
    def spec(self) -> dict[str, Any]:
        return self.body["tpu"]["nodeSpec"][0]

    @property
    def host_count(self) -> int:
        asked = self.spec["node"]["acceleratorType"]
        return next(one.hosts for one in TOPOLOGIES.values() if one.accelerator_type == asked)

    def describe(self) -> dict[str, Any]:
        """Returns the resource as the API does."""
        state: dict[str, Any] = {"state": self.state}
        if self.state != "WAITING_FOR_RESOURCES":
            data = {"error": self.error} if self.error else {}
            state[f"{self.state.lower()}Data"] = data
        if self.initiator:
            state["stateInitiator"] = self.initiator
        return {**self.body, "name": self.name, "createTime": self.created, "state": state}

    def describe_node(self) -> dict[str, Any]:
        """Returns the node as the API does."""
        states = {"ACTIVE": "READY", "SUSPENDING": "PREEMPTED", "DELETING": "DELETING"}
        addresses = [host.values["instance/network-interfaces/0/ip"] for host in self.hosts]
        return {
            **self.spec["node"],
            "name": f"{self.parent}/nodes/{self.spec['nodeId']}",
            "state": states.get(self.state, "CREATING"),
            "queuedResource": self.name,
            "networkEndpoints": [{"ipAddress": one, "port": 8470} for one in addresses],
            "apiVersion": "V2",
            "createTime": self.created,
        }


class TpuServer(BucketServer):
    """Serves Cloud TPU, its machines' metadata and a bucket, until closed; a context manager.

    Attributes:
        url: Base address of the API, for https://tpu.googleapis.com, and of Cloud Storage, for
            STORAGE_EMULATOR_HOST.
        extra_environment: Variables for the startup scripts of later boots; `{metadata_host}` in a
            value becomes the address of the host's metadata server.
        created: Ids of all resources ever created, in order.
        deleted: Access token of the request that deleted a resource, by its id.
    """

    def __init__(self, extra_environment: Mapping[str, str] | None = None) -> None:
        self.extra_environment = dict(extra_environment or {})
        self.created: list[str] = []
        self.deleted: dict[str, str] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="tpu-server-"))
        self._changed = threading.Condition()
        self._closed = False
        self._resources: dict[str, QueuedResource] = {}
        self._latest: dict[str, QueuedResource] = {}
        self._operations: dict[str, tuple[str, QueuedResource]] = {}
        self._delays = dict.fromkeys(_TRANSIENT, _DELAY_SECONDS)
        self._failures: list[tuple[str, str | None]] = []
        self._fatal_upload: tuple[str, str, int] | None = None
        self._booted: list[Host] = []
        self._numbers = count()
        super().__init__(_Handler)

    def close(self) -> None:
        """Stops serving and kills all machines."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for host in self._booted:
                host.shut_down()
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # For tests.

    def resources(self) -> dict[str, str]:
        """Returns the state of each resource that is there, by its id."""
        with self._changed:
            return {one.id: one.state for one in self._resources.values()}

    def describe_resource(self, id: str) -> dict[str, Any]:
        """Returns a resource as the API does, also one that is gone."""
        return self._latest[id].describe()

    def hosts(self, id: str) -> list[Host]:
        """Returns the hosts of a resource, also of one that is gone."""
        return self._latest[id].hosts

    def wait(self, id: str, state: str | None, timeout_seconds: float = 30) -> None:
        """Waits until a resource is in a state; None: until it is gone."""
        with self._changed:
            reached = self._changed.wait_for(
                lambda: self.resources().get(id) == state, timeout_seconds
            )
        assert reached, f"{id}: expected {state}, found {self.resources().get(id)}"

    def delay(self, state: str, seconds: float) -> None:
        """Sets how long resources stay in a transient state; infinity: until it is set anew."""
        if state not in _TRANSIENT:
            raise ValueError(f"the state must be one of {_TRANSIENT}, not {state}")
        with self._changed:
            self._delays[state] = seconds
            self._changed.notify_all()

    def fail_next(self, kind: str, times: int = 1, method: str | None = None) -> None:
        """Makes the next requests to the API fail.

        Args:
            kind: quota (429), forbidden (403), internal (500), unavailable (503), quota later (the
                operation fails, and creates nothing), no capacity (a resource that is created
                fails later) or lost answer (the request is carried out, and the connection
                dropped).
            times: How many requests.
            method: GET, POST or DELETE; None: any, or POST for the two quotas and no capacity.
        """
        if kind not in _ANY_FAILURE:
            raise ValueError(f"the kind must be one of {_ANY_FAILURE}, not {kind}")
        method = "POST" if kind in _ONLY_CREATING else method
        with self._changed:
            self._failures += [(kind, method)] * times

    def preempt(self, id: str) -> None:
        """Kills all processes of an ACTIVE resource and suspends it."""
        with self._changed:
            resource = self._latest[id]
            if resource.state != "ACTIVE":
                raise ValueError(f"only an ACTIVE resource is preempted; {id}: {resource.state}")
            self._turn(resource, "SUSPENDING", "SERVICE")
            self._shut_down(resource)
        self._start(self._suspend, resource)

    def preempt_at_upload(self, id: str, key_end: str, later: int = 0) -> None:
        """Preempts a resource before the answer to one of the next uploads.

        Its machines run until then, however slow or fast they are.

        Args:
            id: An ACTIVE resource, the only one that uploads.
            key_end: End of the key of an upload.
            later: How many uploads after that one.
        """
        with self.lock:
            self._fatal_upload = (id, key_end, later)

    def store(self, key: str, content: bytes) -> None:
        super().store(key, content)
        if self._fatal_upload is None:
            return
        id, key_end, later = self._fatal_upload
        if not key.endswith(key_end):
            return
        self._fatal_upload = (id, "", later - 1) if later else None
        if not later:
            self.preempt(id)

    # The life of a resource: one thread for each way that it goes.

    def _start(self, life: Callable[[QueuedResource, int], None], resource: QueuedResource) -> None:
        threading.Thread(target=life, args=(resource, resource.turns), daemon=True).start()

    def _provision(self, resource: QueuedResource, turns: int) -> None:
        with self._changed:
            for state in _TO_ACTIVE[1:]:
                if not self._stay(resource, turns):
                    return
                if state == "ACTIVE" and resource.without_capacity:
                    zone = resource.parent.rpartition("/")[2]
                    message = f'There is no more capacity in the zone "{zone}"; try another zone.'
                    resource.error = {"code": 8, "message": message}
                    state = "FAILED"
                elif state == "ACTIVE":
                    self._boot(resource)
                self._set(resource, state)

    def _suspend(self, resource: QueuedResource, turns: int) -> None:
        with self._changed:
            if self._stay(resource, turns):
                self._set(resource, "SUSPENDED", "SERVICE")

    def _remove(self, resource: QueuedResource, turns: int) -> None:
        with self._changed:
            if self._stay(resource, turns):
                self._shut_down(resource)
                del self._resources[resource.name]
                self._changed.notify_all()

    def _stay(self, resource: QueuedResource, turns: int) -> bool:
        """Waits out the state's delay; false if something else has happened meanwhile."""
        entered = time.monotonic()
        while resource.turns == turns and not self._closed:
            left = entered + self._delays[resource.state] - time.monotonic()
            if left <= 0:
                return True
            self._changed.wait(min(left, 60))
        return False

    def _turn(self, resource: QueuedResource, state: str, initiator: str) -> None:
        resource.turns += 1
        self._set(resource, state, initiator)

    def _set(self, resource: QueuedResource, state: str, initiator: str = "") -> None:
        resource.state, resource.initiator = state, initiator
        self._changed.notify_all()

    def _boot(self, resource: QueuedResource) -> None:
        project, _, zone = resource.parent.removeprefix("projects/").partition("/locations/")
        spec, number = resource.spec, next(self._numbers)
        # Each host has a loopback address of its own, so that hosts can listen on equal ports.
        addresses = [
            f"127.{1 + number // 250}.{1 + number % 250}.{1 + worker}"
            for worker in range(resource.host_count)
        ]
        for worker, address in enumerate(addresses):
            attributes = {
                **spec["node"].get("metadata", {}),
                "accelerator-type": spec["node"]["acceleratorType"],
                "agent-worker-number": str(worker),
                "instance-id": spec["nodeId"],
                "worker-network-endpoints": ",".join(f"unknown:unknown:{one}" for one in addresses),
            }
            values = {
                "instance/id": str(uuid4().int % 10**19),
                "instance/name": f"t1v-n-{number:08x}-w-{worker}",
                "instance/network-interfaces/0/ip": address,
                "instance/service-accounts/default/email": "machine@example.com",
                "instance/service-accounts/default/scopes": f"{SCOPE}\n",
                "instance/zone": f"projects/{_PROJECT_NUMBER}/zones/{zone}",
                "project/numeric-project-id": _PROJECT_NUMBER,
                "project/project-id": project,
                "universe/universe-domain": "googleapis.com",
                **{f"instance/attributes/{name}": value for name, value in attributes.items()},
            }
            folder = self._folder / f"{len(self.created)}-{resource.id}" / f"host-{worker}"
            host = Host(folder, values, self)
            resource.hosts.append(host)
            self._booted.append(host)
        for host in resource.hosts:
            host.boot(self.extra_environment)

    def _shut_down(self, resource: QueuedResource) -> None:
        for host in resource.hosts:
            if host in self._booted:
                self._booted.remove(host)
                host.shut_down()

    # The API.

    def call(
        self, method: str, path: str, query: dict[str, str], body: bytes, token: str
    ) -> dict[str, Any]:
        """Answers a request to the Cloud TPU API.

        Raises:
            ApiError: The request is refused.
            ConnectionAbortedError: The answer is to get lost.
        """
        routes = [
            (match.groups(), parameters, answer)
            for its_method, pattern, parameters, answer in _ROUTES
            if (match := re.fullmatch(_PARENT + pattern, path)) and method == its_method
        ]
        if not routes:
            self.unknown_requests.append(f"{method} {path}")
            raise ApiError(404, f"no route for {method} {path}")
        ((names, parameters, answer),) = routes
        if not token:
            raise ApiError(401, "Request is missing required authentication credential.")
        if unknown := query.keys() - parameters - {"alt", "prettyPrint"}:
            problem = f'Unknown name "{min(unknown)}": Cannot bind query parameter.'
            raise ApiError(400, f"Invalid JSON payload received. {problem}")
        with self._changed:
            failure = self._next_failure(method)
            if failure in _REFUSALS:
                raise ApiError(*_REFUSALS[failure])
            if failure == "quota later":
                return self._failed_operation(*names)
            answered = answer(self, *names, query=query, body=body, token=token)
            if failure == "no capacity":
                self._latest[self.created[-1]].without_capacity = True
        if failure == "lost answer":
            raise ConnectionAbortedError(failure)
        return answered

    def _next_failure(self, method: str) -> str:
        for failure in self._failures:
            if failure[1] in (None, method):
                self._failures.remove(failure)
                return failure[0]
        return ""

    def _create(
        self, parent: str, query: dict[str, str], body: bytes, token: str
    ) -> dict[str, Any]:
        id = query.get("queuedResourceId", "")
        resource = QueuedResource(parent, id, parse_request(body, parent, id))
        if resource.name in self._resources:
            raise ApiError(409, f"Resource '{resource.name}' already exists")
        self._resources[resource.name] = self._latest[id] = resource
        self.created.append(id)
        self._start(self._provision, resource)
        return self._operation("create", resource)

    def _delete(
        self, parent: str, id: str, query: dict[str, str], body: bytes, token: str
    ) -> dict[str, Any]:
        resource = self._get_resource(parent, id)
        if resource.state == "DELETING":
            raise ApiError(409, "unable to queue the operation", "ABORTED")
        has_node = resource.state in ("PROVISIONING", "ACTIVE", "SUSPENDING")
        if has_node and query.get("force") != "true":
            message = f"{resource.name} has a node: delete the node first, or set force"
            raise ApiError(400, message, "FAILED_PRECONDITION")
        self.deleted[id] = token
        self._turn(resource, "DELETING", "USER")
        self._start(self._remove, resource)
        return self._operation("delete", resource)

    def _get(self, parent: str, id: str, **_: Any) -> dict[str, Any]:
        return self._get_resource(parent, id).describe()

    def _list(self, parent: str, query: dict[str, str], **_: Any) -> dict[str, Any]:
        there = [one for one in self._resources.values() if one.parent == parent]
        return _page("queuedResources", [one.describe() for one in there], query)

    def _list_nodes(self, parent: str, query: dict[str, str], **_: Any) -> dict[str, Any]:
        return _page("nodes", self._nodes(parent), query)

    def _get_node(self, parent: str, id: str, **_: Any) -> dict[str, Any]:
        name = f"{parent}/nodes/{id}"
        for node in self._nodes(parent):
            if node["name"] == name:
                return node
        raise ApiError(404, f"Resource '{name}' was not found")

    def _get_operation(self, parent: str, id: str, **_: Any) -> dict[str, Any]:
        name = f"{parent}/operations/{id}"
        if name not in self._operations:
            raise ApiError(404, f"Resource '{name}' was not found")
        return self._describe_operation(name)

    def _get_accelerator_type(self, parent: str, id: str, **_: Any) -> dict[str, Any]:
        return {**_offered(parent, "acceleratorTypes", id, _ACCELERATOR_TYPES), "type": id}

    def _get_runtime_version(self, parent: str, id: str, **_: Any) -> dict[str, Any]:
        return {**_offered(parent, "runtimeVersions", id, _RUNTIME_VERSIONS), "version": id}

    def _get_resource(self, parent: str, id: str) -> QueuedResource:
        name = f"{parent}/queuedResources/{id}"
        if name not in self._resources:
            raise ApiError(404, f"Resource '{name}' was not found")
        return self._resources[name]

    def _nodes(self, parent: str) -> list[dict[str, Any]]:
        return [
            one.describe_node()
            for one in self._resources.values()
            if one.parent == parent and (one.hosts or one.state == "PROVISIONING")
            if one.state != "SUSPENDED"
        ]

    def _operation(self, verb: str, resource: QueuedResource) -> dict[str, Any]:
        name = f"{resource.parent}/operations/operation-{uuid4().hex}"
        self._operations[name] = verb, resource
        return self._describe_operation(name)

    def _failed_operation(self, parent: str) -> dict[str, Any]:
        error = {"code": 8, "message": _REFUSALS["quota"][1]}
        return {"name": f"{parent}/operations/operation-1", "done": True, "error": error}

    def _describe_operation(self, name: str) -> dict[str, Any]:
        verb, resource = self._operations[name]
        answer: dict[str, Any] = {
            "name": name,
            "metadata": {
                "@type": "type.googleapis.com/google.cloud.common.OperationMetadata",
                "createTime": resource.created,
                "target": resource.name,
                "verb": verb,
                "cancelRequested": False,
                "apiVersion": "v2",
            },
            "done": False,
        }
        if verb == "create" and resource.state != "CREATING":
            kind = "type.googleapis.com/google.cloud.tpu.v2.QueuedResource"
            answer |= {"done": True, "response": {"@type": kind, **resource.describe()}}
        elif verb == "delete" and self._resources.get(resource.name) is not resource:
            empty = {"@type": "type.googleapis.com/google.protobuf.Empty"}
            answer |= {"done": True, "response": empty}
        return answer


_PARENT = r"/v2/(projects/[^/]+/locations/[^/]+)/"
_PAGED = {"pageSize", "pageToken"}
_ROUTES: list[tuple[str, str, set[str], Callable[..., dict[str, Any]]]] = [
    ("POST", "queuedResources", {"queuedResourceId", "requestId"}, TpuServer._create),
    ("GET", "queuedResources", _PAGED, TpuServer._list),
    ("GET", "queuedResources/([^/]+)", set(), TpuServer._get),
    ("DELETE", "queuedResources/([^/]+)", {"force", "requestId"}, TpuServer._delete),
    ("GET", "nodes", _PAGED, TpuServer._list_nodes),
    ("GET", "nodes/([^/]+)", set(), TpuServer._get_node),
    ("GET", "operations/([^/]+)", set(), TpuServer._get_operation),
    ("GET", "acceleratorTypes/([^/]+)", set(), TpuServer._get_accelerator_type),
    ("GET", "runtimeVersions/([^/]+)", set(), TpuServer._get_runtime_version),
]


class _Handler(BucketHandler):
    """Answers the API's requests, and leaves the others to the bucket."""

    bucket: TpuServer

    def do_GET(self) -> None:
        self._call() or super().do_GET()

    def do_POST(self) -> None:
        if self.path == TOKEN_PATH:
            self._body()
            self._answer_json({"access_token": USER_TOKEN, "expires_in": 3599})
        else:
            self._call() or super().do_POST()

    def do_DELETE(self) -> None:
        self._call() or super().do_DELETE()

    def _call(self) -> bool:
        if not self.path.startswith("/v2/"):
            return False
        path, query = self._asked()
        token = self.headers.get("Authorization", "").partition("Bearer ")[2]
        try:
            answer = self.bucket.call(self.command, path, query, self._body(), token)
        except ApiError as error:
            self._answer_json(error.body, error.code)
        else:
            self._answer_json(answer)
        return True


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _offered(parent: str, collection: str, id: str, offered: tuple[str, ...]) -> dict[str, Any]:
    name = f"{parent}/{collection}/{id}"
    if id not in offered:
        raise ApiError(404, f"Resource '{name}' was not found")
    return {"name": name}


def _page(key: str, entries: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    size, start = int(query.get("pageSize", 500)), int(query.get("pageToken", 0))
    answer: dict[str, Any] = {key: entries[start : start + size]} if entries[start:] else {}
    if entries[start + size :]:
        answer["nextPageToken"] = str(start + size)
    return answer
