"""OpenVINO graphs of encoders, compared with transformers' classes."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.backends import devices
from core.backends.openvino import compilation
from core.errors import CheckpointError, ConfigError
from core.inference import graph
from core.inference.compiled import BackendModel
from core.inference.graph import GraphModel
from core.inference.masks import FillMask
from core.models import hf
from core.runs.start import child_environment
from core.tokenizer.loading import StudioTokenizer
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint, write_model_of, write_writer
from tests.core.models.families import ENCODERS, small_architecture
from tests.engines import run_anew
from tests.tracing import needs_strace, trace

Ids = NDArray[np.int32]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> StudioTokenizer:
    return make_tokenizer(Workspace(tmp_path_factory.mktemp("workspace")), "unigram")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer: StudioTokenizer) -> Path:
    """A folder with one small model per family, named after it."""
    root = tmp_path_factory.mktemp("models")
    for family in ENCODERS:
        write_model_of(root / family, tokenizer, architecture_of(family, tokenizer))
    write_writer(root / "bart", tokenizer, "bart")
    return root


def architecture_of(family: str, tokenizer: StudioTokenizer) -> Architecture:
    return replace(
        small_architecture(family),
        vocab_size=tokenizer.vocab_size,
        pad_token_id=tokenizer.pad_id or 0,
        max_position_embeddings=48,
    )


def texts_for(tokenizer: StudioTokenizer, count: int = 12, longest: int = 40) -> list[Ids]:
    """Random sequences with one or two masks and a padding token among the text."""
    draws = np.random.default_rng(0)
    found = []
    for _ in range(count):
        ids = draws.integers(5, tokenizer.vocab_size, draws.integers(2, longest + 1))
        ids[draws.integers(len(ids))] = tokenizer.pad_id or 0
        ids[draws.integers(len(ids), size=2)] = tokenizer.mask_id
        found.append(ids.astype(np.int32))
    return found


def softmax(logits: Any) -> NDArray[np.float32]:
    return np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))


@pytest.mark.slow(4)
@pytest.mark.parametrize("family", ENCODERS)
def test_packed_texts_have_the_probabilities_of_transformers(
    family: str, folders: Path, tokenizer: StudioTokenizer
) -> None:
    torch = pytest.importorskip("torch", reason="pip install torch==2.13.0")
    from transformers import AutoModelForMaskedLM

    reference = AutoModelForMaskedLM.from_pretrained(folders / family, attn_implementation="eager")
    filler = FillMask(folders / family)
    assert isinstance(filler.model, GraphModel)
    texts = texts_for(tokenizer)
    shared = filler.probabilities(texts)
    for ids, found in zip(texts, shared, strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor(ids[None], dtype=torch.long)).logits[0].numpy()
        expected = softmax(logits[ids == tokenizer.mask_id])
        assert expected.max() > 2 * expected.mean()
        np.testing.assert_allclose(found, expected, atol=2e-5)
        (alone,) = filler.probabilities([ids])
        np.testing.assert_allclose(found, alone, atol=1e-5)


@pytest.mark.parametrize("family", ENCODERS)
def test_bfloat16_probabilities_are_close_to_float32(
    family: str, folders: Path, tokenizer: StudioTokenizer
) -> None:
    texts = texts_for(tokenizer)
    exact = FillMask(folders / family).probabilities(texts)
    model = GraphModel(
        folders / family, architecture_of(family, tokenizer), "bfloat16", tokenizer.mask_id or 0
    )
    plan = model.plan([graph.Size(len(ids), 2) for ids in texts])
    (row,) = plan.rows
    masks = [np.flatnonzero(texts[number] == tokenizer.mask_id) for number in row]
    (logits,) = model.logits(plan.shape, [[texts[number] for number in row]], [masks])
    rough = softmax(logits)
    assert rough.dtype == np.float32
    wanted = np.concatenate([exact[number] for number in row])
    error = np.abs(rough - wanted).mean()
    assert error < 0.01 * wanted.max(axis=-1).mean()
    assert error > 1e-7 or not graph.has_bfloat16()


def test_openvino_serves_encoders_and_the_backend_everything_else(
    folders: Path,
    tokenizer: StudioTokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roberta, bart = architecture_of("roberta", tokenizer), hf.read_architecture(folders / "bart")
    assert graph.suits(roberta, "float32")
    assert graph.suits(roberta, "auto")
    assert not graph.suits(bart, "float32")
    assert isinstance(FillMask(folders / "bart").model, BackendModel)
    assert isinstance(FillMask(folders / "roberta", on_engine=True).model, BackendModel)
    with monkeypatch.context() as patched:
        # Without bfloat16 arithmetic, the backend at least stores bfloat16 weights.
        patched.setattr(graph, "has_bfloat16", lambda: False)
        assert not graph.suits(roberta, "bfloat16")
        assert graph.suits(roberta, "auto")
    with monkeypatch.context() as patched:
        patched.setattr(graph, "PACKAGE", "no_such_package")
        assert not graph.suits(roberta, "float32")
    with monkeypatch.context() as patched:
        (tmp_path / "nvidia0").touch()
        patched.setattr(devices, "_GPU_GLOBS", (f"{tmp_path}/nvidia[0-9]*",))
        patched.setattr(devices, "_JAX_GPU_PLUGINS", ("jax",))
        patched.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patched.delenv("JAX_PLATFORMS", raising=False)
        assert not graph.suits(roberta, "float32")


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_auto_selects_float32_or_bfloat16(
    has_bfloat16: bool,
    folders: Path,
    tokenizer: StudioTokenizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if not has_bfloat16:
        monkeypatch.setattr(graph, "has_bfloat16", lambda: False)
    is_measured = graph.has_bfloat16()
    with caplog.at_level("INFO", "core.inference"):
        filler = FillMask(folders / "roberta", "auto")
        (found,) = filler.probabilities(texts_for(tokenizer, 1))
    assert ("in bfloat16, the model was" in caplog.text) == is_measured
    assert np.isfinite(found).all()
    if not has_bfloat16:
        (exact,) = FillMask(folders / "roberta").probabilities(texts_for(tokenizer, 1))
        np.testing.assert_array_equal(found, exact)


def test_threads_in_a_container_are_limited_to_its_cores(
    folders: Path, tokenizer: StudioTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "usable_cores", lambda: 1)
    monkeypatch.setattr(compilation, "allowed_cores", lambda: 2)
    assert compilation.compile_settings("float32")["INFERENCE_NUM_THREADS"] == 1
    (found,) = FillMask(folders / "roberta").probabilities(texts_for(tokenizer, 1))
    monkeypatch.setattr(compilation, "allowed_cores", lambda: 1)
    assert "INFERENCE_NUM_THREADS" not in compilation.compile_settings("float32")
    (other,) = FillMask(folders / "roberta").probabilities(texts_for(tokenizer, 1))
    np.testing.assert_allclose(found, other, atol=1e-5)


def test_concurrent_requests_get_their_own_answers(
    folders: Path, tokenizer: StudioTokenizer
) -> None:
    filler, texts = FillMask(folders / "modernbert"), texts_for(tokenizer, 48)
    alone = [filler.probabilities([ids])[0] for ids in texts]
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda ids: filler.probabilities([ids])[0], texts))
    for one, other in zip(alone, found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_warmed_up_shapes_are_at_most_as_long_as_the_model(
    folders: Path, tokenizer: StudioTokenizer
) -> None:
    architecture = architecture_of("roberta", tokenizer)
    longest = architecture.max_seq_length
    assert 32 < longest < 64
    prepared = [shape.length for shape in FillMask(folders / "roberta").prepare()]
    assert prepared == [16, 32, longest]
    short = replace(architecture, max_position_embeddings=architecture.first_position + 9)
    (only,) = GraphModel(folders / "roberta", short, "float32", 0).usual_shapes()
    assert only.length == 9


def test_text_longer_than_the_position_embeddings_is_refused(
    folders: Path, tokenizer: StudioTokenizer
) -> None:
    filler = FillMask(folders / "bert")
    ids = np.full(filler.architecture.max_seq_length + 1, tokenizer.mask_id, np.int32)
    with pytest.raises(ConfigError, match="longer than the model's maximum length"):
        filler.probabilities([ids])
    assert filler.probabilities([ids[1:]])[0].shape[0] == len(ids) - 1


@pytest.mark.parametrize("path", ["lm_head/bias", "layer_0/feed_forward/up/bias"])
def test_single_non_finite_weight_is_refused_by_name(
    path: str, tokenizer: StudioTokenizer, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "model", tokenizer)
    architecture = hf.read_architecture(folder)
    weights = hf.read_weights(folder)
    weights[f"roberta/{path}"] = weights[f"roberta/{path}"].copy()
    weights[f"roberta/{path}"][0] = np.inf
    hf.write_weights(folder, weights, architecture)
    filler = FillMask(folder)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"NaN or infinite.*{path}"):
            filler.probabilities(texts_for(tokenizer, 1, 8))
        # The second refusal reads no file.
        (folder / "model.safetensors").unlink(missing_ok=True)


def test_bias_of_minus_infinity_excludes_a_token(
    tokenizer: StudioTokenizer, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "model", tokenizer)
    weights = hf.read_weights(folder)
    weights["roberta/lm_head/bias"] = weights["roberta/lm_head/bias"].copy()
    weights["roberta/lm_head/bias"][7] = -np.inf
    hf.write_weights(folder, weights, hf.read_architecture(folder))
    (found,) = FillMask(folder).probabilities(texts_for(tokenizer, 1, 8))
    assert (found[:, 7] == 0).all()
    np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-5)


ASK = """
import json, sys
from core import fill_mask
fill_mask(sys.argv[1], "the [MASK] runs")
engines = {"tensorflow", "jax", "keras", "torch"}
print(json.dumps(sorted(engines & set(sys.modules))))
"""


def test_inference_imports_no_backend(folders: Path) -> None:
    assert run_anew("jax", ASK, folders / "bert") == []


@needs_strace
def test_inference_runs_offline(folders: Path, tmp_path: Path) -> None:
    # OpenVINO's telemetry is off in CI environments.
    unset = ("CI", "TF_BUILD", "JENKINS_URL")
    environment = {name: value for name, value in child_environment().items() if name not in unset}
    environment["HOME"] = str(tmp_path)
    options = ["-e", "trace=connect,sendto"]
    traced, result = trace(tmp_path, options, ASK, folders / "bert", environment=environment)
    assert result.returncode == 0, result.stderr
    assert not re.findall(r"AF_INET6?", traced)
    assert not (tmp_path / "intel").exists()
