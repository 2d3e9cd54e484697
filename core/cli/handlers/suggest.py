"""Runs the command `suggest`."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from core.architecture.family import Size
from core.backends.devices import estimate_memory, find_hardware, memory_per_device
from core.backends.selection import count_devices
from core.cli.fields import stage_values
from core.cli.output import (
    EXIT_DONE,
    named_place,
    say,
    workspace_of,
)
from core.cli.parser import parse_hours
from core.config.options import title_of
from core.config.topologies import GPUS, TOPOLOGIES, UTILISATION, Topology, find_topology
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.messages.mentions import render
from core.models.registry import count_parameters
from core.runs.commands import shell_line
from core.training.compatibility import describe_other_objective
from core.training.inputs import TrainingInputs
from core.training.planner import Suggestion, measure_speed, open_sizes, suggest
from core.training.scaling import Forecast, forecast, read_finished_runs
from core.workspace.workspace import Workspace

# The smallest machine is chosen that needs at most so long.
_WISHED_HOURS = 24.0


@dataclass(frozen=True)
class Purchase:
    """A budget's hardware, settings and expected loss; None is unknown."""

    topology: str
    dollars_per_hour: float
    hours: float
    suggestion: Suggestion
    loss: Forecast | None

    def describe(self, dollars: float) -> list[str]:
        """Describes it in a few lines."""
        size = self.suggestion.values.get("size", "given by the settings")
        best, worst = UTILISATION[1], UTILISATION[0]
        lines = [
            f"${dollars:,.2f} buys {self.hours:.3g} hours on {self.topology}, at "
            f"${self.dollars_per_hour:,.2f} per hour. Size: {size}.",
            f"The tokens assume {100 * math.sqrt(best * worst):.0f} % of the peak; runs reach "
            f"{100 * worst:.0f} to {100 * best:.0f} %. A preflight is more precise.",
        ]
        if self.loss is None:
            return [
                *lines,
                "The validation loss is unknown: the workspace has no finished model of this "
                "family on these shards. A run of a few minutes is enough for an estimate.",
            ]
        return [
            *lines,
            f"Expected validation loss: {self.loss.loss:.3g} ({self.loss.low:.3g} to "
            f"{self.loss.high:.3g}), scaled from {', '.join(self.loss.runs)}.",
            f"The second half of the money buys {100 * self.loss.gain_of_half:.0f} % of the gain "
            "over the unigram baseline.",
        ]


def run_suggest(options: argparse.Namespace) -> int:
    workspace = workspace_of(options)
    values = stage_values(options, TrainConfig)
    # A target isn't needed to know what a machine costs.
    price = _read_price(values.pop("price_per_hour", "")) if options.dollars else None
    config = TrainConfig.parse(values)
    inputs = open_sizes(config, workspace)
    opened = next(iter(inputs.values()))
    other, family = describe_other_objective(opened.objective.name, opened.shards.objective)
    if other:
        say(f"warning: {render(other)}. What helps: --family {family}")
    if options.topology and not options.dollars:
        raise ConfigError(
            "--topology has no effect without --dollars",
            expected="--dollars with --topology",
            fix="add --dollars, or leave --topology out",
        )
    if options.dollars:
        _check_only_dollars(options)
        purchase = _spend(
            config,
            workspace,
            inputs,
            options.dollars,
            topology=options.topology,
            dollars_per_hour=price,
            given=values,
        )
        return _print(
            options, values, purchase.suggestion, purchase.describe(options.dollars), purchase
        )
    flops, devices = measure_speed(config) if options.hours else (None, None)
    memory = memory_per_device(devices) if devices else estimate_memory(config, find_hardware())
    suggestion = suggest(
        config,
        inputs,
        hours=options.hours,
        tokens=options.tokens,
        flops=flops,
        replicas=devices.count if devices else count_devices(config),
        memory_bytes=memory,
        given=values,
    )
    return _print(options, values, suggestion, [devices.describe()] if devices else [])


def _read_price(text: str) -> float | None:
    """Reads dollars per hour; None if empty."""
    if not text:
        return None
    try:
        return parse_hours(str(text))
    except argparse.ArgumentTypeError as error:
        raise ConfigError(
            "The price per hour can't be used",
            expected="a number above 0, such as 2.70",
            received=str(text),
            fix="correct ⟬price_per_hour⟭",
            field="price_per_hour",
        ) from error


def _check_only_dollars(options: argparse.Namespace) -> None:
    if options.hours is not None or options.tokens is not None:
        raise ConfigError(
            "Give exactly one of --hours, --tokens and --dollars",
            expected="one budget",
            received="--dollars and another one",
            fix="leave the other one out",
        )


