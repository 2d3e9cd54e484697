"""TPU slices, GPUs, and their published figures.

Sources: https://cloud.google.com/tpu/docs/v2 to /v6e, /supported-tpu-configurations and /runtimes;
memory: libtpu 0.0.51; links: https://jax-ml.github.io/scaling-book/tpus; cycles: the peak and the
cycles that libtpu 0.0.52 counts for a large matmul. GPUs: NVIDIA's data sheets, without sparsity.
Prices: on demand in the US; TPUs by Google's list of 2025, GPUs by https://www.runpod.io/pricing
(secure cloud) of 2026-11-09.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from core.errors import ConfigError

_GIB = 2**30

# Without a compiled program, shares of peak FLOP/s: PaLM reached 46 %, GPT-3 21 %
# (https://arxiv.org/abs/2204.02311, table 3), small models less.
UTILISATION = (0.2, 0.55)


@dataclass(frozen=True)
class Chip:
    """Published figures; FLOP/s are bfloat16 peaks, `cores` are JAX devices.

    Links are those along one axis of the slice, in both directions.
    """

    flops_per_second: float
    memory_bytes_per_second: float
    cores: int
    memory_bytes_per_core: float
    cycles_per_second: float
    link_bytes_per_second: float
    dollars_per_hour: float | None = None


@dataclass(frozen=True)
class Topology:
    """A TPU slice or GPUs of a host.

    Attributes:
        accelerator_type: The name in `gcloud`; empty for GPUs.
        shape: The name in libtpu.
    """

    name: str
    accelerator_type: str
    shape: str
    chips: int
    hosts: int
    chip: Chip
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_gpu(self) -> bool:
        return not self.accelerator_type

    @property
    def cores(self) -> int:
        """Devices that share a step."""
        return self.chips * self.chip.cores


_V2 = Chip(45e12, 700e9, 2, 7.48 * _GIB, 0.7e9, 124e9)
_V3 = Chip(123e12, 900e9, 2, 15.48 * _GIB, 0.94e9, 200e9)
# The two cores of a v4 or v5p chip work as one device.
_V4 = Chip(275e12, 1228e9, 1, 30.75 * _GIB, 1.05e9, 90e9, 3.22)
_V5E = Chip(197e12, 819e9, 1, 15.75 * _GIB, 1.5e9, 90e9, 1.20)
_V5P = Chip(459e12, 2765e9, 1, 95.73 * _GIB, 1.75e9, 180e9, 4.20)
_V6E = Chip(918e12, 1638e9, 1, 31.24 * _GIB, 1.75e9, 180e9, 2.70)
# JAX takes three quarters of a GPU's memory.
_H100 = Chip(989e12, 3350e9, 1, 0.75 * 79.6 * _GIB, 1.75e9, 450e9, 3.99)
_A100 = Chip(312e12, 2039e9, 1, 0.75 * 79.3 * _GIB, 1.41e9, 300e9, 1.79)
_L4 = Chip(121e12, 300e9, 1, 0.75 * 22.0 * _GIB, 2.04e9, 32e9)
_4090 = Chip(165e12, 1008e9, 1, 0.75 * 24.0 * _GIB, 2.52e9, 32e9)
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
    Topology("v5p-32", "v5p-32", "v5p:2x2x4", 16, 4, _V5P),
    Topology("v6e-1", "v6e-1", "v6e:1x1", 1, 1, _V6E),
    Topology("v6e-4", "v6e-4", "v6e:2x2", 4, 1, _V6E),
    Topology("v6e-8", "v6e-8", "v6e:2x4", 8, 1, _V6E),
    Topology("v6e-16", "v6e-16", "v6e:4x4", 16, 4, _V6E),
)
TOPOLOGIES = {topology.name: topology for topology in _ALL}
_GPUS = tuple(
    Topology(kind if count == 1 else f"{kind}x{count}", "", "", count, 1, chip)
    for kind, chip in {"h100": _H100, "a100": _A100, "l4": _L4, "4090": _4090}.items()
    for count in (1, 8)
)
GPUS = {topology.name: topology for topology in _GPUS}
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
    topology = GPUS.get(name) or _find(name)
    if topology is None:
        raise ConfigError(
            f"The topology {name!r} is unknown",
            expected="one of " + ", ".join([*TOPOLOGIES, *GPUS]),
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
