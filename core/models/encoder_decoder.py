"""Base class of encoder-decoder models: T5 and BART."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from core.models import kernels
from core.models.decoding import Decoding
from core.models.head import LanguageModel
from core.models.layers import (
    BlockOptions,
    Cache,
    Embedding,
    EmbeddingOptions,
    Initializers,
    Tensor,
    build_all,
    causal_bias,
    padding_bias,
    past_bias,
)
from core.models.stack import Stack


class EncoderDecoder(Decoding, LanguageModel):
    """Encoder and decoder with shared token embeddings; for the arguments see `create_model`."""

    def __init__(
        self, architecture: Any, *, seed: int, dtype: str = "float32", remat: bool = False
    ) -> None:
        super().__init__(name=architecture.model_type, dtype=dtype)
        self.architecture = architecture
        policy = self.dtype_policy
        weights = Initializers(seed, architecture.initializer_range)
        options = self.embedding_options()
        self.words = Embedding(
            options.rows,
            options.width,
            weights,
            zero_row=options.zero_row,
            name="words",
            dtype=policy,
        )
        self.make_distances(weights)
        self.encoder = self._stack("encoder", architecture.num_hidden_layers, weights, remat)
        self.decoder = self._stack("decoder", architecture.num_decoder_layers, weights, remat)
        self.lm_head = self.make_head(weights)
        self.build()

    def block_options(self) -> BlockOptions:
        raise NotImplementedError

    def embedding_options(self) -> EmbeddingOptions:
        raise NotImplementedError

    def final_dropout(self) -> float:
        """Returns the dropout rate after the encoder and after the decoder."""
        return 0.0

    def make_distances(self, weights: Initializers) -> None:
        """Makes relative position biases, if the family has them."""

    def make_head(self, weights: Initializers) -> Embedding | None:
        """Makes the decoder's head; None: tied to the token embeddings."""
        return None

    def own_layers(self) -> list[keras.layers.Layer]:
        """Returns the layers that only this family has."""
        return []

    def check_lengths(self, *lengths: int) -> None:
        """Refuses sequences longer than the model's positions."""

    def encoder_bias(self, length: int) -> Tensor | None:
        """Computes the encoder's relative position bias, float32 (1, N, L, L)."""
        return None

    def decoder_bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Computes the decoder's relative position bias, broadcast to (B, N, S, M).

        Args:
            queries: Position ids, int32 (B or 1, S).
            keys: Position ids, int32 (M,).
        """
        return None

    def build(self, input_shape: Any = None) -> None:
        layers = [self.words, *self.own_layers(), self.encoder, self.decoder, self.lm_head]
        build_all([one for one in layers if one is not None], (None, None, None))
        self.built = True

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the decoder's hidden states, (B, T, H), or (B, K, H) at masked positions.

        Takes `decoder_input_ids` int32 (B, T) too. The encoder uses `attention_mask`, the decoder
        `masked_positions`; right padding of the decoder needs no mask.
        """
        ids, seed = inputs["decoder_input_ids"], inputs.get("dropout_seed")
        length = ids.shape[1]
        self.check_lengths(length)
        memory = self.encode(inputs)
        places = ops.arange(length)
        bias = _sum(self.decoder_bias(places[None, :], places), causal_bias(length))
        hidden = self.decoder(ids, bias, seed, memory, _padding(inputs))  # (B, T, H)
        if "masked_positions" in inputs:
            hidden = kernels.gather_positions(hidden, inputs["masked_positions"])  # (B, K, H)
        return hidden

    def output_weights(self) -> tuple[Tensor, None]:
        return (self.lm_head or self.words).full_matrix(), None

    def encode(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Computes the encoder's hidden states (B, L, H)."""
        ids = inputs["input_ids"]
        self.check_lengths(ids.shape[1])
        bias = _sum(self.encoder_bias(ids.shape[1]), _padding(inputs))
        return self.encoder(ids, bias, inputs.get("dropout_seed"))

    def start_cache(self, inputs: Mapping[str, Tensor], length: int) -> Cache:
        """Runs the encoder and returns a cache for the decoder.

        Args:
            inputs: `input_ids`, optionally `attention_mask`.
            length: Slots for decoder tokens, including the start token.

        Raises:
            ConfigError: The model has fewer positions.
        """
        self.check_lengths(length)
        size = inputs["input_ids"].shape[0]
        cache = {
            "positions": ops.zeros((size,), "int32"),
            "layers": self.decoder.start_cache(size, length, self.encode(inputs)),
        }
        padding = _padding(inputs)
        return cache if padding is None else {**cache, "memory_bias": padding}

    def predict_next(self, ids: Tensor, cache: Cache) -> tuple[Tensor, list[Cache]]:
        """Returns next-token logits; the first decoder token is `decoder_start_token_id`."""
        positions, layers = cache["positions"], cache["layers"]
        length, new_places = layers[0]["key"].shape[-1], ops.arange(ids.shape[1])
        distances = self.decoder_bias(positions[:, None] + new_places[None, :], ops.arange(length))
        past = _sum(distances, past_bias(positions, length))
        distances = self.decoder_bias(new_places[None, :], new_places)
        bias = _sum(distances, causal_bias(ids.shape[1]))
        padding = cache.get("memory_bias")
        hidden, new = self.decoder.step(ids, layers, positions, past, bias, padding)
        return self.decode(hidden), new

    def _stack(self, name: str, count: int, weights: Initializers, remat: bool) -> Stack:
        return Stack(
            count,
            self.embedding_options(),
            self.block_options(),
            weights,
            words=self.words,
            cross=name == "decoder",
            final_dropout=self.final_dropout(),
            remat=remat,
            name=name,
            dtype=self.dtype_policy,
        )


def _sum(distances: Tensor | None, hidden: Tensor | None) -> Tensor | None:
    """Adds a position bias to a mask, whose values are too large for the bias to change them."""
    if distances is None or hidden is None:
        return hidden if distances is None else distances
    return distances + hidden


def _padding(inputs: Mapping[str, Tensor]) -> Tensor | None:
    mask = inputs.get("attention_mask")
    return None if mask is None else padding_bias(mask)
