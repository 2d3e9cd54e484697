"""Names and formats of Hugging Face: `config.json` and `model.safetensors`.

Files are read and written without an engine; only `load_model` builds a model. Pickles are never
loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.errors import CheckpointError, ConfigError
from core.models.architecture import Architecture

if TYPE_CHECKING:
    import keras

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_FILE = "pytorch_model.bin"
MODEL_TYPES = ("roberta",)

# Fields of transformers' RobertaConfig and their defaults there.
_DEFAULTS: dict[str, int | float] = {
    "vocab_size": 50_265,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 1,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
}
# Fields that choose arithmetic: what can be built here, and transformers' default.
_REQUIRED: dict[str, tuple[tuple[Any, ...], Any]] = {
    "hidden_act": (("gelu",), "gelu"),
    "position_embedding_type": (("absolute", None), "absolute"),
    "is_decoder": ((False, None), False),
    "add_cross_attention": ((False, None), False),
    "tie_word_embeddings": ((True, None), True),
}


@dataclass(frozen=True)
class Tie:
    """Where one of our weights is found in a Hugging Face file.

    Attributes:
        path: Our variable's path.
        shape: Our variable's shape.
        names: The tensors there; several are parts along our last axis (query, key, value).
        transposed: Whether theirs are transposed, as the kernels of `torch.nn.Linear` are.
        alias: The name of a copy that a file may hold instead.
    """

    path: str
    shape: tuple[int, ...]
    names: tuple[str, ...]
    transposed: bool = False
    alias: str = ""

    @property
    def their_shape(self) -> tuple[int, ...]:
        """The shape of each tensor there."""
        part = (*self.shape[:-1], self.shape[-1] // len(self.names))
        return part[::-1] if self.transposed else part


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
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def write_config(folder: Path, architecture: Architecture) -> None:
    """Writes `config.json`, readable by transformers 4 and 5."""
    text = json.dumps(config_values(architecture), indent=2) + "\n"
    (folder / CONFIG_FILE).write_text(text, "utf-8")


def config_values(architecture: Architecture) -> dict[str, Any]:
    """Returns the values of a `config.json`."""
    return {
        "architectures": ["RobertaForMaskedLM"],
        **asdict(architecture),
        "tie_word_embeddings": True,
        "position_embedding_type": "absolute",
        "dtype": "float32",
        "torch_dtype": "float32",  # What `dtype` was called before transformers 4.56.
    }


def read_architecture(path: str | Path) -> Architecture:
    """Reads a model's dimensions from a `config.json` or the folder that holds one.

    Raises:
        CheckpointError: There is none, or it isn't JSON.
        ConfigError: It describes a model that can't be built here.
    """
    file = Path(path).expanduser()
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


def parse_config(values: Any, source: str) -> Architecture:
    """Makes an architecture from the values of a `config.json`.

    What isn't there has the default of transformers' `RobertaConfig`.

    Args:
        values: The parsed JSON.
        source: Where it came from, for error messages.

    Raises:
        ConfigError: It describes a model that can't be built here.
    """
    if not isinstance(values, dict) or values.get("model_type") not in MODEL_TYPES:
        found = values.get("model_type") if isinstance(values, dict) else type(values).__name__
        raise _unsupported(source, "model_type", " or ".join(MODEL_TYPES), found)
    for name, (wanted, default) in _REQUIRED.items():
        if values.get(name, default) not in wanted:
            raise _unsupported(source, name, " or ".join(map(repr, wanted)), values[name])
    fields = {
        name: _checked(values.get(name, default), name, type(default), source)
        for name, default in _DEFAULTS.items()
    }
    return Architecture(
        **fields,
        model_type=values["model_type"],
        hidden_act=values.get("hidden_act", "gelu"),
        bos_token_id=_optional_id(values, "bos_token_id", 0),
        eos_token_id=_optional_id(values, "eos_token_id", 2),
    )


def read_weights(
    folder: str | Path, architecture: Architecture | None = None
) -> dict[str, NDArray[np.float32]]:
    """Reads a checkpoint's weights.

    Args:
        folder: Holds `config.json` and `model.safetensors`, in one file or in several with an
            index.
        architecture: What the weights have to fit; by default what `config.json` says.

    Returns:
        float32 arrays by our variables' paths.

    Raises:
        CheckpointError: A file or tensor is missing, damaged, or of another shape.
    """
    folder = Path(folder).expanduser()
    architecture = architecture or read_architecture(folder)
    with _TensorFiles(folder) as files:
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


def ties(architecture: Architecture) -> Iterator[Tie]:
    """Yields the tensors of a RoBERTa, ours and Hugging Face's."""
    width, inner = architecture.hidden_size, architecture.intermediate_size
    vocabulary, theirs = architecture.vocab_size, "roberta.embeddings"
    yield Tie(
        "roberta/embeddings/words/table",
        (vocabulary, width),
        (f"{theirs}.word_embeddings.weight",),
        alias="lm_head.decoder.weight",
    )
    yield Tie(
        "roberta/embeddings/positions/table",
        (architecture.max_position_embeddings, width),
        (f"{theirs}.position_embeddings.weight",),
    )
    yield Tie(
        "roberta/embeddings/segments/table",
        (architecture.type_vocab_size, width),
        (f"{theirs}.token_type_embeddings.weight",),
    )
    yield from _norm("roberta/embeddings/norm", f"{theirs}.LayerNorm", width)
    for index in range(architecture.num_hidden_layers):
        yield from _layer(f"roberta/layer_{index}", f"roberta.encoder.layer.{index}", width, inner)
    yield from _dense("roberta/lm_head/dense", ("lm_head.dense",), width, width)
    yield from _norm("roberta/lm_head/norm", "lm_head.layer_norm", width)
    yield Tie(
        "roberta/lm_head/bias", (vocabulary,), ("lm_head.bias",), alias="lm_head.decoder.bias"
    )


