"""Layers that all families share; `core.models.kernels` has their maths.

Softmax and norms compute in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from core.architecture.options import BlockOptions, EmbeddingOptions, RotaryPositions
from core.models import kernels
from core.models.rotary import rotary_tables

Tensor = Any
Cache = dict[str, Any]

# With fewer, slicing a kernel costs more than it saves.
_MANY_TOKENS = 256


class Initializers:
    """Factory of initializers, which draw with NumPy: weights are equal on all backends.

    The order of construction matters.
    """

    def __init__(self, seed: int, stddev: float, cutoff: float | None = None) -> None:
        self._seed = seed
        self._stddev = stddev
        self._cutoff = cutoff
        self._numbers = itertools.count()

    def normal(
        self, scale: float | tuple[float, ...] = 1.0, *, zero_row: int | None = None
    ) -> NormalInitializer:
        """Returns the next weight's initializer.

        `scale` may have one factor per part of a fused kernel.
        """
        scales = scale if isinstance(scale, tuple) else (scale,)
        stddevs = tuple(self._stddev * factor for factor in scales)
        return NormalInitializer(self._seed, next(self._numbers), stddevs, zero_row, self._cutoff)

    def dropout_seed(self) -> int:
        key = np.array([self._seed, next(self._numbers)], np.uint64)
        return int(np.random.Philox(key=key).random_raw() >> np.uint64(33))


class NormalInitializer(keras.initializers.Initializer):
    """Draws the same values at each call."""

    def __init__(
        self,
        seed: int,
        number: int,
        stddevs: tuple[float, ...],
        zero_row: int | None = None,
        cutoff: float | None = None,
    ) -> None:
        self.seed = seed
        self.number = number
        self.stddevs = stddevs
        self.zero_row = zero_row
        self.cutoff = cutoff

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Tensor:
        if not any(self.stddevs):
            return ops.zeros(shape, dtype=dtype)
        stddevs = np.array(self.stddevs, np.float32)
        values = self._draw(tuple(shape))
        values *= np.repeat(stddevs, shape[-1] // len(stddevs))
        if self.zero_row is not None:
            values[self.zero_row] = 0
        return ops.convert_to_tensor(values, dtype=dtype)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        key = np.array([self.seed, self.number], np.uint64)
        generator = np.random.Generator(np.random.Philox(key=key))
        values = generator.standard_normal(shape, np.float32)
        while self.cutoff is not None and (outside := np.abs(values) > self.cutoff).any():
            values[outside] = generator.standard_normal(int(outside.sum()), np.float32)
        return values

    def get_config(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "number": self.number,
            "stddevs": self.stddevs,
            "zero_row": self.zero_row,
            "cutoff": self.cutoff,
        }


class Dense(keras.layers.Layer):
    """Computes `x @ kernel + bias`."""

    def __init__(
        self,
        units: int,
        weights: Initializers,
        *,
        scale: float | tuple[float, ...] = 1.0,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.use_bias = use_bias
        self._initial_kernel = weights.normal(scale)

    def build(self, input_shape: Sequence[int | None]) -> None:
        shape = (input_shape[-1], self.units)
        self.kernel = self.add_weight(shape=shape, initializer=self._initial_kernel, name="kernel")
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def __call__(self, inputs: Tensor, columns: tuple[int, int] | None = None) -> Tensor:
        """Replaces Keras's call, which adds six frames."""
        dtype = self.compute_dtype
        bias = None if self.bias is None else ops.cast(self.bias, dtype)
        return kernels.dense(ops.cast(inputs, dtype), ops.cast(self.kernel, dtype), bias, columns)

    def columns(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Returns some columns of the kernel and the bias, all-gathered."""
        dtype = self.compute_dtype
        kernel = kernels.whole(ops.cast(self.kernel, dtype))[:, start:stop]
        return kernel, None if self.bias is None else ops.cast(self.bias, dtype)[start:stop]


class Norm(keras.layers.Layer):
    """Normalises in float32."""

    def __init__(self, kind: str, epsilon: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.epsilon = epsilon

    def build(self, input_shape: Sequence[int | None]) -> None:
        shape = (input_shape[-1],)
        self.scale = self.add_weight(shape=shape, initializer="ones", name="scale", autocast=False)
        self.bias = None
        if self.kind == "layer":
            self.bias = self.add_weight(
                shape=shape, initializer="zeros", name="bias", autocast=False
            )

    def call(self, inputs: Tensor) -> Tensor:
        if self.kind == "rms":
            return kernels.rms_norm(inputs, self.scale, self.epsilon)
        return kernels.layer_norm(inputs, self.scale, self.bias, self.epsilon)


class Dropout(keras.layers.Layer):
    """Stateless dropout."""

    def __init__(self, rate: float, weights: Initializers, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self._number = weights.dropout_seed()

    def build(self, input_shape: Any = None) -> None:
        self.built = True

    def call(self, inputs: Tensor, dropout_seed: Tensor | None = None) -> Tensor:
        seed = self.seed_of(dropout_seed)
        return inputs if seed is None else kernels.dropout(inputs, self.rate, seed)

    def seed_of(self, dropout_seed: Tensor | None) -> Tensor | None:
        """Combines the step's seed and the layer's; None disables dropout."""
        if dropout_seed is None or not self.rate:
            return None
        return ops.bitwise_xor(dropout_seed, np.array([self._number, 0], np.int32))


class Embedding(keras.layers.Layer):
    """An embedding matrix (V, H), possibly also the output projection."""

    def __init__(
        self,
        rows: int,
        width: int,
        weights: Initializers,
        *,
        scale: float = 1.0,
        zero_row: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rows = rows
        self.width = width
        self._initial_table = weights.normal(scale, zero_row=zero_row)

    def build(self, input_shape: Any = None) -> None:
        # Autocast would cast the whole matrix.
        self.table = self.add_weight(
            shape=(self.rows, self.width),
            initializer=self._initial_table,
            name="table",
            autocast=False,
        )

    def call(self, ids: Tensor) -> Tensor:
        return ops.cast(self.look_up(ids), self.compute_dtype)

    def look_up(self, ids: Tensor) -> Tensor:
        """Returns embeddings in the variable's dtype."""
        return ops.take(kernels.whole(self.table), ids, axis=0)

    def first(self, count: int, *, start: int = 0) -> Tensor:
        table = kernels.whole(self.table)
        return ops.cast(table[start : start + count], self.compute_dtype)

    def full_matrix(self) -> Tensor:
        """Returns the all-gathered matrix in the compute dtype."""
        return kernels.whole(ops.cast(self.table, self.compute_dtype))


class Embeddings(keras.layers.Layer):
    """Sums and normalises token, position and segment embeddings."""

    def __init__(
        self,
        options: EmbeddingOptions,
        weights: Initializers,
        words: Embedding | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.options = options
        rows, width, policy = options.rows, options.width, self.dtype_policy
        self.words = words or Embedding(
            rows, width, weights, zero_row=options.zero_row, name="words", dtype=policy
        )
        self.positions: Any = None
        self.segments: Any = None
        self.norm: Any = None
        if options.positions:
            self.positions = Embedding(
                options.positions, width, weights, zero_row=options.padding_position,
                name="positions", dtype=policy,
            )  # fmt: skip
        if options.segments:
            self.segments = Embedding(
                options.segments, width, weights, name="segments", dtype=policy
            )
        if options.norm:
            self.norm = Norm(options.norm, options.epsilon, name="norm", dtype=policy)
        self.dropout = Dropout(options.dropout, weights, name="dropout", dtype=policy)

    def build(self, input_shape: Any) -> None:
        parts = (self.words, self.positions, self.segments, self.norm, self.dropout)
        build_all([part for part in parts if part is not None], input_shape)

    def call(
        self,
        ids: Tensor,
        dropout_seed: Tensor | None = None,
        places: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Computes hidden states (B, L, H); `places` are position ids, `segments` default to 0."""
        hidden = self.words(ids)
        if self.positions is not None:
            hidden = hidden + self._added(ids.shape[1], places, segments)
        hidden = hidden if self.norm is None else self.norm(hidden)
        return self.dropout(hidden, dropout_seed)

    def position_ids(self, text_starts: Tensor | None) -> Tensor | None:
        """Counts position ids (B, L) from each document's beginning; None: nothing restarts."""
        if text_starts is None or not self.options.positions:
            return None
        return ops.arange(text_starts.shape[1])[None] - text_starts + self.options.first_position

    def _added(self, length: int, places: Tensor | None, segments: Tensor | None) -> Tensor:
        if places is None:
            added = self.positions.first(length, start=self.options.first_position)
        else:
            added = self.positions(places)
        if self.segments is None:
            return added
        return added + (self.segments.first(1) if segments is None else self.segments(segments))


class Attention(keras.layers.Layer):
    """Self-attention or cross-attention, with kernels fused unless heads of keys are shared."""

    def __init__(
        self, options: BlockOptions, weights: Initializers, *, cross: bool = False, **kwargs: Any
    ) -> None:
        # Keeps the bias on the logits in float32.
        super().__init__(autocast=False, **kwargs)
        self.options = options
        self.cross = cross
        self.is_fused = not cross and options.kv_heads is None
        self.kv_heads = options.kv_heads or options.heads
        scales, inner = options.scales, options.heads * options.head_size
        settings = {"use_bias": options.use_bias, "dtype": self.dtype_policy}
        if self.is_fused:
            triple = (scales.query, scales.key, scales.value)
            self.qkv = Dense(3 * inner, weights, scale=triple, name="qkv", **settings)
        else:
            self.query = Dense(inner, weights, scale=scales.query, name="query", **settings)
            pair, width = (scales.key, scales.value), 2 * self.kv_heads * options.head_size
            self.kv = Dense(width, weights, scale=pair, name="kv", **settings)
        self.head_norms: tuple[Norm, ...] = ()
        if options.query_key_norm:
            self.query_norm, self.key_norm = self.head_norms = tuple(
                Norm("rms", options.epsilon, name=f"{name}_norm", dtype=self.dtype_policy)
                for name in ("query", "key")
            )
        self.dropout = Dropout(
            options.attention_dropout, weights, name="dropout", dtype=self.dtype_policy
        )
        self.output_dense = Dense(
            options.width, weights, scale=scales.mixed, name="output", **settings
        )

    def build(self, input_shape: Sequence[int | None]) -> None:
        build_all([self.qkv] if self.is_fused else [self.query, self.kv], input_shape)
        build_all(self.head_norms, (self.options.head_size,))
        self.dropout.build()
        inner = self.options.heads * self.options.head_size
        self.output_dense.build((*input_shape[:-1], inner))

    def call(
        self,
        inputs: Tensor,
        bias: Tensor | None = None,
        dropout_seed: Tensor | None = None,
        rotation: Tensor | None = None,
        memory: Tensor | None = None,
        positions: Tensor | None = None,
        text_starts: Tensor | None = None,
    ) -> Tensor:
        """Attends; returns (B, L, H), or (B, K, H) for query `positions` (B, K).

        `bias` is added to the logits, float32, broadcast to (B, N, L, M). `text_starts` separate
        the documents of causal attention.
        """
        if rotation is None and positions is not None and positions.shape[1] == 1:
            return self._attend_from_one(inputs, positions, bias, dropout_seed)
        if self.cross:
            query, (key, value) = self.queries(inputs), self.keys_and_values(memory)
        else:
            query, key, value = self.project(inputs, positions)
            bias = bias if bias is None or positions is None else _bias_at(bias, positions)
        query, key, value = self.rotated(query, key, value, rotation, positions)
        return self.attend(query, key, value, bias, dropout_seed, text_starts)

    def rotated(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Tensor | None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalises and rotates queries, which are at `positions` or all, and keys."""
        if self.head_norms:
            query, key = self.query_norm(query), self.key_norm(key)
        if rotation is None:
            return query, key, value
        own = rotation if positions is None else ops.take(rotation, positions, axis=1)
        return kernels.rotate(query, own), kernels.rotate(key, rotation), value

    def project(self, inputs: Tensor, positions: Tensor | None = None) -> list[Tensor]:
        """Returns query (B, L or K, N, D), key and value (B, L, N, D), or fewer heads of these."""
        if not self.is_fused:
            asking = inputs if positions is None else kernels.gather_positions(inputs, positions)
            return [self.queries(asking), *self.keys_and_values(inputs)]
        heads, inner = self.options.heads, self.options.heads * self.options.head_size
        if positions is None:
            return kernels.split_heads(self.qkv(inputs), heads)
        if _are_few(inputs):
            query, key, value = kernels.split_heads(self.qkv(inputs), heads)
            return [kernels.gather_positions(query, positions), key, value]
        chosen = kernels.gather_positions(inputs, positions)
        query = kernels.split_heads(self.qkv(chosen, columns=(0, inner)), heads, 1)
        return query + kernels.split_heads(self.qkv(inputs, columns=(inner, 3 * inner)), heads, 2)

    def _attend_from_one(
        self, inputs: Tensor, positions: Tensor, bias: Tensor | None, seed: Tensor | None
    ) -> Tensor:
        """Attends from one position per row, (B, 1, H), without computing keys and values."""
        heads, inner = self.options.heads, self.options.heads * self.options.head_size
        chosen = kernels.gather_positions(inputs, positions)
        (query,) = kernels.split_heads(self.qkv(chosen, columns=(0, inner)), heads, 1)
        mixed = kernels.attention_from_one(
            query[:, 0],
            ops.cast(inputs, self.compute_dtype),
            self.qkv.columns(inner, 2 * inner)[0],
            *self.qkv.columns(2 * inner, 3 * inner),
            None if bias is None else _bias_at(bias, positions)[:, :, 0],
            self.dropout.rate,
            self.dropout.seed_of(seed),
            scaled=self.options.scaled,
        )
        return self.output_dense(mixed[:, None])

    def queries(self, inputs: Tensor) -> Tensor:
        return kernels.split_heads(self.query(inputs), self.options.heads, 1)[0]

    def keys_and_values(self, memory: Tensor) -> list[Tensor]:
        """Returns keys and values, (B, M, N, D), or fewer heads."""
        return kernels.split_heads(self.kv(memory), self.kv_heads, 2)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        seed: Tensor | None,
        text_starts: Tensor | None,
    ) -> Tensor:
        mixed = kernels.attention(
            query,
            key,
            value,
            bias,
            self.dropout.rate,
            self.dropout.seed_of(seed),
            scaled=self.options.scaled,
            causal=self.options.causal and not self.cross,
            text_starts=text_starts,
        )
        return self.output_dense(mixed)

    def attend_to_cache(
        self, query: Tensor, *parts: tuple[Tensor, Tensor, Tensor | None]
    ) -> Tensor:
        """Attends from queries (B, S, N, D); returns (B, S, H)."""
        mixed = kernels.cached_attention(query, parts, scaled=self.options.scaled)
        return self.output_dense(mixed)


class FeedForward(keras.layers.Layer):
    """Two dense layers, optionally gated (https://arxiv.org/abs/2002.05202)."""

    def __init__(self, options: BlockOptions, weights: Initializers, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = kernels.ACTIVATIONS[options.activation]
        self.gated = options.gated
        self.units = options.units
        scales = options.scales
        settings = {"use_bias": options.use_bias, "dtype": self.dtype_policy}
        name, wide = ("gated_up", 2 * options.units) if self.gated else ("up", options.units)
        self.up = Dense(wide, weights, scale=scales.up, name=name, **settings)
        self.dropout = None
        if options.inner_dropout is not None:
            self.dropout = Dropout(
                options.inner_dropout, weights, name="dropout", dtype=self.dtype_policy
            )
        self.down = Dense(options.width, weights, scale=scales.down, name="down", **settings)

    def build(self, input_shape: Sequence[int | None]) -> None:
        self.up.build(input_shape)
        if self.dropout is not None:
            self.dropout.build()
        self.down.build((*input_shape[:-1], self.units))

    def call(self, inputs: Tensor, dropout_seed: Tensor | None = None) -> Tensor:
        hidden = self.up(inputs)
        if self.gated:
            gate, linear = ops.split(hidden, 2, axis=-1)
            hidden = self.activation(gate) * linear
        else:
            hidden = self.activation(hidden)
        if self.dropout is not None:
            hidden = self.dropout(hidden, dropout_seed)
        return self.down(hidden)


class Block(keras.layers.Layer):
    """Attention and feed-forward with residuals, pre- or post-norm."""

    def __init__(
        self,
        options: BlockOptions,
        weights: Initializers,
        *,
        cross: bool = False,
        attention_norm: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.norm_first = options.norm_first
        self.cross_attention: Any = None
        policy = self.dtype_policy

        def dropout(name: str) -> Dropout:
            return Dropout(options.dropout, weights, name=name, dtype=policy)

        def norm(name: str) -> Norm:
            return Norm(options.norm, options.epsilon, name=name, dtype=policy)

        self.attention = Attention(options, weights, name="attention", dtype=policy)
        self.attention_dropout = dropout("attention_dropout")
        self.attention_norm = norm("attention_norm") if attention_norm else None
        if cross:
            self.cross_attention = Attention(
                options, weights, cross=True, name="cross_attention", dtype=policy
            )
            self.cross_attention_dropout = dropout("cross_attention_dropout")
            self.cross_attention_norm = norm("cross_attention_norm")
        self.feed_forward = FeedForward(options, weights, name="feed_forward", dtype=policy)
        self.output_dropout = dropout("output_dropout")
        self.output_norm = norm("output_norm")

    def build(self, input_shape: Any) -> None:
        first = [self.attention, self.attention_dropout, self.attention_norm]
        last = [self.feed_forward, self.output_dropout, self.output_norm]
        middle: list[Any] = []
        if self.cross_attention is not None:
            middle = [
                self.cross_attention,
                self.cross_attention_dropout,
                self.cross_attention_norm,
            ]
        build_all([part for part in (*first, *middle, *last) if part is not None], input_shape)

    def call(
        self,
        inputs: Tensor,
        bias: Tensor | None = None,
        dropout_seed: Tensor | None = None,
        rotation: Tensor | None = None,
        memory: Tensor | None = None,
        memory_bias: Tensor | None = None,
        positions: Tensor | None = None,
        text_starts: Tensor | None = None,
    ) -> Tensor:
        """Returns hidden states; see `Attention.call`."""

        def attend(hidden: Tensor) -> Tensor:
            inputs = (bias, dropout_seed, rotation, None, positions, text_starts)
            return self.attention(hidden, *inputs)

        def look_at_memory(hidden: Tensor) -> Tensor:
            return self.cross_attention(hidden, memory_bias, dropout_seed, None, memory)

        return self._run(inputs, attend, look_at_memory, dropout_seed, positions)

    def step(
        self,
        inputs: Tensor,
        cache: Cache,
        past_bias: Tensor,
        bias: Tensor,
        rotation: Tensor | None,
        memory_bias: Any,
    ) -> tuple[Tensor, Cache]:
        """Runs the block on new tokens (B, S, H); returns the new cache entries, too.

        `past_bias` (B, N, S, M) masks unused slots, `bias` (B, N, S, S) later new tokens.
        `rotation` is that of the new tokens, (2, B, S, D).
        """
        new: Cache = {}

        def attend(hidden: Tensor) -> Tensor:
            query, key, value = self.attention.project(hidden)
            query, key, value = self.attention.rotated(query, key, value, rotation)
            new["key"], new["value"] = map(kernels.for_cache, (key, value))
            return self.attention.attend_to_cache(
                query,
                (cache["key"], cache["value"], past_bias),
                (new["key"], new["value"], bias),
            )

        def look_at_memory(hidden: Tensor) -> Tensor:
            query = self.cross_attention.queries(hidden)
            memory = (cache["memory_key"], cache["memory_value"], memory_bias)
            return self.cross_attention.attend_to_cache(query, memory)

        return self._run(inputs, attend, look_at_memory, None), new

    def start_cache(self, batch_size: int, length: int, memory: Tensor | None) -> Cache:
        """Returns `length` empty slots, and the encoder's keys and values."""
        attention = self.attention
        shape = (batch_size, attention.kv_heads, attention.options.head_size, length)
        names = ["key", "value"]
        cache = {name: ops.zeros(shape, "float32") for name in names}
        if self.cross_attention is not None:
            key, value = self.cross_attention.keys_and_values(memory)
            cache["memory_key"] = kernels.for_cache(key)
            cache["memory_value"] = kernels.for_cache(value)
        return cache

    def _run(
        self,
        hidden: Tensor,
        attend: Any,
        look_at_memory: Any,
        seed: Tensor | None,
        positions: Tensor | None = None,
    ) -> Tensor:
        def feed_forward(hidden: Tensor) -> Tensor:
            return self.feed_forward(hidden, seed)

        norm, dropout = self.attention_norm, self.attention_dropout
        hidden = self._add(hidden, attend, norm, dropout, seed, positions)
        if self.cross_attention is not None:
            norm, dropout = self.cross_attention_norm, self.cross_attention_dropout
            hidden = self._add(hidden, look_at_memory, norm, dropout, seed)
        return self._add(hidden, feed_forward, self.output_norm, self.output_dropout, seed)

    def _add(
        self,
        hidden: Tensor,
        part: Any,
        norm: Norm | None,
        dropout: Dropout,
        seed: Tensor | None,
        positions: Tensor | None = None,
    ) -> Tensor:
        before, after = (norm, None) if self.norm_first else (None, norm)
        added = dropout(part(hidden if before is None else before(hidden)), seed)
        if positions is not None:
            hidden = kernels.gather_positions(hidden, positions)
        return hidden + added if after is None else after(hidden + added)


def run_blocks(blocks: Sequence[Block], remat: bool, hidden: Tensor, *arguments: Any) -> Tensor:
    """Runs blocks, with gradient checkpointing if `remat`."""
    for block in blocks:
        apply = kernels.rematerialized_layer(block) if remat else block
        hidden = apply(hidden, *arguments)
    return hidden


def build_all(layers: Sequence[keras.layers.Layer], input_shape: Any) -> None:
    for layer in layers:
        if not layer.built:
            layer.build(input_shape)


def padding_bias(attention_mask: Tensor) -> Tensor:
    """Masks padding, float32 (B, 1, 1, L)."""
    hidden = 1.0 - ops.cast(attention_mask, "float32")
    return (hidden * kernels.HIDE)[:, None, None, :]


def same_document_bias(text_starts: Tensor) -> Tensor:
    """Masks other documents, float32 (B, 1, L, L)."""
    return kernels.hide(text_starts[:, None, :, None] != text_starts[:, None, None, :])


def local_bias(length: int, reach: int) -> Tensor:
    """Masks tokens beyond `reach`, float32 (1, 1, L, L)."""
    places = ops.arange(length)
    return kernels.hide(ops.abs(places[None, :] - places[:, None]) > reach)[None, None]


def past_bias(positions: Tensor, length: int) -> Tensor:
    """Masks unused cache slots, float32 (B, 1, 1, M)."""
    return kernels.hide(ops.arange(length)[None, :] >= positions[:, None])[:, None, None]


def both_biases(first_bias: Tensor | None, second_bias: Tensor | None) -> Tensor | None:
    """Combines two additive masks."""
    if first_bias is None or second_bias is None:
        return second_bias if first_bias is None else first_bias
    return ops.minimum(first_bias, second_bias)


def rotation(length: int, size: int, rotary: RotaryPositions) -> Tensor:
    """Returns cosines and sines, float32 (2, L, D)."""
    return ops.convert_to_tensor(rotary_tables(length, size, rotary), "float32")


def _are_few(inputs: Tensor) -> bool:
    batch, length = inputs.shape[:2]
    return batch is not None and length is not None and batch * length < _MANY_TOKENS


def _bias_at(bias: Tensor, positions: Tensor) -> Tensor:
    if bias.shape[2] == 1:
        return bias
    batch = ops.shape(positions)[0]
    rows = ops.transpose(bias, (0, 2, 1, 3))
    rows = ops.broadcast_to(rows, (batch, *rows.shape[1:]))
    return ops.transpose(kernels.gather_positions(rows, positions), (0, 2, 1, 3))
