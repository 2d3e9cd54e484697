"""Checks a request to create a queued resource as the Cloud TPU API does."""

from __future__ import annotations

import json
import re
from typing import Any

_METADATA_BYTES = 256 * 1024
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
# The fields that a request to create may have, and their types; * stands for any name.
_NODE = {
    "acceleratorType": str,
    "autocheckpointEnabled": bool,
    "bootDiskConfig": {"diskSizeGb": str, "sourceImage": str},
    "description": str,
    "labels": {"*": str},
    "metadata": {"*": str},
    "networkConfig": {"network": str, "subnetwork": str, "enableExternalIps": bool},
    "runtimeVersion": str,
    "schedulingConfig": {"preemptible": bool, "reserved": bool, "spot": bool},
    "serviceAccount": {"email": str, "scope": [str]},
    "tags": [str],
}
_RESOURCE = {
    "guaranteed": {"minDuration": str, "reserved": bool},
    "queueingPolicy": {"validUntilDuration": str, "validUntilTime": str},
    "reservationName": str,
    "spot": {},
    "tpu": {"nodeSpec": [{"node": _NODE, "nodeId": str, "parent": str}]},
}


class ApiError(Exception):
    """An error as Google's APIs report it."""

    def __init__(self, code: int, message: str, status: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "error": {"code": code, "message": message, "status": status or _STATUSES[code]}
        }


def parse_request(body: bytes, parent: str, id: str) -> dict[str, Any]:
    """Parses and checks a request to create a queued resource.

    Raises:
        ApiError: The request is no JSON, has an unknown field, lacks one, or one is malformed.
    """
    try:
        given = json.loads(body)
    except ValueError:
        raise ApiError(400, "Invalid JSON payload received.") from None
    _check_fields(given, _RESOURCE, "queued_resource")
    specs = given.get("tpu", {}).get("nodeSpec", [])
    spec = specs[0] if len(specs) == 1 else {}
    node = spec.get("node", {})
    required = {
        "queued_resource_id": id,
        "tpu.node_spec": spec,
        "tpu.node_spec.parent": spec.get("parent"),
        "tpu.node_spec.node_id": spec.get("nodeId"),
        "tpu.node_spec.node.accelerator_type": node.get("acceleratorType"),
        "tpu.node_spec.node.runtime_version": node.get("runtimeVersion"),
    }
    for name, value in required.items():
        if not value:
            raise ApiError(400, f"Missing required field: {name}")
    labels, metadata = node.get("labels", {}), node.get("metadata", {})
    rules = {
        f"{id} is no id": _is_id(id),
        f"{spec['nodeId']} is no node id": _is_id(spec["nodeId"]),
        f"the node's parent must be {parent}": spec["parent"] == parent,
        f"accelerator type {node['acceleratorType']} was not found": re.fullmatch(
            r"(v2|v3|v4|v5p|v5litepod|v6e)-[1-9]\d{0,4}", node["acceleratorType"]
        ),
        "spot and guaranteed exclude each other": not {"spot", "guaranteed"} <= given.keys(),
        "a label is malformed": all(
            re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", name) and re.fullmatch(r"[a-z0-9_-]{0,63}", one)
            for name, one in labels.items()
        ),
        "a metadata value is too long": all(
            len(one.encode()) <= _METADATA_BYTES for one in metadata.values()
        ),
    }
    for problem, holds in rules.items():
        if not holds:
            raise ApiError(400, f"Invalid request: {problem}")
    return given


def _check_fields(value: Any, shape: Any, where: str) -> None:
    """Checks that a request has only fields that are known, with values of their types."""
    kind = shape if isinstance(shape, type) else type(shape)
    if not isinstance(value, kind):
        raise ApiError(400, f"Invalid value at '{where}': {json.dumps(value)[:80]}")
    if isinstance(shape, list):
        for index, one in enumerate(value):
            _check_fields(one, shape[0], f"{where}[{index}]")
    elif isinstance(shape, dict):
        for name, one in value.items():
            if name not in shape and "*" not in shape:
                problem = f"Unknown name \"{name}\" at '{where}': Cannot find field."
                raise ApiError(400, f"Invalid JSON payload received. {problem}")
            _check_fields(one, shape.get(name, shape.get("*")), f"{where}.{_snake(name)}")


def _is_id(text: str) -> bool:
    return bool(re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", text))


def _snake(name: str) -> str:
    return re.sub("([A-Z])", r"_\1", name).lower()
