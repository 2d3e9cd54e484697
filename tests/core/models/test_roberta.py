"""RoBERTa on both backends, compared with transformers' class in PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engines import ENGINES, run_on

VOCAB_SIZE, ROWS, LENGTH, MASKS, PAD = 53, 3, 16, 4, 3

# Builds a small model, perturbs every weight, and writes the model and its outputs.
SCRIPT = """
import json, sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
import keras
import numpy as np
from keras import ops
from core.config import TrainConfig
from core.models import hf
from core.models.building import create_model
from core.models.registry import resolve_architecture

folder, inputs = Path(sys.argv[1]), dict(np.load(sys.argv[2]))
config = TrainConfig(
    preset="classic",
    num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=48
)
architecture = resolve_architecture(config, vocab_size=53, row_length=16, pad_id=3, bos_id=0)
model = create_model(architecture, seed=7)
first = {v.path: sha256(v.numpy().tobytes()).hexdigest() for v in model.weights}
zeros = [model.weights[0].numpy()[3].any(), model.weights[1].numpy()[3].any()]
spread = float(model.weights[0].numpy().std())
generator = np.random.default_rng(0)
for variable in model.trainable_variables:
    noise = generator.normal(0, 0.2, variable.shape).astype(np.float32)
    variable.assign(variable.numpy() + noise)
hf.write_model(folder, model, architecture)

ids, places, labels = inputs["input_ids"], inputs["masked_positions"], inputs["labels"]
padded = {"input_ids": inputs["padded_ids"], "attention_mask": inputs["attention_mask"]}
masked = {"input_ids": ids, "masked_positions": places}

def answer(model, inputs, step=None):
    seed = {} if step is None else {"dropout_seed": np.array([0, step], np.int32)}
    return np.asarray(ops.convert_to_numpy(model({**inputs, **seed})))

def losses_of(logits):
    chosen = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return ops.mean(ops.logsumexp(logits, axis=-1) - chosen)

def gradients():
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf
        @tf.function
        def compute():
            with tf.GradientTape() as tape:
                loss = losses_of(model(masked))
            values = [v.value for v in model.trainable_variables]
            return [tf.convert_to_tensor(g) for g in tape.gradient(loss, values)]
        found = compute()
    else:
        import jax
        others = [v.value for v in model.non_trainable_variables]
        def loss(weights):
            return losses_of(model.stateless_call(weights, others, masked)[0])
        found = jax.jit(jax.grad(loss))([v.value for v in model.trainable_variables])
    return {v.path: np.asarray(g) for v, g in zip(model.trainable_variables, found)}

(folder / "gradients").mkdir()
hf.write_weights(folder / "gradients", gradients(), architecture)
narrow = hf.load_model(folder, "mixed_bfloat16")
narrowest = hf.load_model(folder, "bfloat16")
np.savez(
    folder / "said.npz",
    full=answer(model, {"input_ids": ids}),
    masked=answer(model, masked),
    padded=answer(model, padded),
    again=answer(hf.load_model(folder), masked),
    dropped=answer(model, masked, 0),
    dropped_again=answer(model, masked, 0),
    dropped_anew=answer(model, masked, 1),
    mixed=answer(narrow, masked),
    narrow=answer(narrowest, masked),
)
print(json.dumps({
    "first": first,
    "zeros": [bool(zero) for zero in zeros],
    "spread": spread,
    "paths": [v.path for v in model.variables],
    "trainable_dtypes": sorted({str(v.dtype) for v in narrow.trainable_variables}),
}))
"""


class Said:
    """Model outputs on one backend, and the folder with the saved model."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        self.logits: dict[str, NDArray] = dict(np.load(folder / "said.npz"))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = np.random.default_rng(1)
    ids = generator.integers(5, VOCAB_SIZE, (ROWS, LENGTH)).astype(np.int32)
    padded = ids.copy()
    padded[1, 9:] = PAD
    padded[2, 2:] = PAD
    order = generator.permuted(np.tile(np.arange(LENGTH), (ROWS, 1)), axis=1)
    path = tmp_path_factory.mktemp("inputs") / "inputs.npz"
    np.savez(
        path,
        input_ids=ids,
        padded_ids=padded,
        attention_mask=(padded != PAD).astype(np.int32),
        masked_positions=np.sort(order[:, :MASKS]).astype(np.int32),
        labels=generator.integers(5, VOCAB_SIZE, (ROWS, MASKS)).astype(np.int32),
    )
    return path


