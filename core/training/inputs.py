"""Opens and checks a run's inputs before a backend is imported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.artifacts.finding import find_here, find_model
from core.config.options import settled
from core.config.train import TrainConfig, with_usual_values
from core.errors import ConfigError, StudioError
from core.families import families_of_objective, find_family, objectives_of_family
from core.hub.client import parse_hub_id
from core.messages.mentions import render
from core.models.hf import read_architecture
from core.models.registry import check_family, padding_id, resolve_architecture
from core.objectives.objective import MEAN_NOISE_SPAN_LENGTH, Objective, ObjectiveSettings
from core.objectives.registry import create_objective, stored_sequence_length
from core.objectives.span_corruption import SpanCorruption
from core.records.events import Reporter
from core.shards.layout import with_noise
from core.shards.read import Shards
from core.tokenizer.llama_cpp import describe_misfit
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.vocabulary import check_suits, vocabulary_of
from core.tokenizer.vocabulary_files import differing_tokens
from core.training.batches import SequenceSource, TolerantSequences
from core.training.compatibility import LAID_OUT_ALIKE, check_layout, describe_other_objective
from core.training.sources import TrainingSources, open_sources
from core.workspace.manifests import MANIFEST_FILE, read_manifest
from core.workspace.workspace import Workspace

# Without effect if a checkpoint is named.
_DIMENSIONS = (
    "model_config_path",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
)


@dataclass(frozen=True)
class TrainingInputs:
    """Compatible inputs; `eval_objective` has published settings, for comparable runs."""

    sources: TrainingSources
    tokenizer: StudioTokenizer
    architecture: Architecture
    objective: Objective
    eval_objective: Objective
    checkpoint: Path | None

    @property
    def shards(self) -> Shards:
        """The shards; of a mixture the first, as all are laid out alike."""
        return self.sources.first.shards

    @property
    def train_rows(self) -> SequenceSource:
        return self.sources.train_rows

    @property
    def validation_rows(self) -> SequenceSource:
        return self.sources.validation_rows

    @property
    def epoch_length(self) -> int:
        """Training sequences per epoch."""
        return self.sources.epoch_length

    @property
    def token_counts(self) -> NDArray[np.int64]:
        """Counts by id in one epoch, int64 (vocab_size,)."""
        return self.sources.token_counts(self.tokenizer.vocab_size)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Approximate label counts by id, int64 (vocab_size,)."""
        counts, objective = self.token_counts, self.eval_objective
        if isinstance(objective, SpanCorruption):
            counts = objective.label_counts(counts, self.sources.counted_sequences)
        return counts

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints by input."""
        return {**self.sources.fingerprints, "tokenizer": self.tokenizer.fingerprint}


def open_inputs(
    config: TrainConfig,
    workspace: Workspace,
    reporter: Reporter | None = None,
    *,
    resumed: bool = False,
    own: Path | None = None,
) -> TrainingInputs:
    """Opens a run's inputs and refuses incompatible ones.

    Args:
        resumed: Skip the check against family and checkpoint.
        own: This run's checkpoint, which defines the model.

    Raises:
        ConfigError: An input is missing or contradicts another.
        ShardError, TokenizerError, CheckpointError: A file can't be read.
    """
    sources = open_sources(config, workspace, reporter)
    shards = sources.first.shards
    tokenizer = _open_tokenizer(config, shards, workspace)
    for source in sources.all:
        _check_vocabulary(source.shards, tokenizer)
    if not sources.is_mixture:  # Its sources were checked when they were opened.
        _check_validation(shards)
    checkpoint = None
    if config.checkpoint:
        checkpoint = own or find_model(
            config.checkpoint, workspace, field="checkpoint", reporter=reporter
        )
    if config.evaluate_only and checkpoint is None:
        raise ConfigError(
            "⟬evaluate_only⟭ needs a checkpoint",
            expected="a model's name in the workspace, its folder, or its Hub id",
            received="⟬evaluate_only⟭ without ⟬checkpoint⟭",
            fix="set ⟬checkpoint⟭ to the model to evaluate",
            field="checkpoint",
        )
    architecture = _architecture(config, shards, tokenizer, checkpoint, reporter)
    if not resumed:
        check_family(config, architecture)
        if checkpoint is not None:
            _check_no_other_dimensions(config, architecture)
    check_suits(tokenizer, architecture.model_type)
    objective, eval_objective = _objectives(config, shards, tokenizer, architecture.model_type)
    if reporter and not resumed and not config.evaluate_only:
        other, _ = describe_other_objective(objective.name, shards.objective)
        misfit = describe_misfit(tokenizer, architecture.model_type)
        for sentence in filter(None, (other, misfit)):
            reporter.warn(f"{render(sentence)}.")
    return TrainingInputs(
        sources=sources,
        tokenizer=tokenizer,
        architecture=architecture,
        objective=objective,
        eval_objective=eval_objective,
        checkpoint=checkpoint,
    )


def with_architecture(inputs: TrainingInputs, config: TrainConfig) -> TrainingInputs:
    """Returns opened inputs for a config that differs in the model's size; raises ConfigError."""
    architecture = _architecture(config, inputs.shards, inputs.tokenizer, None)
    check_family(config, architecture)
    return replace(inputs, architecture=architecture)


