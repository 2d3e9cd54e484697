"""Mapping of variables to the tensors of Hugging Face's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class WeightMapping:
    """Mapping of one variable to its tensors.

    Attributes:
        names: Tensors concatenated along our last axis.
        alias: Name of a copy that may replace it.
    """

    path: str
    shape: tuple[int, ...]
    names: tuple[str, ...]
    transposed: bool = False
    alias: str = ""

    @property
    def hf_shape(self) -> tuple[int, ...]:
        part = (*self.shape[:-1], self.shape[-1] // len(self.names))
        return part[::-1] if self.transposed else part


def dense(ours: str, theirs: tuple[str, ...], inputs: int, outputs: int) -> Iterator[WeightMapping]:
    """Maps a dense layer to linear layers."""
    yield kernel(ours, theirs, inputs, outputs)
    yield WeightMapping(f"{ours}/bias", (outputs,), tuple(f"{name}.bias" for name in theirs))


def conv(ours: str, theirs: str, inputs: int, outputs: int) -> Iterator[WeightMapping]:
    """Maps a dense layer to a `Conv1D`, whose kernel isn't transposed."""
    yield WeightMapping(f"{ours}/kernel", (inputs, outputs), (f"{theirs}.weight",))
    yield WeightMapping(f"{ours}/bias", (outputs,), (f"{theirs}.bias",))


def kernel(ours: str, theirs: tuple[str, ...], inputs: int, outputs: int) -> WeightMapping:
    """Maps a dense layer without bias."""
    names = tuple(f"{name}.weight" for name in theirs)
    return WeightMapping(f"{ours}/kernel", (inputs, outputs), names, transposed=True)


def norm(ours: str, theirs: str, width: int) -> Iterator[WeightMapping]:
    """Maps a norm with bias."""
    yield scale(ours, theirs, width)
    yield WeightMapping(f"{ours}/bias", (width,), (f"{theirs}.bias",))


def scale(ours: str, theirs: str, width: int) -> WeightMapping:
    """Maps a norm without bias."""
    return WeightMapping(f"{ours}/scale", (width,), (f"{theirs}.weight",))
