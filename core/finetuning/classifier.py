"""A model with a classification head, as the backends' training loop takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import keras
from keras import ops

from core.architecture.architecture import Architecture
from core.architecture.heads import Head, Kind
from core.models import kernels
from core.models.building import create_model
from core.models.decoder import DecoderForCausalLM
from core.models.encoder import EncoderForMaskedLM
from core.models.encoder_decoder import EncoderDecoder
from core.models.head import LanguageModel
from core.models.layers import Dense, Dropout, Initializers, Tensor

# Differs from the seed of the body's weights.
_HEAD_SEED = 0x5EED


class Classifier(LanguageModel):
    """Computes logits for texts or tokens; with one output, it regresses.

    The logits are (B, K, outputs), at the K `masked_positions`, or at all L positions.
    """

    def __init__(
        self,
        architecture: Architecture,
        head: Head,
        kind: Kind,
        outputs: int,
        *,
        seed: int,
        dtype: str = "float32",
        r_drop: float = 0.0,
    ) -> None:
        super().__init__(name="classifier", dtype=dtype)
        self.r_drop = r_drop
        self.architecture = architecture
        self.head = head
        self.outputs = outputs
        self.regresses = kind == "sequence" and outputs == 1
        self.body = create_model(architecture, seed=seed, dtype_policy=dtype)
        weights = Initializers(seed ^ _HEAD_SEED, _standard_deviation(architecture, head))
        policy = self.dtype_policy
        rate = architecture.hidden_dropout_prob if head.dropout is None else head.dropout
        self.first_dropout = Dropout(rate, weights, name="first_dropout", dtype=policy)
        self.dropout = Dropout(rate, weights, name="dropout", dtype=policy)
        self.dense: Dense | None = None
        if head.dense:
            self.dense = Dense(architecture.hidden_size, weights, name="dense", dtype=policy)
        self.output_dense = Dense(
            outputs, weights, use_bias=head.has_bias, name="output", dtype=policy
        )
        self.build()
        self._freeze()

    def build(self, input_shape: Any = None) -> None:
        shape = (None, None, self.architecture.hidden_size)
        for layer in (self.first_dropout, self.dropout, self.dense, self.output_dense):
            if layer is not None:
                layer.build(shape)
        self.built = True

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Computes the hidden states that the output layer reads, (B, K, H)."""
        hidden, seed = self._hidden(inputs), inputs.get("dropout_seed")
        if self.dense is not None:
            hidden = self.first_dropout(hidden, seed) if self.head.drops_input else hidden
            hidden = ops.tanh(self.dense(hidden))
        return self.dropout(hidden, seed)

    def call(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return ops.cast(self.output_dense(self.states(inputs)), "float32")

    def summed_loss(self, inputs: Mapping[str, Tensor], labels: Tensor, weights: Tensor) -> Tensor:
        """Sums weighted cross-entropies in nats, or squared errors, and R-Drop's penalty."""
        logits = self.call(inputs)
        loss = ops.sum(self._losses_of(logits, labels) * weights)
        if not self.r_drop:
            return loss
        first, second = ops.split(logits, 2)
        distances = self._distances_between(first, second) * ops.split(weights, 2)[0]
        # The batch is there twice, so the authors' sum of both losses is their mean here.
        return loss + self.r_drop * ops.sum(distances)

    def _distances_between(self, first: Tensor, second: Tensor) -> Tensor:
        """Computes half the symmetric divergence of predictions, (B, K), or of unit Gaussians."""
        if self.regresses:
            return 0.5 * ops.square(first[..., 0] - second[..., 0])
        log_first, log_second = ops.log_softmax(first, axis=-1), ops.log_softmax(second, axis=-1)
        return 0.5 * ops.sum(
            (ops.exp(log_first) - ops.exp(log_second)) * (log_first - log_second), axis=-1
        )

    def evaluate_batch(
        self, inputs: Mapping[str, Tensor], labels: Tensor, weights: Tensor
    ) -> Tensor:
        """Computes `summed_loss` and the weight of correct predictions, (2,)."""
        logits = self.call(inputs)
        right = ops.cast(ops.equal(ops.argmax(logits, axis=-1), labels), "float32")
        return ops.stack(
            [ops.sum(self._losses_of(logits, labels) * weights), ops.sum(right * weights)]
        )

    def _losses_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.regresses:
            return ops.square(logits[..., 0] - labels)
        chosen = ops.one_hot(labels, self.outputs, dtype="float32")
        return -ops.sum(ops.log_softmax(logits, axis=-1) * chosen, axis=-1)

    def _hidden(self, inputs: Mapping[str, Tensor]) -> Tensor:
        kind = self.architecture.kind
        if kind == "encoder":
            encoder = cast(EncoderForMaskedLM, self.body)
            hidden = encoder.hidden_states(inputs)
            return encoder.lm_head(hidden) if self.head.keeps_head else hidden
        if kind == "encoder-decoder" and not self.head.encoder_only:
            return cast(EncoderDecoder, self.body).states(inputs)
        if kind == "encoder-decoder":
            return cast(EncoderDecoder, self.body).encode(inputs)
        hidden = cast(DecoderForCausalLM, self.body).states(inputs)
        positions = inputs.get("masked_positions")
        return hidden if positions is None else kernels.gather_positions(hidden, positions)

    def _freeze(self) -> None:
        """Excludes the parts that the classifier doesn't use from training."""
        head = getattr(self.body, "lm_head", None)
        if head is not None and self.head.keeps_head:
            head.bias.trainable = False
        elif head is not None:
            head.trainable = False
        if self.head.encoder_only:
            body = cast(EncoderDecoder, self.body)
            for layer in (body.decoder, body.decoder_distances):
                _freeze_own(layer, shared=body.words)


def _freeze_own(layer: keras.layers.Layer | None, shared: keras.layers.Layer) -> None:
    shared_ids = {id(variable) for variable in shared.variables}
    for variable in layer.variables if layer is not None else ():
        if id(variable) not in shared_ids:
            variable.trainable = False


def _standard_deviation(architecture: Architecture, head: Head) -> float:
    if head.divides_range:
        return float(architecture.initializer_range * architecture.hidden_size**-0.5)
    return architecture.initializer_range
