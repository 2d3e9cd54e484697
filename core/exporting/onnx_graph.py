"""Builds ONNX graphs from nodes and weights.

Source: https://onnx.ai/onnx/operators/
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from core.config.export import Quantization

Weights = Mapping[str, NDArray[np.float32]]
Shape = Sequence[int | str]

# The first with Gelu, as ONNX Runtime since 1.17 has it.
_OPSET = helper.make_opsetid("", 20)
_IR_VERSION = 9
# Values that share a scale.
_BLOCK = 32

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Graph:
    """Collects nodes; values are named by text.

    Matrices are stored in a number format of their own, and converted to float32 when a runtime
    loads the graph.

    Args:
        weights: By variable path.
        quantization: Number format of the matrices.
    """

    def __init__(self, weights: Weights, quantization: Quantization) -> None:
        self._weights = weights
        self._quantization = quantization
        self._nodes: list[onnx.NodeProto] = []
        self._weight_nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._constants: dict[tuple[Any, ...], str] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def __contains__(self, path: str) -> bool:
        return path in self._weights

    def input(self, name: str, dtype: int, shape: Shape) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, value: str, shape: Shape) -> None:
        """Makes a float32 value an output."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, FLOAT, shape))

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node with one output."""
        return self.add_several(operator, 1, *inputs, **attributes)[0]

    def add_several(self, operator: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Adds a node with several outputs."""
        outputs = [self._new_name(operator) for _ in range(count)]
        self._nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        return outputs

    def ints(self, *values: int) -> str:
        """Returns a constant vector."""
        return self.constant(np.array(values, np.int64))

    def constant(self, values: Any) -> str:
        """Returns a constant: an array, or a number in float32."""
        array = values if isinstance(values, np.ndarray) else np.array(values, np.float32)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self._store(self._new_name("constant"), array)
        return self._constants[key]

    def weight(self, path: str) -> str:
        """Returns a weight in float32."""
        values = self._weights[path]
        if path in self._initializers or f"{path}/stored" in self._initializers:
            return path
        if values.ndim != 2 or self._quantization == "f32":
            return self._store(path, values)
        if self._quantization == "f16":
            with np.errstate(over="ignore"):  # The verification fails.
                return self._cast(self._store(f"{path}/stored", values.astype(np.float16)), path)
        return self._store_in_bytes(path, values)

    def choose(
        self, condition: str, count: int, first: Callable[[], list[str]], other: Callable[[], Any]
    ) -> list[str]:
        """Computes `first` if a condition holds, `other` if not; both return `count` values."""
        branches = {
            "then_branch": self._branch(first),
            "else_branch": self._branch(other),
        }
        return self.add_several("If", count, condition, **branches)

    def build(self, name: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            [*self._weight_nodes, *self._nodes],
            name,
            self._inputs,
            self._outputs,
            list(self._initializers.values()),
        )
        return helper.make_model(
            graph,
            opset_imports=[_OPSET],
            ir_version=_IR_VERSION,
            producer_name="Pretrain Studio",
        )

    def _branch(self, part: Callable[[], list[str]]) -> onnx.GraphProto:
        outer, self._nodes = self._nodes, []
        # A branch's outputs must be outputs of its own nodes.
        outputs = [self.add("Identity", value) for value in part()]
        infos = [helper.make_tensor_value_info(value, FLOAT, None) for value in outputs]
        branch = helper.make_graph(self._nodes, self._new_name("branch"), [], infos)
        self._nodes = outer
        return branch

    def _store_in_bytes(self, path: str, values: NDArray[np.float32]) -> str:
        """Stores integers of 8 bits, with a scale for each block of a row."""
        rows, columns = values.shape
        blocks = values.reshape(rows, -1, columns if columns % _BLOCK else _BLOCK)
        largest = np.abs(blocks).max(-1, keepdims=True)
        scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
        integers = np.rint(blocks / scales).astype(np.int8)
        stored = self._store(f"{path}/stored", integers)
        wide = self._cast(stored, f"{path}/wide")
        names = [wide, self._store(f"{path}/scales", scales)]
        self._weight_nodes.append(helper.make_node("Mul", names, [f"{path}/scaled"]))
        names = [f"{path}/scaled", self.ints(rows, columns)]
        self._weight_nodes.append(helper.make_node("Reshape", names, [path]))
        return path

    def _cast(self, value: str, name: str) -> str:
        self._weight_nodes.append(helper.make_node("Cast", [value], [name], to=FLOAT))
        return name

    def _store(self, name: str, values: NDArray[Any]) -> str:
        if name not in self._initializers:
            array = np.asarray(values, order="C")
            self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def _new_name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"
