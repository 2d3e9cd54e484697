"""Training on several simulated devices equals training on one."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.engines import ENGINES, run_on

# Trains twenty steps without dropout; the first argument holds the settings.
_SCRIPT = """
import json, sys
import numpy as np
from core.config import TrainConfig
from core.families.roberta import RobertaArchitecture
from core.models.building import create_model
from core.objectives.mlm import MaskedLanguageModel
from core.training import recipe
from core.training.batches import EvalBatches, TrainBatches
from core.backends.selection import select_backend
from core.backends.base import BackendOptions
from core.backends.creation import create_backend
from core.backends.optimizers import build_optimizer, create_optimizer

values = json.loads(sys.argv[1])
import os
from core.backends import kernels
# Fewer than the logits of a single row, 4 x 64: all is done in pieces, on any number of devices.
if values.pop("in_pieces", False):
    kernels.MAX_LOGITS_PER_CHUNK = 100
    assert kernels.count_chunks(1, 4, 64) == 3
config = TrainConfig(
    preset="custom", num_train_steps=40, learning_rate=3e-3, weight_decay=0.1, warmup_steps=5,
    max_grad_norm=0.5, engine=os.environ["KERAS_BACKEND"], device="cpu", **values)

class Rows:
    row_length = 16
    values = np.random.default_rng(0).integers(5, 64, (320, 16)).astype(np.int32)
    def __len__(self): return len(self.values)
    def take(self, indices): return self.values[indices]

