"""The export stage."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.artifacts.model_tokenizer import load_tokenizer, longest_sequence
from core.artifacts.subject import open_subject
from core.config.export import ExportConfig, Quantization
from core.errors import CheckpointError
from core.exporting.gguf import write_gguf
from core.exporting.gguf_verification import GgufModel, log_softmax
from core.inference.models import check_finite, choose_backend, load_model
from core.models import hf
from core.records.events import Reporter
from core.tokenizer.loading import StudioTokenizer
from core.workspace.manifests import Artifact
from core.workspace.names import name_from
from core.workspace.workspace import Workspace

MODELFILE = "Modelfile"
# Mean Kullback-Leibler divergence from the model's predictions, in nats.
MOST_DIVERGENCE: dict[Quantization, float] = {"f32": 1e-4, "f16": 1e-4, "bf16": 5e-3, "q8_0": 5e-3}
_TEXT = (
    "The first of 12,345 houses wasn't built before 1890.\n\nIt stood  alone; naïve, isn't it?\n"
    "def add(a, b):\n    return a + b  # 서울은 대한민국의 수도이다. 🙂"
)
_MOST_TOKENS = 128


def run(config: ExportConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Writes a model as a GGUF file, and an Ollama Modelfile beside it.

    Returns:
        As counts the file's name and bytes, and its divergence from the model in nats.

    Raises:
        ConfigError, CheckpointError, HubError: There is no such model, or llama.cpp can't run it.
        TokenizerError: llama.cpp can't represent its tokenizer.
    """
    reporter = reporter or Reporter()
    with (
        open_subject(config.model, workspace, reporter) as subject,
        workspace.new_artifact(
            "export", config.name or derive_name(config), exact=bool(config.name)
        ) as draft,
    ):
        name = name_from(Path(subject.name).name, fallback="model")
        file = draft.folder / f"{name}-{config.quantization}.gguf"
        architecture = hf.read_architecture(subject.folder)
        tokenizer = load_tokenizer(subject.folder, architecture.vocab_size)
        write_gguf(subject.folder, architecture, tokenizer, file, config.quantization, name)
        ids = tokenizer.encode(_TEXT)[
            : min(longest_sequence(architecture, tokenizer), _MOST_TOKENS)
        ]
        divergence = verify(subject.folder, ids, file, config.quantization)
        modelfile = _modelfile(file.name, architecture, tokenizer)
        (draft.folder / MODELFILE).write_text(modelfile, "utf-8")
        draft.counts = {
            "file": file.name,
            "bytes": file.stat().st_size,
            "divergence": divergence,
            "model": subject.name,
            "quantization": config.quantization,
        }
        draft.config = config.model_dump(mode="json")
        draft.inputs = {"model": subject.fingerprint, "tokenizer": tokenizer.fingerprint}
        draft.run = reporter.folder.name if reporter.folder else ""
    assert draft.artifact is not None
    return draft.artifact


def derive_name(config: ExportConfig) -> str:
    """Returns a default name such as my-model-f16."""
    return name_from(Path(config.model).name, config.quantization, fallback="model")


def verify(folder: Path, ids: NDArray[np.int32], file: Path, quantization: Quantization) -> float:
    """Reads a GGUF file back and compares its predictions of tokens (L,) with the model's.

    Returns:
        The mean Kullback-Leibler divergence in nats.

    Raises:
        CheckpointError: They differ; the file is deleted.
    """
    ours = _log_probabilities_of_model(folder, ids)
    theirs = GgufModel(file).log_probabilities(ids)
    divergence = float((np.exp(ours) * (ours - theirs)).sum(-1).mean())
    if not divergence <= MOST_DIVERGENCE[quantization]:
        file.unlink()
        raise CheckpointError(
            f"The exported file predicts other tokens than the model in {folder}",
            expected=f"a divergence of at most {MOST_DIVERGENCE[quantization]:g} nats with "
            f"{quantization}",
            received=f"{divergence:.3g} nats; the file was deleted",
            fix="export with another number format, such as f32",
            field="quantization",
        )
    return max(divergence, 0.0)


def commands(folder: Path, counts: Mapping[str, Any]) -> dict[str, str]:
    """Returns the command for each program that runs an exported file, by its name."""
    file = shlex.quote(str(folder / counts["file"]))
    name = shlex.quote(folder.name.lower())
    modelfile = shlex.quote(str(folder / MODELFILE))
    return {
        "llama.cpp": f"llama-completion -m {file} -no-cnv -n 64 -p 'Once upon a time'",
        "Ollama": f"ollama create {name} -f {modelfile} && ollama run {name}",
    }


def summarize(results: dict[str, Any]) -> str:
    """Lists the file and the commands that run it."""
    folder = Path(results["artifact"])
    lines = [f"{folder / results['file']} ({results['bytes'] / 1e6:,.1f} MB)"]
    lines += [f"{program}: {command}" for program, command in commands(folder, results).items()]
    return "\n".join(lines)


def _log_probabilities_of_model(folder: Path, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    choose_backend()
    from keras import ops

    logits = ops.convert_to_numpy(load_model(folder, "float32")({"input_ids": ids[None]}))[0]
    check_finite(logits, folder)
    return log_softmax(logits.astype(np.float64))


def _modelfile(file: str, architecture: Architecture, tokenizer: StudioTokenizer) -> str:
    """Describes the model to Ollama: it continues a text, without a chat's format.

    Source: https://docs.ollama.com/modelfile
    """
    lines = [f"FROM ./{file}", "TEMPLATE {{ .Prompt }}"]
    lines.append(f"PARAMETER num_ctx {longest_sequence(architecture, tokenizer)}")
    end = tokenizer.tokens.get(architecture.eos_token_id or -1)
    if end is not None:
        lines.append(f'PARAMETER stop "{end}"')
    return "\n".join(lines) + "\n"
