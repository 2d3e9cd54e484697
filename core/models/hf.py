"""Files of Hugging Face: `config.json` and `model.safetensors`.

What stands in them is said by `core.models.configs` and `core.models.names`. Files are read and
written without an engine; only `load_model` builds a model. Pickles are never loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.errors import CheckpointError
from core.models.architecture import Architecture
from core.models.configs import class_name, config_values, parse_config
from core.models.interop import find_foreign, indexed_files, read_foreign
from core.models.names import Tie, ties
from core.workspace import expand_path

if TYPE_CHECKING:
    import keras

__all__ = [
    "Tie",
    "assign_weights",
    "config_values",
    "load_model",
    "parse_config",
    "read_architecture",
    "read_weights",
    "ties",
    "write_config",
    "write_model",
    "write_weights",
]

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_FILE = "pytorch_model.bin"
# What `generate` of transformers goes by.
_GENERATION = (
    *("bos_token_id", "eos_token_id", "pad_token_id"),
    *("decoder_start_token_id", "forced_eos_token_id"),
)
# What transformers calls the part of a model that is beside its head: files of that part alone
# don't name it, as in "wte.weight".
_BODIES = ("bert.", "roberta.", "transformer.", "model.")
# A buffer of BART's that transformers wants to find; nothing was ever learned there.
_ZEROS = "final_logits_bias"
# What files call the head that is tied to the words, where they hold it as well.
_HEADS = (
    *("lm_head.weight", "lm_head.decoder.weight"),
    *("cls.predictions.decoder.weight", "decoder.weight"),
)


def write_model(folder: Path, model: keras.Model, architecture: Architecture) -> None:
    """Writes `config.json` and `model.safetensors` so that transformers' class loads them.

    Args:
        folder: An existing folder.
        model: A built model of this architecture.
        architecture: Its dimensions.
    """
    weights = {variable.path: np.asarray(variable.numpy()) for variable in model.weights}
    write_weights(folder, weights, architecture)


def write_weights(
    folder: Path, weights: dict[str, NDArray[np.float32]], architecture: Architecture
) -> None:
    """Writes `config.json` and `model.safetensors` from weights by our path."""
    from safetensors.numpy import save_file

    write_config(folder, architecture)
    tensors = {
        name: part
        for tie in ties(architecture)
        for name, part in zip(tie.names, _to_theirs(tie, weights[tie.path]), strict=True)
    }
    if architecture.model_type == "bart":
        tensors[_ZEROS] = np.zeros((1, architecture.vocab_size), np.float32)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def write_config(folder: Path, architecture: Architecture) -> None:
    """Writes `config.json`, readable by transformers 4 and 5.

    Beside it, for models that write, `generation_config.json` with the tokens that begin and end.
    """
    values = config_values(architecture)
    _write_json(folder / CONFIG_FILE, values)
    if architecture.kind != "encoder":
        kept = {name: values[name] for name in _GENERATION if values.get(name) is not None}
        _write_json(folder / GENERATION_CONFIG_FILE, kept)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def read_architecture(path: str | Path) -> Architecture:
    """Reads a model's dimensions from a `config.json` or the folder that holds one.

    Raises:
        CheckpointError: There is none, or it isn't JSON.
        ConfigError: It describes a model that can't be built here.
    """
    file = expand_path(path)
    if file.is_dir():
        file = file / CONFIG_FILE
        if not file.is_file():
            raise _no_checkpoint(file.parent)
    try:
        values = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"There is no model config at {path}",
            expected=f"a {CONFIG_FILE} or a folder that holds one",
            received=error.strerror or str(error),
            fix="name a checkpoint folder, or a model in the workspace",
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{file} isn't JSON",
            expected="a config.json as transformers writes it",
            received=str(error),
            fix="download or write it again",
        ) from error
    return parse_config(values, str(file))


def read_weights(
    folder: str | Path, architecture: Architecture | None = None
) -> dict[str, NDArray[np.float32]]:
    """Reads a checkpoint's weights.

    Args:
        folder: Holds `config.json` and `model.safetensors`, in one file or in several with an
            index; or what transformers 4 wrote from Flax or TensorFlow.
        architecture: What the weights have to fit; by default what `config.json` says.

    Returns:
        float32 arrays by our variables' paths.

    Raises:
        CheckpointError: A file or tensor is missing, damaged, or of another shape, or the head is
            not the words that it is tied to.
    """
    folder = expand_path(folder)
    architecture = architecture or read_architecture(folder)
    with _TensorFiles(folder, class_name(architecture)) as files:
        files.check_zeros(_ZEROS)
        if architecture.model_type != "t5":
            files.check_heads(next(ties(architecture)))
        return {
            tie.path: _to_ours(tie, [files.read(name, tie) for name in tie.names])
            for tie in ties(architecture)
        }


def load_model(folder: str | Path, dtype: str = "float32") -> keras.Model:
    """Builds the model of a checkpoint folder.

    Args:
        folder: Holds `config.json` and `model.safetensors`.
        dtype: Precision policy: float32, mixed_bfloat16 or bfloat16.

    Raises:
        CheckpointError: See `read_weights`.
        ConfigError: See `read_architecture`.
    """
    from core.models.registry import create_model

    architecture = read_architecture(folder)
    weights = read_weights(folder, architecture)
    # A range of zero spares the drawing of first weights that are replaced at once.
    model = create_model(replace(architecture, initializer_range=0.0), seed=0, dtype_policy=dtype)
    assign_weights(model, weights)
    return model


def assign_weights(model: keras.Model, weights: dict[str, NDArray[np.float32]]) -> None:
    """Gives a built model its weights, by path.

    Raises:
        CheckpointError: A weight is missing or of another shape.
    """
    for variable in model.weights:
        value = weights.get(variable.path)
        if value is None or tuple(value.shape) != tuple(variable.shape):
            raise CheckpointError(
                f"The weight {variable.path} doesn't fit the model",
                expected=f"shape {tuple(variable.shape)}",
                received="nothing" if value is None else f"shape {tuple(value.shape)}",
                fix="use a checkpoint of the same dimensions",
            )
        variable.assign(value)


def _to_theirs(tie: Tie, value: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    parts = np.split(value.astype(np.float32, copy=False), len(tie.names), axis=-1)
    return [np.ascontiguousarray(part.T if tie.transposed else part) for part in parts]


def _to_ours(tie: Tie, parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    turned = [part.T if tie.transposed else part for part in parts]
    return np.ascontiguousarray(turned[0] if len(turned) == 1 else np.concatenate(turned, axis=-1))


class _TensorFiles:
    """The tensors of a checkpoint by name, in one file or in several, read one at a time."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self._kind = kind
        self._stack = ExitStack()
        self._files: dict[str, Callable[[str], NDArray]] = {}

    def __enter__(self) -> _TensorFiles:
        foreign = None if _has_safetensors(self._folder) else find_foreign(self._folder)
        if foreign is not None:
            tensors = read_foreign(foreign)
            self._files = dict.fromkeys(tensors, tensors.__getitem__)
            return self
        for path in _weight_files(self._folder):
            file = self._stack.enter_context(_open_weights(path))
            self._files.update(dict.fromkeys(file.keys(), file.get_tensor))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, name: str, tie: Tie) -> NDArray[np.float32]:
        """Returns a tensor in float32, checked against the shape that the model needs."""
        found = next((one for one in _spellings(name, tie.alias) if one in self._files), None)
        if found is None:
            raise CheckpointError(
                f"The checkpoint {self._folder} has no tensor {name}",
                expected=f"{name} of shape {tie.their_shape}",
                received=f"{len(self._files)} tensors, among them "
                + ", ".join(sorted(self._files)[:3]),
                fix=f"use a checkpoint of a {self._kind}",
            )
        value = self._files[found](found)
        if value.shape == (1, *tie.their_shape):  # As TensorFlow's GPT-2 has its biases.
            value = value[0]
        if value.shape != tie.their_shape:
            raise CheckpointError(
                f"The tensor {found} in {self._folder} has another shape than config.json says",
                expected=f"shape {tie.their_shape}",
                received=f"shape {tuple(value.shape)}",
                fix="use the config.json that was written with these weights",
            )
        return value.astype(np.float32, copy=False)

    def check_zeros(self, name: str) -> None:
        """Refuses a checkpoint where something was put that has no place here."""
        if name in self._files and np.any(self._files[name](name)):
            raise CheckpointError(
                f"The tensor {name} in {self._folder} has no place in the model",
                expected="zeros, as in every published BART",
                received="other numbers",
                fix="use a checkpoint without it",
            )

    def check_heads(self, words: Tie) -> None:
        """Refuses a head that was learned apart from the words: the model has one table for both.

        Args:
            words: Where the words are.
        """
        for head in _HEADS:
            if head not in self._files:
                continue
            table = self.read(words.names[0], words)
            if not np.array_equal(table, self._files[head](head).astype(np.float32, copy=False)):
                raise CheckpointError(
                    f"The head {head} in {self._folder} is not tied to the words",
                    expected=f"the numbers of {words.names[0]}",
                    received="others",
                    fix=f"use a checkpoint of a {self._kind} whose head is tied",
                )


