"""From a training config to a model: sizes, checks, parameter counts, and the families' classes.

No engine is imported before `create_model` is called.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from core.config import Size, TrainConfig, changed_values
from core.errors import CheckpointError, ConfigError
from core.models.architecture import Architecture
from core.models.hf import read_architecture

if TYPE_CHECKING:
    import keras

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
        ConfigError: The dimensions contradict each other, the rows are longer than the model's
            positions, or the `config.json` is of no use. `field` names the setting.
    """
    if pad_id is None:
        raise ConfigError(
            "The tokenizer has no padding token",
            expected="one, because RoBERTa counts its positions from the padding token's id",
            received="none",
            fix="train a tokenizer here, or add a padding token to this one",
            field="tokenizer",
        )
    if config.model_config_path:
        start = _from_file(config)
        positions = config.max_position_embeddings or start.max_seq_length
    else:
        start = _from_size(config)
        positions = config.max_position_embeddings or row_length
    architecture = replace(
        _override(start, config),
        vocab_size=vocab_size,
        max_position_embeddings=positions + pad_id + 1,
        pad_token_id=pad_id,
        bos_token_id=bos_id,
        eos_token_id=eos_id,
    )
    _check_heads(architecture)
    _check_positions(architecture, row_length)
    return architecture


def count_parameters(architecture: Architecture) -> int:
    """Returns the number of trainable parameters, without building the model."""
    width, inner = architecture.hidden_size, architecture.intermediate_size
    tables = (
        architecture.vocab_size
        + architecture.max_position_embeddings
        + architecture.type_vocab_size
    )
    norm = 2 * width
    attention = _dense(width, 3 * width) + _dense(width, width)
    feed_forward = _dense(width, inner) + _dense(inner, width)
    layer = attention + feed_forward + 2 * norm
    head = _dense(width, width) + norm + architecture.vocab_size
    return tables * width + norm + architecture.num_hidden_layers * layer + head


def create_model(
    architecture: Architecture, *, seed: int, dtype_policy: str = "float32", remat: bool = False
) -> keras.Model:
    """Builds a model with its first weights.

    Args:
        architecture: Its dimensions.
        seed: Decides the first weights (equal on all engines) and the dropout.
        dtype_policy: float32, mixed_bfloat16 or bfloat16.
        remat: Keep only each layer's inputs for the gradient, and compute the rest twice.

    Returns:
        A built `keras.Model`; `core.models.roberta` says what it takes and returns.
    """
    from core.models.roberta import RobertaForMaskedLM

    return RobertaForMaskedLM(architecture, seed=seed, dtype=dtype_policy, remat=remat)


def _from_size(config: TrainConfig) -> Architecture:
    layers, width = SIZES[config.size]
    return Architecture(
        vocab_size=0,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=_derive_heads(width),
        intermediate_size=4 * width,
        max_position_embeddings=0,
        pad_token_id=0,
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
    )


def _from_file(config: TrainConfig) -> Architecture:
    """Reads a `config.json`; its dropout holds unless the config sets another than its preset."""
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
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return replace(architecture, **{name: changed[name] for name in names if name in changed})


def _override(start: Architecture, config: TrainConfig) -> Architecture:
    width = config.hidden_size or start.hidden_size
    rewidened = width != start.hidden_size
    heads = _derive_heads(width) if rewidened else start.num_attention_heads
    inner = 4 * width if rewidened else start.intermediate_size
    return replace(
        start,
        hidden_size=width,
        num_hidden_layers=config.num_hidden_layers or start.num_hidden_layers,
        num_attention_heads=config.num_attention_heads or heads,
        intermediate_size=config.intermediate_size or inner,
    )


def _derive_heads(width: int) -> int:
    """Returns as many heads of about 64 as divide the width."""
    most = max(1, width // _HEAD_SIZE)
    return next(heads for heads in range(most, 0, -1) if width % heads == 0)


def _check_heads(architecture: Architecture) -> None:
    width, heads = architecture.hidden_size, architecture.num_attention_heads
    if width % heads:
        raise ConfigError(
            f"{heads} attention heads don't divide the width {width}",
            expected="a number of heads that divides hidden_size without remainder",
            received=f"hidden_size={width}, num_attention_heads={heads}",
            fix=f"set num_attention_heads to {_derive_heads(width)}, or change hidden_size",
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


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs
