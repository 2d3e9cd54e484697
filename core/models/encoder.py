"""Encoders: BERT, RoBERTa and ModernBERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from core.architecture.architecture import Architecture, check_length
from core.architecture.options import BlockOptions, LayerAttention, ModelOptions
from core.models import kernels
from core.models.head import LanguageModel
from core.models.layers import (
    Block,
    Dense,
    Embeddings,
    Initializers,
    Norm,
    Tensor,
    both_biases,
    build_all,
    local_bias,
    padding_bias,
    rotation,
    same_document_bias,
)


class EncoderForMaskedLM(LanguageModel):
    """An encoder with a tied language-model head."""

    def __init__(
        self,
        architecture: Architecture,
        model_options: ModelOptions,
        *,
        seed: int,
        dtype: str = "float32",
        remat: bool = False,
    ) -> None:
        super().__init__(name=architecture.model_type, dtype=dtype)
        self.architecture = architecture
        self.remat = remat
        self.patterns = model_options.layers or (LayerAttention(),) * architecture.num_hidden_layers
        policy, options = self.dtype_policy, model_options.blocks
        cutoff = model_options.initializer_cutoff
        weights = Initializers(seed, architecture.initializer_range, cutoff)
        self.embeddings = Embeddings(
            model_options.embeddings, weights, name="embeddings", dtype=policy
        )
        self.layer_stack = [
            Block(
                options,
                weights,
                attention_norm=index > 0 or not options.norm_first,
                name=f"layer_{index}",
                dtype=policy,
            )
            for index in range(architecture.num_hidden_layers)
        ]
        self.final_norm = None
        if options.norm_first:
            self.final_norm = Norm(options.norm, options.epsilon, name="final_norm", dtype=policy)
        self.lm_head = MaskedHead(
            architecture.vocab_size, options, weights, name="lm_head", dtype=policy
        )
        self.build()

    def position_ids(self, ids: Tensor, text_starts: Tensor | None = None) -> Tensor | None:
        """Returns position ids (B, L), or None for consecutive ones."""
        options = self.embeddings.options
        if (pad := options.padding_position) is not None:
            tokens = ops.cast(ops.not_equal(ids, pad), "int32")
            counts = ops.cumsum(tokens, axis=1)
            if text_starts is not None:
                counts -= ops.take_along_axis(counts - tokens, text_starts, axis=1)
            return counts * tokens + pad
        return self.embeddings.position_ids(text_starts)

    def layer_inputs(self, length: int, bias: Tensor | None) -> list[tuple[Any, Any]]:
        inputs = {
            pattern: self._layer_input(pattern, length, bias)
            for pattern in dict.fromkeys(self.patterns)
        }
        return [inputs[pattern] for pattern in self.patterns]

    def _layer_input(
        self, pattern: LayerAttention, length: int, bias: Tensor | None
    ) -> tuple[Any, Any]:
        angles = None
        if pattern.rotary is not None:
            angles = rotation(length, self.architecture.head_size, pattern.rotary)
        if pattern.reach is None:
            return bias, angles
        return both_biases(local_bias(length, pattern.reach), bias), angles

    def build(self, input_shape: Any = None) -> None:
        layers = [self.embeddings, *self.layer_stack, self.final_norm, self.lm_head]
        shape = (None, None, self.architecture.hidden_size)
        build_all([layer for layer in layers if layer is not None], shape)
        self.built = True

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Computes the head's states at masked positions (B, K, H), or all (B, L, H)."""
        return self.lm_head(self.hidden_states(inputs))

    def hidden_states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Computes the last layer's states at masked positions (B, K, H), or all (B, L, H).

        Packed sequences take `text_starts` (B, L), not `attention_mask`; padding is a document.
        """
        ids, seed = inputs["input_ids"], inputs.get("dropout_seed")
        check_length(ids.shape[1], self.architecture)
        bias, position_ids = self._bias_and_places(ids, inputs)
        hidden = self.embeddings(ids, seed, position_ids, inputs.get("token_type_ids"))
        wanted = [None] * (len(self.layer_stack) - 1) + [inputs.get("masked_positions")]
        for layer, (own_bias, angles), positions in zip(
            self.layer_stack, self.layer_inputs(ids.shape[1], bias), wanted, strict=True
        ):
            apply = kernels.rematerialized_layer(layer) if self.remat else layer
            # (B, L, H), or (B, K, H) after the last layer.
            hidden = apply(hidden, own_bias, seed, angles, None, None, positions)
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def output_weights(self) -> tuple[Tensor, Tensor]:
        return self.embeddings.words.full_matrix(), self.lm_head.bias

    def _bias_and_places(self, ids: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Any, Any]:
        if "text_starts" in inputs:
            starts = inputs["text_starts"]
            return same_document_bias(starts), self.position_ids(ids, starts)
        if "attention_mask" in inputs:
            return padding_bias(inputs["attention_mask"]), self.position_ids(ids)
        return None, None


class MaskedHead(keras.layers.Layer):
    """The head before its tied projection, and its bias."""

    def __init__(
        self, vocab_size: int, options: BlockOptions, weights: Initializers, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        policy = self.dtype_policy
        self.dense = Dense(
            options.width,
            weights,
            scale=options.scales.mixed,
            use_bias=options.use_bias,
            name="dense",
            dtype=policy,
        )
        self.norm = Norm(options.norm, options.epsilon, name="norm", dtype=policy)

    def build(self, input_shape: Any) -> None:
        self.dense.build(input_shape)
        self.norm.build(input_shape)
        self.bias = self.add_weight(
            shape=(self.vocab_size,), initializer="zeros", name="bias", autocast=False
        )

    def call(self, hidden: Tensor) -> Tensor:
        return self.norm(kernels.gelu(self.dense(hidden)))
