"""Stands for shards that don't exist yet, when a training is planned."""

from __future__ import annotations

from dataclasses import dataclass

from core.architecture.architecture import Architecture
from core.config.train import TrainConfig
from core.models.registry import resolve_architecture
from core.training.inputs import objective_name
from core.training.sources import TrainingSources

_PAD_ID, _BOS_ID, _EOS_ID = 0, 1, 2


@dataclass(frozen=True)
class PlannedObjective:
    """An objective's figures; see `core.objectives.objective.Objective`."""

    name: str
    predictions_per_sequence: int


@dataclass(frozen=True)
class PlannedShards:
    """The figures of shards; see `core.shards.read.Shards`."""

    row_length: int
    max_seq_length: int
    documents_per_sequence: float = 0.0
    line_by_line: bool = False


@dataclass(frozen=True)
class ShardsToCome:
    """Figures of the inputs that a training will read."""

    architecture: Architecture
    shards: PlannedShards
    objective: PlannedObjective
    epoch_length: int

    @property
    def sources(self) -> TrainingSources:
        return TrainingSources((), self.epoch_length)

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        *,
        vocab_size: int,
        row_length: int,
        sequences: int,
        documents: int = 0,
    ) -> ShardsToCome:
        """Describes the training inputs of a config without automatic settings.

        Args:
            row_length: Tokens per sequence.
            sequences: Training sequences.
            documents: Training documents; 0: unknown.
        """
        name = objective_name(config, config.family)
        architecture = resolve_architecture(
            config, vocab_size=vocab_size, row_length=row_length,
            pad_id=_PAD_ID, bos_id=_BOS_ID, eos_id=_EOS_ID,
        )  # fmt: skip
        return cls(
            architecture,
            PlannedShards(row_length, row_length, documents / max(1, sequences)),
            PlannedObjective(name, row_length),
            sequences,
        )
