"""Decoders: GPT-2, Llama and Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from core.architecture.architecture import Architecture, check_length
from core.architecture.options import ModelOptions
from core.models import kernels
from core.models.decoding import Decoding
from core.models.head import LanguageModel
from core.models.layers import (
    Cache,
    Embedding,
    Initializers,
    Tensor,
    padding_bias,
    past_bias,
)
from core.models.stack import Stack


class DecoderForCausalLM(Decoding, LanguageModel):
    """A decoder with a language-model head, tied unless `head_scale` is set."""

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
        cutoff = options.initializer_cutoff
        weights = Initializers(seed, architecture.initializer_range, cutoff)
        self.decoder = Stack(
            architecture.num_hidden_layers,
            options.embeddings,
            options.blocks,
            weights,
            rotary=options.rotary,
            remat=remat,
            name="decoder",
            dtype=self.dtype_policy,
        )
        self.lm_head: Embedding | None = None
        if options.head_scale is not None:
            self.lm_head = Embedding(
                options.embeddings.rows,
                options.embeddings.width,
                weights,
                scale=options.head_scale,
                name="lm_head",
                dtype=self.dtype_policy,
            )
        self.build()

    def build(self, input_shape: Any = None) -> None:
        self.decoder.build()
        if self.lm_head is not None:
            self.lm_head.build()
        self.built = True

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns hidden states (B, L, H); right padding needs no mask.

        Packed sequences take `text_starts` (B, L).
        """
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        check_length(ids.shape[1], self.architecture)
        bias = None if mask is None else padding_bias(mask)
        seed, starts = inputs.get("dropout_seed"), inputs.get("text_starts")
        return self.decoder(ids, bias, seed, text_starts=starts)

    def output_weights(self) -> tuple[Tensor, None]:
        return (self.lm_head or self.decoder.embeddings.words).full_matrix(), None

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
        later = kernels.causal_bias(0, ids.shape[1])
        hidden, new = self.decoder.step(ids, layers, positions, past, later)
        return self.decode(hidden), new
