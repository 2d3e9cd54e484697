"""Runs fill-mask models on TensorFlow or JAX, which compile a program per shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.architecture.options import Dtype
from core.backends.compilation import compile_method
from core.inference.models import choose_backend, load_model
from core.inference.packing import BatchPlan, Planner, Shape, Size
from core.inference.precision import choose_dtype

Ids = NDArray[np.int32]

_TYPICAL_TOKENS = 32


class BackendModel:
    """A fill-mask model, loaded on first use; `ready` holds compiled shapes."""

    def __init__(
        self, folder: Path, architecture: Architecture, dtype: Dtype, mask_id: int
    ) -> None:
        self.ready: set[Shape] = set()
        self._folder = folder
        self._architecture = architecture
        self._dtype = dtype
        self._mask_id = mask_id
        self._planner = _planner_for(architecture)
        self._asked_for: set[Shape] = set()
        self._preparer = ThreadPoolExecutor(1)
        self._preparing: Future[None] | None = None

    def plan(self, sizes: Sequence[Size]) -> BatchPlan:
        """Returns the next batch; a better shape compiles in the background."""
        plan = self._planner.plan(sizes, tuple(self.ready))
        # A process that exits waits for it: one at a time.
        is_free = self._preparing is None or self._preparing.done()
        if plan.better is not None and plan.better not in self._asked_for and is_free:
            self._asked_for.add(plan.better)
            self._preparing = self._preparer.submit(self.warm_up, plan.better)
        return plan

    def logits(
        self,
        shape: Shape,
        rows: Sequence[Sequence[Ids]],
        masks: Sequence[Sequence[NDArray[np.intp]]],
    ) -> NDArray[np.float32]:
        """Computes logits at the masks of packed texts, float32 (sequences, masks, V)."""
        logits = self._predict(_pad(shape, rows, masks, self._architecture))
        self.ready.add(shape)
        return logits

    def usual_shapes(self) -> list[Shape]:
        return self._planner.usual_shapes()

    def warm_up(self, shape: Shape) -> None:
        """Compiles for a shape; concurrent requests don't wait."""
        if shape not in self.ready:
            ids, places = np.array([self._mask_id], np.int32), np.zeros(1, np.intp)
            self.logits(shape, [[ids]], [[places]])

    def wait_until_warm(self) -> None:
        """Waits for background compilation."""
        if self._preparing is not None:
            self._preparing.result()

    @cached_property
    def _predict(self) -> Callable[[Mapping[str, NDArray]], NDArray[np.float32]]:
        choose_backend()
        dtype = choose_dtype(self._dtype, self._architecture, _TYPICAL_TOKENS)
        from keras import ops

        compiled = compile_method(load_model(self._folder, dtype), "__call__")
        return lambda inputs: ops.convert_to_numpy(compiled(dict(inputs)))


def _planner_for(architecture: Any) -> Planner:
    width, layers = architecture.hidden_size, architecture.num_hidden_layers
    return Planner(
        longest=architecture.max_seq_length,
        mask_cost=architecture.vocab_size / (12 * width * layers),
        shares_rows=architecture.kind == "encoder",
    )


def _pad(
    shape: Shape,
    rows: Sequence[Sequence[Ids]],
    places: Sequence[Sequence[NDArray[np.intp]]],
    architecture: Any,
) -> dict[str, Ids]:
    input_ids = np.full((shape.rows, shape.length), architecture.pad_token_id, np.int32)
    text_starts = np.zeros((shape.rows, shape.length), np.int32)
    masked_positions = np.zeros((shape.rows, shape.masks), np.int32)
    for number, (row, masks_of_each) in enumerate(zip(rows, places, strict=True)):
        start = masks = 0
        for ids, text_masks in zip(row, masks_of_each, strict=True):
            input_ids[number, start : start + len(ids)] = ids
            text_starts[number, start:] = start
            masked_positions[number, masks : masks + len(text_masks)] = start + text_masks
            start, masks = start + len(ids), masks + len(text_masks)
        text_starts[number, start:] = start
    inputs = {"input_ids": input_ids, "masked_positions": masked_positions}
    if architecture.kind == "encoder":
        return {**inputs, "text_starts": text_starts}
    # All zeros, for an empty sequence, would attend to nothing.
    attention_mask = (text_starts == 0).astype(np.int32)
    decoder_ids = np.roll(input_ids, 1, axis=1)
    decoder_ids[:, 0] = architecture.decoder_start_token_id
    return {**inputs, "attention_mask": attention_mask, "decoder_input_ids": decoder_ids}
