"""Runs an encoder as an OpenVINO graph on a CPU; importing it imports no OpenVINO.

Other backends repack kernels for each matmul: twice the time for a few dozen tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture, check_length
from core.architecture.options import Dtype, EmbeddingOptions
from core.backends.devices import AutomaticDevices, choose, find_hardware
from core.backends.openvino.compilation import PACKAGE, PRECISIONS, compile_graph, has_bfloat16
from core.backends.openvino.graph import build_graph
from core.backends.precision import gain_of
from core.errors import CheckpointError, StudioError
from core.families import find_family
from core.inference.packing import BatchPlan, Shape, Size, plan_row
from core.inference.precision import dtype_by_gain
from core.models import hf

Ids = NDArray[np.int32]

_TYPICAL_TOKENS = 32
_USUAL_TOKENS = (16, 32, 64, 128, 256)
_FEWEST_ROUNDS, _MOST_ROUNDS, _ENOUGH_SECONDS = 5, 40, 0.3


def suits(architecture: Architecture, dtype: Dtype) -> bool:
    """Checks for an encoder, a CPU and OpenVINO.

    Without bfloat16 matmuls, other backends at least save memory.
    """
    if architecture.kind != "encoder" or not suits_openvino():
        return False
    return dtype != "bfloat16" or has_bfloat16()


def suits_openvino() -> bool:
    """Checks for OpenVINO and that models run on the CPU."""
    spec = find_spec(PACKAGE)
    # A folder of that name is a package without origin.
    if spec is None or spec.origin is None:
        return False
    return choose(AutomaticDevices(), find_hardware()).kind == "cpu"


def read_finite_weights(folder: Path, architecture: Architecture) -> dict[str, NDArray[np.float32]]:
    """Reads weights; raises CheckpointError for NaN, which may not show in the logits."""
    weights = hf.read_weights(folder, architecture)
    for path, values in weights.items():
        # A bias of -inf may exclude tokens.
        excludes = np.isneginf(values) if path.endswith("lm_head/bias") else False
        if not (np.isfinite(values) | excludes).all():
            raise CheckpointError(
                f"The weights of the model in {folder} are NaN or infinite",
                expected="finite weights",
                received=f"NaN or infinite values in {path}",
                fix="use an earlier checkpoint; training probably diverged",
            )
    return weights


class GraphModel:
    """An encoder as an OpenVINO graph, loaded on first use; `ready` stays empty."""

    ready: frozenset[Shape] = frozenset()

    def __init__(
        self, folder: Path, architecture: Architecture, dtype: Dtype, mask_id: int
    ) -> None:
        self._folder = folder
        self._architecture = architecture
        self._dtype = dtype
        self._mask_id = mask_id
        self._refusal: StudioError | None = None
        self._embeddings = find_family(architecture.model_type).options(architecture).embeddings

    def plan(self, sizes: Sequence[Size]) -> BatchPlan:
        """Returns the next batch, without padding."""
        return plan_row(sizes)

    def logits(
        self,
        shape: Shape,
        rows: Sequence[Sequence[Ids]],
        masks: Sequence[Sequence[NDArray[np.intp]]],
    ) -> NDArray[np.float32]:
        """Computes the logits at the masks, float32 (1, masks, V)."""
        check_length(max(map(len, rows[0])), self._architecture)
        if self._refusal is not None:
            raise self._refusal
        try:
            answer = self._answer
        except StudioError as error:
            self._refusal = error
            raise
        return answer(_inputs(rows[0], masks[0], self._embeddings))[None]

    def usual_shapes(self) -> list[Shape]:
        """Returns shapes to warm up with: kernels are packed on first use."""
        longest = self._architecture.max_seq_length
        lengths = dict.fromkeys(min(tokens, longest) for tokens in _USUAL_TOKENS)
        return [Shape(1, length, 1) for length in lengths]

    def warm_up(self, shape: Shape) -> None:
        self.logits(shape, *self._question(shape.length))

    def wait_until_warm(self) -> None:
        """Does nothing."""

    @cached_property
    def _answer(self) -> Callable[[Sequence[NDArray]], NDArray[np.float32]]:
        model = build_graph(
            read_finite_weights(self._folder, self._architecture), self._architecture
        )
        if self._dtype != "auto":
            return compile_graph(model, self._dtype)
        if not has_bfloat16():
            return compile_graph(model, "float32")
        return self._faster({name: compile_graph(model, name) for name in PRECISIONS})

    def _faster(self, calls: Mapping[str, Any]) -> Callable[[Sequence[NDArray]], Any]:
        tokens = min(_TYPICAL_TOKENS, self._architecture.max_seq_length)
        ((texts,), (masks,)) = self._question(tokens)
        question = _inputs(texts, masks, self._embeddings)
        gain = gain_of(
            {name: partial(call, question) for name, call in calls.items()},
            _FEWEST_ROUNDS,
            _MOST_ROUNDS,
            _ENOUGH_SECONDS,
        )
        return calls[dtype_by_gain(gain, "the model was")]

    def _question(self, tokens: int) -> tuple[list[list[Ids]], list[list[NDArray[np.intp]]]]:
        return [[np.full(tokens, self._mask_id, np.int32)]], [[np.zeros(1, np.intp)]]


def _inputs(
    texts: Sequence[Ids], masks: Sequence[NDArray[np.intp]], options: EmbeddingOptions
) -> list[Ids]:
    starts = np.cumsum([0, *map(len, texts)][:-1])
    places = [position_ids(ids, options) for ids in texts]
    own = [np.full(len(ids), start) for ids, start in zip(texts, starts, strict=True)]
    positions = [start + mask for start, mask in zip(starts, masks, strict=True)]
    parts = [np.concatenate(arrays) for arrays in (texts, places, own, positions)]
    rows = [array.astype(np.int32, copy=False) for array in parts]
    return [row[None] for row in rows]


def position_ids(ids: Ids, options: EmbeddingOptions) -> NDArray[np.integer[Any]]:
    """Returns a family's position ids of token ids (..., L)."""
    pad = options.padding_position
    if pad is None:
        return np.broadcast_to(np.arange(ids.shape[-1]) + options.first_position, ids.shape)
    is_token = ids != pad
    return np.cumsum(is_token, axis=-1) * is_token + pad
