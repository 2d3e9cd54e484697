"""Builds models as ONNX graphs, with the inputs and outputs that transformers.js expects.

Source: https://github.com/huggingface/transformers.js/tree/main/packages/transformers/src/models
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx

from core.architecture.architecture import Architecture, EncoderDecoderArchitecture
from core.architecture.options import LayerAttention, ModelOptions, RotaryPositions
from core.config.export import Quantization
from core.exporting.onnx_graph import BOOL, FLOAT, INT64, Graph, Shape, Weights
from core.exporting.onnx_layers import Layers, Rotation
from core.families import find_family
from core.finetuning.heads import DENSE, OUTPUT
from core.finetuning.saving import ClassifierConfig
from core.models.distances import distance_buckets
from core.models.rotary import rotary_tables

# Before the first token, transformers.js knows the batch's size and takes other sizes for 0.
BATCH, LENGTH, TOTAL, PAST = "batch_size", "sequence_length", "total_length", "past_length"
SOURCE, PAST_SOURCE = "encoder_sequence_length", "past_encoder_length"


def build_models(
    weights: Weights,
    architecture: Architecture,
    quantization: Quantization,
    classifier: ClassifierConfig | None = None,
) -> dict[str, onnx.ModelProto]:
    """Builds a model's graphs, by the names of their files."""

    def builder() -> _Builder:
        return _Builder(weights, architecture, quantization)

    if classifier is not None:
        return {"model": builder().build_classifier(classifier)}
    if architecture.kind == "encoder":
        return {"model": builder().build_encoder()}
    if architecture.kind == "decoder":
        return {"model": builder().build_decoder()}
    assert isinstance(architecture, EncoderDecoderArchitecture)
    return {
        "encoder_model": builder().build_source_encoder(),
        "decoder_model_merged": builder().build_target_decoder(architecture.num_decoder_layers),
    }


