"""Descriptor of a model family: the facts about it that the rest of the library reads.

`core.models.families` holds one file per family. A descriptor imports no backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from core.models.architecture import Architecture
from core.models.config_format import ConfigFormat, Variant
from core.models.options import ModelOptions
from core.models.weight_mapping import WeightMapping

Values = Mapping[str, Any]
Size = Literal["tiny", "mini", "small", "medium", "base", "large"]
# Special tokens that a family may require; "eos" ends a text.
Role = Literal["mask", "pad", "eos", "sentinels"]

# (layers, hidden size) of BERT, with heads of 64 and a feed-forward layer of four times the hidden
# size. Source: https://github.com/google-research/bert#smaller-bert-models; for base and large
# https://arxiv.org/abs/1810.04805, section 3.
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
# Text and hardware of the Flax examples' results.
ON_OSCAR = "from scratch on Norwegian OSCAR on a TPU v3-8"
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Dimensions:
    """A published or scaled size; encoder-decoders have `layers` in each of the two."""

    layers: int
    width: int
    units: int
    heads: int


@dataclass(frozen=True)
class WriteUp:
    """The source of a preset's training hyperparameters, and its published result.

    `setting` names model, sequence length, vocabulary, text and hardware.
    """

    source: str
    setting: str
    command: str
    result: str


@dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
        name: Its `model_type` in transformers.
        title: Its name in text.
        architecture: Class of its dimensions, whose `kind` decides how inference runs it.
        sizes: Its sizes by name, smallest first.
        options: How the shared layers build a model from an architecture.
        weight_mapping: Mapping of all variables to tensors of Hugging Face's files.
        config_format: Its `config.json`.
        objectives: Objectives that it can train with, its default first.
        required_tokens: Special tokens that its tokenizer must have.
        padding_use: Why it needs a padding token, for errors; empty: it needs none.
        decoder_start: The special token that a decoder's input begins with.
        decoder_reads_masks: Whether an encoder-decoder fills masks, as encoders do, because its
            decoder reads the masked text, too.
        prompt_help: Help on writing a prompt; empty for encoders.
        learning_rate_factor: Factor on Muon's peak learning rate; the trials are in
            benchmarks/trials.md.
        variants: Other `model_type`s in transformers with the same architecture.
        body_prefix: Prefix of tensors outside the head, which files of the body alone omit.
        tied_heads: Names of a tied head's copies; empty: the head isn't tied.
        zero_tensors: Tensors (1, V) that transformers requires and that are always zero.
        tokenizer_presets: Overrides of the tokenizer's presets, by preset.
        train_presets: Overrides of the training presets, by preset.
        write_ups: Sources of the training presets, by preset. Without one, the preset is another
            family's.
        menu_position: Position in lists of families.
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
    padding_use: str = "because sequences are padded with it"
    decoder_start: Literal["pad", "eos"] | None = None
    decoder_reads_masks: bool = False
    prompt_help: str = ""
    learning_rate_factor: float = 1.0
    variants: Mapping[str, Variant] = field(default_factory=dict)
    body_prefix: str = ""
    tied_heads: tuple[str, ...] = ()
    zero_tensors: tuple[str, ...] = ()
    tokenizer_presets: Mapping[str, Values] = field(default_factory=dict)
    train_presets: Mapping[str, Values] = field(default_factory=dict)
    write_ups: Mapping[str, WriteUp] = field(default_factory=dict)
    menu_position: int = 100

    @property
    def kind(self) -> str:
        """Its kind: encoder, decoder or encoder-decoder."""
        return self.architecture.kind

    @property
    def fills_masks(self) -> bool:
        """True if it predicts masked tokens."""
        return self.kind == "encoder" or self.decoder_reads_masks


def like_bert(layers: int, width: int, units_per_width: float = 4) -> Dimensions:
    """Returns a size with heads of 64 and a feed-forward layer in proportion."""
    return Dimensions(layers, width, int(units_per_width * width), width // HEAD_SIZE)
