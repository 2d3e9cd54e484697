"""Models as GGUF files: read back, refused where llama.cpp can't run them, and run in llama.cpp."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.architecture.options import RotaryScaling
from core.config.export import ExportConfig
from core.errors import CheckpointError, ConfigError, TokenizerError
from core.exporting.commands import commands
from core.exporting.gguf import write_gguf
from core.exporting.gguf_export import _modelfile, verify
from core.exporting.stage import run, summarize
from core.exporting.verification import MOST_DIVERGENCE
from core.families import find_family
from core.inference.generation import generate
from core.models import hf
from core.records.events import Reporter
from core.tokenizer.bpe import ROLES, train_byte_level_bpe
from core.tokenizer.loading import load
from core.tokenizer.pre_tokenizers import PRE_TOKENIZATIONS
from core.tokenizer.roles import write_files
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint, write_model_of, write_writer
from tests.texts import sentences, varied_texts

# Shared heads of keys with a tied head, and neither.
LLAMAS: dict[str, dict[str, Any]] = {
    "llama": {
        "num_key_value_heads": 1,
        "rope_scaling": RotaryScaling(
            "yarn", 4.0, 16, beta_fast=4.0, beta_slow=1.0, attention_factor=1.1
        ),
    },
    "qwen3": {"head_dim": 32, "tie_word_embeddings": False},
}
FAMILIES = ("gpt2", *LLAMAS)
LLAMA = Path(__file__).parents[3] / ".venv" / "llama" / "node_modules"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("exports"))
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    models = workspace.folder("model")
    write_writer(models / "gpt2", tokenizer, "gpt2", positions=128, size=0.1)
    for family, further in LLAMAS.items():
        architecture = replace(hf.read_architecture(models / "gpt2"), model_type=family)
        dimensions = {
            field.name: getattr(architecture, field.name)
            for field in fields(architecture)
            if field.name != "hidden_act"
        }
        own = find_family(family).architecture(**dimensions, **further)
        write_model_of(models / family, tokenizer, own, size=0.1)
    return workspace


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantization", MOST_DIVERGENCE)
def test_exported_file_predicts_as_the_model_does(
    workspace: Workspace, family: str, quantization: str
) -> None:
    artifact = run(ExportConfig(model=family, quantization=quantization), workspace)
    counts = artifact.manifest.counts
    assert counts["divergence"] <= MOST_DIVERGENCE[quantization]
    assert (artifact.path / counts["file"]).stat().st_size == counts["bytes"]
    modelfile = (artifact.path / "Modelfile").read_text("utf-8")
    assert f"FROM ./{counts['file']}" in modelfile
    assert "PARAMETER num_ctx 128" in modelfile
    assert set(commands(artifact.path, counts)) == {"llama.cpp", "Ollama"}
    assert str(artifact.path) in summarize({**counts, "artifact": str(artifact.path)})


def test_ollama_stops_at_an_end_token_with_the_id_0(workspace: Workspace) -> None:
    """SmolLM2's."""
    folder = workspace.folder("model") / "llama"
    architecture = replace(hf.read_architecture(folder), eos_token_id=0)
    assert 'PARAMETER stop "<s>"' in _modelfile("it.gguf", architecture, load(str(folder)))


def test_file_with_other_predictions_is_deleted(workspace: Workspace, tmp_path: Path) -> None:
    """A kernel in the wrong order loads silently elsewhere."""
    from gguf import GGUFReader

    folder, file = workspace.folder("model") / "gpt2", tmp_path / "wrong.gguf"
    architecture, tokenizer = hf.read_architecture(folder), load(str(folder))
    write_gguf(folder, architecture, tokenizer, file, "f32", "wrong")
    reader = GGUFReader(file, "r+")
    (kernel,) = [tensor for tensor in reader.tensors if tensor.name == "blk.1.attn_output.weight"]
    kernel.data[:] = kernel.data[::-1].copy()
    reader.data.flush()
    with pytest.raises(CheckpointError, match="other tokens"):
        verify(folder, tokenizer.encode("The river is wide."), file, "f32")
    assert not file.exists()