def _print(
    options: argparse.Namespace,
    values: dict[str, Any],
    suggestion: Suggestion,
    heading: list[str],
    purchase: Purchase | None = None,
) -> int:
    chosen = TrainConfig.parse({**values, **suggestion.values})
    command = shell_line("train", chosen, named_place(workspace_of(options)))
    if options.json:
        bought = asdict(purchase) if purchase else {}
        bought.pop("suggestion", None)
        answer = {**asdict(suggestion), **bought, "command": command}
        print(json.dumps(answer, ensure_ascii=False))
        return EXIT_DONE
    reasons = [
        f"{title_of(name, TrainConfig.model_fields[name])} {suggestion.values[name]}: {why}"
        for name, why in suggestion.reasons.items()
    ]
    for line in (*heading, *reasons, *suggestion.remarks, "", command):
        print(line)
    return EXIT_DONE


def _spend(
    config: TrainConfig,
    workspace: Workspace,
    inputs: Mapping[Size, TrainingInputs],
    dollars: float,
    *,
    topology: str,
    dollars_per_hour: float | None,
    given: Mapping[str, Any],
) -> Purchase:
    """Chooses the hardware with the most FLOPs per dollar, or takes the named one; then plans.

    Args:
        topology: Empty: any with a known price.
        dollars_per_hour: Price of the named topology; None: its list price.

    Raises:
        ConfigError: The price is unknown, or the budget is below one step.
    """
    hardware, price = _choose(dollars, topology, dollars_per_hour)
    hours = dollars / price
    suggestion, (parameters, tokens) = _plan_hours(config, inputs, hardware, hours, given)
    _, half = _plan_hours(config, inputs, hardware, hours / 2, given)
    opened = next(iter(inputs.values()))
    loss = forecast(
        read_finished_runs(workspace, config.family, opened.fingerprints),
        parameters=parameters,
        tokens=tokens,
        half=half,
        corpus=opened.epoch_length * opened.shards.row_length,
    )
    return Purchase(hardware.name, price, hours, suggestion, loss)


def _choose(dollars: float, name: str, dollars_per_hour: float | None) -> tuple[Topology, float]:
    if dollars_per_hour and not name:
        raise ConfigError(
            "A price needs the hardware that it is for",
            expected="--topology with ⟬price_per_hour⟭",
            fix="add --topology, such as --topology h100x8",
            field="price_per_hour",
        )
    if name:
        topology = find_topology(name)
        return topology, dollars_per_hour or _price(topology)
    priced = [
        topology
        for topology in (*TOPOLOGIES.values(), *GPUS.values())
        if topology.chip.dollars_per_hour and topology.hosts == 1
    ]

    def preference(topology: Topology) -> tuple[float, float, int]:
        """Prefers the smallest slice of a chip that takes few hours."""
        price = _price(topology)
        per_dollar = topology.chip.flops_per_second * topology.chips / price
        return -round(per_dollar), max(dollars / price, _WISHED_HOURS), topology.chips

    topology = min(priced, key=preference)
    return topology, _price(topology)


def _price(topology: Topology) -> float:
    if topology.chip.dollars_per_hour is None:
        raise ConfigError(
            f"The price of {topology.name} isn't known",
            fix="give ⟬price_per_hour⟭",
            field="price_per_hour",
        )
    return topology.chip.dollars_per_hour * topology.chips


def _plan_hours(
    config: TrainConfig,
    inputs: Mapping[Size, TrainingInputs],
    hardware: Topology,
    hours: float,
    given: Mapping[str, Any],
) -> tuple[Suggestion, tuple[int, int]]:
    """Plans for some hours; returns settings, and the parameters and tokens that they mean."""
    chip = hardware.chip
    suggestion = suggest(
        config,
        inputs,
        hours=hours,
        flops=chip.flops_per_second * hardware.chips * math.sqrt(math.prod(UTILISATION)),
        replicas=hardware.cores,
        memory_bytes=int(chip.memory_bytes_per_core),
        given=given,
    )
    values = suggestion.values
    opened = inputs[values.get("size", next(iter(inputs)))]
    accumulated = values.get("gradient_accumulation_steps", config.gradient_accumulation_steps)
    sequences = values["per_replica_batch_size"] * accumulated * hardware.cores
    tokens = values["num_train_steps"] * sequences * opened.shards.row_length
    return suggestion, (count_parameters(opened.architecture), tokens)
