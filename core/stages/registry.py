"""Registry of the stages: each is declared once, here, and everything else derives from it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from core.config import (
    PreflightConfig,
    PushConfig,
    ShardConfig,
    StageConfig,
    TokenizerConfig,
    TrainConfig,
)
from core.errors import ConfigError
from core.events import Reporter
from core.workspace import Artifact, Workspace

StageFunction = Callable[[Any, Workspace, Reporter], Artifact]


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline.

    Functions are references of the form `module:function` and imported when needed, since training
    imports a backend.

    Attributes:
        name: The command, and the stage of stored runs.
        title: The label in the web app and in reports.
        help: The command's help, one sentence.
        function: Takes the config, the workspace and a reporter.
        api: The function in `core` that runs it from a script.
        artifact_kind: The kind of artifact it makes; "" if none.
        name_deriver: Derives the artifact's name from a config without one; "" if none.
        tab: The tab of its form; "": the tab named like the stage.
        is_resumable: Whether a stopped run can continue from its saved state.
        reports_top_level: Puts its results at the top level of the JSON instead of in `metrics`.
    """

    name: str
    title: str
    help: str
    config: type[StageConfig]
    function: str
    api: str
    artifact_kind: str = ""
    name_deriver: str = ""
    tab: str = ""
    is_resumable: bool = False
    reports_top_level: bool = False

    def derive_name(self, config: StageConfig) -> str:
        return str(_load(self.name_deriver)(config)) if self.name_deriver else ""


STAGES: dict[str, Stage] = {}


def register(stage: Stage) -> Stage:
    """Adds a stage to the command line, the queue and the web app's lists."""
    STAGES[stage.name] = stage
    return stage


def find_stage(name: str) -> Stage:
    if name not in STAGES:
        raise ConfigError(
            f"There is no stage {name!r}", expected="one of " + ", ".join(STAGES), received=name
        )
    return STAGES[name]


def stage_function(name: str) -> StageFunction:
    function: StageFunction = _load(find_stage(name).function)
    return function


def title_of_stage(stage: str) -> str:
    """Returns a stage's title; for an unknown stage, its name."""
    return STAGES[stage].title if stage in STAGES else stage.replace("_", " ").capitalize()


def artifact_kind_of(stage: str) -> str:
    """Returns the kind of artifact that a stage makes; "" if none, or the stage is unknown."""
    return STAGES[stage].artifact_kind if stage in STAGES else ""


def is_resumable(stage: str) -> bool:
    return stage in STAGES and STAGES[stage].is_resumable


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


register(
    Stage(
        name="tokenizer",
        title="Tokenizer",
        help="Train a tokenizer on a corpus.",
        config=TokenizerConfig,
        function="core.tokenizer:train",
        api="train_tokenizer",
        artifact_kind="tokenizer",
        name_deriver="core.tokenizer.training:derive_name",
    )
)
register(
    Stage(
        name="shards",
        title="Shards",
        help="Tokenise a corpus and pack it into TFRecord shards.",
        config=ShardConfig,
        function="core.shards.build:build",
        api="build_shards",
        artifact_kind="shards",
        name_deriver="core.shards.build:derive_name",
    )
)
register(
    Stage(
        name="train",
        title="Training",
        help="Train a model on shards.",
        config=TrainConfig,
        function="core.training.trainer:train",
        api="train",
        artifact_kind="model",
        is_resumable=True,
    )
)
register(
    Stage(
        name="preflight",
        title="TPU check",
        help="Estimate what a training run would need and cost on a TPU.",
        config=PreflightConfig,
        function="core.training.preflight:run",
        api="preflight",
        artifact_kind="preflight",
        tab="train",
        reports_top_level=True,
    )
)
register(
    Stage(
        name="push",
        title="Publication",
        help="Publish a model, a tokenizer or shards on the Hugging Face Hub.",
        config=PushConfig,
        function="core.hub.push:run",
        api="push",
        tab="publish",
        reports_top_level=True,
    )
)
