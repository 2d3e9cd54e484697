"""Both backends take the same training step, and their state can be read and restored."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.engines import ENGINES, run_on

pytestmark = [pytest.mark.slow(2), pytest.mark.long]
# One process per backend runs everything, because importing and compiling are slow.
_SCRIPT = """
import json
from dataclasses import replace
from hashlib import sha256
import keras
import numpy as np
from core.config import TrainConfig
from core.errors import CheckpointError
from core.families.roberta import RobertaArchitecture
from core.models.head import LanguageModel
from core.models.building import create_model
from core.objectives.mlm import MaskedLanguageModel
from core.backends import optimizers
from core.backends.schedule import LearningRateSchedule
from core.training import recipe
from core.training.batches import TrainBatches
from core.backends.selection import select_backend
from core.backends.base import BackendOptions
from core.backends.creation import create_backend
from core.backends.optimizers import (
    KerasSchedule, build_optimizer, create_optimizer, orthogonalise)

class Rows:
    row_length = 16
    values = np.random.default_rng(0).integers(5, 60, (64, 16)).astype(np.int32)
    def __len__(self): return len(self.values)
    def take(self, indices): return self.values[indices]

OBJECTIVE = MaskedLanguageModel(16, 0.25, 4, 60, np.arange(5, dtype=np.int32))
BATCHES = TrainBatches(Rows(), OBJECTIVE, 8, seed=3)
SEPARATED = TrainBatches(Rows(), replace(OBJECTIVE, document_ends=7), 8, seed=3)
BIAS = "roberta/lm_head/bias"

def config_of(**values):
    values = {"learning_rate": 3e-3, "weight_decay": 0.1, "warmup_steps": 5, **values}
    return TrainConfig(preset="custom", num_train_steps=40, per_replica_batch_size=8, **values)

def engine_for(make_model, config):
    schedule = recipe.learning_rate_schedule(config, recipe.plan(config, 64, 16))
    def build():
        model, optimizer = make_model(), create_optimizer(config, schedule)
        build_optimizer(optimizer, model)
        return model, optimizer
    devices = select_backend(config.model_copy(
        update={"engine": keras.config.backend(), "device": "cpu"}))
    return create_backend(devices, build, BackendOptions.of(config))

def engine_of(dropout=0.0, policy="float32", **values):
    architecture = RobertaArchitecture(
        60, 32, 1, 2, 64, 20, 3, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout)
    config = config_of(**values)
    def make_model():
        return create_model(architecture, seed=1, dtype_policy=policy, remat=config.remat)
    return engine_for(make_model, config)

def train(engine, start, stop, batches=BATCHES):
    losses = [engine.train_step(engine.put(batches(n), n)) for n in range(start, stop)]
    return engine.fetch(losses).tolist()

def hashes(state):
    return {path: sha256(values.tobytes()).hexdigest() for path, values in state.items()}

def rewound(engine):
    first = engine.read_state()
    losses, end = train(engine, 4, 9), hashes(engine.read_state())
    engine.write_state(first)
    return [losses, end, train(engine, 4, 9), hashes(engine.read_state())]

def decay(engine):
    '''Trains one step with a gradient of zero and no momentum: only the decay moves a weight.'''
    state = engine.read_state()
    still = {p: v * 0 if p.endswith(("momentum", "velocity")) else v for p, v in state.items()}
    engine.write_state(still)
    batch = BATCHES(0)
    batch["label_weights"][:] = 0
    loss = engine.fetch([engine.train_step(engine.put(batch))])
    after = engine.read_state()
    moved = [p for p in still if "roberta/" in p and not np.array_equal(still[p], after[p])]
    kept = [p for p in still if "roberta/" in p and np.array_equal(still[p], after[p])]
    return [float(loss[0]), moved, kept]

