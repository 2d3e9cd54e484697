"""Exports a model as graphs for ONNX Runtime and transformers.js, or for OpenVINO."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from core.architecture.architecture import Architecture, EncoderDecoderArchitecture
from core.config.export import Quantization
from core.errors import ConfigError
from core.exporting.commands import ONNX_DTYPES, ONNX_FOLDER, OPENVINO_FOLDER, PIPELINES
from core.exporting.onnx_graph import Weights
from core.exporting.onnx_models import build_models
from core.exporting.onnx_verification import OnnxSession, Session, compute_logits
from core.exporting.openvino_files import OpenvinoSession, convert
from core.exporting.source import Source
from core.exporting.verification import (
    Array,
    check_divergence,
    log_softmax,
    logits_of_model,
    refuse,
    tokens_to_compare,
)
from core.families import find_family
from core.finetuning.encoding import TokenSequence
from core.finetuning.saving import (
    ClassifierConfig,
    is_classifier,
    read_classifier_config,
    read_classifier_weights,
    write_classifier_config,
)
from core.inference.classification import LoadedClassifier, longest_text
from core.models import hf
from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.roles import name_start

# Protocol Buffers end at 2 GiB; larger weights go into a file beside the graph.
_MOST_BYTES = 2_000_000_000
# Part of the largest logit.
_MOST_DIFFERENCE = 1e-4


def export(source: Source, target: Path, quantization: Quantization) -> dict[str, Any]:
    """Writes a model to a folder, with its tokenizer and settings.

    Returns:
        The files' folder and bytes, their divergence from the model, and a pipeline with a prompt.
    """
    classifier = _prepare(source, target)
    folder, architecture = source.folder, source.architecture
    files = write_onnx(folder, architecture, target / ONNX_FOLDER, quantization, classifier)
    _add_settings(target, quantization, files)
    if architecture.kind == "decoder" and source.tokenizer.frame.before:
        name_start(target)
    return _describe(source, files, quantization, classifier, OnnxSession)


def export_for_openvino(source: Source, target: Path, quantization: Quantization) -> dict[str, Any]:
    """Does what `export` does, in OpenVINO's format."""
    classifier = _prepare(source, target)
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        scratch_folder = Path(scratch) / "onnx"
        graphs = write_onnx(source.folder, source.architecture, scratch_folder, "f32", classifier)
        files = convert(graphs, target / OPENVINO_FOLDER, quantization)
    return _describe(source, files, quantization, classifier, OpenvinoSession)


def _prepare(source: Source, target: Path) -> ClassifierConfig | None:
    """Writes a model's tokenizer and settings; returns what it predicts if it is fine-tuned."""
    classifier = _read_classifier(source.folder, source.name)
    source.tokenizer.copy_to(target, ends=source.architecture.kind != "decoder")
    if classifier is None:
        hf.write_config(target, source.architecture)
    else:
        write_classifier_config(target, classifier)
    return classifier


def _describe(
    source: Source,
    files: Mapping[str, Path],
    quantization: Quantization,
    classifier: ClassifierConfig | None,
    session: Callable[[Path], Session],
) -> dict[str, Any]:
    """Verifies files by the graphs' names, and describes them."""
    folder, architecture, tokenizer = source.folder, source.architecture, source.tokenizer
    ids = tokens_to_compare(architecture, tokenizer)
    if classifier is not None:
        ids = ids[: longest_text(folder, architecture, tokenizer)]
    written = next(iter(files.values())).parent
    counts = {
        "file": written.name,
        "divergence": verify(folder, architecture, ids, files, quantization, classifier, session),
        "bytes": sum(file.stat().st_size for file in written.iterdir()),
        "task": PIPELINES[architecture.kind if classifier is None else classifier.kind],
        "prompt": "A fine day in Paris." if classifier else _prompt(architecture, tokenizer),
    }
    if isinstance(architecture, EncoderDecoderArchitecture):
        counts["start"] = architecture.decoder_start_token_id
    return counts


