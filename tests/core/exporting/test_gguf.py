"""Models as GGUF files: read back, refused where llama.cpp can't run them, and run in llama.cpp."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from core.config.export import ExportConfig
from core.errors import CheckpointError, ConfigError, TokenizerError
from core.exporting.gguf import write_gguf
from core.exporting.stage import MOST_DIVERGENCE, commands, run, summarize, verify
from core.inference.generation import generate
from core.models import hf
from core.tokenizer.loading import load
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint, write_writer

LLAMA = Path(__file__).parents[3] / ".venv" / "llama" / "node_modules"
TEXTS = (
    *(
        "Hello world",
        "don't I'll we've THEY'RE",
        "1234567890 12,345.67",
        "  two  spaces ",
        "\n\n\n",
    ),
    *(
        "\ttabs\n  and lines\n",
        "emoji 🎉🎊 👩‍👩‍👧‍👦!",
        "서울은 대한민국의 수도이다.",
        "naïve ﬁ ½ ² Ⅷ",
    ),
    *("def f(x):\n    return x ** 2  # 12345 678", "a" * 50, "<s> of </s> and <unk>", "", " "),
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("exports"))
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    write_writer(workspace.folder("model") / "writer", tokenizer, "gpt2", positions=64, size=0.1)
    return workspace


@pytest.mark.parametrize("quantization", MOST_DIVERGENCE)
def test_exported_file_predicts_as_the_model_does(workspace: Workspace, quantization: str) -> None:
    artifact = run(ExportConfig(model="writer", quantization=quantization), workspace)
    counts = artifact.manifest.counts
    assert counts["divergence"] <= MOST_DIVERGENCE[quantization]
    assert (artifact.path / counts["file"]).stat().st_size == counts["bytes"]
    modelfile = (artifact.path / "Modelfile").read_text("utf-8")
    assert f"FROM ./{counts['file']}" in modelfile
    assert "PARAMETER num_ctx 64" in modelfile
    assert set(commands(artifact.path, counts)) == {"llama.cpp", "Ollama"}
    assert str(artifact.path) in summarize({**counts, "artifact": str(artifact.path)})


def test_file_with_other_predictions_is_deleted(workspace: Workspace, tmp_path: Path) -> None:
    """A kernel in the wrong order loads silently elsewhere."""
    from gguf import GGUFReader

    folder, file = workspace.folder("model") / "writer", tmp_path / "wrong.gguf"
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


@pytest.mark.slow(30)
@pytest.mark.long
@pytest.mark.parametrize("quantization", MOST_DIVERGENCE)
def test_llama_cpp_runs_the_exported_file(
    workspace: Workspace, tmp_path: Path, quantization: str
) -> None:
    if not LLAMA.is_dir():
        pytest.skip("node-llama-cpp is missing: npm install --prefix .venv/llama node-llama-cpp")
    artifact = run(ExportConfig(model="writer", quantization=quantization), workspace)
    folder = workspace.folder("model") / "writer"
    tokenizer = load(str(folder))
    prompt = "The river"
    questions = {
        "texts": {text: tokenizer.encode(text, special=False).tolist() for text in TEXTS},
        "prompt": tokenizer.encode_beginning(prompt).tolist(),
        "tokens": 32,
    }
    (tmp_path / "questions.json").write_text(json.dumps(questions), "utf-8")
    file = artifact.path / artifact.manifest.counts["file"]
    script = Path(__file__).with_name("run_llama.mjs")
    answers = json.loads(
        subprocess.run(
            ["node", str(script), str(LLAMA), str(file), str(tmp_path / "questions.json")],
            capture_output=True, text=True, timeout=300, check=True,
        ).stdout.splitlines()[-1]
    )  # fmt: skip
    assert answers["texts"] == questions["texts"]
    shares = _next_probabilities(folder, questions["prompt"])
    theirs = np.array(answers["probabilities"])
    divergence = float((shares * np.log(shares / np.maximum(theirs, 1e-30))).sum())
    assert divergence <= MOST_DIVERGENCE[quantization]
    if quantization == "f32":
        ours = generate(folder, prompt, max_new_tokens=32, do_sample=False)
        assert tokenizer.decode(answers["continuation"]) == ours["text"]


def _next_probabilities(folder: Path, ids: list[int]) -> np.ndarray:
    from keras import ops

    logits = ops.convert_to_numpy(hf.load_model(folder)({"input_ids": np.array([ids], np.int32)}))
    shares = np.exp(logits[0, -1].astype(np.float64) - logits[0, -1].max())
    return shares / shares.sum()
