"""The stages as functions for scripts, and the quickstart.

`train_tokenizer`, `build_shards`, `train`, `preflight` and `push` run in the calling process. Each
has a run folder, so the web app shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from core.config import (
    CorpusConfig,
    PreflightConfig,
    PushConfig,
    QuickstartConfig,
    ShardConfig,
    StageConfig,
    TokenizerConfig,
    TrainConfig,
)
from core.stages.registry import find_stage
from core.workspace import Artifact, Workspace


def makes_artifact(config: StageConfig) -> bool:
    """Returns True if a run with this config makes an artifact; evaluation and push don't."""
    return not (isinstance(config, PushConfig) or getattr(config, "evaluate_only", False))


def parse_stage_config(stage: str, values: dict[str, Any]) -> StageConfig:
    """Parses the stored values of a stage's config; raises ConfigError if they are invalid.

    Fields that did not exist when the config was stored get their own default, not today's preset
    value: the stored config is what was run.
    """
    model = find_stage(stage).config
    defaults = {name: model.model_fields[name].default for name in model.preset_fields()}
    return model.parse({**defaults, **values})


def train_tokenizer(config: TokenizerConfig, workspace: Workspace | None = None) -> Artifact:
    """Trains a tokenizer in this process and returns its artifact."""
    return _run_here("tokenizer", config, workspace)


def build_shards(config: ShardConfig, workspace: Workspace | None = None) -> Artifact:
    """Builds shards in this process and returns their artifact."""
    return _run_here("shards", config, workspace)


def train(config: TrainConfig, workspace: Workspace | None = None) -> Artifact:
    """Trains a model in this process and returns its best checkpoint as an artifact.

    The first call chooses the backend; a process can't use two.
    """
    return _run_here("train", config, workspace)


def preflight(config: PreflightConfig, workspace: Workspace | None = None) -> Artifact:
    """Estimates in this process what a training run would need and cost on a TPU.

    The report's values are in `manifest.counts` (`core.training.preflight.report.Report`).
    """
    return _run_here("preflight", config, workspace)


def push(config: PushConfig, workspace: Workspace | None = None) -> Artifact:
    """Publishes a model, a tokenizer or shards on the Hugging Face Hub, from this process.

    URL and files are in `manifest.counts` of the result (`core.hub.push.Receipt`).
    """
    return _run_here("push", config, workspace)


def quickstart(
    config: QuickstartConfig | None = None, workspace: Workspace | None = None
) -> Artifact:
    """Runs all stages on the built-in corpus in this process and returns the model."""
    from core.runs.chain import reserved_names

    workspace = workspace or Workspace()
    stages = quickstart_stages(config or QuickstartConfig(), workspace, reserved_names(workspace))
    return [_run_here(stage, stage_config, workspace) for stage, stage_config in stages][-1]


def quickstart_stages(
    config: QuickstartConfig, workspace: Workspace, promised: Mapping[str, Collection[str]]
) -> list[tuple[str, StageConfig]]:
    """Returns the quickstart's stages with their configs, each named as the next one's input.

    Takes a few minutes on two CPU cores: short sequences and the preset `fast` reach 3.4 nats below
    the unigram baseline (benchmarks/trials.md). `promised` has the names, by kind, that other runs
    have reserved.
    """
    corpus = CorpusConfig(source="docs", limit=config.limit)
    tokenizer_name, shards_name, model_name = [
        workspace.free_name(kind, "quickstart", promised[kind])
        for kind in ("tokenizer", "shards", "model")
    ]
    return [
        (
            "tokenizer",
            TokenizerConfig(name=tokenizer_name, corpus=corpus, vocab_size=4096, preset="custom"),
        ),
        (
            "shards",
            ShardConfig(
                name=shards_name,
                corpus=corpus,
                tokenizer=tokenizer_name,
                max_seq_length=64,
                preset="custom",
            ),
        ),
        (
            "train",
            TrainConfig(
                name=model_name,
                shards=shards_name,
                size=config.size,
                num_train_steps=config.num_train_steps or 1500,
                eval_steps=100,
                per_replica_batch_size=64,
                engine=config.engine,
                seed=config.seed,
            ),
        ),
    ]


def _run_here(stage: str, config: StageConfig, workspace: Workspace | None) -> Artifact:
    from core.runs.local import run_here

    return run_here(stage, config, workspace or Workspace())
