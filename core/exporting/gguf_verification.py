"""Reads a GGUF file back and computes its predictions as llama.cpp does, in NumPy.

Source: https://github.com/ggml-org/llama.cpp/tree/master/src/models
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.exporting.gguf import ROTATES_NEIGHBOURS
from core.exporting.verification import Array, log_softmax


class GgufModel:
    """A decoder of a GGUF file."""

    def __init__(self, file: Path) -> None:
        from gguf import GGUFReader

        self._reader = GGUFReader(file)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._architecture = self._value("general.architecture")

    def log_probabilities(self, ids: NDArray[np.integer[Any]]) -> Array:
        """Computes the log-probabilities of the next tokens, (L, V), of token ids (L,)."""
        hidden = self._tensor("token_embd.weight")[ids]
        if "position_embd.weight" in self._tensors:
            hidden = hidden + self._tensor("position_embd.weight")[: len(ids)]
        for index in range(self._number("block_count")):
            block = f"blk.{index}"
            hidden = hidden + self._attention(block, self._norm(f"{block}.attn_norm", hidden))
            hidden = hidden + self._feed_forward(block, self._norm(f"{block}.ffn_norm", hidden))
        hidden = self._norm("output_norm", hidden)
        output = "output.weight" if "output.weight" in self._tensors else "token_embd.weight"
        return log_softmax(hidden @ self._tensor(output).T)

    def _attention(self, block: str, hidden: Array) -> Array:
        length, heads = len(hidden), self._number("attention.head_count")
        if f"{block}.attn_qkv.weight" in self._tensors:
            parts = np.split(self._dense(f"{block}.attn_qkv", hidden), 3, axis=-1)
        else:
            parts = [self._dense(f"{block}.attn_{name}", hidden) for name in "qkv"]
        size = parts[0].shape[-1] // heads
        # (N, L, D), or fewer heads of keys and values.
        query, key, value = (part.reshape(length, -1, size).swapaxes(0, 1) for part in parts)
        if f"{block}.attn_q_norm.weight" in self._tensors:
            query = self._norm(f"{block}.attn_q_norm", query)
            key = self._norm(f"{block}.attn_k_norm", key)
        if self._find("rope.freq_base") is not None:
            query, key = self._rotate(query), self._rotate(key)
        key, value = (np.repeat(part, heads // len(part), axis=0) for part in (key, value))
        scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
        scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ value
        return self._dense(f"{block}.attn_output", mixed.swapaxes(0, 1).reshape(length, -1))

    def _rotate(self, heads: Array) -> Array:
        length, size = heads.shape[1:]
        frequencies = float(self._number("rope.freq_base")) ** (-np.arange(0, size, 2) / size)
        if "rope_freqs.weight" in self._tensors:
            frequencies = frequencies / self._tensor("rope_freqs.weight")
        angles = np.outer(np.arange(length), frequencies)
        factor = self._find("rope.scaling.attn_factor") or 1.0
        cosines, sines = factor * np.cos(angles), factor * np.sin(angles)
        if self._architecture in ROTATES_NEIGHBOURS:
            first, second = heads[..., 0::2], heads[..., 1::2]
        else:
            first, second = np.split(heads, 2, axis=-1)
        # The order of values doesn't matter to products of queries and keys.
        return np.concatenate(
            [first * cosines - second * sines, first * sines + second * cosines], axis=-1
        )

    def _feed_forward(self, block: str, hidden: Array) -> Array:
        up = self._dense(f"{block}.ffn_up", hidden)
        if f"{block}.ffn_gate.weight" in self._tensors:
            gate = self._dense(f"{block}.ffn_gate", hidden)
            return self._dense(f"{block}.ffn_down", gate / (1 + np.exp(-gate)) * up)
        return self._dense(f"{block}.ffn_down", _gelu(up))

    def _dense(self, name: str, hidden: Array) -> Array:
        outputs = hidden @ self._tensor(f"{name}.weight").T
        bias = f"{name}.bias"
        return outputs + self._tensor(bias) if bias in self._tensors else outputs

    def _norm(self, name: str, hidden: Array) -> Array:
        if f"{name}.bias" not in self._tensors:
            squares = (hidden * hidden).mean(-1, keepdims=True)
            epsilon = self._number("attention.layer_norm_rms_epsilon")
            return hidden / np.sqrt(squares + epsilon) * self._tensor(f"{name}.weight")
        centred = hidden - hidden.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        scaled = centred / np.sqrt(variance + self._number("attention.layer_norm_epsilon"))
        return scaled * self._tensor(f"{name}.weight") + self._tensor(f"{name}.bias")

    def _tensor(self, name: str) -> Array:
        from gguf import quants

        tensor = self._tensors[name]
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        # GGUF lists dimensions from the innermost.
        return values.reshape([int(size) for size in tensor.shape[::-1]]).astype(np.float64)

    def _number(self, key: str) -> Any:
        return self._value(f"{self._architecture}.{key}")

    def _find(self, key: str) -> Any:
        """Returns a number, or None if it is missing."""
        field = self._reader.fields.get(f"{self._architecture}.{key}")
        return None if field is None else field.contents()

    def _value(self, key: str) -> Any:
        field = self._reader.fields[key]
        return field.contents()


def _gelu(values: Array) -> Array:
    """The approximation by tanh."""
    return 0.5 * values * (1 + np.tanh(np.sqrt(2 / np.pi) * (values + 0.044715 * values**3)))
