"""Registry of the stages, from which everything else derives.

Modules named in `STUDIO_STAGES` may register others.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from core.config.base import StageConfig
from core.config.clean import CleanConfig
from core.config.evaluate import EvaluateConfig
from core.config.export import ExportConfig
from core.config.finetune import FinetuneConfig
from core.config.metrics import Metric, declare_metrics
from core.config.preflight import PreflightConfig
from core.config.push import PushConfig
from core.config.shards import ShardConfig
from core.config.sweep import SweepConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.errors import ConfigError, escape_controls
from core.messages.suggestions import did_you_mean
from core.records.events import Reporter
from core.workspace.kinds import (
    CORPUS,
    EVALUATION,
    EXPORT,
    MODEL,
    SHARDS,
    TOKENIZER,
    ArtifactKind,
    register_kind,
)
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace

StageFunction = Callable[[Any, Workspace, Reporter], Artifact]


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline.

    References `module:function` are imported late, as training imports a backend.

    Attributes:
        api: Function for scripts, in `core` or a reference.
        metrics: All that it measures; titles, units, directions and what a sweep accepts follow.
        metric_finder: Lists the metrics of trials with a sweep's settings; "": those declared.
        counts: Examples of what it counts, if it measures no model.
        check: Refuses a config's options without effect, and values that don't go together.
        is_resumable: Whether it continues from saved state.
        keeps_parts: Whether it continues after the finished parts of the text, however it ended.
        reports_top_level: Puts results at the JSON's top level, not in `metrics`.
        summarizer: Formats results for the command line.
        secret_variable: Secret for no other process; the command line runs the stage itself.
        queue_skipper: Checks config and workspace: whether a run doesn't wait for a slot.
    """

    name: str
    title: str
    help: str
    config: type[StageConfig]
    function: str
    api: str
    artifact: ArtifactKind | None = None
    check: str = ""
    metrics: tuple[Metric, ...] = ()
    metric_finder: str = ""
    counts: str = ""
    name_deriver: str = ""
    tab: str = ""
    is_resumable: bool = False
    keeps_parts: bool = False
    reports_top_level: bool = False
    summarizer: str = ""
    secret_variable: str = ""
    queue_skipper: str = ""

    @property
    def api_home(self) -> tuple[str, str]:
        """Module and name of the function for scripts."""
        module, _, name = self.api.rpartition(":")
        return module or "core", name

    @property
    def artifact_kind(self) -> str:
        """The artifact kind's name; "" if none."""
        return self.artifact.name if self.artifact else ""

    def makes_artifact(self, config: StageConfig) -> bool:
        """Returns whether a run makes an artifact; an evaluation doesn't."""
        return self.artifact is not None and not getattr(config, "evaluate_only", False)

    def check_config(self, config: StageConfig) -> None:
        """Raises ConfigError for options without effect, before anything starts."""
        if self.check:
            _load(self.check)(config)

    def list_metrics(self, sweep: SweepConfig) -> Sequence[str]:
        """Returns patterns of the metrics that a trial may have; empty if unknown."""
        if self.metric_finder:
            patterns: Sequence[str] = _load(self.metric_finder)(sweep)
            return patterns
        names = [metric.name for metric in self.metrics]
        return [*names, *(f"{name}/*" for name in names)]

    def skips_queue(self, config: StageConfig, workspace: Workspace) -> bool:
        """Returns whether a run starts beside others, without a slot."""
        if not self.queue_skipper or getattr(config, "target", None):
            return False
        return bool(_load(self.queue_skipper)(config, workspace))

    def derive_name(self, config: StageConfig) -> str:
        return str(_load(self.name_deriver)(config)) if self.name_deriver else ""


STAGES_VARIABLE = "STUDIO_STAGES"
STAGES: dict[str, Stage] = {}


def register(stage: Stage) -> Stage:
    """Registers a stage for all interfaces."""
    if stage.artifact:
        register_kind(stage.artifact)
    declare_metrics(stage.metrics)
    STAGES[stage.name] = stage
    return stage


def load_further_stages() -> None:
    """Imports the modules of STUDIO_STAGES; raises ConfigError."""
    for module in filter(None, re.split(r"[,\s]+", os.environ.get(STAGES_VARIABLE, ""))):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"The stages of {module} can't be loaded",
                expected=f"{STAGES_VARIABLE} with the names of importable modules",
                received=str(error),
                fix="correct the variable, or add the module's folder to PYTHONPATH",
            ) from error


def find_stage(name: str) -> Stage:
    if name not in STAGES:
        raise ConfigError(
            f"The stage {name!r} is unknown",
            expected="one of " + ", ".join(STAGES),
            received=name,
            fix=did_you_mean(name, STAGES) or "correct the name",
            field="stage",
        )
    return STAGES[name]


