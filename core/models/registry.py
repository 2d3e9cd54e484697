"""From a training config to a model: sizes, checks, parameter counts, and the families' classes.

No engine is imported before `create_model` is called.
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
from core.models.names import ties

if TYPE_CHECKING:
    from core.models.head import LanguageModel

# (layers, width) of BERT's miniatures, with heads of 64 and a feed-forward layer of four times the
# width. Source: https://github.com/google-research/bert#smaller-bert-models, and BERT itself
# (https://arxiv.org/abs/1810.04805, section 3) for base and large.
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
    """A published size, or one in proportion to such.

    Attributes:
        layers: Number of layers; of two halves, of each.
        width: Of the hidden states.
        units: Width of the feed-forward layer.
        heads: Number of heads.
    """

    layers: int
    width: int
    units: int
    heads: int


def _like_bert(layers: int, width: int, units_per_width: float = 4) -> Dimensions:
    return Dimensions(layers, width, int(units_per_width * width), width // _HEAD_SIZE)


_BERT_SIZES = {size: _like_bert(*dimensions) for size, dimensions in SIZES.items()}
# Of each family the published sizes are:
# gpt2: gpt2, gpt2-medium and gpt2-large (Radford et al., table 2). A published medium is larger
#   than base.
# t5: google/t5-v1_1-small, -base and -large. There is none between small and base.
# bart: facebook/bart-base and -large (https://arxiv.org/abs/1910.13461, section 2).
# modernbert: base and large (https://arxiv.org/abs/2412.13663, table 4).
# All others are BERT's miniatures in these proportions.
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
    """Derives a model's dimensions from a config, a tokenizer and the length of the rows.

    The vocabulary and the special ids are always the tokenizer's, whatever a `config.json` says.

    Args:
        config: Size or `model_config_path`, and what is overridden.
        vocab_size: The tokenizer's highest id plus one.
        row_length: Tokens in a row.
        pad_id: The tokenizer's padding token; RoBERTa's positions are counted from it.
        bos_id: The token that begins a text.
        eos_id: The token that ends a text.

    Raises:
        ConfigError: The family has no such size, the dimensions contradict each other, the rows are
            longer than the model's positions, the tokenizer lacks a token, or the `config.json` is
            of no use. `field` names the setting.
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
    """Refuses a model of another family than the one whose numbers the preset has filled in.

    Args:
        config: Names a checkpoint or a model config.
        architecture: The dimensions that stand there.

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
    """Returns the size that an architecture has the layers and the width of, or None."""
    for size, found in FAMILY_SIZES[architecture.model_type].items():
        if (found.layers, found.width) == (
            architecture.num_hidden_layers,
            architecture.hidden_size,
        ):
            return size
    return None


def count_parameters(architecture: Architecture) -> int:
    """Returns the number of trainable parameters, without building the model.

    Layers beyond the second have equal sizes, so the time does not depend on their number.
    """

    def counted(layers: dict[str, Any]) -> int:
        return sum(math.prod(tie.shape) for tie in ties(replace(architecture, **layers)))

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
    """Returns a model's padding token: the tokenizer's, if it has one.

    GPT-2 does without: nothing ever looks at padding.
    """
    if pad_id is None and family == "gpt2":
        return eos_id or 0
    return pad_id


def create_model(
    architecture: Architecture, *, seed: int, dtype_policy: str = "float32", remat: bool = False
) -> LanguageModel:
    """Builds a model with its first weights.

    Args:
        architecture: Its dimensions.
        seed: Decides the first weights (equal on all engines) and the dropout.
        dtype_policy: float32, mixed_bfloat16 or bfloat16.
        remat: Keep only each layer's inputs for the gradient, and compute the rest twice.

    Returns:
        A built `LanguageModel`; the family's own file says what it takes and returns.
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

    Its dropout holds unless the config sets another than its preset, or the preset is `fast`, which
    is not a published one and does without.
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
    """Returns the special tokens of an architecture, all of them the tokenizer's."""
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
    """Returns as many heads of about 64 as divide the width; of no use where none can."""
    most = max(1, width // _HEAD_SIZE)
    multiple = _head_multiple(family)
    return next((heads for heads in range(most, 0, -1) if width % (heads * multiple) == 0), 1)


def _head_multiple(family: str) -> int:
    """Returns what a head's width is a multiple of: rotary positions turn its numbers in pairs."""
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
