"""Layers as OpenVINO nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.options import BlockOptions
from core.backends.imports import import_for
from core.backends.openvino.compilation import PACKAGE

Node = Any
Weights = Mapping[str, NDArray[np.float32]]

# Infinity minus itself would be NaN.
HIDE = np.float32(-1e9)
_GELU = {"gelu": "erf", "gelu_new": "tanh"}


class GraphLayers:
    """Adds layers to a graph.

    Shapes: B sequences, T tokens, K positions, N heads, D head size, H hidden size.

    Args:
        weights: By variable path.
        prefix: Start of the paths; layers are named by the rest.
    """

    def __init__(self, weights: Weights, prefix: str, options: BlockOptions) -> None:
        self.ops: Any = import_for(PACKAGE, f"{PACKAGE}.opset13")
        self.options = options
        self._weights = weights
        self._prefix = prefix

    def __contains__(self, path: str) -> bool:
        return f"{self._prefix}/{path}" in self._weights

    def weight(self, path: str, *, transposed: bool = False) -> Node:
        """OpenVINO copies kernels that aren't transposed."""
        values = self._weights[f"{self._prefix}/{path}"]
        values = np.ascontiguousarray(values.T if transposed else values)
        return self.ops.constant(values, shared_memory=True)

    def ints(self, *values: int) -> Node:
        return self.ops.constant(np.array(values if len(values) > 1 else values[0], np.int64))

    def look_up(self, path: str, ids: Node) -> Node:
        return self.ops.gather(self.weight(path), ids, self.ints(0))

    def at(self, values: Node, wanted: Any, axis: int) -> Node:
        """Selects positions (B, K) along an axis; None: all."""
        if wanted is None:
            return values
        return self.ops.gather(values, wanted, self.ints(axis), batch_dims=1)

    def dense(self, name: str, hidden: Node) -> Node:
        kernel = self.weight(f"{name}/kernel", transposed=True)
        outputs = self.ops.matmul(hidden, kernel, False, True)
        if f"{name}/bias" not in self:
            return outputs
        return self.ops.add(outputs, self.weight(f"{name}/bias"))

    def norm(self, name: str, hidden: Node) -> Node:
        last = self.ops.constant(np.array([-1], np.int64))
        if self.options.norm == "rms":
            hidden = self._divided_by_root_mean_square(hidden, last)
        else:
            hidden = self.ops.mvn(hidden, last, True, self.options.epsilon, "inside_sqrt")
        hidden = self.ops.multiply(hidden, self.weight(f"{name}/scale"))
        if f"{name}/bias" not in self:
            return hidden
        return self.ops.add(hidden, self.weight(f"{name}/bias"))

    def _divided_by_root_mean_square(self, hidden: Node, axis: Node) -> Node:
        ops = self.ops
        squares = ops.power(hidden, ops.constant(np.float32(2)))
        mean = ops.reduce_mean(squares, axis, True)
        root = ops.sqrt(ops.add(mean, ops.constant(np.float32(self.options.epsilon))))
        return ops.multiply(hidden, ops.divide(ops.constant(np.float32(1)), root))

    def gelu(self, hidden: Node) -> Node:
        """The exact GELU or its approximation, as the family has it."""
        return self.ops.gelu(hidden, _GELU[self.options.activation])

    def feed_forward(self, name: str, hidden: Node) -> Node:
        if f"{name}/gated_up/kernel" not in self:
            return self.dense(f"{name}/down", self.gelu(self.dense(f"{name}/up", hidden)))
        fused = self.dense(f"{name}/gated_up", hidden)
        gate, linear = self.ops.split(fused, self.ints(2), 2).outputs()
        return self.dense(f"{name}/down", self.ops.multiply(self.gelu(gate), linear))

    def add_feed_forward(self, block: str, hidden: Node) -> Node:
        """Adds a block's feed-forward part to its input, with the block's last norm."""

        def feed_forward(hidden: Node) -> Node:
            return self.feed_forward(f"{block}/feed_forward", hidden)

        return self.add(hidden, feed_forward, f"{block}/output_norm")

    def split(self, fused: Node, count: int) -> list[Node]:
        """Splits the outputs of a fused kernel, each (B, T, N * D)."""
        return list(self.ops.split(fused, self.ints(2), count).outputs())

    def heads(self, hidden: Node) -> Node:
        """Turns (B, T, N * D) into (B, N, T, D)."""
        shape = self.ints(0, 0, self.options.heads, self.options.head_size)
        heads = self.ops.reshape(hidden, shape, True)
        return self.ops.transpose(heads, self.ints(0, 2, 1, 3))

    def attend(self, name: str, query: Node, key: Node, value: Node, bias: Node | None) -> Node:
        """Attends from (B, N, K, D) to (B, N, T, D); returns (B, K, H)."""
        ops, options = self.ops, self.options
        scale = ops.constant(np.float32(options.head_size**-0.5 if options.scaled else 1.0))
        if bias is None:
            bias = ops.constant(np.zeros((1, 1, 1, 1), np.float32))
        mixed = ops.scaled_dot_product_attention(query, key, value, bias, scale)
        mixed = ops.transpose(mixed, self.ints(0, 2, 1, 3))
        mixed = ops.reshape(mixed, self.ints(0, 0, options.heads * options.head_size), True)
        return self.dense(f"{name}/output", mixed)

    def add(
        self, hidden: Node, part: Callable[[Node], Node], norm: str, wanted: Any = None
    ) -> Node:
        """Adds a part's output to its input, with a norm before or after it."""
        norm_first = self.options.norm_first
        # A first layer may have none: the embeddings' norm serves it.
        has_norm = norm_first and f"{norm}/scale" in self
        added = part(self.norm(norm, hidden) if has_norm else hidden)
        summed = self.ops.add(self.at(hidden, wanted, 1), added)
        return summed if norm_first else self.norm(norm, summed)

    def log_probabilities(self, logits: Node, targets: Node) -> Node:
        """Selects the log-probabilities of targets (K,) from logits (K, V)."""
        shares = self.ops.log_softmax(logits, 1)
        chosen = self.ops.gather_elements(shares, self.ops.unsqueeze(targets, self.ints(1)), 1)
        return self.ops.squeeze(chosen, self.ints(1))