@pytest.fixture(scope="module")
def said(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    folders = {engine: tmp_path_factory.mktemp(engine) for engine in ENGINES}
    return {
        engine: Said(folder, run_on(engine, SCRIPT, folder, inputs))
        for engine, folder in folders.items()
    }


def reference(folder: Path) -> Any:
    """Loads a folder with transformers' class and checks that every weight matched."""
    pytest.importorskip("torch", reason="pip install torch==2.13.0 (PyTorch is the judge)")
    from transformers import RobertaForMaskedLM

    model, info = RobertaForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@pytest.mark.slow(14)
@pytest.mark.parametrize("engine", ENGINES)
def test_logits_match_transformers(engine: str, said: dict[str, Said], inputs: Path) -> None:
    model = reference(said[engine].folder)
    import torch

    data = {name: torch.tensor(values) for name, values in np.load(inputs).items()}
    with torch.no_grad():
        full = model(data["input_ids"].long()).logits.numpy()
        padded = model(data["padded_ids"].long(), attention_mask=data["attention_mask"])
    assert np.ptp(full) > 1
    assert np.abs(said[engine].logits["full"] - full).max() < 1e-4
    assert np.abs(said[engine].logits["padded"] - padded.logits.numpy()).max() < 1e-4


@pytest.mark.slow(25)
@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_match_pytorch(engine: str, said: dict[str, Said], inputs: Path) -> None:
    model = reference(said[engine].folder)
    import torch
    from safetensors.numpy import load_file

    data = {name: torch.tensor(values).long() for name, values in np.load(inputs).items()}
    logits = model(data["input_ids"]).logits
    places = data["masked_positions"][..., None].expand(-1, -1, VOCAB_SIZE)
    chosen = logits.gather(1, places).reshape(-1, VOCAB_SIZE)
    torch.nn.functional.cross_entropy(chosen, data["labels"].reshape(-1)).backward()
    theirs = {name: weight.grad.numpy() for name, weight in model.named_parameters()}
    # PyTorch gives a padding row no gradient; these inputs have no padding.
    ours = load_file(said[engine].folder / "gradients" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert np.abs(ours[name] - gradient).max() < 1e-5, name


@pytest.mark.parametrize("engine", ENGINES)
def test_logits_at_masked_positions_match_the_full_logits(
    engine: str, said: dict[str, Said], inputs: Path
) -> None:
    places = np.load(inputs)["masked_positions"]
    full = np.take_along_axis(said[engine].logits["full"], places[..., None], axis=1)
    assert said[engine].logits["masked"].shape == (ROWS, MASKS, VOCAB_SIZE)
    assert np.abs(said[engine].logits["masked"] - full).max() < 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_reloaded_model_has_the_same_logits(engine: str, said: dict[str, Said]) -> None:
    logits = said[engine].logits
    assert np.array_equal(logits["masked"], logits["again"])


@pytest.mark.parametrize("policy", ["mixed", "narrow"])
@pytest.mark.parametrize("engine", ENGINES)
def test_bfloat16_logits_are_close_to_float32_and_returned_as_float32(
    engine: str, policy: str, said: dict[str, Said]
) -> None:
    logits = said[engine].logits
    assert logits[policy].dtype == np.float32
    difference = np.abs(logits[policy] - logits["masked"])
    assert 0 < difference.max() < 0.1 * np.ptp(logits["masked"])
    assert said[engine].facts["trainable_dtypes"] == ["float32"]


def test_backends_start_with_the_same_weights(said: dict[str, Said]) -> None:
    first = [said[engine].facts["first"] for engine in ENGINES]
    assert first[0] == first[1]
    assert len(set(first[0].values())) > 10


def test_initial_weights_have_the_published_standard_deviation(said: dict[str, Said]) -> None:
    facts = said["jax"].facts
    assert facts["zeros"] == [False, False]
    assert facts["spread"] == pytest.approx(0.02, rel=0.1)


def test_backends_agree_on_logits(said: dict[str, Said]) -> None:
    for name in ("full", "padded", "masked"):
        one, other = (said[engine].logits[name] for engine in ENGINES)
        assert np.abs(one - other).max() < 1e-5


def test_backends_have_equal_dropout_masks(said: dict[str, Said]) -> None:
    for name in ("dropped", "dropped_anew"):
        one, other = (said[engine].logits[name] for engine in ENGINES)
        assert np.abs(one - other).max() < 1e-4


@pytest.mark.parametrize("engine", ENGINES)
def test_dropout_differs_between_steps_and_repeats_with_the_seed(
    engine: str, said: dict[str, Said]
) -> None:
    logits = said[engine].logits
    assert np.abs(logits["dropped"] - logits["masked"]).max() > 1e-2
    assert np.abs(logits["dropped"] - logits["dropped_anew"]).max() > 1e-2
    assert np.array_equal(logits["dropped"], logits["dropped_again"])


def test_variable_paths_are_unique_and_equal_on_both_backends(said: dict[str, Said]) -> None:
    paths = [said[engine].facts["paths"] for engine in ENGINES]
    assert paths[0] == paths[1]
    assert len(set(paths[0])) == len(paths[0])
    assert "roberta/layer_1/attention/qkv/kernel" in paths[0]


@pytest.mark.parametrize("shard", ["1GB", "15KB"])
def test_weights_saved_by_transformers_are_loaded(shard: str, inputs: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="pip install torch==2.13.0 (PyTorch is the judge)")
    import torch
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=40, max_position_embeddings=30, pad_token_id=PAD, initializer_range=0.3,
    )  # fmt: skip
    model = RobertaForMaskedLM(config).eval()
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "15KB")
    code = """
        import json, sys
        import numpy as np
        from core.models import hf
        inputs = dict(np.load(sys.argv[2]))
        model = hf.load_model(sys.argv[1])
        print(json.dumps(np.asarray(model({"input_ids": inputs["input_ids"]})).tolist()))
    """
    ours = np.array(run_on("jax", code, tmp_path, inputs))
    with torch.no_grad():
        theirs = model(torch.tensor(np.load(inputs)["input_ids"]).long()).logits.numpy()
    assert np.abs(ours - theirs).max() < 1e-4
