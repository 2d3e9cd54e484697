"""Builds an encoder as an OpenVINO graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from core.architecture.architecture import Architecture
from core.architecture.options import LayerAttention, RotaryPositions
from core.backends.openvino.compilation import import_openvino
from core.backends.openvino.layers import HIDE, GraphLayers, Node, Weights
from core.families import find_family
from core.models.rotary import rotary_tables


def build_graph(
    weights: Weights, architecture: Architecture, *, scores_targets: bool = False
) -> Any:
    """Builds an encoder from weights by variable path.

    Inputs, for B sequences of T tokens, in which several texts may be packed: `input_ids`, `places`
    (the family's position ids), `text_starts` (first index of a token's text), int32 (B, T);
    `masked_positions`, int32 (B, K). Output: logits (B * K, V).

    Args:
        scores_targets: Adds the input `targets`, int32 (B * K,); the output is their
            log-probabilities, (B * K,).
    """
    return _Builder(weights, architecture).build(scores_targets)


class _Builder(GraphLayers):
    def __init__(self, weights: Weights, architecture: Architecture) -> None:
        options = find_family(architecture.model_type).options(architecture)
        super().__init__(weights, architecture.model_type, options.blocks)
        self._architecture = architecture
        self._patterns = options.layers or (LayerAttention(),) * architecture.num_hidden_layers

    def build(self, scores_targets: bool) -> Any:
        ops, architecture = self.ops, self._architecture
        ids, places, starts, positions = (
            ops.parameter([-1, -1], np.int32, name=name)
            for name in ("input_ids", "places", "text_starts", "masked_positions")
        )
        hidden = self._embeddings(ids, places)  # (B, T, H)
        last = architecture.num_hidden_layers - 1
        for index, (bias, rotation) in enumerate(self._layer_inputs(places, starts)):
            # The last layer is computed at masked positions only.
            wanted = positions if index == last else None
            hidden = self._block(f"layer_{index}", hidden, bias, rotation, wanted)
        hidden = ops.reshape(hidden, self.ints(-1, architecture.hidden_size), False)  # (B * K, H)
        logits = self._logits(hidden)
        inputs = [ids, places, starts, positions]
        if scores_targets:
            inputs.append(ops.parameter([-1], np.int32, name="targets"))
            logits = self.log_probabilities(logits, inputs[-1])
        return import_openvino().Model([logits], inputs, architecture.model_type)

    def _logits(self, hidden: Node) -> Node:
        ops = self.ops
        if self.options.norm_first:
            hidden = self.norm("final_norm", hidden)
        hidden = self.gelu(self.dense("lm_head/dense", hidden))
        hidden = self.norm("lm_head/norm", hidden)
        logits = ops.matmul(hidden, self.weight("embeddings/words/table"), False, True)
        return ops.add(logits, self.weight("lm_head/bias"))

    def _layer_inputs(self, places: Node, starts: Node) -> Iterator[tuple[Node, Any]]:
        ops = self.ops
        apart = ops.not_equal(*self._pairs(starts))  # (B, 1, T, T)
        all_of_text = self._hide(apart)
        inputs = {}
        for attention in dict.fromkeys(self._patterns):
            bias = all_of_text
            if attention.reach is not None:
                bias = self._hide(
                    ops.logical_or(apart, self._out_of_reach(places, attention.reach))
                )
            rotary = attention.rotary
            inputs[attention] = (bias, None if rotary is None else self._rotation(rotary, places))
        for attention in self._patterns:
            yield inputs[attention]

    def _out_of_reach(self, places: Node, reach: int) -> Node:
        """Marks pairs of tokens farther apart than local attention reaches, (B, 1, T, T)."""
        distances = self.ops.absolute(self.ops.subtract(*self._pairs(places)))
        return self.ops.greater(distances, self.ops.constant(np.int32(reach)))

    def _pairs(self, values: Node) -> tuple[Node, Node]:
        return (
            self.ops.unsqueeze(values, self.ints(1, 3)),
            self.ops.unsqueeze(values, self.ints(1, 2)),
        )

    def _hide(self, hidden: Node) -> Node:
        ops = self.ops
        return ops.select(hidden, ops.constant(HIDE), ops.constant(np.float32(0)))

    def _rotation(self, rotary: RotaryPositions, places: Node) -> tuple[Node, Node]:
        tables = rotary_tables(
            self._architecture.max_seq_length, self._architecture.head_size, rotary
        )
        cosines, sines = (
            self.ops.unsqueeze(
                self.ops.gather(self.ops.constant(table), places, self.ints(0)), self.ints(1)
            )
            for table in tables
        )
        return cosines, sines

    def _embeddings(self, ids: Node, places: Node) -> Node:
        hidden = self.look_up("embeddings/words/table", ids)
        if "embeddings/positions/table" in self:
            hidden = self.ops.add(hidden, self.look_up("embeddings/positions/table", places))
        if "embeddings/segments/table" in self:
            hidden = self.ops.add(hidden, self.look_up("embeddings/segments/table", self.ints(0)))
        return self.norm("embeddings/norm", hidden)

    def _block(self, name: str, hidden: Node, bias: Node, rotation: Any, wanted: Any) -> Node:
        def attend(hidden: Node) -> Node:
            return self._attention(f"{name}/attention", hidden, bias, rotation, wanted)

        hidden = self.add(hidden, attend, f"{name}/attention_norm", wanted)
        return self.add_feed_forward(name, hidden)

    def _attention(self, name: str, hidden: Node, bias: Node, rotation: Any, wanted: Any) -> Node:
        parts = self.split(self.dense(f"{name}/qkv", hidden), 3)
        query, key, value = self.heads(self.at(parts[0], wanted, 1)), *map(self.heads, parts[1:])
        if rotation is not None:
            query = self._rotate(query, *(self.at(table, wanted, 2) for table in rotation))
            key = self._rotate(key, *rotation)
        return self.attend(name, query, key, value, self.at(bias, wanted, 2))

    def _rotate(self, heads: Node, cosines: Node, sines: Node) -> Node:
        ops = self.ops
        first, second = ops.split(heads, self.ints(3), 2).outputs()
        crossed = ops.concat([ops.negative(second), first], 3)
        return ops.add(ops.multiply(heads, cosines), ops.multiply(crossed, sines))
