"""Heads of classifiers per family, as transformers defines them, and their tensors.

Source: transformers 5, the classes `…ForSequenceClassification` and `…ForTokenClassification`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from core.architecture.architecture import Architecture
from core.architecture.weight_mapping import WeightMapping, kernel
from core.errors import ConfigError
from core.families import title_of_family, weight_mappings
from core.models.configs import class_name

Kind = Literal["sequence", "token"]
Pooled = Literal["first", "last", "end", "eos"]

SUFFIXES: dict[Kind, str] = {
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
}
_PRETRAINED = re.compile(r"(ForMaskedLM|LMHeadModel|ForConditionalGeneration)$")
# The paths of the head's variables.
DENSE, OUTPUT = "classifier/dense", "classifier/output"


@dataclass(frozen=True)
class Head:
    """Layers between the hidden states and the logits.

    Attributes:
        output, dense: Names of the linear layers' tensors; no dense layer if empty.
        pooled: The position that represents a text; "last" is the last token that isn't padding,
            "end" the last one, "eos" the last end-of-sequence token.
        drops_input: Whether dropout precedes the dense layer.
        dropout: Rate; None: that of the model's hidden states.
        prefix: Precedes the names of the body's tensors.
        encoder_only: Whether an encoder-decoder's decoder is left out.
        keeps_head: Whether the head of masked language modelling is part of the classifier.
        offset: Name of a bias, without `prefix`, that is added to what the output layer reads; for
            output layers without a bias of their own.
    """

    output: str
    dense: str = ""
    pooled: Pooled = "first"
    has_bias: bool = True
    drops_input: bool = False
    dropout: float | None = None
    prefix: str = ""
    encoder_only: bool = False
    keeps_head: bool = False
    offset: str = ""


_MODERNBERT = Head("classifier", dropout=0.0, keeps_head=True)
_ENCODER_DECODER = Head(
    "classification_head.out_proj", "classification_head.dense", "eos", drops_input=True,
    dropout=0.0,
)  # fmt: skip
HEADS: dict[tuple[str, Kind], Head] = {
    ("roberta", "sequence"): Head("classifier.out_proj", "classifier.dense", drops_input=True),
    ("roberta", "token"): Head("classifier"),
    ("bert", "sequence"): Head("classifier", "bert.pooler.dense"),
    ("bert", "token"): Head("classifier"),
    ("modernbert", "sequence"): _MODERNBERT,
    ("modernbert", "token"): _MODERNBERT,
    ("gpt2", "sequence"): Head(
        "score", pooled="last", has_bias=False, dropout=0.0, offset="transformer.ln_f.bias"
    ),
    ("gpt2", "token"): Head("classifier", dropout=0.1),
    ("t5", "sequence"): replace(_ENCODER_DECODER, prefix="transformer."),
    ("t5", "token"): Head("classifier", dropout=0.0, prefix="transformer.", encoder_only=True),
    ("bart", "sequence"): _ENCODER_DECODER,
}


def find_head(architecture: Architecture, kind: Kind) -> Head:
    """Finds a family's head; raises ConfigError if transformers has none."""
    found = HEADS.get((architecture.model_type, kind))
    if found is None:
        known = [title_of_family(name) for name, one in HEADS if one == kind]
        title = title_of_family(architecture.model_type)
        raise ConfigError(
            f"{title} can't be fine-tuned for this task: transformers has no such class",
            expected=" or ".join(known),
            received=title,
            fix="choose a model of another family, or another task",
            field="model",
        )
    return found


def classifier_class(architecture: Architecture, kind: Kind) -> str:
    """Returns the class in transformers, such as BertForTokenClassification."""
    return _PRETRAINED.sub("", class_name(architecture)) + SUFFIXES[kind]


def body_mappings(architecture: Architecture, head: Head) -> Iterator[WeightMapping]:
    """Yields the mappings of a pretrained model's weights that a classifier keeps."""
    for one in weight_mappings(architecture):
        if _keeps(one.path, head):
            names = tuple(head.prefix + name for name in one.names)
            yield replace(one, names=names, alias=one.alias and head.prefix + one.alias)


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
