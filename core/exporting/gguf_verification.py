"""Reads a GGUF file back and computes its predictions as llama.cpp does, in NumPy.

Source: https://github.com/ggml-org/llama.cpp/tree/master/src/models
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


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
        fused = self._dense(f"{block}.attn_qkv", hidden)
        query, key, value = (
            part.reshape(length, heads, -1).swapaxes(0, 1) for part in np.split(fused, 3, axis=-1)
        )
        scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
        scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ value
        return self._dense(f"{block}.attn_output", mixed.swapaxes(0, 1).reshape(length, -1))

    def _feed_forward(self, block: str, hidden: Array) -> Array:
        return self._dense(f"{block}.ffn_down", _gelu(self._dense(f"{block}.ffn_up", hidden)))

    def _dense(self, name: str, hidden: Array) -> Array:
        outputs = hidden @ self._tensor(f"{name}.weight").T
        bias = f"{name}.bias"
        return outputs + self._tensor(bias) if bias in self._tensors else outputs

    def _norm(self, name: str, hidden: Array) -> Array:
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

    def _value(self, key: str) -> Any:
        field = self._reader.fields[key]
        return field.contents()


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _gelu(values: Array) -> Array:
    """The approximation by tanh."""
    return 0.5 * values * (1 + np.tanh(np.sqrt(2 / np.pi) * (values + 0.044715 * values**3)))
