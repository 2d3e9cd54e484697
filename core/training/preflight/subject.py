"""Model and examples of a preflight."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.config.preflight import PreflightConfig
from core.errors import ConfigError
from core.models.registry import check_family, resolve_architecture
from core.objectives.objective import Batch, Objective, Vocabulary
from core.objectives.registry import create_objective, stored_sequence_length
from core.records.events import Reporter
from core.training.batches import SequenceSource
from core.training.inputs import objective_name, objective_settings, open_inputs
from core.workspace.workspace import Workspace

# Our tokenizers begin with so many special tokens.
_SPECIAL_IDS = 5
_BOS_ID, _EOS_ID, _PAD_ID, _MASK_ID = 1, 2, 3, 4
_SENTINELS = 100
_NUM_RANDOM_SEQUENCES = 4096


@dataclass(frozen=True)
class Subject:
    """A model and examples; `train_rows` is None without shards."""

    architecture: Architecture
    objective: Objective
    rows: SequenceSource
    train_rows: int | None
    validation_rows: int

    @cached_property
    def predictions(self) -> int:
        """Predictions per sequence."""
        return int(self.example(1)["labels"].shape[1])

    def example(self, rows: int) -> Batch:
        """Returns a batch for its shapes."""
        return self.objective.batch(self.rows.take(np.zeros(rows, np.int64)), 0, 0)


class RandomSequences:
    """Sequences of random ids."""

    def __init__(self, row_length: int, vocab_size: int) -> None:
        self.row_length = row_length
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return _NUM_RANDOM_SEQUENCES

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns int32 (n, row_length)."""
        generator = np.random.Generator(np.random.Philox(key=int(indices[0])))
        shape = (len(indices), self.row_length)
        return generator.integers(_SPECIAL_IDS, self._vocab_size, shape, np.int32)


def open_subject(config: PreflightConfig, workspace: Workspace, reporter: Reporter) -> Subject:
    """Opens the shards, or random sequences; raises ConfigError."""
    if config.shards or config.mixture:
        inputs = open_inputs(config, workspace, reporter)
        return Subject(
            inputs.architecture,
            inputs.objective,
            inputs.train_rows,
            inputs.epoch_length,
            len(inputs.validation_rows),
        )
    if config.vocab_size is None or config.max_seq_length is None:
        raise ConfigError(
            "The check needs shards, or a vocabulary size and a sequence length",
            expected="⟬shards⟭, or both ⟬vocab_size⟭ and ⟬max_seq_length⟭",
            fix="set ⟬shards⟭, or set ⟬vocab_size⟭ and ⟬max_seq_length⟭",
            field="max_seq_length" if config.vocab_size else "vocab_size",
        )
    return _without_shards(config, config.vocab_size, config.max_seq_length)


def _without_shards(config: PreflightConfig, vocab_size: int, max_seq_length: int) -> Subject:
    settings = objective_settings(config, max_seq_length)
    name = objective_name(config, config.family)
    row_length = stored_sequence_length(name, settings)
    architecture = resolve_architecture(
        config,
        vocab_size=vocab_size,
        row_length=row_length,
        pad_id=_PAD_ID,
        bos_id=_BOS_ID,
        eos_id=_EOS_ID,
    )
    check_family(config, architecture)
    vocabulary = Vocabulary(
        size=vocab_size,
        special_ids=np.arange(_SPECIAL_IDS, dtype=np.int32),
        pad_id=_PAD_ID,
        bos_id=_BOS_ID,
        eos_id=_EOS_ID,
        mask_id=_MASK_ID,
        sentinel_ids=np.arange(vocab_size - 1, vocab_size - 1 - _SENTINELS, -1, dtype=np.int32),
    )
    objective = create_objective(name, settings, vocabulary)
    return Subject(architecture, objective, RandomSequences(row_length, vocab_size), None, 0)
