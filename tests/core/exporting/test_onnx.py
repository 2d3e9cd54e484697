"""Models as graphs: read back, and run in ONNX Runtime, transformers.js and OpenVINO."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from core.architecture.architecture import EncoderDecoderArchitecture
from core.architecture.heads import Kind
from core.config.export import QUANTIZATIONS, ExportConfig, Format, Quantization
from core.errors import CheckpointError, ConfigError
from core.exporting.commands import commands
from core.exporting.onnx_export import verify, write_onnx
from core.exporting.stage import run, summarize
from core.exporting.verification import MOST_DIVERGENCE, log_softmax
from core.families import find_family, list_family_names
from core.finetuning.encoding import TokenSequence
from core.finetuning.heads import body_mappings, head_mappings
from core.finetuning.saving import ClassifierConfig, write_classifier, write_tokenizer
from core.inference.classification import LoadedClassifier, classify
from core.inference.generation import generate
from core.inference.masks import fill_mask
from core.models import hf
from core.records.events import Reporter
from core.tokenizer.bpe import ROLES, train_byte_level_bpe
from core.tokenizer.loading import load
from core.tokenizer.pre_tokenizers import PRE_TOKENIZATIONS
from core.tokenizer.roles import write_files
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_model_of
from tests.core.models.families import small_architecture
from tests.texts import sentences, varied_texts

PACKAGES = Path(__file__).parents[3] / ".venv" / "transformersjs" / "node_modules"
TOKENS = 12


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a model of each family, named after it."""
    workspace = Workspace(tmp_path_factory.mktemp("exports"))
    tokenizers = {name: make_tokenizer(workspace, name) for name in ("unigram", "byte_level_bpe")}
    for name in list_family_names():
        family = find_family(name)
        tokenizer = tokenizers["byte_level_bpe" if family.kind == "decoder" else "unigram"]
        architecture = replace(
            small_architecture(name),
            vocab_size=tokenizer.vocab_size,
            max_position_embeddings=100,
            pad_token_id=tokenizer.pad_id or 0,
            bos_token_id=tokenizer.cls_id,
            eos_token_id=tokenizer.sep_id,
        )
        if isinstance(architecture, EncoderDecoderArchitecture):
            architecture = replace(architecture, decoder_start_token_id=tokenizer.sep_id or 0)
        folder = workspace.folder("model") / name
        write_model_of(folder, tokenizer, architecture, size=0.15)
        for kind in family.heads:
            write_classifier_of(folder, workspace.folder("model") / f"{name}-{kind}", kind)
    return workspace


def write_classifier_of(source: Path, folder: Path, kind: Kind) -> None:
    config = ClassifierConfig(hf.read_architecture(source), kind, ("A", "B", "C"))
    mappings = [
        *body_mappings(config.architecture, config.head),
        *head_mappings(config.architecture, config.head, config.outputs),
    ]
    generator = np.random.default_rng(0)
    weights = {tie.path: generator.normal(0, 0.3, tie.shape).astype(np.float32) for tie in mappings}
    folder.mkdir()
    write_classifier(folder, weights, config)
    write_tokenizer(folder, load(str(source)), segments=False)


@cache
def export(
    root: Path, model: str, quantization: Quantization = "f32", format: Format = "onnx"
) -> Artifact:
    return run(ExportConfig(model=model, format=format, quantization=quantization), Workspace(root))


