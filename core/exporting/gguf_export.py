"""Exports a decoder for llama.cpp, with a Modelfile for Ollama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.artifacts.model_tokenizer import longest_sequence
from core.config.export import Quantization
from core.exporting.commands import MODELFILE
from core.exporting.gguf import write_gguf
from core.exporting.gguf_verification import GgufModel
from core.exporting.source import Source
from core.exporting.verification import (
    check_divergence,
    log_softmax,
    logits_of_model,
    tokens_to_compare,
)
from core.models import hf
from core.tokenizer.loading import StudioTokenizer


def export(source: Source, target: Path, quantization: Quantization) -> dict[str, Any]:
    """Writes a model to a folder.

    Returns:
        The file's name and bytes, and its divergence from the model.
    """
    folder, architecture, tokenizer = source.folder, source.architecture, source.tokenizer
    hf.check_pretrained(folder, source.name)
    file = target / f"{source.name}-{quantization}.gguf"
    write_gguf(folder, architecture, tokenizer, file, quantization, source.name)
    divergence = verify(folder, tokens_to_compare(architecture, tokenizer), file, quantization)
    (target / MODELFILE).write_text(_modelfile(file.name, architecture, tokenizer), "utf-8")
    return {"file": file.name, "bytes": file.stat().st_size, "divergence": divergence}


def verify(folder: Path, ids: NDArray[np.int32], file: Path, quantization: Quantization) -> float:
    """Reads a GGUF file back and compares its predictions of tokens (L,) with the model's.

    Returns:
        The mean Kullback-Leibler divergence in nats.

    Raises:
        CheckpointError: They differ; the file is deleted.
    """
    ours = log_softmax(logits_of_model(folder, {"input_ids": ids[None]})[0])
    theirs = GgufModel(file).log_probabilities(ids)
    return check_divergence(ours, theirs, quantization, folder, [file])


def _modelfile(file: str, architecture: Architecture, tokenizer: StudioTokenizer) -> str:
    """Describes the model to Ollama: it continues a text, without a chat's format.

    Source: https://docs.ollama.com/modelfile
    """
    lines = [f"FROM ./{file}", "TEMPLATE {{ .Prompt }}"]
    lines.append(f"PARAMETER num_ctx {longest_sequence(architecture, tokenizer)}")
    end = architecture.eos_token_id
    if end in tokenizer.tokens:
        lines.append(f'PARAMETER stop "{tokenizer.tokens[end]}"')
    return "\n".join(lines) + "\n"