def spare_slots(engine):
    state, losses = engine.read_state(), []
    spare = BATCHES(0)
    spare["label_weights"][:, -1] = 0
    garbled = {name: values.copy() for name, values in spare.items()}
    garbled["labels"][:, -1] = 0
    garbled["masked_positions"][:, -1] = 0
    for batch in (spare, garbled):
        engine.write_state(state)
        losses += engine.fetch([engine.train_step(engine.put(batch))]).tolist()
    return [losses, engine.fetch([engine.evaluate_step(engine.put(spare))])[0].tolist()]

def growth_when_set(engine):
    if keras.config.backend() != "jax":
        return 0
    import gc, jax
    state = engine.read_state()
    gc.collect()
    before = sum(one.nbytes for one in jax.live_arrays())
    engine.write_state(state)
    return sum(one.nbytes for one in jax.live_arrays()) - before

def refusals(engine):
    messages = []
    for change in ({BIAS: None}, {BIAS: np.zeros(7, np.float32)}, {"stranger": np.zeros(1)}):
        state = {**engine.read_state(), **change}
        try:
            engine.write_state({path: v for path, v in state.items() if v is not None})
        except CheckpointError as error:
            messages.append(str(error))
    return messages

class Lookup(LanguageModel):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(7, 4, embeddings_initializer="ones", name="table")
        self.build((None, None))
    def build(self, shape):
        self.table.build(shape)
        self.built = True
    def states(self, inputs):
        return self.table(inputs["input_ids"])
    def output_weights(self):
        return keras.ops.eye(4), None

def lookup():
    engine = engine_for(Lookup, config_of(
        lr_scheduler_type="constant", warmup_steps=0, learning_rate=0.1, weight_decay=0.0))
    generator = np.random.default_rng(0)
    for step in range(5):
        engine.train_step(engine.put({
            "input_ids": generator.integers(0, 3, (6, 2)).astype(np.int32),
            "labels": generator.integers(0, 4, (6, 2)).astype(np.int32),
            "label_weights": np.ones((6, 2), np.float32)}))
    (table,) = [v for p, v in engine.read_state().items() if p.endswith("embeddings")]
    return table.tolist()

def in_one_go(engine):
    batches = [[engine.put(BATCHES(n), n) for n in range(first, first + 5)]
               for first in range(0, 20, 5)]
    return np.concatenate([engine.fetch([engine.train_steps(b)])[0] for b in batches]).tolist()

def rates():
    pairs = []
    for kind in ("linear", "cosine", "constant"):
        schedule = LearningRateSchedule(kind, 0.3, 5, 40)
        pairs += [(float(schedule.at(n)), float(KerasSchedule(schedule)(n))) for n in range(40)]
    return pairs

def singular_values():
    matrices = np.random.default_rng(0).normal(size=(2, 24, 16)).astype(np.float32)
    update = keras.ops.convert_to_numpy(orthogonalise(keras.ops.convert_to_tensor(matrices)))
    return np.linalg.svd(update, compute_uv=False).ravel().tolist()

def one_kernel_at_a_time():
    together, optimizers._TOGETHER = optimizers._TOGETHER, 1
    try:
        return train(engine_of(optimizer="muon"), 0, 20)
    finally:
        optimizers._TOGETHER = together

def program(engine):
    batches = [engine.put(BATCHES(0), 0)]
    return engine._train.lower(engine._state, batches, engine._schedule).as_text()

