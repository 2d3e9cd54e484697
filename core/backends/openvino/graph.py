"""Builds an encoder as an OpenVINO graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.backends.imports import import_for
from core.backends.openvino.compilation import PACKAGE, import_openvino
from core.models.architecture import Architecture
from core.models.families import find_family
from core.models.options import LayerAttention
from core.models.rotary import rotary_tables

Node = Any


# The exact GELU.
_GELU = "erf"


# Infinity minus itself would be NaN.
_HIDE = -1e9


def build_graph(
    weights: Mapping[str, NDArray[np.float32]],
    architecture: Architecture,
    *,
    scores_targets: bool = False,
) -> Any:
    """Builds an encoder from weights by variable path.

    Inputs, for T tokens of packed texts: `input_ids`, `places` (the family's position ids),
    `text_starts` (first index of a token's text), int32 (1, T); `masked_positions`, int32 (K,).
    Output: logits (K, V).

    Args:
        scores_targets: Adds the input `targets`, int32 (K,); the output is their
            log-probabilities, (K,).
    """
    return _Builder(weights, architecture).build(scores_targets)


class _Builder:
    """T tokens, K masks, N heads, D head size."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], found: Architecture) -> None:
        self._ops: Any = import_for(PACKAGE, f"{PACKAGE}.opset13")
        self._weights = weights
        self._found = found

    def build(self, scores_targets: bool) -> Any:
        ops, name = self._ops, self._found.model_type
        ids, places, starts = (
            ops.parameter([1, -1], np.int32, name=name)
            for name in ("input_ids", "places", "text_starts")
        )
        positions = ops.parameter([-1], np.int32, name="masked_positions")
        words = self._weight("embeddings/words/table")
        hidden = self._embeddings(words, ids, places)  # (1, T, H)
        last = self._found.num_hidden_layers - 1
        for index, (bias, rotation) in enumerate(self._layer_inputs(places, starts)):
            # The last layer is computed at masked positions only.
            wanted = positions if index == last else None
            hidden = self._block(f"layer_{index}", hidden, bias, rotation, wanted)
        hidden = ops.squeeze(hidden, self._ints(0))  # (K, H)
        if "final_norm/scale" in self:
            hidden = self._norm("final_norm", hidden)
        hidden = ops.gelu(self._dense("lm_head/dense", hidden), _GELU)
        hidden = self._norm("lm_head/norm", hidden)
        logits = ops.add(ops.matmul(hidden, words, False, True), self._weight("lm_head/bias"))
        inputs = [ids, places, starts, positions]
        if scores_targets:
            inputs.append(ops.parameter([-1], np.int32, name="targets"))
            logits = self._log_probabilities(logits, inputs[-1])
        return import_openvino().Model([logits], inputs, name)

    def _log_probabilities(self, logits: Node, targets: Node) -> Node:
        ops = self._ops
        shares = ops.log_softmax(logits, 1)
        chosen = ops.gather_elements(shares, ops.unsqueeze(targets, self._ints(1)), 1)
        return ops.squeeze(chosen, self._ints(1))

    def __contains__(self, path: str) -> bool:
        return f"{self._found.model_type}/{path}" in self._weights

    def _weight(self, path: str, *, transposed: bool = False) -> Node:
        """OpenVINO copies kernels that aren't transposed."""
        values = self._weights[f"{self._found.model_type}/{path}"]
        values = np.ascontiguousarray(values.T if transposed else values)
        return self._ops.constant(values, shared_memory=True)

    def _ints(self, *values: int) -> Node:
        return self._ops.constant(np.array(values if len(values) > 1 else values[0], np.int64))

    def _layer_inputs(self, places: Node, starts: Node) -> Iterator[tuple[Node, Any]]:
        ops, found = self._ops, self._found
        apart = ops.not_equal(*self._pairs(starts))  # (1, 1, T, T)
        all_of_text = self._hide(apart)
        patterns = find_family(found.model_type).options(found).layers
        patterns = patterns or (LayerAttention(),) * found.num_hidden_layers
        inputs = {}
        for one in dict.fromkeys(patterns):
            bias = all_of_text
            if one.reach is not None:
                bias = self._hide(ops.logical_or(apart, self._out_of_reach(places, one.reach)))
            theta = one.rotary_theta
            inputs[one] = (bias, None if theta is None else self._rotation(theta, places))
        for one in patterns:
            yield inputs[one]

    def _out_of_reach(self, places: Node, reach: int) -> Node:
        """Marks pairs of tokens farther apart than local attention reaches, (1, 1, T, T)."""
        distances = self._ops.absolute(self._ops.subtract(*self._pairs(places)))
        return self._ops.greater(distances, self._ops.constant(np.int32(reach)))

    def _pairs(self, values: Node) -> tuple[Node, Node]:
        return (
            self._ops.unsqueeze(values, self._ints(1, 3)),
            self._ops.unsqueeze(values, self._ints(1, 2)),
        )

    def _hide(self, hidden: Node) -> Node:
        ops = self._ops
        return ops.select(hidden, ops.constant(np.float32(_HIDE)), ops.constant(np.float32(0)))

    def _rotation(self, theta: float, places: Node) -> tuple[Node, Node]:
        tables = rotary_tables(self._found.max_seq_length, self._found.head_size, theta)
        cosines, sines = (
            self._ops.unsqueeze(
                self._ops.gather(self._ops.constant(table), places, self._ints(0)), self._ints(1)
            )
            for table in tables
        )
        return cosines, sines

    def _embeddings(self, words: Node, ids: Node, places: Node) -> Node:
        ops = self._ops
        hidden = ops.gather(words, ids, self._ints(0))
        if "embeddings/positions/table" in self:
            table = self._weight("embeddings/positions/table")
            hidden = ops.add(hidden, ops.gather(table, places, self._ints(0)))
        if "embeddings/segments/table" in self:
            table = self._weight("embeddings/segments/table")
            hidden = ops.add(hidden, ops.gather(table, self._ints(0), self._ints(0)))
        return self._norm("embeddings/norm", hidden)

    def _block(self, name: str, hidden: Node, bias: Node, rotation: Any, wanted: Any) -> Node:
        def attend(hidden: Node) -> Node:
            return self._attention(f"{name}/attention", hidden, bias, rotation, wanted)

        def feed_forward(hidden: Node) -> Node:
            return self._feed_forward(f"{name}/feed_forward", hidden)

        hidden = self._add(hidden, attend, f"{name}/attention_norm", wanted)
        return self._add(hidden, feed_forward, f"{name}/output_norm")

    def _add(
        self, hidden: Node, part: Callable[[Node], Node], norm: str, wanted: Any = None
    ) -> Node:
        norm_first = "final_norm/scale" in self
        # The embeddings' norm serves the first layer.
        has_norm = norm_first and f"{norm}/scale" in self
        added = part(self._norm(norm, hidden) if has_norm else hidden)
        summed = self._ops.add(self._at(hidden, wanted, 1), added)
        return summed if norm_first else self._norm(norm, summed)

    def _at(self, values: Node, wanted: Any, axis: int) -> Node:
        return values if wanted is None else self._ops.gather(values, wanted, self._ints(axis))

    def _attention(self, name: str, hidden: Node, bias: Node, rotation: Any, wanted: Any) -> Node:
        ops, found = self._ops, self._found
        parts = ops.split(self._dense(f"{name}/qkv", hidden), self._ints(2), 3).outputs()
        query, key, value = self._heads(self._at(parts[0], wanted, 1)), *map(self._heads, parts[1:])
        if rotation is not None:
            query = self._rotate(query, *(self._at(one, wanted, 2) for one in rotation))
            key = self._rotate(key, *rotation)
        bias = self._at(bias, wanted, 2)
        scale = ops.constant(np.float32(found.head_size**-0.5))
        mixed = ops.scaled_dot_product_attention(query, key, value, bias, scale)  # (1, N, T, D)
        mixed = ops.transpose(mixed, self._ints(0, 2, 1, 3))
        mixed = ops.reshape(mixed, self._ints(0, 0, found.hidden_size), True)
        return self._dense(f"{name}/output", mixed)

    def _heads(self, fused: Node) -> Node:
        shape = self._ints(0, 0, self._found.num_attention_heads, self._found.head_size)
        heads = self._ops.reshape(fused, shape, True)
        return self._ops.transpose(heads, self._ints(0, 2, 1, 3))

    def _rotate(self, heads: Node, cosines: Node, sines: Node) -> Node:
        ops = self._ops
        first, second = ops.split(heads, self._ints(3), 2).outputs()
        crossed = ops.concat([ops.negative(second), first], 3)
        return ops.add(ops.multiply(heads, cosines), ops.multiply(crossed, sines))

    def _feed_forward(self, name: str, hidden: Node) -> Node:
        ops = self._ops
        if f"{name}/gated_up/kernel" not in self:
            inner = ops.gelu(self._dense(f"{name}/up", hidden), _GELU)
            return self._dense(f"{name}/down", inner)
        fused = self._dense(f"{name}/gated_up", hidden)
        gate, linear = ops.split(fused, self._ints(2), 2).outputs()
        return self._dense(f"{name}/down", ops.multiply(ops.gelu(gate, _GELU), linear))

    def _dense(self, name: str, hidden: Node) -> Node:
        kernel = self._weight(f"{name}/kernel", transposed=True)
        outputs = self._ops.matmul(hidden, kernel, False, True)
        if f"{name}/bias" not in self:
            return outputs
        return self._ops.add(outputs, self._weight(f"{name}/bias"))

    def _norm(self, name: str, hidden: Node) -> Node:
        ops, epsilon = self._ops, self._found.layer_norm_eps
        last = ops.constant(np.array([-1], np.int64))
        hidden = ops.mvn(hidden, last, True, epsilon, "inside_sqrt")
        hidden = ops.multiply(hidden, self._weight(f"{name}/scale"))
        if f"{name}/bias" not in self:
            return hidden
        return ops.add(hidden, self._weight(f"{name}/bias"))
