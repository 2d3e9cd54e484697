"""Reads and writes fine-tuned models in Hugging Face's format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.architecture.config_format import first_id
from core.architecture.heads import SUFFIXES, Head, Kind
from core.architecture.weight_mapping import WeightMapping
from core.errors import CheckpointError, ConfigError, CorpusError, StudioError
from core.finetuning.heads import body_mappings, classifier_class, find_head, head_mappings
from core.finetuning.labels import LONGEST_LABEL, MOST_LABELS
from core.foreign_files import read_json
from core.messages.values import shown
from core.models import hf
from core.models.configs import head_kind
from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.roles import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from core.tokenizer.roles import name_segments
from core.workspace.manifests import read_manifest

Weights = Mapping[str, NDArray[np.float32]]
ScoreFunction = Literal["softmax", "sigmoid", "none"]

_MOST_CONFIG_BYTES = 4 << 20
_REGRESSION, _MULTI_LABEL = "regression", "multi_label_classification"
# The name that transformers gives to the only output of a model without names.
_UNNAMED = ("LABEL_0",)


@dataclass(frozen=True)
class ClassifierConfig:
    """Describes what a fine-tuned model predicts.

    Attributes:
        labels: Names of the classes or numbers; empty for a number without a name.
        problem_type: That of `config.json`; empty: it follows from the labels.
        has_padding: Whether `config.json` names a padding token.
    """

    architecture: Architecture
    kind: Kind
    labels: tuple[str, ...]
    problem_type: str = ""
    has_padding: bool = True

    @property
    def head(self) -> Head:
        head = find_head(self.architecture, self.kind)
        if head.pooled == "last" and not self.has_padding:
            # The substitute for it may be a token of the text.
            return replace(head, pooled="end")
        return head

    @property
    def outputs(self) -> int:
        return len(self.labels) or 1

    @property
    def score_function(self) -> ScoreFunction:
        """The function that turns logits into scores.

        Source: transformers 5, TextClassificationPipeline.postprocess
        """
        if self.kind == "token":
            return "softmax"
        if self.problem_type == _REGRESSION or not self.labels:
            return "none"
        is_sigmoid = self.problem_type == _MULTI_LABEL or len(self.labels) == 1
        return "sigmoid" if is_sigmoid else "softmax"

    def values(self) -> dict[str, Any]:
        """Returns the values of `config.json`."""
        values = hf.config_values(self.architecture)
        values["architectures"] = [classifier_class(self.architecture, self.kind)]
        names = self.labels or _UNNAMED
        values["id2label"] = {str(number): name for number, name in enumerate(names)}
        values["label2id"] = {name: number for number, name in enumerate(names)}
        if self.kind == "sequence":
            kind = "single_label_classification" if self.labels else _REGRESSION
            values["problem_type"] = self.problem_type or kind
        if self.head.pooling_field:
            values[self.head.pooling_field] = "cls"
        values["classifier_dropout"] = self.head.dropout
        return values


def write_classifier(folder: Path, weights: Weights, config: ClassifierConfig) -> None:
    """Writes `config.json` and `model.safetensors`; weights are named by variable path."""
    from safetensors.numpy import save_file

    architecture, head = config.architecture, config.head
    mappings = [
        *body_mappings(architecture, head),
        *head_mappings(architecture, head, config.outputs),
    ]
    write_classifier_config(folder, config)
    tensors = hf.tensors_of(weights, mappings)
    save_file(tensors, folder / hf.WEIGHTS_FILE, metadata={"format": "pt"})


def write_classifier_config(folder: Path, config: ClassifierConfig) -> None:
    """Writes `config.json`."""
    (folder / hf.CONFIG_FILE).write_bytes(_encoded(config))


def check_loadable(config: ClassifierConfig) -> None:
    """Raises CorpusError if a model with these labels could be written but not read."""
    names, size = config.labels, len(_encoded(config))
    if not names or (_are_labels(names) and size <= _MOST_CONFIG_BYTES):
        return
    longest = max(map(len, names))
    raise CorpusError(
        "A model with these labels couldn't be loaded again",
        expected=f"at most {MOST_LABELS:,} labels of at most {LONGEST_LABEL} characters, and a "
        f"{hf.CONFIG_FILE} of at most {_MOST_CONFIG_BYTES:,} bytes",
        received=f"{len(names):,} labels of at most {longest:,} characters, and {size:,} bytes",
        fix="shorten the labels, or merge rare ones",
        field="label_column",
    )


def _encoded(config: ClassifierConfig) -> bytes:
    """Returns the content of `config.json`."""
    return (json.dumps(config.values(), indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def write_tokenizer(
    folder: Path, tokenizer: StudioTokenizer, *, segments: bool, longest: int | None = None
) -> None:
    """Copies the tokenizer.

    Args:
        segments: Whether transformers passes token type ids to the model.
        longest: Length at which texts are cut.
    """
    tokenizer.copy_to(folder, longest=longest)
    if segments:
        name_segments(folder / TOKENIZER_CONFIG_FILE)


def trained_length(folder: Path) -> int | None:
    """Returns the most tokens of a text in fine-tuning, if a manifest tells."""
    try:
        length = read_manifest(folder).config.get("max_seq_length")
    except StudioError:
        return None
    return length if isinstance(length, int) and length > 0 else None


def is_classifier(folder: Path) -> bool:
    """Returns whether a folder has a fine-tuned model."""
    return hf.find_head_kind(folder) is not None


def read_classifier_config(folder: Path) -> ClassifierConfig:
    """Reads what a fine-tuned model predicts.

    Raises:
        CheckpointError: The file is missing or damaged.
        ConfigError: The model isn't fine-tuned, or not supported.
    """
    architecture, values = hf.read_architecture(folder), _read_values(folder)
    kind = head_kind(values)
    if kind is None:
        raise ConfigError(
            f"The model in {folder} isn't fine-tuned for classification",
            expected=" or ".join(f"a model …{suffix}" for suffix in SUFFIXES.values()),
            received=shown(values.get("architectures")),
            fix="fine-tune it first: python -m core finetune",
            field="model",
        )
    pooling = find_head(architecture, kind).pooling_field if kind == "sequence" else ""
    if pooling and values.get(pooling, "cls") != "cls":
        raise ConfigError(
            f"The classifier in {folder} pools in an unsupported way",
            expected=f"{pooling}: cls",
            received=shown(values[pooling]),
            fix="use another model",
            field="model",
        )
    labels, problem_type = _labels(values, folder), str(values.get("problem_type") or "")
    is_plain = kind == "sequence" and problem_type == _REGRESSION and labels == _UNNAMED
    pad = first_id(values.get("pad_token_id"))
    has_padding = pad is not None and pad < architecture.vocab_size
    names = () if is_plain else labels
    return ClassifierConfig(architecture, kind, names, problem_type, has_padding)


def read_classifier_weights(folder: Path, config: ClassifierConfig) -> Weights:
    """Reads all weights of a fine-tuned model, float32, by variable path."""
    head = config.head
    mappings = [
        *body_mappings(config.architecture, head),
        *head_mappings(config.architecture, head, config.outputs),
    ]
    return hf.read_weights(folder, config.architecture, mappings)


def read_body_weights(folder: Path, architecture: Architecture, head: Head) -> Weights:
    """Reads the weights of any model that a classifier starts from.

    Without those of a language-model head that the model lacks.
    """
    mappings = list(body_mappings(architecture, head))
    return hf.read_weights(folder, architecture, mappings, optional=_of_head(mappings))


def begins_without_head(weights: Weights, architecture: Architecture, head: Head) -> bool:
    """Returns whether a part of the head that is to be kept has no weights."""
    wanted = _of_head(body_mappings(architecture, head))
    return any(mapping.path not in weights for mapping in wanted)


def _of_head(mappings: Iterable[WeightMapping]) -> list[WeightMapping]:
    return [mapping for mapping in mappings if "lm_head" in mapping.path.split("/")]


def _read_values(folder: Path) -> dict[str, Any]:
    values = read_json(folder / hf.CONFIG_FILE, _MOST_CONFIG_BYTES)
    return values if isinstance(values, dict) else {}


def _labels(values: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    labels = values.get("id2label")
    if labels is None:
        count = values.get("num_labels", 2)
        is_count = isinstance(count, int) and 1 <= count <= MOST_LABELS
        labels = {str(number): f"LABEL_{number}" for number in range(count)} if is_count else count
    names = [labels.get(str(number)) for number in range(len(labels))] if _is_small(labels) else []
    if not _are_labels(names):
        raise CheckpointError(
            f"The classes in the config of {folder} can't be read",
            expected=f'id2label: {{"0": "first", …}}, at most {MOST_LABELS:,} short names',
            received=shown(labels),
            fix="copy or download the model again",
        )
    return tuple(map(str, names))


def _are_labels(names: Sequence[Any]) -> bool:
    return 1 <= len(names) <= MOST_LABELS and all(
        isinstance(name, str) and len(name) <= LONGEST_LABEL for name in names
    )


def _is_small(labels: Any) -> bool:
    return isinstance(labels, dict) and 1 <= len(labels) <= MOST_LABELS