def tolerate_damage(
    rows: SequenceSource, config: TrainConfig, inputs: TrainingInputs, reporter: Reporter
) -> SequenceSource:
    """Returns sequences whose damaged records are skipped with a warning, if the config says so."""
    if config.damaged_records == "stop":
        return rows

    def report(count: int, problem: str) -> None:
        reporter.warn(f"Skipped a record, {count} so far: {problem}", alert="damaged_record")

    return TolerantSequences(rows, int(inputs.tokenizer.special_ids[0]), report)


def resolve_checkpoint(config: TrainConfig, workspace: Workspace) -> TrainConfig:
    """Makes a path absolute that could mean a Hub id elsewhere."""
    folder = find_here(config.checkpoint, workspace)
    if folder is None or parse_hub_id(config.checkpoint) is None:
        return config
    return config.model_copy(update={"checkpoint": str(folder.absolute())})


def _open_tokenizer(config: TrainConfig, shards: Shards, workspace: Workspace) -> StudioTokenizer:
    if not config.tokenizer and shards.tokenizer_folder is None:
        raise ConfigError(
            f"The shards {shards.path} have no copy of their tokenizer",
            expected="the tokenizer that built them",
            fix="set ⟬tokenizer⟭ to the one that built the shards",
            field="tokenizer",
        )
    return load(config.tokenizer or str(shards.tokenizer_folder), workspace)


def _check_vocabulary(shards: Shards, tokenizer: StudioTokenizer) -> None:
    made_with = shards.tokenizer_fingerprint
    if made_with and made_with != tokenizer.fingerprint:
        raise ConfigError(
            "The shards were built with another tokenizer",
            expected=f"the tokenizer {made_with}, which built {shards.path.name}",
            received=f"the tokenizer {tokenizer.fingerprint} ({tokenizer.reference})",
            fix="leave ⟬tokenizer⟭ empty to use the copy in the shards folder, or build shards "
            "with this tokenizer",
            field="tokenizer",
        )
    if not made_with and shards.vocab_size > tokenizer.vocab_size:
        raise ConfigError(
            "The shards contain token ids outside the tokenizer's vocabulary",
            expected=f"ids below {tokenizer.vocab_size}, the vocabulary of {tokenizer.reference}",
            received=f"ids up to {shards.vocab_size - 1} in {shards.path.name}",
            fix="set ⟬tokenizer⟭ to the one that built these shards",
            field="tokenizer",
        )


def _check_validation(shards: Shards) -> None:
    if not len(shards.validation):
        raise ConfigError(
            f"The shards {shards.path.name} have no validation sequences",
            expected="at least one validation sequence, to measure the model",
            fix="build shards from more text, with a larger ⟬validation_percent⟭, or with "
            "⟬split=all⟭",
            field="shards",
        )


def _architecture(
    config: TrainConfig,
    shards: Shards,
    tokenizer: StudioTokenizer,
    checkpoint: Path | None,
    reporter: Reporter | None = None,
) -> Architecture:
    if checkpoint is not None:
        return _checkpoint_architecture(config, shards, tokenizer, checkpoint, reporter)
    return resolve_architecture(
        config,
        vocab_size=tokenizer.vocab_size,
        row_length=shards.row_length,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.cls_id,
        eos_id=tokenizer.sep_id,
    )


def objective_name(config: TrainConfig, family: str) -> str:
    """Resolves a family's objective; raises ConfigError."""
    own = objectives_of_family(family)
    if config.objective == "auto":
        return own[0]
    if config.objective not in own:
        raise ConfigError(
            f"The family {family} can't train with the objective ⟬objective:{config.objective}⟭",
            expected=" or ".join(f"⟬objective:{name}⟭" for name in own)
            + f" with {family}, or one of the families "
            + ", ".join(families_of_objective(config.objective)),
            received=f"⟬objective:{config.objective}⟭ with {family}",
            fix="set ⟬objective⟭ to auto, or choose another family",
            field="objective",
        )
    return config.objective


def objective_settings(config: TrainConfig, max_seq_length: int) -> ObjectiveSettings:
    """Returns the settings of an objective."""
    config = with_usual_values(config)
    return ObjectiveSettings(
        max_seq_length=max_seq_length,
        mlm_probability=config.mlm_probability,
        whole_word_mask=config.whole_word_mask,
        intra_document_masking=settled(config.intra_document_masking),
        mean_noise_span_length=config.mean_noise_span_length or MEAN_NOISE_SPAN_LENGTH,
        poisson_lambda=config.poisson_lambda,
        permute_sentence_ratio=config.permute_sentence_ratio,
    )


