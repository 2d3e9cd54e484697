"""Commands that run the Playground's model in other programs."""

from __future__ import annotations

import shlex

from core.artifacts.finding import is_on_hub
from core.exporting.commands import commands, model_commands
from core.tokenizer.llama_cpp import runs_decoder
from core.workspace.workspace import Workspace
from ui.parts.examples import architecture_of, examples, folder_of, head_of
from ui.parts.markup import code_blocks


def render_elsewhere(name: str | None, workspace: Workspace) -> str:
    """Renders the commands of a model's exports, or those that export it."""
    architecture = architecture_of(name, workspace)
    if not name or architecture is None:
        return ""
    model = name if is_on_hub(name, workspace) else str(folder_of(name, workspace))
    kind = head_of(name, workspace) or architecture.kind
    prompt = next(iter(examples(name, workspace)), "A fine day")
    blocks = list(model_commands(model, kind, prompt).items())
    exports = {
        str(artifact.manifest.counts.get("format")): artifact
        for artifact in workspace.list("export")
        if artifact.manifest.counts.get("model") == name
    }
    is_for_llama_cpp = kind == "decoder" and runs_decoder(architecture.model_type)
    for file_format, programs, is_possible in (
        ("gguf", "llama.cpp, Ollama", is_for_llama_cpp),
        ("onnx", "ONNX Runtime, transformers.js", True),
    ):
        if export := exports.get(file_format):
            blocks += commands(export.path, export.manifest.counts).items()
        elif is_possible:
            command = f"python -m core export {shlex.quote(name)} --format {file_format}"
            blocks.append((f"{programs}: first export it", command))
    return f"<details><summary>Run elsewhere</summary>{code_blocks(blocks)}</details>"
