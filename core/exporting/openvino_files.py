"""Converts graphs to OpenVINO's files, and runs these."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.backends.openvino.compilation import compile_settings, import_openvino
from core.config.export import Quantization
from core.exporting.onnx_verification import Values


class OpenvinoSession:
    """A graph in OpenVINO."""

    def __init__(self, file: Path) -> None:
        core = import_openvino().Core()
        self._model = core.compile_model(file, "CPU", compile_settings("float32"))
        self.inputs: dict[str, Any] = {
            each.get_any_name(): [
                size.get_length() if size.is_static else -1 for size in each.get_partial_shape()
            ]
            for each in self._model.inputs
        }

    def run(self, values: Values) -> Values:
        outputs = self._model(values).items()
        return {name: array.copy() for port, array in outputs for name in port.get_names()}


def convert(
    graphs: Mapping[str, Path], target: Path, quantization: Quantization
) -> dict[str, Path]:
    """Converts ONNX files by the graphs' names."""
    openvino = import_openvino()
    target.mkdir()
    files = {graph: target / f"{graph}.xml" for graph in graphs}
    for graph, file in files.items():
        model = openvino.Core().read_model(graphs[graph])
        openvino.save_model(model, file, compress_to_fp16=quantization == "f16")
    return files
