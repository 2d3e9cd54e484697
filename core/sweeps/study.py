"""Uses Optuna's samplers TPE and GP, and its pruners, from the trials alone: it stores nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.config.sweep import SweepConfig
from core.sweeps.packages import import_optuna
from core.sweeps.samplers import Settings, draw_unknown, key_of
from core.sweeps.space import Choice, Space

# Suggestions that repeat an earlier trial before settings are drawn at random. A Gaussian process
# takes a second for each.
_MOST_REPETITIONS = {"tpe": 20, "gp": 3}


@dataclass
class History:
    """One trial as Optuna sees it.

    Attributes:
        values: Metric by the validation's number, from 1.
        attributes: Optuna's attributes of the pruner.
        state: running, done, pruned or failed.
        sampler_state: Its sampler's own notes.
    """

    settings: Settings
    state: str
    value: float | None = None
    values: Mapping[int, float] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    sampler_state: Mapping[str, Any] = field(default_factory=dict)


class Study:
    """Suggests settings and decides which trials to end.

    Raises:
        ConfigError: Optuna is missing.
    """

    def __init__(self, config: SweepConfig, space: Space) -> None:
        self._optuna = import_optuna()
        self._config = config
        self._space = space
        self._distributions = {name: self._distribution(name) for name in sorted(space)}

    def suggest(self, number: int, trials: Sequence[History]) -> Settings | None:
        """Suggests a trial's settings; None if no new ones are found."""
        known = {key_of(trial.settings) for trial in trials}
        for attempt in range(_MOST_REPETITIONS[self._config.method]):
            settings = self._suggest([self._config.seed, number, attempt], trials)
            if key_of(settings) not in known:
                return settings
        return draw_unknown(self._space, self._config.seed, number, known)

    def _suggest(self, entropy: list[int], trials: Sequence[History]) -> Settings:
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        study = self._study(trials, sampler=self._sampler(seed))
        asked = study.ask(self._distributions)
        return {name: self._typed(name, asked.params[name]) for name in self._space}

    def _sampler(self, seed: int) -> Any:
        samplers, random_trials = self._optuna.samplers, min(10, max(1, self._config.max_runs // 2))
        if self._config.method == "gp":
            return samplers.GPSampler(
                seed=seed, n_startup_trials=random_trials, warn_independent_sampling=False
            )
        return samplers.TPESampler(seed=seed, constant_liar=True, n_startup_trials=random_trials)

    def is_worse(self, place: int, trials: Sequence[History]) -> tuple[bool, dict[str, Any]]:
        """Judges a running trial at its newest validation.

        Args:
            place: The trial's place in `trials`.

        Returns:
            Whether to end it, and its new attributes.
        """
        study = self._study(trials, pruner=self._pruner())
        judged = study.get_trials(deepcopy=False)[place]
        is_worse = bool(study.pruner.prune(study, judged))
        attributes = study.get_trials(deepcopy=False)[place].system_attrs
        return is_worse, {name: value for name, value in attributes.items() if _is_rung(name)}

    def _pruner(self) -> Any:
        pruners, config = self._optuna.pruners, self._config
        if config.pruner == "median":
            return pruners.MedianPruner(
                n_startup_trials=config.warmup_trials, n_warmup_steps=config.warmup_validations
            )
        return pruners.SuccessiveHalvingPruner(
            min_resource=config.warmup_validations, reduction_factor=config.reduction_factor
        )

    def _study(self, trials: Sequence[History], **parts: Any) -> Any:
        study = self._optuna.create_study(direction=self._config.goal, **parts)
        study.add_trials([self._trial(history) for history in trials])
        return study

    def _trial(self, history: History) -> Any:
        states = self._optuna.trial.TrialState
        state = {
            "done": states.COMPLETE, "pruned": states.PRUNED, "running": states.RUNNING,
        }.get(history.state, states.FAIL)  # fmt: skip
        if state == states.COMPLETE and history.value is None:
            state = states.FAIL
        return self._optuna.trial.create_trial(
            state=state,
            value=history.value if state in (states.COMPLETE, states.PRUNED) else None,
            params={name: history.settings[name] for name in self._distributions},
            distributions=self._distributions,
            intermediate_values=dict(history.values),
            system_attrs=dict(history.attributes),
        )

    def _distribution(self, name: str) -> Any:
        dimension, distributions = self._space[name], self._optuna.distributions
        if isinstance(dimension, Choice):
            return distributions.CategoricalDistribution(dimension.values)
        if dimension.is_integer:
            low, step = round(dimension.low), 1 if dimension.log else round(dimension.step)
            last = low + (round(dimension.high) - low) // step * step
            return distributions.IntDistribution(low, last, log=dimension.log, step=step)
        if dimension.step:
            high = dimension.low + dimension.step * ((dimension.count_values() or 1) - 1)
            return distributions.FloatDistribution(dimension.low, high, step=dimension.step)
        return distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)

    def _typed(self, name: str, value: Any) -> Any:
        dimension = self._space[name]
        if isinstance(dimension, Choice):
            return value
        return int(value) if dimension.is_integer else float(value)


def _is_rung(name: str) -> bool:
    return name.startswith("completed_rung_")
