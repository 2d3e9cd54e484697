"""Descriptor of a model family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from core.architecture.architecture import Architecture
from core.architecture.config_format import ConfigFormat, Variant
from core.architecture.heads import Head, Kind
from core.architecture.options import ModelOptions
from core.architecture.weight_mapping import WeightMapping

Values = Mapping[str, Any]
Size = Literal[
    "tiny", "mini", "small", "medium", "base", "large", "135m", "360m", "0.6b", "1.1b", "1.7b"
]
Role = Literal["mask", "pad", "eos", "sentinels"]

# BERT's layers and hidden sizes: https://github.com/google-research/bert#smaller-bert-models,
# https://arxiv.org/abs/1810.04805
SIZES: dict[Size, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
HEAD_SIZE = 64

TPU_EXAMPLE = (
    "https://github.com/huggingface/transformers/tree/v4.57.0/"
    "examples/tensorflow/language-modeling-tpu"
)
FLAX_EXAMPLES = (
    "https://github.com/huggingface/transformers/tree/v4.57.0/examples/flax/language-modeling"
)
ON_OSCAR = "from scratch on Norwegian OSCAR on a TPU v3-8"
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Dimensions:
    """A size; encoder-decoders have twice the layers.

    Attributes:
        further: Values of the family's own dimensions.
    """

    layers: int
    width: int
    units: int
    heads: int
    further: Values = field(default_factory=dict)


@dataclass(frozen=True)
class WriteUp:
    """Source and published result of a preset."""

    source: str
    setting: str
    command: str
    result: str


@dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
        name: Its `model_type` in transformers.
        objectives: The default first.
        heads: Layers for fine-tuning, if transformers has classes for them.
        padding_use: Why it needs padding; empty: it doesn't.
        decoder_reads_masks: Whether an encoder-decoder fills masks.
        learning_rate_factor: For Muon; see benchmarks/trials.md.
        body_prefix: Omitted by files without head.
        tied_heads: Names of copies of a tied head.
        zero_tensors: Zeros (1, V) that transformers requires.
        gguf_architecture: llama.cpp's name; empty: it can't run the family.
    """

    name: str
    title: str
    architecture: type[Architecture]
    sizes: Mapping[Size, Dimensions]
    options: Callable[[Any], ModelOptions]
    weight_mapping: Callable[[Any], Iterator[WeightMapping]]
    config_format: ConfigFormat
    objectives: tuple[str, ...]
    required_tokens: tuple[Role, ...]
    heads: Mapping[Kind, Head] = field(default_factory=dict)
    padding_use: str = "because sequences are padded with it"
    decoder_start: Literal["pad", "eos"] | None = None
    decoder_reads_masks: bool = False
    prompt_help: str = ""
    learning_rate_factor: float = 1.0
    variants: Mapping[str, Variant] = field(default_factory=dict)
    body_prefix: str = ""
    tied_heads: tuple[str, ...] = ()
    zero_tensors: tuple[str, ...] = ()
    gguf_architecture: str = ""
    tokenizer_presets: Mapping[str, Values] = field(default_factory=dict)
    train_presets: Mapping[str, Values] = field(default_factory=dict)
    write_ups: Mapping[str, WriteUp] = field(default_factory=dict)
    menu_position: int = 100

    @property
    def kind(self) -> str:
        return self.architecture.kind

    @property
    def fills_masks(self) -> bool:
        return self.kind == "encoder" or self.decoder_reads_masks


def like_bert(layers: int, width: int, units_per_width: float = 4) -> Dimensions:
    """Returns a size with heads of 64."""
    return Dimensions(layers, width, int(units_per_width * width), width // HEAD_SIZE)
