"""Adafactor on both backends, compared with its definition in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from core.config.train import TrainConfig
from tests.engines import ENGINES, run_on

SHAPES = {
    "mlp/up/kernel": (130, 140),
    "mlp/down/kernel": (128, 128),
    "attention/qkv/kernel": (128, 390),
    "attention/qkv/bias": (390,),
    "embeddings/words/table": (20, 300),
    "block/norm/scale": (5,),
}
STEPS, LEARNING_RATE = 6, 0.01

SCRIPT = """
import json, sys
from types import SimpleNamespace
import keras
import numpy as np
from core.config import TrainConfig
from core.backends.optimizers import build_optimizer, create_optimizer
from core.backends.schedule import LearningRateSchedule

given = dict(np.load(sys.argv[1]))
steps, rate = int(sys.argv[3]), float(sys.argv[4])
first = {name[6:]: value for name, value in given.items() if name.startswith("first!")}

weights = []
for name, value in first.items():
    *scopes, last = name.split("!")
    with keras.name_scope(scopes[0]), keras.name_scope(scopes[-1]):
        weights.append(keras.Variable(value, name=last))
model = SimpleNamespace(trainable_variables=weights)
config = TrainConfig(preset="custom", optimizer="adafactor", learning_rate=rate)
schedule = LearningRateSchedule("constant", rate, 0, 100)
optimizer = create_optimizer(config, schedule)
build_optimizer(optimizer, model)
for step in range(steps):
    gradients = [keras.ops.convert_to_tensor(given[f"{step}!{name}"]) for name in first]
    optimizer.apply(gradients, weights)
np.savez(sys.argv[2], **{name: np.asarray(v) for name, v in zip(first, weights)})
print(json.dumps({v.path: list(v.shape) for v in optimizer.variables}))
"""


def adafactor(weight: NDArray, gradients: list[NDArray]) -> NDArray:
    """A weight after some steps. Source: https://arxiv.org/abs/1804.04235, algorithm 4."""
    weight = weight.astype(np.float64)
    factored = weight.ndim == 2 and min(weight.shape) >= 128
    moment = np.zeros_like(weight)
    for step, gradient in enumerate(gradients, start=1):
        decay = 1 - step**-0.8
        # Row and column means are linear, so they may be computed at the end.
        moment = decay * moment + (1 - decay) * (gradient.astype(np.float64) ** 2 + 1e-30)
        estimate = moment
        if factored:
            rows, columns = moment.mean(1, keepdims=True), moment.mean(0, keepdims=True)
            estimate = rows * columns / moment.mean()
        update = gradient / np.sqrt(estimate)
        update /= max(1.0, np.sqrt(np.mean(update**2)))
        weight = weight - LEARNING_RATE * max(1e-3, np.sqrt(np.mean(weight**2))) * update
    return weight


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = np.random.default_rng(0)
    arrays = {}
    for name, shape in SHAPES.items():
        key = name.replace("/", "!")
        size = 0.0 if name == "block/norm/scale" else 0.3
        arrays[f"first!{key}"] = generator.normal(0, size, shape).astype(np.float32)
        for step in range(STEPS):
            width = generator.uniform(0.1, 3, shape[-1])
            arrays[f"{step}!{key}"] = generator.normal(0, width, shape).astype(np.float32)
    path = tmp_path_factory.mktemp("given") / "given.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.slow(4)
@pytest.mark.parametrize("engine", ENGINES)
def test_adafactor_steps_match_the_definition(engine: str, given: Path, tmp_path: Path) -> None:
    slots = run_on(engine, SCRIPT, given, tmp_path / "after.npz", STEPS, LEARNING_RATE)
    before, after = dict(np.load(given)), dict(np.load(tmp_path / "after.npz"))
    for name in SHAPES:
        key = name.replace("/", "!")
        parts = 3 if "qkv" in name else 1
        pieces = [
            adafactor(weight, [np.split(before[f"{step}!{key}"], parts, -1)[part]
                               for step in range(STEPS)])
            for part, weight in enumerate(np.split(before[f"first!{key}"], parts, -1))
        ]  # fmt: skip
        wanted = np.concatenate(pieces, axis=-1)
        moved = np.abs(wanted - before[f"first!{key}"]).max()
        assert moved > 0
        assert np.abs(after[key] - wanted).max() < 1e-4 * moved, name
    shapes = {path.split("/")[-1]: shape for path, shape in slots.items()}
    assert shapes["attention_qkv_kernel_row"] == [3, 128]
    assert shapes["attention_qkv_kernel_column"] == [3, 130]
    assert shapes["embeddings_words_table_moment"] == [1, 20, 300]


def test_adafactor_can_be_selected() -> None:
    assert TrainConfig(optimizer="adafactor").optimizer == "adafactor"
