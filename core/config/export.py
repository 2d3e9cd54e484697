"""Options of the export of a model to other programs."""

from __future__ import annotations

from typing import Literal

from core.config.base import StageConfig
from core.config.options import option

Quantization = Literal["f32", "f16", "bf16", "q8_0"]


class ExportConfig(StageConfig):
    """Options for writing a model in the file format of other programs."""

    name: str = option(
        "",
        "Name of the export; empty: from the model and the number format.",
        group="Model",
        identity=False,
    )
    model: str = option(
        "",
        "Name in the workspace, a folder, a Hub id, or a run's checkpoint.",
        group="Model",
        basic=True,
        artifact="model",
        positional=True,
    )
    format: Literal["gguf"] = option(
        "gguf",
        "File format.",
        options={"gguf": ("GGUF", "For llama.cpp, Ollama, LM Studio and others")},
        group="Model",
        basic=True,
    )
    quantization: Quantization = option(
        "f16",
        "Number format of the matrices.",
        options={
            "f32": ("float32", "exact; 4 bytes per weight"),
            "f16": ("float16", "2 bytes per weight"),
            "bf16": ("bfloat16", "2 bytes per weight, less precise"),
            "q8_0": ("8 bits", "about 1 byte per weight"),
        },
        title="Numbers",
        group="Model",
        basic=True,
    )
