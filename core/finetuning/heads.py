"""Finds the heads that families declare, and maps the tensors of classifiers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from core.architecture.architecture import Architecture
from core.architecture.heads import SUFFIXES, Head, Kind
from core.architecture.weight_mapping import WeightMapping, kernel
from core.errors import ConfigError
from core.families import find_family, list_families, weight_mappings
from core.models.configs import class_name

_PRETRAINED = re.compile(r"(For(MaskedLM|CausalLM|ConditionalGeneration)|LMHeadModel)$")
# The paths of the head's variables.
DENSE, OUTPUT = "classifier/dense", "classifier/output"


def find_head(architecture: Architecture, kind: Kind) -> Head:
    """Finds a family's head; raises ConfigError if transformers has none."""
    family = find_family(architecture.model_type)
    head = family.heads.get(kind)
    if head is None:
        titles = [other.title for other in list_families() if kind in other.heads]
        raise ConfigError(
            f"{family.title} can't be fine-tuned for this task: transformers has no such class",
            expected=" or ".join(titles),
            received=family.title,
            fix="choose a model of another family, or another task",
            field="model",
        )
    return head


def classifier_class(architecture: Architecture, kind: Kind) -> str:
    """Returns the class in transformers, such as BertForTokenClassification."""
    return _PRETRAINED.sub("", class_name(architecture)) + SUFFIXES[kind]


def body_mappings(architecture: Architecture, head: Head) -> Iterator[WeightMapping]:
    """Yields the mappings of a pretrained model's weights that a classifier keeps."""
    for mapping in weight_mappings(architecture):
        if _keeps(mapping.path, head):
            names = tuple(head.prefix + name for name in mapping.names)
            alias = mapping.alias and head.prefix + mapping.alias
            yield replace(mapping, names=names, alias=alias)


def head_mappings(architecture: Architecture, head: Head, outputs: int) -> Iterator[WeightMapping]:
    """Yields the mappings of the layers that fine-tuning adds."""
    width = architecture.hidden_size
    layers = [(OUTPUT, head.output, outputs, head.has_bias)]
    if head.dense:
        layers.insert(0, (DENSE, head.dense, width, True))
    for ours, theirs, units, has_bias in layers:
        yield kernel(ours, (theirs,), width, units)
        if has_bias:
            yield WeightMapping(f"{ours}/bias", (units,), (f"{theirs}.bias",))


def _keeps(path: str, head: Head) -> bool:
    parts = path.split("/")
    if "lm_head" in parts:
        return head.keeps_head and parts[-1] != "bias"
    return not (head.encoder_only and parts[1].startswith("decoder"))
