"""Adds up the time of a program that the TPU's compiler has scheduled, operation by operation.

Beside each operation stands the compiler's estimate of cycles: a roofline over its shapes, tiles
and memory traffic. What has no such estimate is added: attention's kernel and collectives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from core.config.topologies import Chip

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\{")
_OPERATION = re.compile(r"\s+(?:ROOT )?%([\w.-]+) = (.+?) ([a-z][a-z0-9-]*)\((.*)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d{1,18})"')
_CALLED = re.compile(r"(?:to_apply|calls|body|true_computation|false_computation)=%([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CONDITION = re.compile(r"condition=%([\w.-]+)")
_BOUND = re.compile(r"(\d{1,9})\)")
_SHAPE = re.compile(r"\b(pred|[suf]8\w*|bf16|[suf]16|[suf]32|[suf]64)\[([\d,]*)\]")
_BYTES = {"pred": 1, "bf16": 2}

# How often the data of a collective cross a device's links.
_CROSSINGS = {
    "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "collective-permute": 1, "all-reduce": 2,
}  # fmt: skip
_GROUP = re.compile(r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]+)\})")
# Columns of a matrix unit; a smaller head leaves the rest idle.
_LANES = 128
# Products of attention's kernel, of which two belong to the forward pass.
_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5
# Assumed share of the peak in attention's kernel, with full lanes.
_SHARE_IN_KERNEL = 0.5


@dataclass(frozen=True)
class Roofline:
    """Seconds per device of one execution, by what they are spent on."""

    computing: float
    attention: float
    communicating: float

    @property
    def seconds(self) -> float:
        return self.computing + self.attention + self.communicating

    def __add__(self, other: Roofline) -> Roofline:
        return Roofline(
            self.computing + other.computing,
            self.attention + other.attention,
            self.communicating + other.communicating,
        )

    def __mul__(self, times: int) -> Roofline:
        return Roofline(self.computing * times, self.attention * times, self.communicating * times)


@dataclass(frozen=True)
class _Operation:
    name: str
    shapes: str
    code: str
    rest: str


_NOTHING = Roofline(0.0, 0.0, 0.0)


def add_up(program: str, chip: Chip) -> Roofline | None:
    """Adds up a program, with its loops; None if it has no estimates of cycles.

    Args:
        program: The scheduled HLO, as text.
    """
    computations, entry = _parse(program)
    if entry is None or not _CYCLES.search(program):
        return None

    @cache
    def seconds_of(name: str) -> Roofline:
        return sum(map(seconds_of_operation, computations.get(name, ())), _NOTHING)

    def seconds_of_operation(operation: _Operation) -> Roofline:
        if operation.code == "while":
            condition = _CONDITION.search(operation.rest)
            times = _iterations(computations, condition[1] if condition else "")
            return sum(map(seconds_of, _called(operation)), _NOTHING) * times
        if operation.code == "conditional":
            branches = map(seconds_of, _called(operation))
            return max(branches, key=lambda branch: branch.seconds, default=_NOTHING)
        if operation.code in ("call", "async-start"):
            return sum(map(seconds_of, _called(operation)), _NOTHING)
        if cycles := _CYCLES.search(operation.rest):
            return Roofline(int(cycles[1]) / chip.cycles_per_second, 0.0, 0.0)
        if "tpu_custom_call" in operation.rest:
            return Roofline(0.0, _attention_seconds(operation, chip), 0.0)
        return Roofline(0.0, 0.0, _collective_seconds(operation, chip))

    return seconds_of(entry)


def _parse(program: str) -> tuple[Mapping[str, list[_Operation]], str | None]:
    computations: dict[str, list[_Operation]] = {}
    current: list[_Operation] | None = None
    entry = None
    for line in program.splitlines():
        if line == "}":
            current = None
        elif current is None:
            if start := _COMPUTATION.match(line):
                current = computations[start[2]] = []
                entry = start[2] if start[1] else entry
        elif operation := _OPERATION.match(line):
            current.append(_Operation(*operation.groups()))
    return computations, entry


def _called(operation: _Operation) -> Iterator[str]:
    yield from _CALLED.findall(operation.rest)
    if branches := _BRANCHES.search(operation.rest):
        yield from (name.strip().lstrip("%") for name in branches[1].split(","))


def _iterations(computations: Mapping[str, list[_Operation]], condition: str) -> int:
    """Returns how often a loop runs: its counter goes from 0 to the constant of its condition."""
    bounds = [
        int(bound[1])
        for operation in computations.get(condition, ())
        if operation.code == "constant" and (bound := _BOUND.match(operation.rest))
    ]
    return max(bounds, default=1)


def _attention_seconds(operation: _Operation, chip: Chip) -> float:
    """Estimates a pass of the kernel, by the shape (B, heads, L, size) among its results."""
    shapes = [sizes for _, sizes in _shapes(operation.shapes) if len(sizes) == 4]
    if not shapes:
        return 0.0
    rows, heads, length, size = shapes[0]
    is_forward = "fwd" in operation.name
    products = _FORWARD_PRODUCTS if is_forward else _BACKWARD_PRODUCTS
    padded = math.ceil(size / _LANES) * _LANES
    flops = products * rows * heads * length**2 * padded
    return flops / (_SHARE_IN_KERNEL * chip.flops_per_second / chip.cores)


def _collective_seconds(operation: _Operation, chip: Chip) -> float:
    code = operation.code.removesuffix("-start")
    if code not in _CROSSINGS:
        return 0.0
    moved = sum(_size(kind) * math.prod(sizes) for kind, sizes in _shapes(operation.shapes))
    if code == "reduce-scatter":
        moved *= _group_size(operation)  # The result is a device's part.
    return _CROSSINGS[code] * moved / (chip.link_bytes_per_second / chip.cores)


def _group_size(operation: _Operation) -> int:
    """Returns how many devices take part, as in [2,8]<=[16] or {{0,1,2,3}}."""
    group = _GROUP.search(operation.rest)
    if not group:
        return 1
    return int(group[1]) if group[1] else group[2].count(",") + 1


def _shapes(text: str) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (kind, tuple(map(int, filter(None, sizes.split(",")))))
        for kind, sizes in _SHAPE.findall(text)
    ]


def _size(kind: str) -> int:
    return _BYTES.get(kind) or int(re.sub(r"\D", "", kind)[:2] or 8) // 8
