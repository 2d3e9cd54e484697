"""What the models of two halves have in common: T5 and BART are short files beside it."""

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
    FirstWeights,
    Tensor,
    build_all,
    causal_bias,
    padding_bias,
    past_bias,
)
from core.models.stack import Stack


class EncoderDecoder(Decoding, LanguageModel):
    """An encoder, and a decoder that looks at it; both have the same words.

    Args:
        architecture: Its dimensions.
        seed: Decides the first weights and the dropout.
        dtype: Precision policy: float32, mixed_bfloat16 or bfloat16.
        remat: Keep only each layer's inputs for the gradient, and compute the rest twice.
    """

    def __init__(
        self, architecture: Any, *, seed: int, dtype: str = "float32", remat: bool = False
    ) -> None:
        super().__init__(name=architecture.model_type, dtype=dtype)
        self.architecture = architecture
        policy = self.dtype_policy
        weights = FirstWeights(seed, architecture.initializer_range)
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
        """Returns how the family builds its blocks."""
        raise NotImplementedError

    def embedding_options(self) -> EmbeddingOptions:
        """Returns what the family adds to its words."""
        raise NotImplementedError

    def final_dropout(self) -> float:
        """Returns the dropout behind each half."""
        return 0.0

    def make_distances(self, weights: FirstWeights) -> None:
        """Makes what knows the distances between tokens, where the family has such."""

    def make_head(self, weights: FirstWeights) -> Embedding | None:
        """Makes the decoder's head; None: it is tied to the words."""
        return None

    def own_layers(self) -> list[keras.layers.Layer]:
        """Returns the layers that only this family has."""
        return []

    def check_lengths(self, *lengths: int) -> None:
        """Refuses rows that the model has no positions for."""

    def encoder_bias(self, length: int) -> Tensor | None:
        """Returns what is added to the encoder's attention logits for distances."""
        return None

    def decoder_bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Returns what is added to the decoder's for distances, broadcast to (B, N, S, M).

        Args:
            queries: Positions of those who look, int32 (B or 1, S).
            keys: Positions of those that are looked at, int32 (M,).
        """
        return None

    def build(self, input_shape: Any = None) -> None:
        layers = [self.words, *self.own_layers(), self.encoder, self.decoder, self.lm_head]
        build_all([one for one in layers if one is not None], (None, None, None))
        self.built = True

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns what is predicted from, (B, T, H), or (B, K, H) at positions that are named.

        Args:
            inputs: `input_ids` int32 (B, L) for the encoder. `decoder_input_ids` int32 (B, T).
                Optional: `attention_mask` (B, L), 1 for tokens and 0 for padding; without it
                nothing is padding. Padding behind the decoder's tokens needs no mask. Optional:
                `masked_positions` int32 (B, K), of the decoder. Optional: `dropout_seed` int32
                (2,), other ones for each step; without it nothing is dropped.

        Raises:
            ConfigError: Rows are longer than the model's positions.
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
        """Returns the head's table, or that of the words; there is no bias."""
        return (self.lm_head or self.words).whole_table(), None

    def encode(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the encoder's hidden states (B, L, H); for the inputs see `call`."""
        ids = inputs["input_ids"]
        self.check_lengths(ids.shape[1])
        bias = _sum(self.encoder_bias(ids.shape[1]), _padding(inputs))
        return self.encoder(ids, bias, inputs.get("dropout_seed"))

    def start_cache(self, inputs: Mapping[str, Tensor], length: int) -> Cache:
        """Runs the encoder and returns a cache for the decoder.

        Args:
            inputs: `input_ids` and perhaps `attention_mask`; see `call`.
            length: Slots: tokens that the decoder is to see, its first one included.

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
        """Returns the logits of the token after each; see `Decoding.predict_next`.

        The decoder's first token is `decoder_start_token_id`.
        """
        positions, layers = cache["positions"], cache["layers"]
        length, new_places = layers[0]["key"].shape[-1], ops.arange(ids.shape[1])
        distances = self.decoder_bias(positions[:, None] + new_places[None, :], ops.arange(length))
        past = _sum(distances, past_bias(positions, length))
        distances = self.decoder_bias(new_places[None, :], new_places)
        bias = _sum(distances, causal_bias(ids.shape[1]))
        padding = cache.get("memory_bias")
        hidden, new = self.decoder.step(ids, layers, positions, past, bias, padding)
        return self.decode(hidden), new

    def _stack(self, name: str, count: int, weights: FirstWeights, remat: bool) -> Stack:
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
    """Adds what distances are worth to what hides: so large a number is no other for it."""
    if distances is None or hidden is None:
        return hidden if distances is None else distances
    return distances + hidden


def _padding(inputs: Mapping[str, Tensor]) -> Tensor | None:
    mask = inputs.get("attention_mask")
    return None if mask is None else padding_bias(mask)