def _objectives(
    config: TrainConfig, shards: Shards, tokenizer: StudioTokenizer, family: str
) -> tuple[Objective, Objective]:
    name = objective_name(config, family)
    check_layout(name, shards.objective, shards.path.name)
    settings = replace(
        objective_settings(config, shards.max_seq_length), line_by_line=shards.line_by_line
    )
    if name in LAID_OUT_ALIKE:
        settings = replace(settings, max_seq_length=shards.row_length)
    published = ObjectiveSettings(
        settings.max_seq_length,
        line_by_line=settings.line_by_line,
        intra_document_masking=settings.intra_document_masking,
    )
    if name == "span_corruption":
        published = with_noise(published, *shards.noise)
        settings = _noise_that_fits(config, shards, published)
    vocabulary = vocabulary_of(tokenizer)
    return (
        create_objective(name, settings, vocabulary),
        create_objective(name, published, vocabulary),
    )


def _noise_that_fits(
    config: TrainConfig, shards: Shards, laid_out: ObjectiveSettings
) -> ObjectiveSettings:
    density, length = config.mlm_probability, config.mean_noise_span_length
    asked = with_noise(
        laid_out,
        laid_out.mlm_probability if density is None else density,
        laid_out.mean_noise_span_length if length is None else length,
    )
    needed = stored_sequence_length("span_corruption", asked)
    if needed != shards.row_length:
        field = "mean_noise_span_length" if density is None else "mlm_probability"
        raise ConfigError(
            f"The shards {shards.path.name} were built with other masking settings",
            expected=f"sequences of {needed} tokens, which give {asked.max_seq_length} encoder "
            "inputs",
            received=f"sequences of {shards.row_length} tokens",
            fix=f"leave ⟬{field}⟭ empty, or build shards with the same ⟬{field}⟭",
            field=field,
        )
    return asked


def _checkpoint_architecture(
    config: TrainConfig,
    shards: Shards,
    tokenizer: StudioTokenizer,
    checkpoint: Path,
    reporter: Reporter | None,
) -> Architecture:
    architecture = read_architecture(checkpoint)
    pad_id = padding_id(architecture.model_type, tokenizer.pad_id, tokenizer.sep_id)
    if not find_family(architecture.model_type).padding_use and pad_id is not None:
        architecture = replace(architecture, pad_token_id=pad_id)
    for name, ours, theirs, fits in (
        ("vocabulary size", tokenizer.vocab_size, architecture.vocab_size, int.__le__),
        ("padding token", pad_id, architecture.pad_token_id, int.__eq__),
        ("positions", shards.max_seq_length, architecture.max_seq_length, int.__le__),
    ):
        if ours is None or not fits(ours, theirs):
            raise ConfigError(
                f"The checkpoint {checkpoint} doesn't fit the shards",
                expected=f"{name}: {ours}",
                received=f"{name}: {theirs}",
                fix="choose a checkpoint that was trained with this tokenizer and sequence length",
                field="checkpoint",
            )
    _check_tokens(shards, tokenizer, checkpoint, reporter)
    return replace(
        architecture,
        hidden_dropout_prob=config.hidden_dropout_prob or 0.0,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob or 0.0,
    )


def _check_no_other_dimensions(config: TrainConfig, architecture: Architecture) -> None:
    for name in _DIMENSIONS:
        wanted, own = getattr(config, name), getattr(architecture, name, None)
        if wanted and wanted != own:
            raise ConfigError(
                f"⟬{name}⟭ contradicts the checkpoint, which sets the model's dimensions",
                expected=f"no ⟬{name}⟭" + (f", or {own}" if own else ""),
                received=f"⟬{name}={wanted}⟭",
                fix=f"leave ⟬{name}⟭ empty, or leave ⟬checkpoint⟭ empty to train from scratch",
                field=name,
            )


def _check_tokens(
    shards: Shards, tokenizer: StudioTokenizer, checkpoint: Path, reporter: Reporter | None
) -> None:
    """Compares tokens: a decoder's tokenizer file adds no end token."""
    learned_with = _tokenizer_of(checkpoint)
    if learned_with == tokenizer.fingerprint:
        return
    differing = differing_tokens(checkpoint, tokenizer)
    if differing == 0:
        return
    if differing is None and not learned_with:
        if reporter:
            reporter.note(
                f"The checkpoint {checkpoint} has no tokenizer to compare with that of the shards"
            )
        return
    tokens = "" if differing is None else f"; {differing:,} of the shards' tokens have other ids"
    raise ConfigError(
        f"The checkpoint {checkpoint} was trained with another tokenizer",
        expected=f"weights trained with the tokenizer {tokenizer.fingerprint}, which built "
        f"{shards.path.name}",
        received=f"weights trained with the tokenizer {learned_with or 'beside them'}{tokens}",
        fix="choose a checkpoint that was trained with this tokenizer, or build shards with the "
        f"one in {checkpoint}",
        field="checkpoint",
    )


def _tokenizer_of(checkpoint: Path) -> str:
    if not (checkpoint / MANIFEST_FILE).is_file():
        return ""
    try:
        return read_manifest(checkpoint).inputs.get("tokenizer", "")
    except StudioError:
        return ""  # Other programs also have files of this name.