muon = engine_of(optimizer="muon")
plain, half = engine_of(), engine_of(policy="mixed_bfloat16")
results = {
    "plain": train(plain, 0, 20),
    "separated": train(engine_of(), 0, 20, SEPARATED),
    "muon": train(muon, 0, 20),
    "muon_apart": one_kernel_at_a_time(),
    "muon_velocities": sorted(p for p in muon.read_state() if p.endswith("velocity")),
    "muon_momentums": len([p for p in muon.read_state() if p.endswith("momentum")]),
    "muon_weights": len(muon.model.trainable_variables),
    "muon_rewound": rewound(engine_of(dropout=0.2, optimizer="muon")),
    "singular_values": singular_values(),
    "dropping": train(engine_of(dropout=0.2), 0, 20),
    "remat": train(engine_of(dropout=0.2, remat=True), 0, 20),
    "accumulated": train(engine_of(gradient_accumulation_steps=4), 0, 20),
    "accumulated_remat": train(engine_of(gradient_accumulation_steps=2, remat=True), 0, 20),
    "in_one_go": in_one_go(engine_of()),
    "clipped": train(engine_of(max_grad_norm=0.5), 0, 20),
    "half": train(half, 0, 20),
    "half_dtypes": sorted({str(v.dtype) for p, v in half.read_state().items() if "roberta" in p}),
    "rewound": rewound(engine_of(dropout=0.2)),
    "decay": decay(plain),
    "spare_slots": spare_slots(plain),
    "growth_when_set": growth_when_set(engine_of()),
    "refusals": refusals(plain),
    "lookup": lookup(),
    "rates": rates(),
}
if keras.config.backend() == "jax":
    other = engine_of(learning_rate=1e-3, warmup_steps=7)
    results["another_rate"] = train(other, 0, 20)
    results["one_program"] = program(plain) == program(other)
    results["another_program"] = program(plain) == program(engine_of(weight_decay=0.2))
