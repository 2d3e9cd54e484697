"""Compares an exported file's predictions with the model's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.artifacts.model_tokenizer import longest_sequence
from core.config.export import Quantization
from core.errors import CheckpointError
from core.inference.models import check_finite, choose_backend, load_model
from core.tokenizer.loading import StudioTokenizer

Array = NDArray[np.float64]

# Mean Kullback-Leibler divergence from the model's predictions, in nats.
MOST_DIVERGENCE: dict[Quantization, float] = {"f32": 1e-4, "f16": 1e-4, "bf16": 5e-3, "q8_0": 5e-3}
_TEXT = (
    "The first of 12,345 houses wasn't built before 1890.\n\nIt stood  alone; naïve, isn't it?\n"
    "def add(a, b):\n    return a + b  # 서울은 대한민국의 수도이다. 🙂"
)
_MOST_TOKENS = 128


def tokens_to_compare(architecture: Architecture, tokenizer: StudioTokenizer) -> NDArray[np.int32]:
    """Returns the token ids (L,) whose predictions are compared."""
    length = min(longest_sequence(architecture, tokenizer), _MOST_TOKENS)
    return tokenizer.encode(_TEXT)[:length]


def logits_of_model(folder: Path, inputs: Mapping[str, NDArray[Any]]) -> Array:
    """Computes the logits of a model on this machine."""
    choose_backend()
    from keras import ops

    logits = ops.convert_to_numpy(load_model(folder, "float32")(inputs))
    check_finite(logits, folder)
    return logits.astype(np.float64)


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def check_divergence(
    ours: Array, theirs: Array, quantization: Quantization, folder: Path, files: Iterable[Path]
) -> float:
    """Compares the log-probabilities (L, V) of exported files with those of the model in a folder.

    Returns:
        The mean Kullback-Leibler divergence in nats.

    Raises:
        CheckpointError: They differ; the files are deleted.
    """
    divergence = float((np.exp(ours) * (ours - theirs)).sum(-1).mean())
    if not divergence <= MOST_DIVERGENCE[quantization]:
        expected = f"a divergence of at most {MOST_DIVERGENCE[quantization]:g} nats"
        received = f"{divergence:.3g} nats"
        refuse(f"{expected} with {quantization}", received, quantization, folder, files)
    return max(divergence, 0.0)


def refuse(
    expected: str, received: str, quantization: Quantization, folder: Path, files: Iterable[Path]
) -> None:
    """Deletes files and raises CheckpointError."""
    fix = "export with another number format, such as f32"
    if quantization == "f32":
        fix = "use an earlier checkpoint; training probably diverged"
    for file in files:
        file.unlink()
    raise CheckpointError(
        f"The exported file predicts other tokens than the model in {folder}",
        expected=expected,
        received=f"{received}; the file was deleted",
        fix=fix,
        field="quantization",
    )
