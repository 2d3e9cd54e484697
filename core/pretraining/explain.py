"""Says for a form which values automatic settings will have, and what keeps a run from learning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from core.automatic.rules import (
    Choice,
    choose_sequence_length,
    choose_validation_percent,
    choose_vocab_size,
)
from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.families import title_of_family
from core.pretraining.look import CorpusLook, look_at
from core.pretraining.plan import (
    LEAST_STEPS,
    LEAST_VALIDATION_SEQUENCES,
    PlanWarning,
    Setting,
    enough_minutes,
    few_steps,
    few_validation_sequences,
)
from core.tokenizer.llama_cpp import describe_misfit, runs_decoder
from core.training.automatic import explain
from core.training.compatibility import describe_other_objective
from core.training.inputs import open_inputs
from core.training.recipe import Plan, plan
from core.workspace.workspace import Workspace

# A larger vocabulary leaves most tokens with too few occurrences to learn from.
_TOO_LARGE = 3.0
# For a hint no dataset is downloaded, and no documentation extracted.
_LOOKED_AT = ("files", "corpus")
_OF_STEPS = ("num_train_steps", "num_train_epochs", "per_replica_batch_size")


@dataclass(frozen=True)
class Explanation:
    """The automatic settings of a stage's config, and warnings about it."""

    settings: tuple[Setting, ...]
    warnings: tuple[PlanWarning, ...] = ()


def explain_automatic(stage: str, config: StageConfig, workspace: Workspace) -> Explanation:
    """Derives a stage's automatic settings without starting anything.

    Raises:
        StudioError: The text or the shards can't be read.
    """
    if isinstance(config, TrainConfig):
        return _of_training(stage, config, workspace)
    warnings = _of_algorithm(config) if isinstance(config, TokenizerConfig) else []
    corpus = getattr(config, "corpus", None)
    if not isinstance(corpus, CorpusConfig) or corpus.source not in _LOOKED_AT:
        return Explanation((), tuple(warnings))
    look = _look(corpus.model_dump_json(), _state_of(corpus), str(workspace.root))
    choices: dict[str, Choice] = {}
    if corpus.validation_percent is None and corpus.source != "corpus":
        size = None if corpus.limit else look.total_bytes
        choices["corpus.validation_percent"] = choose_validation_percent(size)
    if isinstance(config, TokenizerConfig) and look.letters is not None:
        fitting = choose_vocab_size(look.letters, look.alphabet)
        if config.vocab_size is None:
            choices["vocab_size"] = fitting
        elif config.vocab_size > _TOO_LARGE * fitting.value:
            warnings.append(_too_large(config.vocab_size, fitting))
    if isinstance(config, ShardConfig) and config.max_seq_length is None:
        choices["max_seq_length"] = choose_sequence_length(look.total_bytes)
    return Explanation(_settings(stage, choices), tuple(warnings))


def _of_algorithm(config: TokenizerConfig) -> list[PlanWarning]:
    if config.algorithm == "byte_level_bpe" or not runs_decoder(config.family):
        return []
    title = title_of_family(config.family)
    sentence = f"llama.cpp runs {title} only with a byte-level BPE tokenizer"
    return [PlanWarning(sentence, {"algorithm": "byte_level_bpe"})]


def _of_training(stage: str, config: TrainConfig, workspace: Workspace) -> Explanation:
    resolved, choices = explain(config, workspace)
    inputs = open_inputs(resolved, workspace)
    planned = plan(resolved, inputs.epoch_length, inputs.shards.row_length)
    warnings = []
    if planned.num_train_steps < LEAST_STEPS and not config.evaluate_only:
        warnings.append(few_steps(planned.num_train_steps, _more_steps(config, planned)))
    if len(inputs.validation_rows) < LEAST_VALIDATION_SEQUENCES:
        warnings.append(few_validation_sequences(len(inputs.validation_rows)))
    if misfit := describe_misfit(inputs.tokenizer, inputs.architecture.model_type):
        warnings.append(PlanWarning(misfit, {}))
    other, family = describe_other_objective(inputs.objective.name, inputs.shards.objective)
    if other:
        warnings.append(PlanWarning(other, {"family": family}))
    return Explanation(_settings(stage, choices), tuple(warnings))


def _more_steps(config: TrainConfig, planned: Plan) -> dict[str, Any]:
    """Makes the duration automatic again, or else gives it more time."""
    is_set = [name for name in _OF_STEPS if getattr(config, name) is not None]
    if is_set:
        return dict.fromkeys(is_set)
    return {"minutes": enough_minutes(planned.num_train_steps, config.minutes)}


def _settings(stage: str, choices: dict[str, Choice]) -> tuple[Setting, ...]:
    return tuple(
        Setting(stage, name, choice.value, choice.reason) for name, choice in choices.items()
    )


def _too_large(size: int, fitting: Choice) -> PlanWarning:
    return PlanWarning(
        f"A vocabulary of {size:,} tokens is large for this text: most tokens occur too rarely to "
        f"be learned. {fitting.value:,} suit it",
        {"vocab_size": None},
    )


@lru_cache(maxsize=32)
def _look(corpus: str, state: str, root: str) -> CorpusLook:
    """Keeps looks until a file changes: a form asks at every change of a field."""
    return look_at(CorpusConfig.model_validate_json(corpus), Workspace(root))


def _state_of(corpus: CorpusConfig) -> str:
    try:
        status = Path(corpus.path).stat()
    except (OSError, ValueError):
        return ""  # The text has its own check.
    return f"{status.st_size} {status.st_mtime_ns}"
