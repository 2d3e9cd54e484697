"""Encoder-decoders: T5 and BART."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from core.architecture.architecture import EncoderDecoderArchitecture, check_length
from core.architecture.options import ModelOptions
from core.models import kernels
from core.models.decoding import Decoding
from core.models.distances import distance_buckets
from core.models.head import LanguageModel
from core.models.layers import (
    Cache,
    Embedding,
    Initializers,
    Tensor,
    build_all,
    padding_bias,
    past_bias,
)
from core.models.stack import Stack


class EncoderDecoder(Decoding, LanguageModel):
    """Encoder and decoder with shared token embeddings."""

    def __init__(
        self,
        architecture: EncoderDecoderArchitecture,
        options: ModelOptions,
        *,
        seed: int,
        dtype: str = "float32",
        remat: bool = False,
    ) -> None:
        super().__init__(name=architecture.model_type, dtype=dtype)
        self.architecture = architecture
        self.options = options
        cutoff = options.initializer_cutoff
        weights = Initializers(seed, architecture.initializer_range, cutoff)
        embeddings = options.embeddings
        self.words = self._embedding(
            "words", embeddings.rows, weights, zero_row=embeddings.zero_row
        )
        self.encoder_distances = self._distances("encoder", weights)
        self.decoder_distances = self._distances("decoder", weights)
        self.encoder = self._stack("encoder", architecture.num_hidden_layers, weights, remat)
        self.decoder = self._stack("decoder", architecture.num_decoder_layers, weights, remat)
        self.lm_head = None
        if options.head_scale is not None:
            self.lm_head = self._embedding(
                "lm_head", embeddings.rows, weights, scale=options.head_scale
            )
        self.build()

    def _embedding(self, name: str, rows: int, weights: Initializers, **settings: Any) -> Embedding:
        width, policy = self.options.embeddings.width, self.dtype_policy
        return Embedding(rows, width, weights, name=name, dtype=policy, **settings)

    def _distances(self, half: str, weights: Initializers) -> Embedding | None:
        relative = self.options.relative
        if relative is None:
            return None
        return Embedding(
            relative.buckets,
            self.options.blocks.heads,
            weights,
            scale=relative.scale,
            name=f"{half}_distances",
            dtype=self.dtype_policy,
        )

    def encoder_bias(self, length: int) -> Tensor | None:
        """Computes relative position biases, float32 (1, N, L, L)."""
        if self.options.relative is None:
            return None
        places = ops.arange(length)
        away = places[None, None, :] - places[None, :, None]
        half = self.options.relative.buckets // 2
        buckets = self._bucket(ops.abs(away), half)
        return _heads_first(self.encoder_distances, ops.where(away > 0, buckets + half, buckets))

    def decoder_bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Computes biases for position ids (B or 1, S) and (M,), broadcast to (B, N, S, M)."""
        if self.options.relative is None:
            return None
        back = queries[:, :, None] - keys[None, None, :]
        return _heads_first(
            self.decoder_distances, self._bucket(back, self.options.relative.buckets)
        )

    def _bucket(self, distances: Tensor, buckets: int) -> Tensor:
        assert self.options.relative is not None
        classes = distance_buckets(buckets, self.options.relative.max_distance)
        return ops.take(ops.convert_to_tensor(classes), ops.clip(distances, 0, len(classes) - 1))

    def build(self, input_shape: Any = None) -> None:
        distances = [self.encoder_distances, self.decoder_distances]
        layers = [self.words, *distances, self.encoder, self.decoder, self.lm_head]
        build_all([layer for layer in layers if layer is not None], (None, None, None))
        self.built = True

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the decoder's hidden states, (B, T, H), or (B, K, H) at masked positions.

        Right padding of `decoder_input_ids` needs no mask.
        """
        ids, seed = inputs["decoder_input_ids"], inputs.get("dropout_seed")
        length = ids.shape[1]
        check_length(length, self.architecture)
        memory = self.encode(inputs)
        places = ops.arange(length)
        bias = _sum(self.decoder_bias(places[None, :], places), kernels.causal_bias(0, length))
        hidden = self.decoder(ids, bias, seed, memory, _padding(inputs))  # (B, T, H)
        if "masked_positions" in inputs:
            hidden = kernels.gather_positions(hidden, inputs["masked_positions"])  # (B, K, H)
        return hidden

    def output_weights(self) -> tuple[Tensor, None]:
        return (self.lm_head or self.words).full_matrix(), None

    def encode(self, inputs: Mapping[str, Tensor]) -> Tensor:
        ids = inputs["input_ids"]
        check_length(ids.shape[1], self.architecture)
        bias = _sum(self.encoder_bias(ids.shape[1]), _padding(inputs))
        return self.encoder(ids, bias, inputs.get("dropout_seed"))

    def start_cache(self, inputs: Mapping[str, Tensor], length: int) -> Cache:
        """Runs the encoder; returns a cache with `length` empty slots."""
        check_length(length, self.architecture)
        size = inputs["input_ids"].shape[0]
        cache = {
            "positions": ops.zeros((size,), "int32"),
            "layers": self.decoder.start_cache(size, length, self.encode(inputs)),
        }
        padding = _padding(inputs)
        return cache if padding is None else {**cache, "memory_bias": padding}

    def predict_next(self, ids: Tensor, cache: Cache) -> tuple[Tensor, list[Cache]]:
        """Returns logits; the first token is `decoder_start_token_id`."""
        positions, layers = cache["positions"], cache["layers"]
        length, new_places = layers[0]["key"].shape[-1], ops.arange(ids.shape[1])
        distances = self.decoder_bias(positions[:, None] + new_places[None, :], ops.arange(length))
        past = _sum(distances, past_bias(positions, length))
        distances = self.decoder_bias(new_places[None, :], new_places)
        bias = _sum(distances, kernels.causal_bias(0, ids.shape[1]))
        padding = cache.get("memory_bias")
        hidden, new = self.decoder.step(ids, layers, positions, past, bias, padding)
        return self.decode(hidden), new

    def _stack(self, name: str, count: int, weights: Initializers, remat: bool) -> Stack:
        return Stack(
            count,
            self.options.embeddings,
            self.options.blocks,
            weights,
            words=self.words,
            cross=name == "decoder",
            final_dropout=self.options.final_dropout,
            remat=remat,
            name=name,
            dtype=self.dtype_policy,
        )


def _sum(distances: Tensor | None, hidden: Tensor | None) -> Tensor | None:
    if distances is None or hidden is None:
        return hidden if distances is None else distances
    return distances + hidden


def _padding(inputs: Mapping[str, Tensor]) -> Tensor | None:
    mask = inputs.get("attention_mask")
    return None if mask is None else padding_bias(mask)


def _heads_first(table: Any, buckets: Tensor) -> Tensor:
    values = ops.cast(table.look_up(buckets), "float32")  # (B, S, M, N)
    return ops.transpose(values, (0, 3, 1, 2))
