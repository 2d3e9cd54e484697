"""TPU slices and their chips' published figures.

Sources: https://cloud.google.com/tpu/docs/v2 to /v6e, /supported-tpu-configurations and /runtimes;
memory: libtpu 0.0.51.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from core.errors import ConfigError

_GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """Published figures; FLOP/s are bfloat16 peaks, `cores` are JAX devices."""

    flops_per_second: float
    memory_bytes_per_second: float
    cores: int
    memory_bytes_per_core: float


@dataclass(frozen=True)
class Topology:
    """A TPU slice; `accelerator_type` is `gcloud`'s name, `shape` libtpu's."""

    name: str
    accelerator_type: str
    shape: str
    chips: int
    hosts: int
    chip: Chip
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def cores(self) -> int:
        """Devices that share a step."""
        return self.chips * self.chip.cores


_V2 = Chip(45e12, 700e9, 2, 7.48 * _GIB)
_V3 = Chip(123e12, 900e9, 2, 15.48 * _GIB)
# The two cores of a v4 or v5p chip work as one device.
_V4 = Chip(275e12, 1228e9, 1, 30.75 * _GIB)
_V5E = Chip(197e12, 819e9, 1, 15.75 * _GIB)
_V5P = Chip(459e12, 2765e9, 1, 95.73 * _GIB)
_V6E = Chip(918e12, 1638e9, 1, 31.24 * _GIB)
_MEGACORE = {"chip_config_name": "megacore"}

_ALL = (
    Topology("v2-8", "v2-8", "v2:2x2", 4, 1, _V2),
    Topology("v3-8", "v3-8", "v3:2x2", 4, 1, _V3),
    Topology("v3-32", "v3-32", "v3:4x4", 16, 4, _V3),
    Topology("v4-8", "v4-8", "v4:2x2x1", 4, 1, _V4, _MEGACORE),
    Topology("v4-16", "v4-16", "v4:2x2x2", 8, 2, _V4, _MEGACORE),
    Topology("v4-32", "v4-32", "v4:2x2x4", 16, 4, _V4, _MEGACORE),
    Topology("v5e-1", "v5litepod-1", "v5e:1x1", 1, 1, _V5E),
    Topology("v5e-4", "v5litepod-4", "v5e:2x2", 4, 1, _V5E),
    Topology("v5e-8", "v5litepod-8", "v5e:2x4", 8, 1, _V5E),
    Topology("v5e-16", "v5litepod-16", "v5e:4x4", 16, 4, _V5E),
    Topology("v5e-32", "v5litepod-32", "v5e:4x8", 32, 8, _V5E),
    Topology("v5p-8", "v5p-8", "v5p:2x2x1", 4, 1, _V5P),
    Topology("v5p-16", "v5p-16", "v5p:2x2x2", 8, 2, _V5P),
    Topology("v6e-1", "v6e-1", "v6e:1x1", 1, 1, _V6E),
    Topology("v6e-4", "v6e-4", "v6e:2x2", 4, 1, _V6E),
    Topology("v6e-8", "v6e-8", "v6e:2x4", 8, 1, _V6E),
    Topology("v6e-16", "v6e-16", "v6e:4x4", 16, 4, _V6E),
)
TOPOLOGIES = {topology.name: topology for topology in _ALL}
# Software of a TPU VM, by the first part of an accelerator type.
_RUNTIME_VERSIONS = {
    "v2": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}


def find_topology(name: str) -> Topology:
    """Finds a topology by its common or `gcloud` name; raises ConfigError."""
    topology = _find(name)
    if topology is None:
        raise ConfigError(
            f"The TPU topology {name!r} is unknown",
            expected="one of " + ", ".join(TOPOLOGIES),
            received=name or "nothing",
            fix="choose the nearest one: the memory per core is the same in all slices of a "
            "generation",
            field="topology",
        )
    return topology


def accelerator_type(name: str) -> str:
    """Returns the `gcloud` name of a slice, which may be larger than those in TOPOLOGIES.

    Raises:
        ConfigError: The generation is unknown, or the name has no size.
    """
    topology = _find(name)
    if topology:
        return topology.accelerator_type
    generation, _, size = name.replace("v5e-", "v5litepod-").partition("-")
    if generation not in _RUNTIME_VERSIONS or not re.fullmatch(r"[1-9][0-9]{0,4}", size):
        raise ConfigError(
            "The type of TPU is unknown",
            expected="a type like v5litepod-8, of " + ", ".join(_RUNTIME_VERSIONS),
            received=name[:100] or "nothing",
            fix="see https://cloud.google.com/tpu/docs/regions-zones for types and their zones",
            field="target",
        )
    return f"{generation}-{size}"


def runtime_version(accelerator_type: str) -> str:
    """Returns the default software version of a TPU VM."""
    return _RUNTIME_VERSIONS[accelerator_type.partition("-")[0]]


def _find(name: str) -> Topology | None:
    return TOPOLOGIES.get(name) or next((t for t in _ALL if t.accelerator_type == name), None)
