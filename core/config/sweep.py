"""Options of a sweep over a stage's options."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from core.config.base import StageConfig
from core.config.metrics import Direction, direction_of
from core.config.options import option
from core.config.targets import has_queue, members_of
from core.errors import ConfigError

MOST_TRIALS = 1_000
MOST_PARALLEL = 64
# Trials that a queue gets at a time. Each has a process here.
_QUEUED = 16


class SweepConfig(StageConfig):
    """A sweep: a base config, options to vary, a method and a budget."""

    name: str = option("", "Name of the sweep; empty: named after its file.")
    stage: str = option("train", "Stage that each trial runs.")
    method: Literal["grid", "random", "qmc", "tpe", "gp", "cmaes"] = option(
        "random",
        "Choice of the settings.",
        options={
            "grid": ("Grid", "all combinations, in order"),
            "random": ("Random", "independent draws; good for few trials and many options"),
            "qmc": ("Quasi-random", "a Sobol sequence, which covers the space more evenly"),
            "tpe": ("TPE", "Optuna's default sampler, which learns from earlier trials"),
            "gp": (
                "Gaussian process",
                "Optuna's sampler for few trials of few options; needs torch",
            ),
            "cmaes": ("CMA-ES", "evolves ranges, for many trials; draws lists at random"),
        },
    )
    seed: int = option(0, "Seeds the choice of settings.", ge=0, lt=1 << 31)
    max_runs: int = option(20, "Trials at most.", title="Runs at most", ge=1, le=MOST_TRIALS)
    max_hours: float | None = option(
        None,
        "Hours of all trials together; empty: no limit.",
        title="Hours at most",
        gt=0,
        le=1_000_000,
    )
    max_cost: float | None = option(
        None,
        "US dollars of all trials together; empty: no limit.",
        details="Needs a target with a price.",
        title="Dollars at most",
        gt=0,
        le=10_000_000,
    )
    parallel: int | None = option(
        None,
        "Trials at a time; empty: as many as runs here, one per other machine, 16 on Slurm.",
        title="Runs at a time",
        ge=1,
        le=MOST_PARALLEL,
    )
    metric: str = option(
        "eval_loss", "Metric by which trials are compared.", min_length=1, max_length=64
    )
    direction: Literal["auto", "minimize", "maximize"] = option(
        "auto",
        "Better values of the metric.",
        options={
            "auto": ("Automatic", "high for accuracies, F1 and correlations; low for losses"),
            "minimize": ("Minimize", "low values are better"),
            "maximize": ("Maximize", "high values are better"),
        },
    )
    pruner: Literal["none", "median", "halving"] = option(
        "none",
        "Ends trials that are worse than others at the same validation.",
        options={
            "none": ("None", "every trial runs to its end"),
            "median": ("Median", "ends a trial below the median of the finished ones"),
            "halving": ("Successive halving", "keeps the best third at validations 3, 9, 27, …"),
        },
    )
    warmup_trials: int = option(
        4, "Trials that finish before the median pruner ends any.", ge=1, le=MOST_TRIALS
    )
    warmup_validations: int = option(
        3, "First validation at which a trial may be ended.", ge=1, le=100_000
    )
    reduction_factor: int = option(
        3, "Successive halving keeps one of so many trials.", ge=2, le=64
    )
    prune_mode: Literal["save", "abort"] = option(
        "save",
        "End of a pruned run.",
        options={
            "save": ("Save", "saves a checkpoint, from which it can go on"),
            "abort": ("Abort", "stops at once"),
        },
    )
    base: dict[str, Any] = Field(default={}, description="Settings that all trials share.")
    options: dict[str, Any] = Field(default={}, description="Options to vary, and their values.")

    @property
    def goal(self) -> Direction:
        """The direction; an automatic one follows from the metric."""
        chosen = direction_of(self.metric) if self.direction == "auto" else self.direction
        assert chosen is not None
        return chosen

    @field_validator("direction", mode="before")
    @classmethod
    def _read_empty(cls, value: Any) -> Any:
        return value or "auto"

    @model_validator(mode="after")
    def _check_direction(self) -> SweepConfig:
        if self.direction != "auto" or direction_of(self.metric):
            return self
        raise ConfigError(
            f"It isn't known whether low or high values of {self.metric} are better",
            expected="direction, or a metric such as eval_loss, eval_accuracy or f1",
            received=f"metric = {self.metric!r}, and no direction",
            fix='correct the metric, or set direction to "minimize" or "maximize"',
            field="direction",
        )

    @model_validator(mode="after")
    def _check_cost(self) -> SweepConfig:
        if self.max_cost is None or self.base.get("target"):
            return self
        raise ConfigError(
            "⟬max_cost⟭ doesn't go with a sweep on this machine",
            expected="target in the table base, or no ⟬max_cost⟭",
            received=f"⟬max_cost⟭ = {self.max_cost:g}, and no target",
            fix="set target, or limit the sweep with max_runs or ⟬max_hours⟭",
            field="max_cost",
        )


def parallel_of(config: SweepConfig) -> int | None:
    """Returns the number of trials at a time; None: the workspace's number of runs."""
    target = config.base.get("target", "")
    learns_from_trials = config.pruner != "none" or config.method not in ("grid", "random", "qmc")
    shares_budget = config.max_hours is not None or config.max_cost is not None
    is_queued = has_queue(target) and not learns_from_trials and not shares_budget
    return config.parallel or (_QUEUED if is_queued else len(members_of(target))) or None