def _spellings(name: str, alias: str) -> Iterator[str]:
    """Yields what a tensor may be called, as published files differ."""
    for one in (name, alias) if alias else (name,):
        yield one
        for body in _BODIES:
            if one.startswith(body):
                yield one.removeprefix(body)
    for norm in ("LayerNorm.", "layer_norm."):  # As TensorFlow's first BERTs have it.
        if norm in name:
            yield name.replace(f"{norm}weight", f"{norm}gamma").replace(
                f"{norm}bias", f"{norm}beta"
            )


def _open_weights(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"The weights {path} can't be read",
            expected="a whole safetensors file",
            received=str(error),
            fix="copy or download the file again, or use an earlier checkpoint",
        ) from error


def check_weight_files(folder: Path) -> None:
    """Refuses a folder whose weights are missing, or of a kind that isn't read; none is opened.

    Raises:
        CheckpointError: With what is missing.
    """
    foreign = None if _has_safetensors(folder) else find_foreign(folder)
    if foreign is None:
        _weight_files(folder)
    elif foreign.suffix == ".json":
        indexed_files(foreign)


def _has_safetensors(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE))


def _weight_files(folder: Path) -> list[Path]:
    """Returns the files that hold the weights."""
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).is_file():
        return indexed_files(folder / INDEX_FILE)
    pickled = (folder / PICKLE_FILE).is_file() or any(folder.glob("pytorch_model-*.bin"))
    if pickled:
        raise CheckpointError(
            f"The weights in {folder} are a pickle, and pickles are never loaded here",
            expected=WEIGHTS_FILE,
            received="pytorch_model.bin, which may run any code when it is opened",
            fix="where you trust it: load it with transformers and call "
            "model.save_pretrained(folder, safe_serialization=True), which writes safetensors",
        )
    raise _no_checkpoint(folder)


def _no_checkpoint(folder: Path) -> CheckpointError:
    return CheckpointError(
        f"There is no checkpoint in {folder}",
        expected=f"{CONFIG_FILE} and {WEIGHTS_FILE}",
        received=_listing(folder),
        fix="name a model in the workspace or a folder that one was saved to",
    )


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) if names else "an empty folder"
