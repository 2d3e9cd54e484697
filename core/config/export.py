"""Options of the export of a model to other programs."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from core.config.base import StageConfig
from core.config.options import option
from core.errors import ConfigError

Format = Literal["gguf", "onnx", "openvino"]
Quantization = Literal["f32", "f16", "bf16", "q8_0"]
QUANTIZATIONS: dict[Format, tuple[Quantization, ...]] = {
    "gguf": ("f32", "f16", "bf16", "q8_0"),
    "onnx": ("f32", "f16", "q8_0"),
    "openvino": ("f32", "f16"),
}


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
    format: Format = option(
        "gguf",
        "File format.",
        options={
            "gguf": ("GGUF", "decoders, for llama.cpp, Ollama, LM Studio and others"),
            "onnx": ("ONNX", "for ONNX Runtime, and transformers.js in browsers"),
            "openvino": ("OpenVINO", "for processors of Intel"),
        },
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

    @model_validator(mode="after")
    def _check_quantization(self) -> Self:
        offered = QUANTIZATIONS[self.format]
        if self.quantization not in offered:
            raise ConfigError(
                f"The file format {self.format} doesn't have this number format",
                expected=", ".join(offered),
                received=self.quantization,
                fix="choose a listed one, or another file format",
                field="quantization",
            )
        return self
