"""Decoders: GPT-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from core.architecture.architecture import Architecture, check_length
from core.architecture.options import ModelOptions
from core.models.decoding import Decoding
from core.models.head import LanguageModel
from core.models.layers import (
    Cache,
    Initializers,
    Tensor,
    both_biases,
    causal_bias,
    padding_bias,
    past_bias,
)
from core.models.stack import Stack


class DecoderForCausalLM(Decoding, LanguageModel):
    """A decoder with a tied language-model head."""

    def __init__(
        self,
        architecture: Architecture,
        options: ModelOptions,
        *,
        seed: int,
        dtype: str = "float32",
        remat: bool = False,
    ) -> None:
        super().__init__(name=architecture.model_type, dtype=dtype)
        self.architecture = architecture
        self.decoder = Stack(
            architecture.num_hidden_layers,
            options.embeddings,
            options.blocks,
            Initializers(seed, architecture.initializer_range, options.initializer_cutoff),
            remat=remat,
            name="decoder",
            dtype=self.dtype_policy,
        )
        self.build()

    def build(self, input_shape: Any = None) -> None:
        self.decoder.build()
        self.built = True

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns hidden states (B, L, H); right padding needs no mask."""
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        check_length(ids.shape[1], self.architecture)
        bias = both_biases(causal_bias(ids.shape[1]), None if mask is None else padding_bias(mask))
        return self.decoder(ids, bias, inputs.get("dropout_seed"))

    def output_weights(self) -> tuple[Tensor, None]:
        return self.decoder.embeddings.words.full_matrix(), None

    def start_cache(self, inputs: Mapping[str, Tensor], length: int) -> Cache:
        """Returns a cache with `length` empty slots."""
        check_length(length, self.architecture)
        size = inputs["input_ids"].shape[0]
        return {
            "positions": ops.zeros((size,), "int32"),
            "layers": self.decoder.start_cache(size, length),
        }

    def predict_next(self, ids: Tensor, cache: Cache) -> tuple[Tensor, list[Cache]]:
        positions, layers = cache["positions"], cache["layers"]
        past = past_bias(positions, layers[0]["key"].shape[-1])
        hidden, new = self.decoder.step(ids, layers, positions, past, causal_bias(ids.shape[1]))
        return self.decode(hidden), new