print(json.dumps(results))
"""


@cache
def _results(engine: str) -> dict[str, Any]:
    return run_on(engine, _SCRIPT)


@pytest.mark.parametrize("name", ["plain", "clipped", "muon", "separated"])
def test_backends_agree_on_the_first_losses(name: str) -> None:
    tensorflow, jax = (_results(engine)[name] for engine in ENGINES)
    assert len(set(tensorflow)) == 20
    assert np.allclose(tensorflow, jax, rtol=0, atol=1e-3)


def test_documents_that_are_separated_do_not_see_each_other() -> None:
    """Their own test in `tests/core/models` compares the outputs with those of single texts."""
    results = _results("tensorflow")
    assert not np.allclose(results["separated"], results["plain"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_rematerialisation_changes_no_loss_even_with_dropout(engine: str) -> None:
    results = _results(engine)
    assert np.allclose(results["remat"], results["dropping"], rtol=0, atol=1e-5)
    assert not np.allclose(results["dropping"], results["plain"], rtol=0, atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["accumulated", "accumulated_remat"])
def test_gradient_accumulation_has_the_losses_of_the_full_batch(engine: str, name: str) -> None:
    results = _results(engine)
    assert np.allclose(results[name], results["plain"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_several_steps_per_execution_have_the_losses_of_single_steps(engine: str) -> None:
    results = _results(engine)
    assert np.allclose(results["in_one_go"], results["plain"], rtol=0, atol=1e-5)


def test_another_learning_rate_needs_no_recompilation() -> None:
    results = _results("jax")
    assert results["one_program"]
    assert not results["another_program"]
    assert not np.allclose(results["another_rate"], results["plain"], rtol=0, atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradient_clipping_changes_the_losses(engine: str) -> None:
    assert _results(engine)["plain"] != _results(engine)["clipped"]


@pytest.mark.parametrize("engine", ENGINES)
def test_restored_state_continues_bit_for_bit_with_dropout(engine: str) -> None:
    _check_rewound(_results(engine)["rewound"])


@pytest.mark.parametrize("engine", ENGINES)
def test_restored_muon_state_continues_bit_for_bit(engine: str) -> None:
    _check_rewound(_results(engine)["muon_rewound"])


@pytest.mark.parametrize("engine", ENGINES)
def test_muon_updates_are_equal_for_batched_and_single_kernels(engine: str) -> None:
    results = _results(engine)
    assert np.allclose(results["muon"], results["muon_apart"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_muon_keeps_velocities_only_for_weights_updated_by_adamw(engine: str) -> None:
    results = _results(engine)
    assert results["muon_momentums"] == results["muon_weights"]
    assert results["muon_velocities"]
    assert not [path for path in results["muon_velocities"] if "kernel" in path]


@pytest.mark.parametrize("engine", ENGINES)
def test_muon_updates_are_nearly_orthogonal(engine: str) -> None:
    values = _results(engine)["singular_values"]
    assert 0.5 < min(values) <= max(values) < 1.5


def _check_rewound(rewound: list[Any]) -> None:
    losses, state, losses_again, state_again = rewound
    assert losses == losses_again
    assert state == state_again


@pytest.mark.parametrize("engine", ENGINES)
def test_incompatible_state_is_refused_by_variable_name(engine: str) -> None:
    missing, misshapen, unknown = _results(engine)["refusals"]
    assert "roberta/lm_head/bias is missing" in missing
    assert "(7,) instead of (60,)" in misshapen
    assert "stranger is unknown" in unknown


def test_restored_state_replaces_the_old_one_in_memory() -> None:
    assert _results("jax")["growth_when_set"] == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_adamw_sums_the_gradients_of_an_id_before_squaring(engine: str) -> None:
    """An untied embedding has a sparse gradient on TensorFlow; ids occur twice."""
    assert np.allclose(_results(engine)["lookup"], _adamw_by_hand(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_norms_and_biases_have_no_weight_decay(engine: str) -> None:
    loss, moved, kept = _results(engine)["decay"]
    assert loss == 0.0
    assert {path.rsplit("/", 1)[1] for path in moved} == {"kernel", "table"}
    assert {path.rsplit("/", 1)[1] for path in kept} == {"bias", "scale"}


@pytest.mark.parametrize("engine", ENGINES)
def test_unused_mask_slots_do_not_count(engine: str) -> None:
    losses, sums = _results(engine)["spare_slots"]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert sums[2] == 8 * 3


@pytest.mark.parametrize("engine", ENGINES)
def test_mixed_bfloat16_trains_and_keeps_float32_weights(engine: str) -> None:
    half, whole = _results(engine)["half"], _results(engine)["plain"]
    assert _results(engine)["half_dtypes"] == ["float32"]
    assert half != whole
    assert np.allclose(half, whole, rtol=0, atol=0.05)


@pytest.mark.parametrize("engine", ENGINES)
def test_compiled_schedule_equals_the_logged_learning_rate(engine: str) -> None:
    assert np.allclose(*np.array(_results(engine)["rates"]).T, rtol=1e-5, atol=1e-7)


def _adamw_by_hand() -> np.ndarray:
    """Computes the five steps of `lookup` in float64, with a dense gradient."""
    generator = np.random.default_rng(0)
    table, mean, square = np.ones((7, 4)), np.zeros((7, 4)), np.zeros((7, 4))
    for step in range(1, 6):
        ids, labels = (generator.integers(0, most, (6, 2)).ravel() for most in (3, 4))
        logits = table[ids]
        softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        gradient = np.zeros_like(table)
        np.add.at(gradient, ids, (softmax - np.eye(4)[labels]) / len(ids))
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        rate = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        table -= rate * mean / (np.sqrt(square) + 1e-7)
    return table


CROSS_ENTROPY = """
import json
import numpy as np
import tensorflow as tf
from core.backends.tensorflow.kernels import cross_entropy

generator = np.random.default_rng(0)
labels = generator.integers(0, 50, (4, 6)).astype(np.int32)
weights = generator.random((4, 6)).astype(np.float32)
found = {}
for spread in (1.0, 300.0):
    logits = tf.constant(generator.normal(0, spread, (4, 6, 50)).astype(np.float32))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        ours = cross_entropy(logits, labels) * weights
        theirs = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) * weights
        sums = tf.reduce_sum(ours), tf.reduce_sum(theirs)
    gradients = [tape.gradient(one, logits) for one in sums]
    found[spread] = [float(tf.reduce_max(tf.abs(ours - theirs) / (1 + theirs))),
                     float(tf.reduce_max(tf.abs(gradients[0] - gradients[1]))),
                     float(tf.reduce_max(theirs))]
print(json.dumps(found))
"""


def test_cross_entropy_matches_tensorflow_even_if_probabilities_underflow() -> None:
    found = run_on("tensorflow", CROSS_ENTROPY)
    assert found["300.0"][2] > 200
    for values, gradients, _ in found.values():
        assert values < 1e-6
        assert gradients < 1e-6
