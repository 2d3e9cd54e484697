"""Lazy tensors of a weights file."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import CheckpointError
from core.foreign_files import check_regular

FLOAT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_SAFETENSORS_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


@dataclass(frozen=True)
class Tensor:
    """A tensor whose values are read on demand.

    `dtype` is a key of `FLOAT_BYTES`, or the file's own name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path
    load: Callable[[], NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * FLOAT_BYTES.get(self.dtype, 8)

    def read(self, dtype: Any = np.float32) -> NDArray[Any]:
        """Reads the values, or raises CheckpointError."""
        if self.dtype not in FLOAT_BYTES:
            raise CheckpointError(
                f"The tensor {self.name} in {self.file} has an unsupported dtype",
                expected=" or ".join(FLOAT_BYTES),
                received=self.dtype,
                fix="save the model unquantised in one of the expected dtypes",
            )
        values = self.load()
        if values.shape != self.shape:
            raise unreadable(
                self.file, f"{self.name} of shape {values.shape} instead of {self.shape}"
            )
        with np.errstate(over="ignore"):  # Callers check for infinity.
            # OpenVINO rejects read-only arrays.
            return values.astype(dtype, copy=not values.flags.writeable)


def open_safetensors(path: Path, stack: ExitStack) -> list[Tensor]:
    """Lists the tensors of a file, open until `stack` is closed."""
    from safetensors import SafetensorError, safe_open

    check_regular(path)
    try:
        file = stack.enter_context(safe_open(path, framework="numpy"))
        names = file.keys()
        slices = {name: file.get_slice(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise unreadable(path, str(error), "a complete safetensors file") from error

    def load(name: str, dtype: str) -> NDArray[Any]:
        if dtype == "bfloat16":
            import ml_dtypes  # noqa: F401 -- makes NumPy know the dtype
        try:
            values: NDArray[Any] = file.get_tensor(name)
        except (OSError, SafetensorError, TypeError, ValueError) as error:
            raise unreadable(path, f"{name}: {error}", "a complete safetensors file") from error
        return values

    def describe(name: str, part: Any) -> Tensor:
        kind = str(part.get_dtype())
        dtype = _SAFETENSORS_DTYPES.get(kind, kind)
        return Tensor(name, tuple(part.get_shape()), dtype, path, lambda: load(name, dtype))

    return [describe(name, part) for name, part in slices.items()]


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Reads all tensors in their own dtypes."""
    with ExitStack() as stack:
        return {tensor.name: tensor.load() for tensor in open_safetensors(path, stack)}


def unreadable(path: Path, received: str, expected: str = "a complete file") -> CheckpointError:
    """Makes the error for a damaged file."""
    return CheckpointError(
        f"The weights {path} can't be read",
        expected=expected,
        received=received[:500],
        fix="copy or download the file again, or use an earlier checkpoint",
    )
