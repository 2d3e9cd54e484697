"""Runs the command `suggest`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from core.backends.devices import estimate_memory, find_hardware, memory_per_device
from core.backends.selection import count_devices
from core.cli.fields import stage_values
from core.cli.output import (
    EXIT_DONE,
    named_place,
    workspace_of,
)
from core.config.options import title_of
from core.config.train import TrainConfig
from core.runs.commands import shell_line
from core.training.planner import measure_speed, open_sizes, suggest


def run_suggest(options: argparse.Namespace) -> int:
    workspace = workspace_of(options)
    values = stage_values(options, TrainConfig)
    config = TrainConfig.parse(values)
    inputs = open_sizes(config, workspace)
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
    chosen = TrainConfig.parse({**values, **suggestion.values})
    command = shell_line("train", chosen, named_place(workspace))
    if options.json:
        print(json.dumps({**asdict(suggestion), "command": command}, ensure_ascii=False))
        return EXIT_DONE
    reasons = [
        f"{title_of(name, TrainConfig.model_fields[name])} {suggestion.values[name]}: {why}"
        for name, why in suggestion.reasons.items()
    ]
    for line in (
        *([devices.describe()] if devices else []),
        *reasons,
        *suggestion.remarks,
        "",
        command,
    ):
        print(line)
    return EXIT_DONE
