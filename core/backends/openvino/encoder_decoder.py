"""Builds an encoder-decoder that scores targets as an OpenVINO graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import EncoderDecoderArchitecture
from core.architecture.options import ModelOptions, RelativePositions
from core.backends.openvino.compilation import import_openvino
from core.backends.openvino.layers import HIDE, GraphLayers, Node, Weights
from core.families import find_family
from core.models.distances import distance_buckets


def build_scoring_graph(weights: Weights, architecture: EncoderDecoderArchitecture) -> Any:
    """Builds an encoder-decoder from weights by variable path.

    Inputs, for B sources of T tokens and targets of S tokens without padding: `input_ids`, int32
    (B, T); `decoder_input_ids`, int32 (B, S); `masked_positions` in the decoder, int32 (B, K);
    `targets`, int32 (B * K,); biases of `encoder_bias`, float32 (1, N or 1, T, T), and of
    `decoder_bias`, float32 (1, N or 1, S, S). Output: the targets' log-probabilities, (B * K,).
    """
    return _Builder(weights, architecture).build()


def encoder_bias(
    weights: Weights, architecture: EncoderDecoderArchitecture, length: int
) -> NDArray[np.float32]:
    """Computes position biases by distance, float32 (1, N, T, T), or zeros (1, 1, T, T)."""
    relative = _options(architecture).relative
    if relative is None:
        return np.zeros((1, 1, length, length), np.float32)
    away = np.arange(length)[None, :] - np.arange(length)[:, None]
    half = relative.buckets // 2
    buckets = _buckets_of(relative, half, np.abs(away)) + np.where(away > 0, half, 0)
    return _look_up(weights, architecture, "encoder", buckets)


def decoder_bias(
    weights: Weights, architecture: EncoderDecoderArchitecture, length: int
) -> NDArray[np.float32]:
    """Computes biases that mask later tokens, float32 (1, N or 1, S, S)."""
    relative = _options(architecture).relative
    back = np.arange(length)[:, None] - np.arange(length)[None, :]
    later = np.where(back < 0, HIDE, np.float32(0))[None, None]
    if relative is None:
        return later
    buckets = _buckets_of(relative, relative.buckets, back)
    return later + _look_up(weights, architecture, "decoder", buckets)


def _options(architecture: EncoderDecoderArchitecture) -> ModelOptions:
    options: ModelOptions = find_family(architecture.model_type).options(architecture)
    return options


def _buckets_of(
    relative: RelativePositions, buckets: int, distances: NDArray[np.integer[Any]]
) -> NDArray[np.integer[Any]]:
    of_distance = distance_buckets(buckets, relative.max_distance)
    return of_distance[np.clip(distances, 0, relative.max_distance)]


def _look_up(
    weights: Weights,
    architecture: EncoderDecoderArchitecture,
    half: str,
    buckets: NDArray[np.integer[Any]],
) -> NDArray[np.float32]:
    table = weights[f"{architecture.model_type}/{half}_distances/table"]
    return np.ascontiguousarray(table[buckets].transpose(2, 0, 1)[None], np.float32)


class _Builder(GraphLayers):
    def __init__(self, weights: Weights, architecture: EncoderDecoderArchitecture) -> None:
        options = _options(architecture)
        super().__init__(weights, architecture.model_type, options.blocks)
        self._architecture = architecture
        self._first_position = options.embeddings.first_position

    def build(self) -> Any:
        ops, architecture = self.ops, self._architecture
        ids, decoder_ids, positions = (
            ops.parameter([-1, -1], np.int32, name=name)
            for name in ("input_ids", "decoder_input_ids", "masked_positions")
        )
        targets = ops.parameter([-1], np.int32, name="targets")
        bias, decoder_bias = (
            ops.parameter([1, -1, -1, -1], np.float32, name=name)
            for name in ("encoder_bias", "decoder_bias")
        )
        memory = self._encode(ids, bias)
        hidden = self._decode(decoder_ids, decoder_bias, memory, positions)  # (B, K, H)
        hidden = ops.reshape(hidden, self.ints(-1, architecture.hidden_size), False)
        table = self.weight("lm_head/table" if "lm_head/table" in self else "words/table")
        logits = ops.matmul(hidden, table, False, True)
        inputs = [ids, decoder_ids, positions, targets, bias, decoder_bias]
        scores = self.log_probabilities(logits, targets)
        return import_openvino().Model([scores], inputs, architecture.model_type)

    def _encode(self, ids: Node, bias: Node) -> Node:
        hidden = self._embeddings("encoder", ids)
        for index in range(self._architecture.num_hidden_layers):
            name = f"encoder/layer_{index}"
            attend = self._self_attention(f"{name}/attention", bias, None)
            hidden = self.add(hidden, attend, f"{name}/attention_norm")
            hidden = self.add_feed_forward(name, hidden)
        return self._finished("encoder", hidden)

    def _decode(self, ids: Node, bias: Node, memory: Node, positions: Node) -> Node:
        hidden = self._embeddings("decoder", ids)
        last = self._architecture.num_decoder_layers - 1
        for index in range(self._architecture.num_decoder_layers):
            name = f"decoder/layer_{index}"
            # The last layer is computed at masked positions only.
            wanted = positions if index == last else None
            attend = self._self_attention(f"{name}/attention", bias, wanted)
            hidden = self.add(hidden, attend, f"{name}/attention_norm", wanted)
            look = self._cross_attention(f"{name}/cross_attention", memory)
            hidden = self.add(hidden, look, f"{name}/cross_attention_norm")
            hidden = self.add_feed_forward(name, hidden)
        return self._finished("decoder", hidden)

    def _embeddings(self, half: str, ids: Node) -> Node:
        ops, name = self.ops, f"{half}/embeddings"
        hidden = self.look_up("words/table", ids)
        if f"{name}/positions/table" in self:
            length = ops.gather(ops.shape_of(ids), self.ints(1), self.ints(0))
            first = self.ints(self._first_position)
            places = ops.range(first, ops.add(length, first), self.ints(1), "i64")
            hidden = ops.add(hidden, self.look_up(f"{name}/positions/table", places))
        return self.norm(f"{name}/norm", hidden) if f"{name}/norm/scale" in self else hidden

    def _self_attention(self, name: str, bias: Node, wanted: Any) -> Callable[[Node], Node]:
        def attend(hidden: Node) -> Node:
            query, key, value = self.split(self.dense(f"{name}/qkv", hidden), 3)
            query = self.heads(self.at(query, wanted, 1))
            key, value = self.heads(key), self.heads(value)
            return self.attend(name, query, key, value, self._bias_at(bias, wanted))

        return attend

    def _bias_at(self, bias: Node, wanted: Any) -> Node:
        """Selects the rows of positions (B, K) from (1, N, S, S); returns (B, N, K, S)."""
        if wanted is None:
            return bias
        rows = self.ops.transpose(self.ops.squeeze(bias, self.ints(0)), self.ints(1, 0, 2))
        chosen = self.ops.gather(rows, wanted, self.ints(0))  # (B, K, N, S)
        return self.ops.transpose(chosen, self.ints(0, 2, 1, 3))

    def _cross_attention(self, name: str, memory: Node) -> Callable[[Node], Node]:
        def attend(hidden: Node) -> Node:
            query = self.heads(self.dense(f"{name}/query", hidden))
            key, value = map(self.heads, self.split(self.dense(f"{name}/kv", memory), 2))
            return self.attend(name, query, key, value, None)

        return attend

    def _finished(self, half: str, hidden: Node) -> Node:
        return self.norm(f"{half}/final_norm", hidden) if self.options.norm_first else hidden