@pytest.mark.parametrize("family", list_family_names())
def test_onnx_runtime_predicts_as_the_model_does(
    workspace: Workspace, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = export(workspace.root, family)
    counts, folder = artifact.manifest.counts, artifact.path
    assert counts["divergence"] < 1e-8
    assert str(folder) in summarize({**counts, "artifact": str(folder)})
    model, tokenizer = hf.load_model(workspace.folder("model") / family), load(str(folder))
    ids = tokenizer.backend.encode(counts["prompt"]).ids
    inputs = {"input_ids": np.array([ids], np.int32)}
    inputs["decoder_input_ids"] = np.array([[counts.get("start", 0)]], np.int32)
    ours = np.asarray(model(inputs))[0]
    exec(commands(folder, counts)["ONNX Runtime"], scope := {})
    np.testing.assert_allclose(scope["logits"][0], ours, atol=1e-4)
    assert capsys.readouterr().out.strip() == tokenizer.backend.decode(ours.argmax(-1)).strip()


@pytest.mark.parametrize("model", ["modernbert-sequence", "llama", "bart"])
def test_openvino_predicts_as_onnx_runtime_does(
    workspace: Workspace, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logits = []
    for format, program in (("onnx", "ONNX Runtime"), ("openvino", "OpenVINO")):
        artifact = export(workspace.root, model, format=format)
        exec(commands(artifact.path, artifact.manifest.counts)[program], scope := {})
        logits.append(scope["logits"])
    np.testing.assert_allclose(*logits, atol=1e-4)
    first, second = capsys.readouterr().out.splitlines()
    assert first == second or model == "modernbert-sequence"


def test_openvino_with_float16_has_smaller_weights(workspace: Workspace) -> None:
    sizes = []
    for quantization in QUANTIZATIONS["openvino"]:
        folder = export(workspace.root, "llama", quantization, "openvino").path
        sizes.append((folder / "openvino" / "model.bin").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.parametrize(
    ("family", "kind"), [("bert", "sequence"), ("modernbert", "sequence"), ("roberta", "token")]
)
def test_classifier_answers_in_onnx_runtime_as_here(
    workspace: Workspace, family: str, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = export(workspace.root, f"{family}-{kind}")
    exec(commands(artifact.path, artifact.manifest.counts)["ONNX Runtime"], scope := {})
    assert capsys.readouterr().out.strip() == str(scope["logits"])
    theirs = log_softmax(scope["logits"].reshape(-1, 3).astype(np.float64))
    sequence = TokenSequence(scope["ids"][0], position=0 if kind == "sequence" else None)
    model = LoadedClassifier(workspace.folder("model") / f"{family}-{kind}", "float32")
    (logits,) = model.logits([sequence])
    ours = log_softmax(logits[: len(theirs)].astype(np.float64))
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


def test_classifier_that_no_program_runs_is_refused(workspace: Workspace) -> None:
    with pytest.raises(ConfigError, match="BERT, RoBERTa or ModernBERT"):
        run(ExportConfig(model="bart-sequence", format="onnx"), workspace)
    with pytest.raises(ConfigError, match="fine-tuned"):
        run(ExportConfig(model="gpt2-sequence"), workspace)


@pytest.mark.parametrize("quantization", ["f16", "q8_0"])
def test_number_formats_make_files_smaller(
    workspace: Workspace, quantization: Quantization
) -> None:
    sizes: dict[str, int] = {}
    formats: tuple[Quantization, ...] = ("f32", quantization)
    for chosen in formats:
        artifact = export(workspace.root, "bart", chosen)
        assert artifact.manifest.counts["divergence"] <= MOST_DIVERGENCE[chosen]
        sizes[chosen] = artifact.manifest.counts["bytes"]
    assert sizes[quantization] < 0.7 * sizes["f32"]
    with pytest.raises(ConfigError, match="f32, f16, q8_0"):
        ExportConfig(model="bart", format="onnx", quantization="bf16")


def test_file_with_other_predictions_is_deleted(workspace: Workspace, tmp_path: Path) -> None:
    folder = workspace.folder("model") / "gpt2"
    architecture, ids = hf.read_architecture(folder), load(str(folder)).encode("The river is wide.")
    # Weights beside the graph, as those of large models.
    files = write_onnx(folder, architecture, tmp_path / "onnx", "f32", most_bytes=0)
    assert (tmp_path / "onnx" / "model.onnx_data").is_file()
    assert verify(folder, architecture, ids, files, "f32") < 1e-8
    graph = onnx.load(files["model"])
    (kernel,) = [
        tensor
        for tensor in graph.graph.initializer
        if tensor.name.endswith("layer_1/attention/output/kernel")
    ]
    kernel.raw_data = numpy_helper.to_array(kernel)[::-1].tobytes()
    onnx.save(graph, files["model"])
    with pytest.raises(CheckpointError, match="other tokens"):
        verify(folder, architecture, ids, files, "f32")
    assert not files["model"].exists()


@pytest.mark.slow(20)
@pytest.mark.long
def test_transformers_js_answers_as_the_model_does(workspace: Workspace) -> None:
    prompts = {
        "encoder": "The [MASK] is wide.",
        "decoder": "The river",
        "encoder-decoder": "The river",
    }
    questions: list[Any] = []
    ours: list[Any] = []
    for name in list_family_names():
        artifact = export(workspace.root, name, "f16" if name == "bart" else "f32")
        kind, folder = find_family(name).kind, workspace.folder("model") / name
        prompt = prompts[kind]
        settings: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False}
        task = artifact.manifest.counts["task"]
        questions.append([task, str(artifact.path), prompt, {} if kind == "encoder" else settings])
        if kind == "encoder":
            ours.append([answer["token"] for answer in fill_mask(folder, prompt)])
        else:
            answer = generate(folder, prompt, **settings)
            ours.append(answer["generated_text" if kind == "decoder" else "text"])
    artifact = export(workspace.root, "roberta-sequence", "q8_0")
    questions.append(["text-classification", str(artifact.path), "The river is wide.", {}])
    best = classify(workspace.folder("model") / "roberta-sequence", "The river is wide.")[0]
    ours.append([best["label"]])
    theirs = [
        answer[0].get("generated_text") or [each.get("token", each.get("label")) for each in answer]
        for answer in ask_transformers_js(questions)
    ]
    assert theirs == ours


@pytest.mark.slow(10)
@pytest.mark.long
def test_transformers_js_gives_the_same_token_ids(tmp_path: Path) -> None:
    # In transformers.js, U+FEFF is white space and U+0085 isn't; SmolLM's digits are 0 to 9.
    others = {"\ufeff", "\x85", *"½²٣٤٥Ⅷ"}
    texts = [text for text in varied_texts() if not others & set(text)]
    assert len(texts) > 100
    questions: list[Any] = []
    ours: list[Any] = []
    for name in PRE_TOKENIZATIONS:
        learned = [*sentences(100), *texts * 2]
        backend = train_byte_level_bpe(learned, 600, 2, Reporter(), pre_tokenization=name)
        (tmp_path / name).mkdir()
        write_files(tmp_path / name, backend, ROLES)
        tokenizer = load(str(tmp_path / name))
        questions.append(["tokenize", str(tmp_path / name), texts, {}])
        ours.append([tokenizer.encode(text, special=False).tolist() for text in texts])
    for answer, wanted in zip(ask_transformers_js(questions), ours, strict=True):
        assert dict(zip(texts, answer, strict=True)) == dict(zip(texts, wanted, strict=True))


def ask_transformers_js(questions: list[Any]) -> list[Any]:
    if not PACKAGES.is_dir():
        pytest.skip("npm install --prefix .venv/transformersjs @huggingface/transformers")
    script = Path(__file__).with_name("run_pipelines.mjs")
    ended = subprocess.run(
        ["node", str(script), str(PACKAGES), json.dumps(questions)],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    answers: list[Any] = json.loads(ended.stdout.splitlines()[-1])
    return answers