class _Builder(Layers):
    def __init__(
        self, weights: Weights, architecture: Architecture, quantization: Quantization
    ) -> None:
        options: ModelOptions = find_family(architecture.model_type).options(architecture)
        graph = Graph(weights, quantization)
        super().__init__(graph, options.blocks, f"{architecture.model_type}/")
        self._architecture = architecture
        self._model_options = options

    def build_encoder(self) -> onnx.ModelProto:
        """`input_ids`, `attention_mask`, `token_type_ids` if there are several: `logits`."""
        states = self._head_states(self._encoder_states())
        logits = self.logits("embeddings/words/table", states)
        self._logits_output(self.graph.add("Add", logits, self.weight("lm_head/bias")))
        return self._finished()

    def build_classifier(self, config: ClassifierConfig) -> onnx.ModelProto:
        """Builds an encoder whose `logits` are those of texts, or of tokens."""
        hidden = self._encoder_states()
        if config.head.keeps_head:
            hidden = self._head_states(hidden)
        shape: list[int | str] = [BATCH, LENGTH, config.outputs]
        if config.kind == "sequence":
            del shape[1]
            first = self.graph.constant(np.array(0, np.int64))
            hidden = self.graph.add("Gather", hidden, first, axis=1)
        layers = Layers(self.graph, self.options, "")
        if config.head.dense:
            hidden = self.graph.add("Tanh", layers.dense(DENSE, hidden))
        self.graph.output("logits", layers.dense(OUTPUT, hidden), shape)
        return self._finished()

    def _encoder_states(self) -> str:
        ids, mask = self._ids("input_ids"), self._ids("attention_mask")
        hidden = self._encoder_embeddings(ids)
        count = self._architecture.num_hidden_layers
        patterns = self._model_options.layers or (LayerAttention(),) * count
        inputs = {
            pattern: self._layer_inputs(pattern, ids, mask) for pattern in dict.fromkeys(patterns)
        }
        for index, pattern in enumerate(patterns):
            hidden = self._encoder_block(f"layer_{index}", hidden, *inputs[pattern])
        return self.norm("final_norm", hidden) if self.options.norm_first else hidden

    def _head_states(self, hidden: str) -> str:
        hidden = self.graph.add("Gelu", self.dense("lm_head/dense", hidden))
        return self.norm("lm_head/norm", hidden)

    def build_decoder(self) -> onnx.ModelProto:
        """`input_ids`, `attention_mask`, `position_ids`, keys and values: `logits` and these."""
        graph = self.graph
        ids, mask = self._ids("input_ids"), self._ids("attention_mask", TOTAL)
        places = self._ids("position_ids")
        hidden = self._stack_embeddings("decoder", ids, places)
        bias = self.hide(graph.add("Or", self.padding(mask), self._later(ids)))
        rotation = None
        if (rotary := self._model_options.rotary) is not None:
            rotation = tuple(
                graph.add("Unsqueeze", graph.add("Gather", table, places), graph.ints(1))
                for table in self._rotary_tables(rotary)
            )
        count = self._architecture.num_hidden_layers
        hidden = self._decoder_blocks(hidden, count, bias, rotation)
        self._logits_output(self.logits(self._output_table(), hidden))
        return self._finished()

    def build_source_encoder(self) -> onnx.ModelProto:
        """`input_ids`, `attention_mask`: `last_hidden_state`."""
        graph = self.graph
        ids, mask = self._ids("input_ids", SOURCE), self._ids("attention_mask", SOURCE)
        hidden = self._stack_embeddings("encoder", ids)
        bias = self.hide(self.padding(mask))
        if self._model_options.relative is not None:
            bias = graph.add("Add", bias, self._encoder_distances(ids))
        for index in range(self._architecture.num_hidden_layers):
            hidden = self._encoder_block(f"encoder/layer_{index}", hidden, bias, None)
        hidden = self._finish("encoder", hidden)
        graph.output("last_hidden_state", hidden, [BATCH, SOURCE, self.options.width])
        return self._finished()

    def build_target_decoder(self, count: int) -> onnx.ModelProto:
        """Builds a decoder that computes the encoder's keys and values unless `use_cache_branch`.

        Args:
            count: Number of layers.
        """
        graph = self.graph
        ids, mask = self._ids("input_ids"), self._ids("encoder_attention_mask", SOURCE)
        width = self.options.width
        memory = graph.input("encoder_hidden_states", FLOAT, [BATCH, SOURCE, width])
        uses_cache = graph.input("use_cache_branch", BOOL, [1])
        hidden = self._stack_embeddings("decoder", ids)
        bias = self.hide(self._later(ids))
        if self._model_options.relative is not None:
            bias = graph.add("Add", bias, self._decoder_distances(ids))
        cross = self._memory(count, memory, uses_cache), self.hide(self.padding(mask))
        hidden = self._decoder_blocks(hidden, count, bias, None, cross)
        self._logits_output(self.logits(self._output_table(), hidden))
        return self._finished()

    def _ids(self, name: str, length: str = LENGTH) -> str:
        return self.graph.input(name, INT64, [BATCH, length])

    def _logits_output(self, logits: str) -> None:
        self.graph.output("logits", logits, [BATCH, LENGTH, self._architecture.vocab_size])

    def _finished(self) -> onnx.ModelProto:
        return self.graph.build(self._architecture.model_type)

    # Embeddings and positions.

    def _encoder_embeddings(self, ids: str) -> str:
        graph, options = self.graph, self._model_options.embeddings
        hidden = self.look_up("embeddings/words/table", ids)
        if options.positions:
            hidden = graph.add("Add", hidden, self._positions("embeddings", ids))
        if options.segments:
            segments = graph.ints(0) if options.segments == 1 else self._ids("token_type_ids")
            hidden = graph.add("Add", hidden, self.look_up("embeddings/segments/table", segments))
        return self.norm("embeddings/norm", hidden)

    def _stack_embeddings(self, half: str, ids: str, places: str = "") -> str:
        name = f"{half}/embeddings"
        words = "words/table" if "words/table" in self else f"{name}/words/table"
        hidden = self.look_up(words, ids)
        if f"{name}/positions/table" in self:
            hidden = self.graph.add("Add", hidden, self._positions(name, ids, places))
        return self.norm(f"{name}/norm", hidden) if f"{name}/norm/scale" in self else hidden

    def _positions(self, name: str, ids: str, places: str = "") -> str:
        """Returns the embeddings of `places`, or those that follow from the token ids."""
        options = self._model_options.embeddings
        if options.padding_position is not None:
            places = self._places_of_tokens(ids, options.padding_position)
        if places:
            return self.look_up(f"{name}/positions/table", places)
        first = self.graph.ints(options.first_position)
        if name.startswith("decoder"):
            first = self.graph.add("Add", first, self._past_length())
        return self.rows(self.weight(f"{name}/positions/table"), first, self.length(ids, 1))

    def _places_of_tokens(self, ids: str, pad: int) -> str:
        """Counts the tokens that aren't padding from its id on, (B, S)."""
        graph = self.graph
        is_token = graph.add("Not", graph.add("Equal", ids, graph.ints(pad)))
        marks = graph.add("Cast", is_token, to=INT64)
        counts = graph.add("Mul", graph.add("CumSum", marks, graph.ints(1)), marks)
        return graph.add("Add", counts, graph.ints(pad))

    def _output_table(self) -> str:
        tables = ("lm_head/table", "words/table", "decoder/embeddings/words/table")
        return next(table for table in tables if table in self)

    # Attention.

    def _layer_inputs(
        self, pattern: LayerAttention, ids: str, mask: str
    ) -> tuple[str, Rotation | None]:
        """Returns the bias and the rotary angles of an encoder's layer."""
        graph, hidden = self.graph, self.padding(mask)
        if pattern.reach is not None:
            away = graph.add("Abs", self._distances(self._range(ids)))
            too_far = graph.add("Greater", away, graph.ints(pattern.reach))
            hidden = graph.add("Or", hidden, too_far)
        rotation = None
        if pattern.rotary is not None:
            rotation = tuple(
                self.rows(table, graph.ints(0), self.length(ids, 1))
                for table in self._rotary_tables(pattern.rotary)
            )
        return self.hide(hidden), rotation

    def _rotary_tables(self, rotary: RotaryPositions) -> list[str]:
        """Returns cosines and sines by position, (L, D / 2)."""
        length, size = self._architecture.max_seq_length, self.options.head_size
        tables = rotary_tables(length, size, rotary)
        return [self.graph.constant(table[:, : size // 2]) for table in tables]

    def _range(self, ids: str, first: str = "") -> str:
        """Returns the tokens' places, (S,)."""
        return self.range(first or self.graph.ints(0), self.length(ids, 1))

    def _distances(self, queries: str, keys: str = "") -> str:
        """Subtracts the positions of queries from those of keys, (S, M)."""
        rows = self.graph.add("Unsqueeze", queries, self.graph.ints(1))
        return self.graph.add("Sub", keys or queries, rows)

    def _past_length(self) -> str:
        return self.length(self._past(0, "key"), 2)

    def _away(self, ids: str) -> str:
        """Returns the distances of all keys from the new tokens, (S, M)."""
        past = self._past_length()
        queries = self._range(ids, past)
        total = self.graph.add("Add", past, self.length(ids, 1))
        return self._distances(queries, self.range(self.graph.ints(0), total))

    def _later(self, ids: str) -> str:
        """Marks the keys after each new token, (S, M)."""
        return self.graph.add("Greater", self._away(ids), self.graph.ints(0))

    def _encoder_distances(self, ids: str) -> str:
        relative = self._model_options.relative
        assert relative is not None
        graph, half = self.graph, relative.buckets // 2
        away = self._distances(self._range(ids))
        buckets = self._bucket(graph.add("Abs", away), half)
        after = graph.add("Cast", graph.add("Greater", away, graph.ints(0)), to=INT64)
        shifted = graph.add("Add", buckets, graph.add("Mul", after, graph.ints(half)))
        return self._biases("encoder", shifted)

    def _decoder_distances(self, ids: str) -> str:
        relative = self._model_options.relative
        assert relative is not None
        back = self.graph.add("Neg", self._away(ids))
        return self._biases("decoder", self._bucket(back, relative.buckets))

    def _bucket(self, distances: str, buckets: int) -> str:
        relative, graph = self._model_options.relative, self.graph
        assert relative is not None
        classes = distance_buckets(buckets, relative.max_distance).astype(np.int64)
        near = graph.add("Min", distances, graph.ints(relative.max_distance))
        clipped = graph.add("Max", near, graph.ints(0))
        return graph.add("Gather", graph.constant(classes), clipped)

    def _biases(self, half: str, buckets: str) -> str:
        """Looks up biases, (1, N, S, M), of buckets (S, M)."""
        graph = self.graph
        biases = self.look_up(f"{half}_distances/table", buckets)
        heads_first = graph.add("Transpose", biases, perm=[2, 0, 1])
        return graph.add("Unsqueeze", heads_first, graph.ints(0))

    # Blocks.

    def _encoder_block(self, name: str, hidden: str, bias: str, rotation: Rotation | None) -> str:
        def attend(hidden: str) -> str:
            query, key, value = self._queries_keys_and_values(f"{name}/attention", hidden, rotation)
            return self.attend(f"{name}/attention", query, key, value, bias)

        hidden = self.add(hidden, attend, f"{name}/attention_norm")
        return self.add_feed_forward(name, hidden)

    def _decoder_blocks(
        self,
        hidden: str,
        count: int,
        bias: str,
        rotation: Rotation | None,
        cross: tuple[list[tuple[str, str]], str] | None = None,
    ) -> str:
        """Runs blocks that extend a cache; `cross` has the encoder's keys, values and bias."""
        for index in range(count):
            name = f"decoder/layer_{index}"
            attend = partial(self._attend_to_cache, index, f"{name}/attention", bias, rotation)
            hidden = self.add(hidden, attend, f"{name}/attention_norm")
            if cross is not None:
                memory = (*cross[0][index], cross[1])
                look = partial(self._attend_to_memory, f"{name}/cross_attention", memory)
                hidden = self.add(hidden, look, f"{name}/cross_attention_norm")
            hidden = self.add_feed_forward(name, hidden)
        return self._finish("decoder", hidden)

    def _attend_to_cache(
        self, index: int, name: str, bias: str, rotation: Rotation | None, hidden: str
    ) -> str:
        query, key, value = self._queries_keys_and_values(name, hidden, rotation)
        key, value = (
            self._extend_cache(index, part, new) for part, new in (("key", key), ("value", value))
        )
        return self.attend(name, query, key, value, bias)

    def _attend_to_memory(self, name: str, memory: tuple[str, str, str], hidden: str) -> str:
        return self.attend(name, self.heads(self.dense(f"{name}/query", hidden)), *memory)

    def _queries_keys_and_values(
        self, name: str, hidden: str, rotation: Rotation | None
    ) -> tuple[str, str, str]:
        if self.options.kv_heads is None:
            parts = self.split(self.dense(f"{name}/qkv", hidden), 3)
        else:
            pair = self.split(self.dense(f"{name}/kv", hidden), 2)
            parts = [self.dense(f"{name}/query", hidden), *pair]
        query, key, value = map(self.heads, parts)
        if self.options.query_key_norm:
            query, key = self.norm(f"{name}/query_norm", query), self.norm(f"{name}/key_norm", key)
        if rotation is not None:
            query, key = self.rotate(query, rotation), self.rotate(key, rotation)
        return query, key, value

    def _finish(self, half: str, hidden: str) -> str:
        return self.norm(f"{half}/final_norm", hidden) if self.options.norm_first else hidden

    # Cache.

    def _past(self, index: int, part: str) -> str:
        own = "" if self._architecture.kind == "decoder" else "decoder."
        return f"past_key_values.{index}.{own}{part}"

    def _extend_cache(self, index: int, part: str, new: str) -> str:
        """Joins the past keys or values with the new ones, (B, N, M, D)."""
        name = self._past(index, part)
        past = self.graph.input(name, FLOAT, self._heads_shape(PAST))
        joined = self.graph.add("Concat", past, new, axis=2)
        self.graph.output(_present(name), joined, self._heads_shape(TOTAL))
        return joined

    def _memory(self, count: int, memory: str, uses_cache: str) -> list[tuple[str, str]]:
        """Returns the encoder's keys and values of each layer, from the cache if there is one."""
        layers = range(count)
        names = [
            f"past_key_values.{index}.encoder.{part}"
            for index in layers
            for part in ("key", "value")
        ]
        past = [self.graph.input(name, FLOAT, self._heads_shape(PAST_SOURCE)) for name in names]

        def compute() -> list[str]:
            return [
                self.heads(part)
                for index in layers
                for part in self.split(
                    self.dense(f"decoder/layer_{index}/cross_attention/kv", memory), 2
                )
            ]

        values = self.graph.choose(uses_cache, len(names), lambda: past, compute)
        for name, value in zip(names, values, strict=True):
            self.graph.output(_present(name), value, self._heads_shape(SOURCE))
        return list(zip(values[::2], values[1::2], strict=True))

    def _heads_shape(self, length: str) -> Shape:
        return [BATCH, self.kv_heads, length, self.options.head_size]


def _present(past: str) -> str:
    return past.replace("past_key_values", "present")