def test_what_llama_cpp_cannot_run_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    unigram = make_tokenizer(workspace, "unigram")
    write_writer(tmp_path / "unigram", unigram, "gpt2")
    with pytest.raises(TokenizerError, match="byte_level_bpe"):
        run(ExportConfig(model=str(tmp_path / "unigram")), workspace)
    write_checkpoint(tmp_path / "encoder", unigram)
    with pytest.raises(ConfigError, match="GPT-2"):
        run(ExportConfig(model=str(tmp_path / "encoder")), workspace)


def test_tokenizer_with_other_splits_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    """A pre-tokenizer that llama.cpp doesn't know would give other ids."""
    folder = write_writer(tmp_path / "prefixed", load("byte_level_bpe", workspace), "gpt2")
    file = folder / "tokenizer.json"
    specification = json.loads(file.read_text("utf-8"))
    specification["pre_tokenizer"]["add_prefix_space"] = True
    file.write_text(json.dumps(specification), "utf-8")
    with pytest.raises(TokenizerError, match="a space before each text"):
        run(ExportConfig(model=str(folder)), workspace)


@pytest.mark.slow(5)
@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantization", MOST_DIVERGENCE)
def test_llama_cpp_runs_the_exported_file(
    workspace: Workspace, tmp_path: Path, family: str, quantization: str
) -> None:
    artifact = run(ExportConfig(model=family, quantization=quantization), workspace)
    folder = workspace.folder("model") / family
    tokenizer = load(str(folder))
    prompt = "The river"
    ids = tokenizer.encode_beginning(prompt).tolist()
    file = artifact.path / artifact.manifest.counts["file"]
    answers = ask_llama(file, tmp_path, {"texts": [], "prompt": ids, "tokens": 64})
    shares = _next_probabilities(folder, ids)
    theirs = np.array(answers["probabilities"])
    divergence = float((shares * np.log(shares / np.maximum(theirs, 1e-30))).sum())
    assert divergence <= MOST_DIVERGENCE[quantization]
    if quantization == "f32":
        ours = generate(folder, prompt, max_new_tokens=64, do_sample=False)
        assert tokenizer.decode(answers["continuation"]) == ours["text"]


@pytest.mark.slow(4)
@pytest.mark.long
@pytest.mark.parametrize("pre_tokenization", PRE_TOKENIZATIONS)
def test_llama_cpp_gives_the_same_ids(tmp_path: Path, pre_tokenization: str) -> None:
    texts = varied_texts()
    assert len(texts) == 200
    learned = [*sentences(100), *texts * 2]
    backend = train_byte_level_bpe(learned, 1500, 2, Reporter(), pre_tokenization=pre_tokenization)
    (tmp_path / "tokenizer").mkdir()
    write_files(tmp_path / "tokenizer", backend, ROLES)
    folder = write_writer(tmp_path / "writer", load(str(tmp_path / "tokenizer")), "gpt2")
    tokenizer, file = load(str(folder)), tmp_path / "writer.gguf"
    write_gguf(folder, hf.read_architecture(folder), tokenizer, file, "f32", "writer")
    theirs = ask_llama(file, tmp_path, {"texts": texts})["texts"]
    ours = [tokenizer.encode(text, special=False).tolist() for text in texts]
    assert dict(zip(texts, theirs, strict=True)) == dict(zip(texts, ours, strict=True))


def ask_llama(file: Path, folder: Path, questions: dict[str, Any]) -> dict[str, Any]:
    if not LLAMA.is_dir():
        pytest.skip("node-llama-cpp is missing: npm install --prefix .venv/llama node-llama-cpp")
    (folder / "questions.json").write_text(json.dumps(questions), "utf-8")
    script = Path(__file__).with_name("run_llama.mjs")
    command = ["node", str(script), str(LLAMA), str(file), str(folder / "questions.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def _next_probabilities(folder: Path, ids: list[int]) -> np.ndarray:
    from keras import ops

    logits = ops.convert_to_numpy(hf.load_model(folder)({"input_ids": np.array([ids], np.int32)}))
    shares = np.exp(logits[0, -1].astype(np.float64) - logits[0, -1].max())
    return shares / shares.sum()
