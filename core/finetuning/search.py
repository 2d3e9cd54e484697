"""Chooses a learning rate, trains with several seeds, and compares with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.config.finetune import FinetuneConfig
from core.finetuning.session import State
from core.finetuning.training import Trained, Trainer


@dataclass(frozen=True)
class SearchResult:
    """The trainings with the chosen learning rate, and the best learning rate's score.

    Attributes:
        rates: The development score of each learning rate.
    """

    trained: Sequence[Trained]
    rates: dict[float, float]

    @property
    def learning_rate(self) -> float:
        return self.trained[0].learning_rate

    @property
    def best(self) -> Trained:
        """The training with the best score on the development set."""
        return max(self.trained, key=lambda run: run.score)


def count_trainings(config: FinetuneConfig) -> int:
    """Counts the trainings of one search."""
    return len(config.rates) + config.num_seeds - 1


def search(
    trainer: Trainer, config: FinetuneConfig, pretrained: State, note: str, *, keep: bool
) -> SearchResult:
    """Tries each learning rate with the first seed, and the best one with the other seeds.

    The weights of at most two trainings are in memory.
    """
    tried: dict[float, float] = {}
    first: Trained | None = None
    for rate in config.rates:
        run = trainer.run(pretrained, rate, config.seed, note, keep=keep)
        tried[rate] = run.score
        if first is None or run.score > first.score:
            first = run
    assert first is not None
    trained = [first]
    for seed in range(config.seed + 1, config.seed + config.num_seeds):
        run = trainer.run(pretrained, first.learning_rate, seed, note, keep=keep)
        best = max(trained, key=lambda trained_model: trained_model.score)
        if run.score > best.score:
            trained = [_without_weights(trained_model) for trained_model in trained]
        else:
            run = _without_weights(run)
        trained.append(run)
    return SearchResult(trained, tried)


def _without_weights(run: Trained) -> Trained:
    return Trained(
        run.learning_rate, run.seed, run.epoch, run.score, run.validation, run.outputs, None
    )
