"""Model sizes, architectures from training configs, parameter counts and model classes.

Imports no backend before `create_model` is called.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from core.config import Size, TrainConfig, changed_values
from core.errors import CheckpointError, ConfigError
from core.models.architecture import (
    ARCHITECTURES,
    Architecture,
    EncoderDecoderArchitecture,
    T5Architecture,
)
from core.models.configs import family_class_name
from core.models.hf import read_architecture
from core.models.names import weight_mappings

if TYPE_CHECKING:
    from core.models.head import LanguageModel

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
_HEAD_SIZE = 64


@dataclass(frozen=True)
class Dimensions:
    """A published or scaled size; encoder-decoders have `layers` in each of the two."""

    layers: int
    width: int
    units: int
    heads: int


def _like_bert(layers: int, width: int, units_per_width: float = 4) -> Dimensions:
    return Dimensions(layers, width, int(units_per_width * width), width // _HEAD_SIZE)


_BERT_SIZES = {size: _like_bert(*dimensions) for size, dimensions in SIZES.items()}
# Published sizes:
# gpt2: gpt2, -medium and -large (Radford et al., table 2); medium is larger than base.
# t5: google/t5-v1_1-small, -base and -large; none lies between small and base.
# bart: facebook/bart-base and -large (https://arxiv.org/abs/1910.13461, section 2).
# modernbert: base and large (https://arxiv.org/abs/2412.13663, table 4).
# The others scale BERT's miniatures.
FAMILY_SIZES: dict[str, dict[Size, Dimensions]] = {
    "roberta": _BERT_SIZES,
    "bert": _BERT_SIZES,
    "modernbert": {
        "tiny": _like_bert(2, 128, 1.5),
        "mini": _like_bert(4, 256, 1.5),
        "small": _like_bert(4, 512, 1.5),
        "medium": _like_bert(8, 512, 1.5),
        "base": _like_bert(22, 768, 1.5),
        "large": Dimensions(28, 1024, 2624, 16),
    },
    "gpt2": {
        "tiny": _like_bert(2, 128),
        "mini": _like_bert(4, 256),
        "small": _like_bert(4, 512),
        "base": _like_bert(12, 768),
        "medium": _like_bert(24, 1024),
        "large": _like_bert(36, 1280),
    },
    "t5": {
        "tiny": _like_bert(2, 128, 2),
        "mini": _like_bert(4, 256, 2),
        "small": Dimensions(8, 512, 1024, 6),
        "base": Dimensions(12, 768, 2048, 12),
        "large": Dimensions(24, 1024, 2816, 16),
    },
    "bart": {
        "tiny": _like_bert(1, 128),
        "mini": _like_bert(2, 256),
        "small": _like_bert(2, 512),
        "medium": _like_bert(4, 512),
        "base": _like_bert(6, 768),
        "large": _like_bert(12, 1024),
    },
}


def resolve_architecture(
    config: TrainConfig,
    *,
    vocab_size: int,
    row_length: int,
    pad_id: int | None,
    bos_id: int | None = None,
    eos_id: int | None = None,
) -> Architecture:
    """Derives an architecture from a training config, a tokenizer and the sequence length.

    Vocabulary size and special ids come from the tokenizer, never from a `config.json`.

    Args:
        config: Size or `model_config_path`, and overrides.
        vocab_size: The tokenizer's highest id plus one.
        row_length: Sequence length in tokens.

    Raises:
        ConfigError: The family has no such size, dimensions conflict, sequences exceed the
            positions, the tokenizer lacks a token, or the `config.json` is unusable. `field` names
            the setting.
    """
    start = _from_file(config) if config.model_config_path else _from_size(config)
    special = _special_ids(start.model_type, pad_id, bos_id, eos_id)
    _check_ids(special, vocab_size)
    given = start.max_seq_length if config.model_config_path else row_length
    if isinstance(start, T5Architecture):
        given = start.max_position_embeddings or row_length
    positions = config.max_position_embeddings or given
    placed = replace(_override(start, config), vocab_size=vocab_size, **special)
    architecture = replace(placed, max_position_embeddings=positions + placed.first_position)
    _check_heads(architecture)
    _check_positions(architecture, row_length)
    return architecture


def check_family(config: TrainConfig, architecture: Architecture) -> None:
    """Refuses a model of a family other than the one whose defaults the preset used.

    Raises:
        ConfigError: With `field="family"`.
    """
    if architecture.model_type == config.family:
        return
    what = "checkpoint" if config.checkpoint else "model config"
    raise ConfigError(
        f"The {what} is of another family",
        expected=f"family {config.family}",
        received=f"{architecture.model_type} in {config.checkpoint or config.model_config_path}",
        fix=f"set family to {architecture.model_type}, or take another {what}",
        field="family",
    )


def size_of(architecture: Architecture) -> Size | None:
    """Finds the size with an architecture's number of layers and hidden size."""
    for size, found in FAMILY_SIZES[architecture.model_type].items():
        if (found.layers, found.width) == (
            architecture.num_hidden_layers,
            architecture.hidden_size,
        ):
            return size
    return None


