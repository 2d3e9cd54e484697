"""Architectures from training configs, and parameter counts; imports no backend."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

from core.architecture.architecture import Architecture, EncoderDecoderArchitecture
from core.architecture.family import HEAD_SIZE, Family, Size
from core.config.options import settled
from core.config.train import TrainConfig, with_usual_values
from core.config.values import changed_values
from core.errors import CheckpointError, ConfigError
from core.families import find_family, weight_mappings
from core.models.hf import read_architecture


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

    Vocabulary size (the highest id plus one) and special ids are the tokenizer's.

    Raises:
        ConfigError: `field` names the conflicting setting.
    """
    config = with_usual_values(config)
    start = _from_file(config) if config.model_config_path else _from_size(config)
    special = _special_ids(find_family(start.model_type), pad_id, bos_id, eos_id)
    _check_ids(special, vocab_size)
    given = start.max_seq_length if config.model_config_path else row_length
    if not start.limits_length:
        given = start.max_position_embeddings or row_length
    positions = config.max_position_embeddings or given
    placed = replace(_override(start, config), vocab_size=vocab_size, **special)
    architecture = replace(placed, max_position_embeddings=positions + placed.first_position)
    _check_heads(architecture)
    _check_positions(architecture, row_length)
    return architecture


def check_family(config: TrainConfig, architecture: Architecture) -> None:
    """Raises ConfigError unless the preset's family is the model's."""
    if architecture.model_type == config.family:
        return
    what = "checkpoint" if config.checkpoint else "model config"
    raise ConfigError(
        f"The {what} belongs to another family",
        expected=f"family {config.family}",
        received=f"{architecture.model_type} in {config.checkpoint or config.model_config_path}",
        fix=f"set ⟬family⟭ to {architecture.model_type}, or choose another {what}",
        field="family",
    )


def size_of(architecture: Architecture) -> Size | None:
    """Finds the size of an architecture."""
    for size, layout in find_family(architecture.model_type).sizes.items():
        if (layout.layers, layout.width) == (
            architecture.num_hidden_layers,
            architecture.hidden_size,
        ):
            return size
    return None


def count_parameters(architecture: Architecture) -> int:
    """Counts parameters in time independent of depth."""

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
    """Returns the padding token; without need for one, the end token or 0."""
    if pad_id is None and not find_family(family).padding_use:
        return eos_id or 0
    return pad_id


def _from_size(config: TrainConfig) -> Architecture:
    family = find_family(config.family)
    sizes = family.sizes
    if config.size not in sizes:
        raise ConfigError(
            f"The family {config.family} has no size {config.size}",
            expected=", ".join(sizes),
            received=config.size,
            fix="choose a listed size, then change ⟬num_hidden_layers⟭ and ⟬hidden_size⟭ if needed",
            field="size",
        )
    layout = sizes[cast(Size, config.size)]
    halves: dict[str, Any] = {}
    if issubclass(family.architecture, EncoderDecoderArchitecture):
        halves["num_decoder_layers"] = layout.layers
    return family.architecture(
        vocab_size=0,
        hidden_size=layout.width,
        num_hidden_layers=layout.layers,
        num_attention_heads=layout.heads,
        intermediate_size=layout.units,
        max_position_embeddings=0,
        pad_token_id=0,
        hidden_dropout_prob=settled(config.hidden_dropout_prob),
        attention_probs_dropout_prob=settled(config.attention_probs_dropout_prob),
        **halves,
        **layout.further,
    )


def _from_file(config: TrainConfig) -> Architecture:
    try:
        architecture = read_architecture(config.model_config_path)
    except CheckpointError as error:
        fix = "check the path, or leave it empty and choose a size"
        raise ConfigError.like(error, fix=fix, field="model_config_path") from error
    changed = changed_values(config)
    if "family" in changed:
        check_family(config, architecture)
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    wanted = [name for name in names if name in changed or config.preset == "fast"]
    return replace(architecture, **{name: getattr(config, name) for name in wanted})


def _override(start: Architecture, config: TrainConfig) -> Architecture:
    width = config.hidden_size or start.hidden_size
    rewidened = width != start.hidden_size
    heads = _derive_heads(width, start) if rewidened else start.num_attention_heads
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
    return changed.adapted()


def _special_ids(
    family: Family, pad_id: int | None, bos_id: int | None, eos_id: int | None
) -> dict[str, Any]:
    pad_id = padding_id(family.name, pad_id, eos_id)
    if pad_id is None:
        raise _lacks_token("no padding token", f"a padding token, {family.padding_use}")
    if "eos" in family.required_tokens and family.decoder_start and eos_id is None:
        raise _lacks_token(
            "no end-of-text token", f"an end-of-text token, such as </s>, for {family.name}"
        )
    ids = {"pad_token_id": pad_id, "bos_token_id": bos_id, "eos_token_id": eos_id}
    if family.decoder_start:
        ids["decoder_start_token_id"] = pad_id if family.decoder_start == "pad" else eos_id
    return ids


def _lacks_token(problem: str, expected: str) -> ConfigError:
    return ConfigError(
        f"The tokenizer has {problem}",
        expected=expected,
        received="none",
        fix="train a tokenizer here, or add the token to this one",
        field="tokenizer",
    )


def _check_ids(special: dict[str, Any], vocab_size: int) -> None:
    for name, number in special.items():
        if number is not None and not 0 <= number < vocab_size:
            raise ConfigError(
                "A special token of the tokenizer is outside the vocabulary of the shards",
                expected=f"{name} below {vocab_size}",
                received=f"{number}",
                fix="set ⟬tokenizer⟭ to the one that the shards were built with",
                field="tokenizer",
            )


def _derive_heads(width: int, architecture: Architecture) -> int:
    most = max(1, width // HEAD_SIZE)
    multiple = architecture.head_size_multiple
    return next((heads for heads in range(most, 0, -1) if width % (heads * multiple) == 0), 1)


def _check_heads(architecture: Architecture) -> None:
    width, heads = architecture.hidden_size, architecture.num_attention_heads
    multiple = architecture.head_size_multiple
    if architecture.has_own_head_size or width % (heads * multiple) == 0:
        return
    even = ", with an even head size" if multiple == 2 else ""
    better = _derive_heads(width, architecture)
    raise ConfigError(
        f"⟬num_attention_heads⟭ {heads} doesn't divide ⟬hidden_size⟭ {width}{even}",
        expected=f"a number of heads that divides ⟬hidden_size⟭ without remainder{even}",
        received=f"⟬hidden_size={width}⟭, ⟬num_attention_heads={heads}⟭",
        fix="set ⟬hidden_size⟭ to an even number"
        if width % multiple
        else f"set ⟬num_attention_heads⟭ to {better}, or change ⟬hidden_size⟭",
        field="num_attention_heads",
    )


def _check_positions(architecture: Architecture, row_length: int) -> None:
    if row_length > architecture.max_seq_length:
        raise ConfigError(
            "The sequences are longer than ⟬max_position_embeddings⟭ allows",
            expected=f"sequences of at most {architecture.max_seq_length} tokens",
            received=f"sequences of {row_length} tokens",
            fix="raise ⟬max_position_embeddings⟭, or build shards with a smaller ⟬max_seq_length⟭",
            field="max_position_embeddings",
        )
