"""Reads and writes Hugging Face's `config.json` and `model.safetensors`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.architecture.heads import Kind
from core.architecture.weight_mapping import WeightMapping
from core.errors import CheckpointError, ConfigError
from core.families import find_family, weight_mappings
from core.foreign_files import read_json
from core.models.building import create_model
from core.models.configs import config_values, head_kind, parse_config
from core.models.weights import (
    CONFIG_FILE,
    INDEX_FILE,
    PICKLE_FILE,
    WEIGHTS_FILE,
    Weights,
    check_weight_files,
    no_checkpoint,
)
from core.workspace.names import expand_path

if TYPE_CHECKING:
    import keras

__all__ = [
    "CONFIG_FILE",
    "INDEX_FILE",
    "PICKLE_FILE",
    "WEIGHTS_FILE",
    "WeightMapping",
    "assign_weights",
    "check_pretrained",
    "check_weight_files",
    "config_values",
    "find_head_kind",
    "load_model",
    "parse_config",
    "read_architecture",
    "read_weights",
    "tensors_of",
    "weight_mappings",
    "write_config",
    "write_model",
    "write_weights",
]

GENERATION_CONFIG_FILE = "generation_config.json"
_GENERATION = (
    *("bos_token_id", "eos_token_id", "pad_token_id"),
    *("decoder_start_token_id", "forced_eos_token_id"),
)
_MOST_CONFIG_BYTES = 4 << 20


def write_model(folder: Path, model: keras.Model, architecture: Architecture) -> None:
    """Writes a built model to an existing folder."""
    weights = {variable.path: np.asarray(variable.numpy()) for variable in model.weights}
    write_weights(folder, weights, architecture)


def write_weights(
    folder: Path, weights: dict[str, NDArray[np.float32]], architecture: Architecture
) -> None:
    """Writes weights by variable path, and `config.json`."""
    from safetensors.numpy import save_file

    write_config(folder, architecture)
    tensors = tensors_of(weights, weight_mappings(architecture))
    for name in find_family(architecture.model_type).zero_tensors:
        tensors[name] = np.zeros((1, architecture.vocab_size), np.float32)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def tensors_of(
    weights: Mapping[str, NDArray[np.float32]], mappings: Iterable[WeightMapping]
) -> dict[str, NDArray[np.float32]]:
    """Returns the tensors of a file, from weights by variable path."""
    return {
        name: part
        for tie in mappings
        for name, part in zip(tie.names, _to_hf(tie, weights[tie.path]), strict=True)
    }


def write_config(folder: Path, architecture: Architecture) -> None:
    """Writes `config.json`, and a decoder's `generation_config.json`."""
    values = config_values(architecture)
    _write_json(folder / CONFIG_FILE, values)
    if architecture.kind != "encoder":
        generation = {name: values[name] for name in _GENERATION if values.get(name) is not None}
        _write_json(folder / GENERATION_CONFIG_FILE, generation)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def read_architecture(path: str | Path, *, has_head: bool | None = None) -> Architecture:
    """Reads a `config.json` or that of a folder.

    Args:
        has_head: Argument of `parse_config`.

    Raises:
        CheckpointError: The file is missing or isn't JSON.
        ConfigError: The model isn't supported.
    """
    file = expand_path(path)
    if file.is_dir():
        file = file / CONFIG_FILE
        if not os.path.lexists(file):
            raise no_checkpoint(file.parent)
    if not os.path.lexists(file):
        raise CheckpointError(
            f"There is no model config at {path}",
            expected=f"a {CONFIG_FILE}, or a folder that contains one",
            received="no such file",
            fix="choose a checkpoint folder, or a model in the workspace",
        )
    return parse_config(read_json(file, _MOST_CONFIG_BYTES), str(file), has_head=has_head)


def find_head_kind(folder: Path) -> Kind | None:
    """Returns the kind of a fine-tuned model; None for other models."""
    file = folder / CONFIG_FILE
    return head_kind(read_json(file, _MOST_CONFIG_BYTES)) if file.is_file() else None


def check_pretrained(folder: Path, name: str = "") -> None:
    """Raises ConfigError for a fine-tuned model, which has no language-model head.

    Args:
        name: The model's name in the error.
    """
    if find_head_kind(folder):
        raise ConfigError(
            f"{name or f'The model in {folder}'} is a fine-tuned model",
            expected="a pretrained model",
            received="one with a classification head",
            fix="choose the model that it was fine-tuned from",
            field="model",
        )


def read_weights(
    folder: str | Path,
    architecture: Architecture | None = None,
    mappings: Sequence[WeightMapping] | None = None,
    optional: Sequence[WeightMapping] = (),
) -> dict[str, NDArray[np.float32]]:
    """Reads a checkpoint's weights, float32, by variable path.

    Args:
        mappings: Weights to read; None: all.
        optional: Weights among them that may be missing together.
    """
    folder = expand_path(folder)
    architecture = architecture or read_architecture(folder)
    with Weights(folder) as files:
        if mappings and optional and not files.has(optional, first=mappings[0]):
            mappings = [mapping for mapping in mappings if mapping not in optional]
        tensors = files.read(architecture, mappings=mappings)
        return {tie.path: _from_hf(tie, parts) for tie, parts in tensors}


def load_model(folder: str | Path, dtype: str = "float32") -> keras.Model:
    """Builds a model from a checkpoint folder, in float32, mixed_bfloat16 or bfloat16."""
    architecture = read_architecture(folder)
    weights = read_weights(folder, architecture)
    # A zero range skips random initialisation.
    model = create_model(replace(architecture, initializer_range=0.0), seed=0, dtype_policy=dtype)
    assign_weights(model, weights)
    return model


def assign_weights(model: keras.Model, weights: dict[str, NDArray[np.float32]]) -> None:
    """Assigns weights by path, or raises CheckpointError."""
    for variable in model.weights:
        value = weights.get(variable.path)
        if value is None or tuple(value.shape) != tuple(variable.shape):
            raise CheckpointError(
                f"The weight {variable.path} doesn't fit the model",
                expected=f"shape {tuple(variable.shape)}",
                received="nothing" if value is None else f"shape {tuple(value.shape)}",
                fix="use a checkpoint with the dimensions of this model",
            )
        variable.assign(value)


def _to_hf(tie: WeightMapping, value: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    parts = np.split(value.astype(np.float32, copy=False), len(tie.names), axis=-1)
    return [np.ascontiguousarray(part.T if tie.transposed else part) for part in parts]


def _from_hf(tie: WeightMapping, parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    turned = [part.T if tie.transposed else part for part in parts]
    return np.ascontiguousarray(turned[0] if len(turned) == 1 else np.concatenate(turned, axis=-1))