def count_parameters(architecture: Architecture) -> int:
    """Counts the trainable parameters without building the model.

    Layers from the third on have equal sizes, so the time is independent of their number.
    """

    def counted(layers: dict[str, Any]) -> int:
        return sum(math.prod(tie.shape) for tie in weight_mappings(replace(architecture, **layers)))

    names = [
        name for name in ("num_hidden_layers", "num_decoder_layers") if hasattr(architecture, name)
    ]
    few: dict[str, Any] = {name: min(getattr(architecture, name), 2) for name in names}
    total = counted(few)
    for name in names:
        if further := getattr(architecture, name) - few[name]:
            total += further * (counted({**few, name: 3}) - counted(few))
    return total


def padding_id(family: str, pad_id: int | None, eos_id: int | None) -> int | None:
    """Returns the tokenizer's padding token; GPT-2 needs none, as padding is never attended to."""
    if pad_id is None and family == "gpt2":
        return eos_id or 0
    return pad_id


def create_model(
    architecture: Architecture, *, seed: int, dtype_policy: str = "float32", remat: bool = False
) -> LanguageModel:
    """Builds and initialises a model.

    Args:
        seed: Seed of the initialisation (equal on all backends) and the dropout.
        dtype_policy: float32, mixed_bfloat16 or bfloat16.
        remat: Checkpoint each layer: save only its inputs for gradients and recompute the rest.
    """
    family = import_module(f"core.models.{architecture.model_type}")
    kind = getattr(family, family_class_name(architecture).replace("GPT2", "Gpt2"))
    return kind(architecture, seed=seed, dtype=dtype_policy, remat=remat)


def _from_size(config: TrainConfig) -> Architecture:
    sizes = FAMILY_SIZES[config.family]
    if config.size not in sizes:
        raise ConfigError(
            f"There is no {config.family} of size {config.size}",
            expected=", ".join(sizes),
            received=config.size,
            fix="choose one of these, or set num_hidden_layers and hidden_size besides",
            field="size",
        )
    found = sizes[config.size]
    halves: dict[str, Any] = {}
    kind = ARCHITECTURES[config.family]
    if issubclass(kind, EncoderDecoderArchitecture):
        halves["num_decoder_layers"] = found.layers
    return kind(
        vocab_size=0,
        hidden_size=found.width,
        num_hidden_layers=found.layers,
        num_attention_heads=found.heads,
        intermediate_size=found.units,
        max_position_embeddings=0,
        pad_token_id=0,
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        **halves,
    )


def _from_file(config: TrainConfig) -> Architecture:
    """Reads a `config.json`.

    Its dropout applies unless the config differs from its preset, or the preset is `fast`, which
    isn't a published one and uses no dropout.
    """
    try:
        architecture = read_architecture(config.model_config_path)
    except CheckpointError as error:
        raise ConfigError(
            error.problem,
            expected=error.expected,
            received=error.received,
            fix="check the path, or choose a size instead",
            field="model_config_path",
        ) from error
    changed = changed_values(config)
    if "family" in changed:
        check_family(config, architecture)
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    wanted = [name for name in names if name in changed or config.preset == "fast"]
    return replace(architecture, **{name: getattr(config, name) for name in wanted})


def _override(start: Architecture, config: TrainConfig) -> Architecture:
    width = config.hidden_size or start.hidden_size
    rewidened = width != start.hidden_size
    heads = _derive_heads(width, start.model_type) if rewidened else start.num_attention_heads
    units = round(start.intermediate_size * width / start.hidden_size)
    changed = replace(
        start,
        hidden_size=width,
        num_hidden_layers=config.num_hidden_layers or start.num_hidden_layers,
        num_attention_heads=config.num_attention_heads or heads,
        intermediate_size=config.intermediate_size or units,
    )
    if isinstance(changed, EncoderDecoderArchitecture) and config.num_hidden_layers:
        changed = replace(changed, num_decoder_layers=config.num_hidden_layers)
    if isinstance(changed, T5Architecture) and width < _HEAD_SIZE:
        changed = replace(changed, d_kv=max(1, width // changed.num_attention_heads))
    return changed


_PADDING_USES = {
    "roberta": "because RoBERTa counts its positions from the padding token's id",
    "t5": "because T5's decoder begins with it",
}


def _special_ids(
    family: str, pad_id: int | None, bos_id: int | None, eos_id: int | None
) -> dict[str, Any]:
    pad_id = padding_id(family, pad_id, eos_id)
    if pad_id is None:
        use = _PADDING_USES.get(family, "because rows are filled up with it")
        raise _lacks_token("no padding token", f"one, {use}")
    halves = family in ("t5", "bart")
    if halves and eos_id is None:
        raise _lacks_token("no token that ends a text", f"one, such as </s>, for {family}")
    found = {"pad_token_id": pad_id, "bos_token_id": bos_id, "eos_token_id": eos_id}
    if halves:
        found["decoder_start_token_id"] = pad_id if family == "t5" else eos_id
    return found


def _lacks_token(problem: str, expected: str) -> ConfigError:
    return ConfigError(
        f"The tokenizer has {problem}",
        expected=expected,
        received="none",
        fix="train a tokenizer here, or add such a token to this one",
        field="tokenizer",
    )


def _check_ids(special: dict[str, Any], vocab_size: int) -> None:
    for name, number in special.items():
        if number is not None and not 0 <= number < vocab_size:
            raise ConfigError(
                "A special token of the tokenizer isn't in the vocabulary",
                expected=f"{name} below {vocab_size}",
                received=f"{number}",
                fix="name the tokenizer that the shards were made with",
                field="tokenizer",
            )


def _derive_heads(width: int, family: str) -> int:
    """Returns the number of heads of about 64 that divides the hidden size, or 1."""
    most = max(1, width // _HEAD_SIZE)
    multiple = _head_multiple(family)
    return next((heads for heads in range(most, 0, -1) if width % (heads * multiple) == 0), 1)


def _head_multiple(family: str) -> int:
    """Returns the divisor of head sizes: rotary positions rotate pairs of values."""
    return 2 if family == "modernbert" else 1


def _check_heads(architecture: Architecture) -> None:
    family, width = architecture.model_type, architecture.hidden_size
    heads, multiple = architecture.num_attention_heads, _head_multiple(family)
    if isinstance(architecture, T5Architecture) or width % (heads * multiple) == 0:
        return
    even = ", into heads of an even width" if multiple == 2 else ""
    better = f"set num_attention_heads to {_derive_heads(width, family)}, or change hidden_size"
    raise ConfigError(
        f"{heads} attention heads don't divide the width {width}{even}",
        expected=f"a number of heads that divides hidden_size without remainder{even}",
        received=f"hidden_size={width}, num_attention_heads={heads}",
        fix="set hidden_size to an even number" if width % multiple else better,
        field="num_attention_heads",
    )


def _check_positions(architecture: Architecture, row_length: int) -> None:
    if row_length > architecture.max_seq_length:
        raise ConfigError(
            "max_seq_length is above the model's positions",
            expected=f"rows of at most {architecture.max_seq_length} tokens",
            received=f"rows of {row_length}",
            fix="raise max_position_embeddings, or build shards with a smaller max_seq_length",
            field="max_position_embeddings",
        )