def write_onnx(
    folder: Path,
    architecture: Architecture,
    target: Path,
    quantization: Quantization,
    classifier: ClassifierConfig | None = None,
    *,
    most_bytes: int = _MOST_BYTES,
) -> dict[str, Path]:
    """Writes a checkpoint's graphs, and returns the files by the graphs' names.

    Args:
        most_bytes: Larger weights are written to a file beside the graph.
    """
    target.mkdir()
    weights: Weights
    if classifier is None:
        weights = hf.read_weights(folder, architecture)
    else:
        weights = read_classifier_weights(folder, classifier)
    files = {}
    models = build_models(weights, architecture, quantization, classifier)
    for graph, model in models.items():
        files[graph] = target / f"{graph}{ONNX_DTYPES[quantization][1]}.onnx"
        size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
        onnx.save_model(
            model,
            files[graph],
            save_as_external_data=size > most_bytes,
            location=_data_file(files[graph]).name,
        )
    return files


def verify(
    folder: Path,
    architecture: Architecture,
    ids: NDArray[np.int32],
    files: Mapping[str, Path],
    quantization: Quantization,
    classifier: ClassifierConfig | None = None,
    session: Callable[[Path], Session] = OnnxSession,
) -> float:
    """Reads files back and compares their predictions with the model's.

    Half of the tokens (L,) are read once more with padding.

    Returns:
        The mean Kullback-Leibler divergence in nats.

    Raises:
        CheckpointError: They differ; the files are deleted.
    """
    rows = np.stack([ids, ids]).astype(np.int64)
    mask = np.ones_like(rows)
    mask[1, len(ids) // 2 :] = 0
    rows[mask == 0] = architecture.pad_token_id
    inputs = {"input_ids": rows, "attention_mask": mask, "decoder_input_ids": rows[:, ::-1]}
    sessions = {name: session(file) for name, file in files.items()}
    theirs = compute_logits(sessions, *inputs.values()).astype(np.float64)
    if theirs.ndim == 3 and architecture.kind != "encoder-decoder":
        theirs = theirs[mask > 0]
    if classifier is not None:
        ours = _logits_of_classifier(folder, classifier, [ids, ids[: len(ids) // 2]])
    else:
        inputs = {name: values.astype(np.int32) for name, values in inputs.items()}
        ours = logits_of_model(folder, inputs)
        ours = ours if architecture.kind == "encoder-decoder" else ours[mask > 0]
    most = _MOST_DIFFERENCE * max(1.0, float(np.abs(ours).max()))
    difference = float(np.abs(ours - theirs).max())
    if quantization == "f32" and not difference <= most:
        expected = f"logits that differ by at most {most:.2g}"
        received = f"a difference of {difference:.2g}"
        refuse(expected, received, quantization, folder, files.values())
    ours, theirs = log_softmax(ours), log_softmax(theirs)
    return check_divergence(ours, theirs, quantization, folder, files.values())


def _read_classifier(folder: Path, name: str) -> ClassifierConfig | None:
    if not is_classifier(folder):
        return None
    classifier = read_classifier_config(folder)
    if classifier.architecture.kind != "encoder":
        raise ConfigError(
            f"{name} is a classifier that transformers.js can't run",
            expected="one of a BERT, RoBERTa or ModernBERT",
            received=find_family(classifier.architecture.model_type).title,
            fix="fine-tune an encoder for the task",
            field="model",
        )
    return classifier


def _logits_of_classifier(
    folder: Path, classifier: ClassifierConfig, rows: Sequence[NDArray[np.int32]]
) -> Array:
    position = 0 if classifier.kind == "sequence" else None
    sequences = [TokenSequence(row, position=position) for row in rows]
    logits = LoadedClassifier(folder, "float32").logits(sequences)
    lengths = [1 if position == 0 else len(row) for row in rows]
    parts = [values[:length] for values, length in zip(logits, lengths, strict=True)]
    return np.concatenate(parts).astype(np.float64)


def _add_settings(target: Path, quantization: Quantization, files: Mapping[str, Path]) -> None:
    """Tells transformers.js the number format, and the files with weights only."""
    settings: dict[str, Any] = {"dtype": ONNX_DTYPES[quantization][0]}
    if any(_data_file(file).exists() for file in files.values()):
        settings["use_external_data_format"] = {
            file.name: _data_file(file).exists() for file in files.values()
        }
    path = target / hf.CONFIG_FILE
    values = {**json.loads(path.read_text("utf-8")), "transformers.js_config": settings}
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def _data_file(file: Path) -> Path:
    return file.with_name(f"{file.name}_data")


def _prompt(architecture: Architecture, tokenizer: StudioTokenizer) -> str:
    if architecture.kind == "decoder":
        return "Once upon a time"
    fills_masks = find_family(architecture.model_type).fills_masks
    return f"The {tokenizer.mask_token if fills_masks else '<extra_id_0>'} of the house."
