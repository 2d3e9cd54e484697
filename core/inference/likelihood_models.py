"""Computes log-probabilities of target tokens, on OpenVINO or on a backend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture, EncoderDecoderArchitecture
from core.architecture.options import EmbeddingOptions
from core.backends.compilation import compile_method, full_float32
from core.backends.devices import AutomaticDevices, choose, find_hardware
from core.backends.openvino.compilation import compile_graph
from core.backends.openvino.encoder_decoder import (
    build_scoring_graph,
    decoder_bias,
    encoder_bias,
)
from core.backends.openvino.graph import build_graph
from core.families import find_family
from core.inference.graph import position_ids, read_finite_weights
from core.inference.models import choose_backend, load_model
from core.inference.packing import bucket_size
from core.models import hf

Ids = NDArray[np.int32]

# More gain nothing on a CPU, whose caches they would leave.
_TOKENS_AT_ONCE = {"cpu": 2048, "gpu": 1 << 16, "tpu": 1 << 16}
_LOGITS_AT_ONCE = {"cpu": 1 << 24, "gpu": 1 << 28, "tpu": 1 << 28}
# Larger batches are not faster.
_GRAPH_TOKENS = 1024
_FEWEST_STEPS = 4


class LikelihoodModel(Protocol):
    """A model that scores given tokens.

    Inputs are those of `LanguageModel.states`: `input_ids` (B, L), `attention_mask`, and except for
    decoders `masked_positions` (B, K).
    """

    def padded_length(self, length: int) -> int:
        """Returns the length L of batches for sequences of `length` tokens."""

    def batch_size(self, length: int, predictions: int) -> int:
        """Returns the most sequences of L tokens and K predictions in a batch."""

    def __call__(self, inputs: Mapping[str, Ids], targets: Ids) -> NDArray[np.float32]:
        """Computes the log-probabilities of targets (B, K), float32 (B, K)."""

    def reload(self, folder: Path) -> None:
        """Takes the weights of a folder with the same architecture."""


class GraphLikelihood:
    """An OpenVINO graph; a batch has sequences of one length, without padding."""

    def __init__(self, folder: Path, architecture: Architecture) -> None:
        self._folder = folder
        self._architecture = architecture

    def padded_length(self, length: int) -> int:
        return length

    def batch_size(self, length: int, predictions: int) -> int:
        return max(1, _GRAPH_TOKENS // length)

    def __call__(self, inputs: Mapping[str, Ids], targets: Ids) -> NDArray[np.float32]:
        log_probabilities = self._answer([*self._inputs(inputs, targets.reshape(-1))])
        return log_probabilities.reshape(targets.shape)

    def reload(self, folder: Path) -> None:
        self._folder = folder
        # The graph holds the weights.
        for name in ("_weights", "_answer"):
            self.__dict__.pop(name, None)

    def _inputs(self, inputs: Mapping[str, Ids], targets: Ids) -> Iterator[NDArray[Any]]:
        raise NotImplementedError

    def _graph(self) -> Any:
        raise NotImplementedError

    @cached_property
    def _weights(self) -> dict[str, NDArray[np.float32]]:
        return read_finite_weights(self._folder, self._architecture)

    @cached_property
    def _answer(self) -> Callable[[Any], NDArray[np.float32]]:
        return compile_graph(self._graph(), "float32")


class EncoderGraph(GraphLikelihood):
    """An encoder as an OpenVINO graph."""

    def _graph(self) -> Any:
        return build_graph(self._weights, self._architecture, scores_targets=True)

    def _inputs(self, inputs: Mapping[str, Ids], targets: Ids) -> Iterator[NDArray[Any]]:
        ids = inputs["input_ids"]
        one_text = np.zeros_like(ids)
        places = position_ids(ids, self._embeddings)
        for array in (ids, places, one_text, inputs["masked_positions"], targets):
            yield np.ascontiguousarray(array, np.int32)

    @cached_property
    def _embeddings(self) -> EmbeddingOptions:
        return find_family(self._architecture.model_type).options(self._architecture).embeddings


class EncoderDecoderGraph(GraphLikelihood):
    """An encoder-decoder as an OpenVINO graph."""

    _architecture: EncoderDecoderArchitecture

    def _graph(self) -> Any:
        return build_scoring_graph(self._weights, self._architecture)

    def _inputs(self, inputs: Mapping[str, Ids], targets: Ids) -> Iterator[NDArray[Any]]:
        ids, decoder_ids = inputs["input_ids"], inputs["decoder_input_ids"]
        for array in (ids, decoder_ids, inputs["masked_positions"], targets):
            yield np.ascontiguousarray(array, np.int32)
        yield encoder_bias(self._weights, self._architecture, ids.shape[1])
        yield decoder_bias(self._weights, self._architecture, decoder_ids.shape[1])


# Decoders gain nothing: they read a sequence once.
GRAPHS: dict[str, type[GraphLikelihood]] = {
    "encoder": EncoderGraph,
    "encoder-decoder": EncoderDecoderGraph,
}


class BackendLikelihood:
    """A model on TensorFlow or JAX, which compile a program per shape."""

    def __init__(self, folder: Path, architecture: Architecture) -> None:
        self._folder = folder
        self._architecture = architecture
        self._device = choose(AutomaticDevices(), find_hardware()).kind
        self._sizes: dict[int, set[int]] = defaultdict(set)

    def padded_length(self, length: int) -> int:
        """Rounds up to steps of an eighth to a quarter of the length: few shapes are compiled."""
        step = max(_FEWEST_STEPS, (1 << (length - 1).bit_length()) // 8)
        return min(-(-length // step) * step, self._architecture.max_seq_length)

    def batch_size(self, length: int, predictions: int) -> int:
        logits = predictions * self._architecture.vocab_size
        most = min(_TOKENS_AT_ONCE[self._device] // length, _LOGITS_AT_ONCE[self._device] // logits)
        return max(1, most)

    def __call__(self, inputs: Mapping[str, Ids], targets: Ids) -> NDArray[np.float32]:
        rows = len(targets)
        size = self._compiled_size(rows, inputs["input_ids"].shape[1], targets.shape[1])
        filled = {name: _repeat_last(values, size) for name, values in inputs.items()}
        return self._predict(filled, _repeat_last(targets, size))[:rows]

    def reload(self, folder: Path) -> None:
        self._folder = folder
        if "_model" in self.__dict__:
            hf.assign_weights(self._model, hf.read_weights(folder, self._architecture))

    def _compiled_size(self, rows: int, length: int, predictions: int) -> int:
        """Prefers a size that is compiled: compiling takes seconds."""
        ready = self._sizes[length]
        size = min((batch_size for batch_size in ready if batch_size >= rows), default=0)
        size = size or bucket_size(rows, 1, self.batch_size(length, predictions))
        ready.add(size)
        return size

    @cached_property
    def _model(self) -> Any:
        choose_backend()
        return load_model(self._folder, "float32")

    @cached_property
    def _predict(self) -> Callable[[Mapping[str, Ids], Ids], NDArray[np.float32]]:
        compiled = compile_method(self._model, "log_probabilities", weights_change=True)
        from keras import ops

        def predict(inputs: Mapping[str, Ids], targets: Ids) -> NDArray[np.float32]:
            with full_float32():
                return ops.convert_to_numpy(compiled(dict(inputs), targets))

        return predict


def _repeat_last(values: Ids, size: int) -> Ids:
    return np.concatenate([values, np.repeat(values[-1:], size - len(values), axis=0)])
