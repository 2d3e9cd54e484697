"""Layers as ONNX nodes.

Shapes: B sequences, S tokens, M keys, N heads, D head size, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from core.architecture.options import BlockOptions
from core.exporting.onnx_graph import Graph

# Infinity minus itself would be NaN.
_HIDE = -1e9
_GELU = {"gelu": "none", "gelu_new": "tanh"}

Part = Callable[[str], str]
Rotation = tuple[str, ...]


class Layers:
    """Adds layers to a graph.

    Args:
        prefix: Start of the variables' paths, with a slash; layers are named by the rest.
    """

    def __init__(self, graph: Graph, options: BlockOptions, prefix: str) -> None:
        self.graph = graph
        self.options = options
        self._prefix = prefix

    def __contains__(self, path: str) -> bool:
        return self._prefix + path in self.graph

    def weight(self, path: str) -> str:
        return self.graph.weight(self._prefix + path)

    def look_up(self, path: str, ids: str) -> str:
        return self.graph.add("Gather", self.weight(path), ids)

    def dense(self, name: str, hidden: str) -> str:
        outputs = self.graph.add("MatMul", hidden, self.weight(f"{name}/kernel"))
        if f"{name}/bias" not in self:
            return outputs
        return self.graph.add("Add", outputs, self.weight(f"{name}/bias"))

    def logits(self, table: str, hidden: str) -> str:
        """Multiplies hidden states with the rows of a table (V, H)."""
        graph = self.graph
        rows = graph.add("Reshape", hidden, graph.ints(-1, self.options.width))
        logits = graph.add("Gemm", rows, self.weight(table), transB=1)
        shape = graph.add("Concat", graph.add("Shape", hidden, end=2), graph.ints(-1), axis=0)
        return graph.add("Reshape", logits, shape)

    def norm(self, name: str, hidden: str) -> str:
        graph, scale = self.graph, self.weight(f"{name}/scale")
        if self.options.norm == "rms":
            return graph.add("Mul", self._divided_by_root_mean_square(hidden), scale)
        bias = [self.weight(f"{name}/bias")] if f"{name}/bias" in self else []
        return graph.add(
            "LayerNormalization", hidden, scale, *bias, axis=-1, epsilon=self.options.epsilon
        )

    def _divided_by_root_mean_square(self, hidden: str) -> str:
        graph = self.graph
        squares = graph.add("Pow", hidden, graph.constant(2.0))
        mean = graph.add("ReduceMean", squares, graph.ints(-1))
        shifted = graph.add("Add", mean, graph.constant(self.options.epsilon))
        return graph.add("Div", hidden, graph.add("Sqrt", shifted))

    def activation(self, hidden: str) -> str:
        if self.options.activation == "silu":
            return self.graph.add("Mul", hidden, self.graph.add("Sigmoid", hidden))
        return self.graph.add("Gelu", hidden, approximate=_GELU[self.options.activation])

    def feed_forward(self, name: str, hidden: str) -> str:
        if f"{name}/gated_up/kernel" not in self:
            return self.dense(f"{name}/down", self.activation(self.dense(f"{name}/up", hidden)))
        gate, linear = self.split(self.dense(f"{name}/gated_up", hidden), 2)
        gated = self.graph.add("Mul", self.activation(gate), linear)
        return self.dense(f"{name}/down", gated)

    def add_feed_forward(self, block: str, hidden: str) -> str:
        """Adds a block's feed-forward part to its input."""
        return self.add(
            hidden,
            lambda hidden: self.feed_forward(f"{block}/feed_forward", hidden),
            f"{block}/output_norm",
        )

    def add(self, hidden: str, part: Part, norm: str) -> str:
        """Adds a part's output to its input, with a norm before or after it."""
        norm_first = self.options.norm_first
        # A first layer may have none: the embeddings' norm serves it.
        has_norm = norm_first and f"{norm}/scale" in self
        added = part(self.norm(norm, hidden) if has_norm else hidden)
        summed = self.graph.add("Add", hidden, added)
        return summed if norm_first else self.norm(norm, summed)

    def split(self, fused: str, count: int) -> list[str]:
        """Splits the outputs of a fused kernel."""
        return self.graph.add_several("Split", count, fused, axis=-1, num_outputs=count)

    @property
    def kv_heads(self) -> int:
        return self.options.kv_heads or self.options.heads

    def heads(self, hidden: str) -> str:
        """Turns (B, S, N * D) into (B, N, S, D)."""
        shape = self.graph.ints(0, 0, -1, self.options.head_size)
        heads = self.graph.add("Reshape", hidden, shape)
        return self.graph.add("Transpose", heads, perm=[0, 2, 1, 3])

    def rotate(self, heads: str, rotation: Rotation) -> str:
        """Applies rotary positions to (B, N, S, D), with cosines and sines (B, 1, S, D / 2)."""
        graph, (cosines, sines) = self.graph, rotation
        first, second = self.split(heads, 2)
        left = graph.add("Sub", graph.add("Mul", first, cosines), graph.add("Mul", second, sines))
        right = graph.add("Add", graph.add("Mul", second, cosines), graph.add("Mul", first, sines))
        return graph.add("Concat", left, right, axis=-1)

    def attend(self, name: str, query: str, key: str, value: str, bias: str) -> str:
        """Attends from (B, N, S, D) to K shared heads, (B, K, M, D); returns (B, S, H)."""
        graph, options = self.graph, self.options
        key = graph.add("Transpose", key, perm=[0, 1, 3, 2])
        groups = options.heads // self.kv_heads
        if groups > 1:
            shape = graph.ints(0, self.kv_heads, groups, -1, options.head_size)
            query = graph.add("Reshape", query, shape)
            key, value = (graph.add("Unsqueeze", each, graph.ints(2)) for each in (key, value))
            bias = graph.add("Unsqueeze", bias, graph.ints(1))
        if options.scaled:
            query = graph.add("Mul", query, graph.constant(options.head_size**-0.5))
        scores = graph.add("Add", graph.add("MatMul", query, key), bias)
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), value)
        if groups > 1:
            shape = graph.ints(0, options.heads, -1, options.head_size)
            mixed = graph.add("Reshape", mixed, shape)
        mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = graph.add("Reshape", mixed, graph.ints(0, 0, options.heads * options.head_size))
        return self.dense(f"{name}/output", joined)

    def hide(self, hidden: str) -> str:
        """Turns marks of hidden pairs into a bias on attention's scores."""
        graph = self.graph
        return graph.add("Where", hidden, graph.constant(_HIDE), graph.constant(0.0))

    def padding(self, mask: str) -> str:
        """Marks padded keys, (B, 1, 1, M)."""
        graph = self.graph
        hidden = graph.add("Equal", mask, graph.ints(0))
        return graph.add("Unsqueeze", hidden, graph.ints(1, 2))

    def length(self, values: str, axis: int) -> str:
        """Returns the size of an axis, (1,)."""
        return self.graph.add("Shape", values, start=axis, end=axis + 1)

    def rows(self, table: str, first: str, count: str) -> str:
        """Returns successive rows of a table; takes vectors of one integer."""
        last = self.graph.add("Add", first, count)
        return self.graph.add("Slice", table, first, last, self.graph.ints(0))

    def range(self, first: str, count: str) -> str:
        """Returns successive integers, (S,); takes vectors of one integer."""
        graph = self.graph
        ends = (graph.add("Squeeze", end) for end in (first, graph.add("Add", first, count)))
        return graph.add("Range", *ends, graph.constant(np.array(1, np.int64)))