def _layer(ours: str, theirs: str, width: int, inner: int) -> Iterator[Tie]:
    attention = f"{theirs}.attention"
    parts = tuple(f"{attention}.self.{part}" for part in ("query", "key", "value"))
    yield from _dense(f"{ours}/attention/qkv", parts, width, 3 * width)
    yield from _dense(f"{ours}/attention/output", (f"{attention}.output.dense",), width, width)
    yield from _norm(f"{ours}/attention_norm", f"{attention}.output.LayerNorm", width)
    yield from _dense(f"{ours}/feed_forward/up", (f"{theirs}.intermediate.dense",), width, inner)
    yield from _dense(f"{ours}/feed_forward/down", (f"{theirs}.output.dense",), inner, width)
    yield from _norm(f"{ours}/output_norm", f"{theirs}.output.LayerNorm", width)


def _dense(ours: str, theirs: tuple[str, ...], inputs: int, outputs: int) -> Iterator[Tie]:
    kernels = tuple(f"{name}.weight" for name in theirs)
    yield Tie(f"{ours}/kernel", (inputs, outputs), kernels, transposed=True)
    yield Tie(f"{ours}/bias", (outputs,), tuple(f"{name}.bias" for name in theirs))


def _norm(ours: str, theirs: str, width: int) -> Iterator[Tie]:
    yield Tie(f"{ours}/scale", (width,), (f"{theirs}.weight",))
    yield Tie(f"{ours}/bias", (width,), (f"{theirs}.bias",))


def _to_theirs(tie: Tie, value: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    parts = np.split(value.astype(np.float32, copy=False), len(tie.names), axis=-1)
    return [np.ascontiguousarray(part.T if tie.transposed else part) for part in parts]


def _to_ours(tie: Tie, parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    turned = [part.T if tie.transposed else part for part in parts]
    return np.ascontiguousarray(turned[0] if len(turned) == 1 else np.concatenate(turned, axis=-1))


class _TensorFiles:
    """The tensors of a checkpoint by name, in one file or in several, read one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}

    def __enter__(self) -> _TensorFiles:
        for path in _weight_files(self._folder):
            file = self._stack.enter_context(_open_weights(path))
            self._files.update(dict.fromkeys(file.keys(), file))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, name: str, tie: Tie) -> NDArray[np.float32]:
        """Returns a tensor in float32, checked against the shape that the model needs."""
        found = name if name in self._files else tie.alias
        if found not in self._files:
            raise CheckpointError(
                f"The checkpoint {self._folder} has no tensor {name}",
                expected=f"{name} of shape {tie.their_shape}",
                received=f"{len(self._files)} tensors, among them "
                + ", ".join(sorted(self._files)[:3]),
                fix="use a checkpoint of a RobertaForMaskedLM",
            )
        value = self._files[found].get_tensor(found)
        if value.shape != tie.their_shape:
            raise CheckpointError(
                f"The tensor {found} in {self._folder} has another shape than config.json says",
                expected=f"shape {tie.their_shape}",
                received=f"shape {tuple(value.shape)}",
                fix="use the config.json that was written with these weights",
            )
        return value.astype(np.float32, copy=False)


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


def _weight_files(folder: Path) -> list[Path]:
    """Returns the files that hold the weights."""
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).is_file():
        return _indexed_files(folder / INDEX_FILE)
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


def _indexed_files(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        paths = [Path(name) for name in names]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"The index {index} can't be read",
            expected='{"weight_map": {tensor: file, ...}}',
            received=str(error),
            fix="copy or download the file again",
        ) from error
    outside = [str(path) for path in paths if path.name != str(path)]
    missing = [str(path) for path in paths if not (index.parent / path).is_file()]
    if outside or missing:
        raise CheckpointError(
            f"The checkpoint {index.parent} isn't whole",
            expected="the files that its index names, beside it",
            received="no " + ", ".join(outside or missing),
            fix="copy or download the missing files",
        )
    return [index.parent / path for path in paths]


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) if names else "an empty folder"


def _checked(value: Any, name: str, kind: type, source: str) -> Any:
    """Returns a number of the right kind: sizes at least 1, ids and shares at least 0."""
    number = isinstance(value, (int, float) if kind is float else int)
    least = 0 if kind is float or name.endswith("_id") else 1
    if not number or isinstance(value, bool) or value < least:
        wanted = f"a {'number' if kind is float else 'whole number'} of at least {least}"
        raise _unsupported(source, name, wanted, value)
    return kind(value)


def _optional_id(values: dict[str, Any], name: str, default: int) -> int | None:
    value = values.get(name, default)
    return value if isinstance(value, int) else None


def _unsupported(source: str, name: str, wanted: str, found: Any) -> ConfigError:
    return ConfigError(
        f"{source} describes a model that can't be built here",
        expected=f"{name}: {wanted}",
        received=repr(found),
        fix="take another config, or set the dimensions one by one",
        field="model_config_path",
    )