def stage_function(name: str) -> StageFunction:
    function: StageFunction = _load(find_stage(name).function)
    return function


def title_of_stage(stage: str) -> str:
    """Returns a stage's title, or an unknown stage's name."""
    return STAGES[stage].title if stage in STAGES else stage.replace("_", " ").capitalize()


def artifact_kind_of(stage: str) -> str:
    """Returns a stage's artifact kind, or ""."""
    return STAGES[stage].artifact_kind if stage in STAGES else ""


def summarize_results(stage: str, results: dict[str, Any], artifact: str) -> str:
    """Summarizes a finished run, by default with its artifact."""
    summarizer = STAGES[stage].summarizer if stage in STAGES else ""
    if not summarizer:
        return artifact
    try:
        return escape_controls(str(_load(summarizer)({**results, "artifact": artifact})))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        return artifact  # The mirror of a followed run may hold any results.


def is_resumable(stage: str) -> bool:
    return stage in STAGES and STAGES[stage].is_resumable


def keeps_parts(stage: str) -> bool:
    return stage in STAGES and STAGES[stage].keeps_parts


def parse_stage_config(stage: str, values: dict[str, Any]) -> StageConfig:
    """Parses a stored config; raises ConfigError.

    A field that the config lacks is younger than it: it gets what it implied then, not today's
    preset value.
    """
    model = find_stage(stage).config
    return model.parse({**model.implied_values(), **values})


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


register(
    Stage(
        name="clean",
        title="Cleaning",
        help="Clean a corpus: duplicates, quality rules, languages, personal data.",
        config=CleanConfig,
        function="core.corpus.cleaning.stage:clean",
        api="clean",
        artifact=CORPUS,
        counts="train_documents, validation_documents or train_bytes",
        name_deriver="core.corpus.cleaning.stage:derive_name",
        tab="clean",
        keeps_parts=True,
    )
)
register(
    Stage(
        name="tokenizer",
        title="Tokenizer",
        help="Train a tokenizer on a corpus.",
        config=TokenizerConfig,
        function="core.tokenizer:train",
        api="train_tokenizer",
        artifact=TOKENIZER,
        counts="tokens_per_word, tokens_per_byte or unknown_share",
        name_deriver="core.tokenizer.training:derive_name",
        tab="tokenizer",
        keeps_parts=True,
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
        artifact=SHARDS,
        check="core.shards.layout:check_options",
        counts="train_rows, train_tokens or tokens_dropped",
        name_deriver="core.shards.build:derive_name",
        tab="shards",
        keeps_parts=True,
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
        artifact=MODEL,
        check="core.training.interim_options:check_used",
        metric_finder="core.sweeps.metrics:list_training_metrics",
        tab="train",
        is_resumable=True,
    )
)
register(
    Stage(
        name="evaluate",
        title="Evaluation",
        help="Evaluate a model on minimal pairs or held-out text.",
        config=EvaluateConfig,
        function="core.evaluation.stage:run",
        api="evaluate",
        artifact=EVALUATION,
        check="core.evaluation.unused:check_used",
        metric_finder="core.sweeps.metrics:list_evaluation_metrics",
        name_deriver="core.evaluation.stage:derive_name",
        tab="evaluate",
        reports_top_level=True,
        summarizer="core.evaluation.summary:summarize",
        queue_skipper="core.artifacts.subject:is_of_running_run",
    )
)
register(
    Stage(
        name="finetune",
        title="Fine-tuning",
        help="Fine-tune a model on labelled texts or words.",
        config=FinetuneConfig,
        function="core.finetuning.stage:run",
        api="finetune",
        artifact=MODEL,
        check="core.finetuning.unused:check_used",
        metric_finder="core.sweeps.metrics:list_finetuning_metrics",
        name_deriver="core.finetuning.stage:derive_name",
        tab="finetune",
        summarizer="core.finetuning.summary:summarize",
        queue_skipper="core.artifacts.subject:is_of_running_run",
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
        artifact=ArtifactKind("preflight", "TPU check"),
        counts="one of its report",
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
        function="core.publishing.push:run",
        api="push",
        counts="one of its receipt",
        tab="publish",
        reports_top_level=True,
        summarizer="core.publishing.push:summarize_receipt",
        secret_variable="HF_TOKEN",
    )
)
register(
    Stage(
        name="export",
        title="Export",
        help="Write a model as a file for llama.cpp, Ollama and others.",
        config=ExportConfig,
        function="core.exporting.stage:run",
        api="export",
        artifact=EXPORT,
        counts="one of its file",
        name_deriver="core.exporting.stage:derive_name",
        tab="publish",
        reports_top_level=True,
        summarizer="core.exporting.stage:summarize",
        queue_skipper="core.artifacts.subject:is_of_running_run",
    )
)
