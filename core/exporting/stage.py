"""The export stage."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from core.artifacts.model_tokenizer import load_tokenizer
from core.artifacts.subject import open_subject
from core.config.export import ExportConfig, Format
from core.exporting.commands import commands
from core.exporting.source import Source
from core.messages.values import byte_count
from core.models import hf
from core.records.events import Reporter
from core.workspace.manifests import Artifact
from core.workspace.names import name_from
from core.workspace.workspace import Workspace

# Functions, whose modules import the packages of the format.
_EXPORTERS: dict[Format, str] = {
    "gguf": "core.exporting.gguf_export:export",
    "onnx": "core.exporting.onnx_export:export",
    "openvino": "core.exporting.onnx_export:export_for_openvino",
}


def run(config: ExportConfig, workspace: Workspace, reporter: Reporter | None = None) -> Artifact:
    """Writes a model as files for other programs.

    Returns:
        As counts the files' names and bytes, and their divergence from the model in nats.

    Raises:
        ConfigError, CheckpointError, HubError: There is no such model, or the programs can't run
            it.
        TokenizerError: They can't represent its tokenizer.
    """
    reporter = reporter or Reporter()
    with (
        open_subject(config.model, workspace, reporter) as subject,
        workspace.new_artifact(
            "export", config.name or derive_name(config), exact=bool(config.name)
        ) as draft,
    ):
        architecture = hf.read_architecture(subject.folder)
        tokenizer = load_tokenizer(subject.folder, architecture.vocab_size)
        name = name_from(Path(subject.name).name, fallback="model")
        source = Source(subject.folder, architecture, tokenizer, name)
        module, _, exporter = _EXPORTERS[config.format].partition(":")
        export = getattr(import_module(module), exporter)
        counts: dict[str, Any] = export(source, draft.folder, config.quantization)
        draft.counts = {
            **counts,
            "model": subject.name,
            "format": config.format,
            "quantization": config.quantization,
        }
        draft.config = config.model_dump(mode="json")
        draft.inputs = {"model": subject.fingerprint, "tokenizer": tokenizer.fingerprint}
        draft.run = reporter.folder.name if reporter.folder else ""
    assert draft.artifact is not None
    return draft.artifact


def derive_name(config: ExportConfig) -> str:
    """Returns a default name such as my-model-f16."""
    infix = () if config.format == "gguf" else (config.format,)
    return name_from(Path(config.model).name, *infix, config.quantization, fallback="model")


def summarize(results: dict[str, Any]) -> str:
    """Lists the files and the commands that run them."""
    folder = Path(results["artifact"])
    lines = [f"{folder / results['file']} ({byte_count(results['bytes'])})"]
    lines += [f"{program}:\n{command}" for program, command in commands(folder, results).items()]
    return "\n".join(lines)
