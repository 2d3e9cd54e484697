"""The stages as functions for scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.config.base import StageConfig
from core.config.clean import CleanConfig
from core.config.evaluate import EvaluateConfig
from core.config.export import ExportConfig
from core.config.finetune import FinetuneConfig
from core.config.preflight import PreflightConfig
from core.config.pretrain import PretrainConfig
from core.config.push import PushConfig
from core.config.quickstart import QuickstartConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.errors import ConfigError
from core.runs.chain import reserved_names
from core.runs.local import run_here
from core.stages.quickstart import quickstart_stages
from core.stages.registry import find_stage
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace

AnyWorkspace = Workspace | str | Path | None


def run_stage(stage: str, config: StageConfig, workspace: AnyWorkspace = None) -> Artifact:
    """Runs any registered stage in this process; raises ConfigError for another stage's config."""
    expected = find_stage(stage).config
    if not isinstance(config, expected):
        raise ConfigError(
            f"The stage {stage} can't run",
            expected=f"core.{expected.__name__}(...)",
            received=type(config).__name__,
            fix="pass the settings as its fields",
            field="config",
        )
    return run_here(stage, config, Workspace.of(workspace))


def clean(config: CleanConfig, workspace: AnyWorkspace = None) -> Artifact:
    """Cleans a corpus; several workers are processes, in which a script is imported again."""
    return run_stage("clean", config, workspace)


def train_tokenizer(config: TokenizerConfig, workspace: AnyWorkspace = None) -> Artifact:
    """Trains a tokenizer in this process."""
    return run_stage("tokenizer", config, workspace)


def build_shards(config: ShardConfig, workspace: AnyWorkspace = None) -> Artifact:
    """Builds shards in this process."""
    return run_stage("shards", config, workspace)


def train(config: TrainConfig, workspace: AnyWorkspace = None) -> Artifact:
    """Trains a model; returns its best checkpoint.

    The first call fixes the process's backend.
    """
    return run_stage("train", config, workspace)


def evaluate(config: EvaluateConfig, workspace: AnyWorkspace = None) -> Artifact:
    """Evaluates a model on minimal pairs or held-out text.

    Returns:
        The figures as `manifest.counts`; see docs/evaluation.md.
    """
    return run_stage("evaluate", config, workspace)


def finetune(config: FinetuneConfig, workspace: AnyWorkspace = None) -> Artifact:
    """Fine-tunes a model on labelled examples.

    Returns:
        The model; the results are in `manifest.counts`, see docs/finetuning.md.
    """
    return run_stage("finetune", config, workspace)


def preflight(config: PreflightConfig, workspace: AnyWorkspace = None) -> Artifact:
    """Estimates needs and cost on a TPU.

    Returns:
        `core.training.preflight.report.Report` as `manifest.counts`.
    """
    return run_stage("preflight", config, workspace)


def push(config: PushConfig, workspace: AnyWorkspace = None) -> Artifact:
    """Publishes a model, tokenizer or shards on the Hub.

    Returns:
        `core.publishing.push.Receipt` as `manifest.counts`.
    """
    return run_stage("push", config, workspace)


def export(config: ExportConfig, workspace: AnyWorkspace = None) -> Artifact:
    """Writes a decoder as a GGUF file; its name and size are in `manifest.counts`."""
    return run_stage("export", config, workspace)


def pretrain(
    text: str | Path | PretrainConfig, workspace: AnyWorkspace = None, **settings: Any
) -> Artifact:
    """Makes a model of a text: cleans it, trains a tokenizer, builds shards, trains.

    What isn't set follows from the text and the time budget.

    Args:
        text: A file, a folder, a pattern or a dataset on the Hub (owner/name), or all settings.
        **settings: Fields of `PretrainConfig`, such as minutes; `target` takes a saved machine's
            name, too.

    Returns:
        The model; `manifest.counts` has its figures.
    """
    from core.pretraining.start import config_of, run_pretraining
    from core.targets.saved import with_saved_machine

    workspace = Workspace.of(workspace)
    if not isinstance(text, PretrainConfig):
        settings = with_saved_machine(settings, PretrainConfig.model_fields, workspace)
        text = config_of(str(text), **settings)
    return run_pretraining(workspace, text)


def quickstart(config: QuickstartConfig | None = None, workspace: AnyWorkspace = None) -> Artifact:
    """Runs all stages on the built-in corpus."""
    workspace = Workspace.of(workspace)
    stages = quickstart_stages(config or QuickstartConfig(), workspace, reserved_names(workspace))
    return [run_stage(stage, stage_config, workspace) for stage, stage_config in stages][-1]