objective = MaskedLanguageModel(16, 0.25, 4, 64, np.arange(5, dtype=np.int32))
batches = TrainBatches(Rows(), objective, 16, seed=3)
devices = select_backend(config)
architecture = RobertaArchitecture(
    64, 32, 1, 2, 64, 24, 3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

def build():
    model = create_model(architecture, seed=1, remat=config.remat)
    schedule = recipe.learning_rate_schedule(config, recipe.plan(config, 320, 16))
    optimizer = create_optimizer(config, schedule)
    build_optimizer(optimizer, model)
    return model, optimizer

engine = create_backend(devices, build, BackendOptions.of(config))
losses = [engine.train_step(engine.put(batches(n), n)) for n in range(20)]
sums = engine.evaluate_step(engine.put(EvalBatches(Rows(), objective, 16)(0)))
held = 0
if config.engine == "jax":
    arrays = [array for values in engine._state for array in values]
    held = sum(array.addressable_shards[0].data.nbytes for array in arrays)
state = engine.read_state()
again = engine.train_step(engine.put(batches(20), 20))
engine.write_state(state)
print(json.dumps({
    "count": devices.count,
    "losses": engine.fetch(losses).tolist(),
    "sums": engine.fetch([sums])[0].tolist(),
    "held": held,
    "state": {path: float(np.abs(values).sum()) for path, values in state.items()},
    "restored": engine.fetch([again, engine.train_step(engine.put(batches(20), 20))]).tolist(),
}))
"""


@cache
def _said(engine: str, **values: Any) -> dict[str, Any]:
    import json

    return run_on(engine, _SCRIPT, json.dumps(values))


def _longer(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.thorough)


# TensorFlow traces the step once per device, so few devices are enough.
ON_SEVERAL = [
    ("tensorflow", 4, {}),
    _longer("tensorflow", 2, {"in_pieces": True, "gradient_accumulation_steps": 2}),
    _longer("tensorflow", 2, {"gradient_accumulation_steps": 2}),
    _longer("tensorflow", 2, {"optimizer": "muon"}),
    ("jax", 8, {}),
    _longer("jax", 8, {"gradient_accumulation_steps": 2}),
    _longer("jax", 8, {"in_pieces": True}),
    _longer("jax", 8, {"sharding": "fsdp"}),
    ("jax", 8, {"sharding": "fsdp", "in_pieces": True, "gradient_accumulation_steps": 2}),
    _longer("jax", 8, {"sharding": "fsdp", "remat": True, "gradient_accumulation_steps": 2}),
    _longer("jax", 8, {"sharding": "fsdp", "optimizer": "muon"}),
]


def _one_and_several(
    engine: str, count: int, values: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    optimizer = {name: value for name, value in values.items() if name == "optimizer"}
    return _said(engine, **optimizer), _said(engine, num_devices=count, **values)


@pytest.mark.slow(5)
@pytest.mark.parametrize(("engine", "count", "values"), ON_SEVERAL)
def test_several_devices_have_the_losses_of_one(
    engine: str, count: int, values: dict[str, Any]
) -> None:
    one, several = _one_and_several(engine, count, values)
    assert (one["count"], several["count"]) == (1, count)
    assert len(set(one["losses"])) == 20
    assert np.allclose(several["losses"], one["losses"], rtol=0, atol=1e-4)
    assert np.allclose(several["sums"], one["sums"], rtol=1e-4)


@pytest.mark.slow(5)
@pytest.mark.parametrize(("engine", "count", "values"), ON_SEVERAL)
def test_state_of_several_devices_is_saved_and_restored_bit_for_bit(
    engine: str, count: int, values: dict[str, Any]
) -> None:
    one, several = _one_and_several(engine, count, values)
    assert list(several["state"]) == list(one["state"])
    assert np.allclose(list(several["state"].values()), list(one["state"].values()), rtol=1e-3)
    before, after = several["restored"]
    assert before == after


@pytest.mark.slow(4)
def test_fsdp_shards_weights_and_slots_over_eight_devices() -> None:
    whole, parts = _said("jax", num_devices=8), _said("jax", num_devices=8, sharding="fsdp")
    assert whole["held"] > 100_000
    assert whole["held"] / 9 < parts["held"] < whole["held"] / 6


# The gradient of a stack of matmuls on eight devices, replicated or sharded.
_STACK = """
import json, sys
import jax
import numpy as np
jax.config.update("jax_num_cpu_devices", 8)
from core.backends import kernels
from core.backends.jax.mesh import DeviceMesh, to_devices, to_host

width, layers, dtype = 128, 24, sys.argv[2]
mesh = DeviceMesh(jax.devices(), sys.argv[1])
values = np.random.default_rng(0).normal(0, width**-0.5, (layers, width, width)).astype(dtype)
kernels_of = [to_devices(one, mesh.weight(one.shape)) for one in values]
rows = to_devices(np.ones((16, width), dtype), mesh.rows())

def loss(kernels_of, rows):
    for kernel in kernels_of:
        rows = kernels.dense(rows, kernel)
    return (rows**2).sum()

spread = [mesh.weight((width, width))] * layers
gradient = jax.jit(mesh.within(jax.grad(loss)), out_shardings=spread)
compiled = gradient.lower(kernels_of, rows).compile()
found = compiled(kernels_of, rows)
print(json.dumps({
    "devices": mesh.size,
    "gathered": compiled.as_text().count(" all-gather("),
    "products": compiled.as_text().count(" dot("),
    "layers": layers,
    "gradients": [float(np.abs(to_host(one).astype(float)).sum()) for one in found],
}))
"""


@pytest.mark.slow(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fsdp_keeps_no_gathered_weight_for_the_gradient(dtype: str) -> None:
    whole, parts = (run_on("jax", _STACK, sharding, dtype) for sharding in ("data", "fsdp"))
    assert whole["devices"] == parts["devices"] == 8
    assert np.allclose(parts["gradients"], whole["gradients"], rtol=1e-2)
    # All-gathered in the forward pass and, except the last, again in the backward pass.
    assert (whole["gathered"], parts["gathered"]) == (0, 2 * parts["layers"] - 1)
    assert parts["products"] == whole["products"] == 3 * parts["layers"] - 1


@pytest.mark.slow(9)
@pytest.mark.parametrize("engine", ENGINES)
def test_batch_that_the_devices_cannot_divide_evenly_is_refused(engine: str) -> None:
    with pytest.raises(AssertionError, match="can't be split evenly"):
        _said(engine, num_devices=3)
