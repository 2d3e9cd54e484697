"""Predicts a few validation sequences during training, to show what the model has learned."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.backends.base import Backend
from core.backends.devices import Devices
from core.objectives.objective import Batch
from core.training.batches import EVAL_SEED
from core.training.inputs import TrainingInputs

# Tokens of a shown text, and of its prompt for a decoder.
_SHOWN_TOKENS = 48
_PROMPT_TOKENS = 16
# Every eighth token is masked.
_MASK_EVERY = 8
_MOST_LOGIT_BYTES = 64 << 20
_FLOAT_BYTES = 4


class SamplePredictions:
    """Predicts the same sequences each time; reads the weights only.

    Args:
        count: Sequences, at least 1.
    """

    def __init__(self, count: int, inputs: TrainingInputs, backend: Backend) -> None:
        self._inputs = inputs
        self._backend = backend
        rows = inputs.validation_rows
        indices = np.unique(np.linspace(0, len(rows) - 1, count).astype(np.int64))
        self._rows = rows.take(indices)

    def run(self) -> list[dict[str, Any]]:
        """Returns one prediction per sequence.

        `parts` are texts and `[truth, prediction]` of masked tokens. Decoders continue `given`;
        encoder-decoders predict `wanted`, given its earlier tokens.
        """
        kind = self._inputs.architecture.kind
        if kind == "encoder":
            return self._fill_masks()
        return self._continue() if kind == "decoder" else self._predict_targets()

    def _fill_masks(self) -> list[dict[str, Any]]:
        mask = self._inputs.tokenizer.mask_id
        if mask is None:
            return []
        rows = self._rows
        positions = np.tile(np.arange(_MASK_EVERY // 2, self._shown, _MASK_EVERY), (len(rows), 1))
        labels = np.take_along_axis(rows, positions, axis=1)
        input_ids = rows.copy()
        real = ~np.isin(labels, self._inputs.tokenizer.special_ids)
        for row, row_positions, counts in zip(input_ids, positions, real, strict=True):
            row[row_positions[counts]] = mask
        batch: Batch = {"input_ids": input_ids, "masked_positions": positions.astype(np.int32)}
        given = self._inputs.eval_objective.batch(rows, EVAL_SEED, 0)
        batch |= {name: given[name] for name in ("attention_mask", "text_starts") if name in given}
        predictions = self._logits(batch).argmax(axis=-1)
        return [
            {"parts": self._parts(*sequence)}
            for sequence in zip(rows, positions, predictions, real, strict=True)
        ]

    def _parts(
        self,
        row: NDArray[np.int32],
        positions: NDArray[np.int64],
        predictions: NDArray[np.int64],
        real: NDArray[np.bool_],
    ) -> list[str | list[str]]:
        parts: list[str | list[str]] = []
        start = 0
        for index, token in zip(positions[real], predictions[real], strict=True):
            parts += [
                self._decode(row[start:index]),
                [self._decode([row[index]]), self._decode([token])],
            ]
            start = index + 1
        return [*parts, self._decode(row[start : self._shown])]

    def _continue(self) -> list[dict[str, Any]]:
        """Takes the most probable token each time."""
        ids = self._rows[: self._fitting(self._shown), : self._shown].copy()
        begin = min(_PROMPT_TOKENS, self._shown - 1)
        for position in range(begin, self._shown):
            # Later tokens are the text's own; causal attention does not see them.
            ids[:, position] = self._logits({"input_ids": ids})[:, position - 1].argmax(axis=-1)
        return [
            {"given": self._decode(row[:begin]), "text": self._decode(row[begin:])} for row in ids
        ]

    def _predict_targets(self) -> list[dict[str, Any]]:
        batch = self._inputs.eval_objective.batch(self._rows, EVAL_SEED, 0)
        count = self._fitting(batch["labels"].shape[1])
        if not count:
            return []
        batch = {name: values[:count] for name, values in batch.items()}
        predictions = self._logits(batch).argmax(axis=-1)
        shown = batch["label_weights"] > 0
        return [
            {
                "given": self._decode(batch["input_ids"][row], keep=True),
                "wanted": self._decode(batch["labels"][row][shown[row]], keep=True),
                "text": self._decode(predictions[row][shown[row]], keep=True),
            }
            for row in range(count)
        ]

    def _fitting(self, predictions: int) -> int:
        """Returns the number of sequences whose logits fit into memory."""
        per_row = predictions * self._inputs.architecture.vocab_size * _FLOAT_BYTES
        return min(len(self._rows), _MOST_LOGIT_BYTES // per_row)

    @property
    def _shown(self) -> int:
        return min(_SHOWN_TOKENS, self._rows.shape[1])

    def _logits(self, batch: Batch) -> NDArray[np.float32]:
        return self._backend.fetch([self._backend.predict_step(self._backend.put(batch))])[0]

    def _decode(self, ids: Any, *, keep: bool = False) -> str:
        pad = self._inputs.tokenizer.pad_id
        ids = [int(token_id) for token_id in ids if int(token_id) != pad]
        return self._inputs.tokenizer.decode(ids, skip_special=not keep)


def can_predict(devices: Devices) -> bool:
    """Returns whether the backend returns logits: on one device only."""
    return devices.count == 1 and devices.processes == 1
