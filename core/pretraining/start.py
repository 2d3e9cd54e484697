"""Starts pretraining, here or in the queue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from core.config.pretrain import PretrainConfig
from core.models.families import find_family
from core.pretraining.stages import pretrain_stages
from core.runs.chain import reserved_names, submit_chain
from core.runs.local import run_here
from core.workspace import Artifact, Workspace

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def config_of(text: str, **settings: Any) -> PretrainConfig:
    """Returns the config for a file, a folder, a pattern or a dataset on the Hub (owner/name).

    Raises:
        ConfigError: A setting is wrong.
    """
    return PretrainConfig.parse({"corpus": {**corpus_values(text)}, **settings})


def corpus_values(text: str) -> dict[str, str]:
    """Returns the options of the corpus that a text stands for."""
    if _HUB_ID.fullmatch(text) and not Path(text).exists():
        return {"source": "hub", "dataset_name": text}
    return {"source": "files", "path": text}


def submit_pretraining(workspace: Workspace, config: PretrainConfig) -> list[str]:
    """Queues the stages; returns their runs in order.

    Raises:
        ConfigError: A setting is wrong.
    """
    stages = pretrain_stages(config, workspace, reserved_names(workspace))
    return submit_chain(workspace, stages)


def run_pretraining(workspace: Workspace, config: PretrainConfig) -> Artifact:
    """Runs the stages in this process; returns the model."""
    stages = pretrain_stages(config, workspace, reserved_names(workspace))
    return [run_here(stage, one, workspace) for stage, one in stages][-1]


def try_command(family: str, artifact: str) -> list[str]:
    """Returns the words of a command that tries a model."""
    command = "fill-mask" if find_family(family).kind == "encoder" else "generate"
    return ["studio", command, Path(artifact).name, "…" if command == "generate" else "… [MASK] …"]
