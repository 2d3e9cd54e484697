"""Estimates the hours of training before there are shards."""

from __future__ import annotations

from core.backends.devices import choose, find_hardware
from core.config.preflight import PreflightConfig
from core.errors import StudioError
from core.records.events import Reporter
from core.training.planner import (
    expected_cpu_speed,
    seconds_for,
    sizes_of,
    stack_flops_per_token,
)
from core.training.preflight.subject import open_subject
from core.workspace.workspace import Workspace

FAMILY = "bert"
SEQUENCE_LENGTH = 128


def hours_by_size(tokens: float, vocab_size: int, workspace: Workspace) -> dict[str, float]:
    """Estimates the hours of one epoch of BERT on this machine's CPU, by size of the model.

    Args:
        tokens: In the corpus.

    Returns:
        Hours by size; none if this machine trains on another device.
    """
    config = PreflightConfig(family=FAMILY)
    try:
        if choose(config, find_hardware()).kind != "cpu":
            return {}
    except StudioError:
        return {}
    speed = expected_cpu_speed()
    hours = {}
    for size in sizes_of(FAMILY):
        preflight = PreflightConfig(
            family=FAMILY, size=size, vocab_size=vocab_size, max_seq_length=SEQUENCE_LENGTH
        )
        architecture = open_subject(preflight, workspace, Reporter()).architecture
        flops = stack_flops_per_token(preflight, architecture, SEQUENCE_LENGTH)
        hours[str(size)] = seconds_for(tokens, flops, speed) / 3600
    return hours
