"""Compiles OpenVINO graphs for the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.backends.imports import import_for
from core.processes.cores import allowed_cores, usable_cores

PACKAGE = "openvino"
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


def compile_settings(dtype: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "PERFORMANCE_HINT": "LATENCY",
        # Pinned threads would obstruct a run's.
        "ENABLE_CPU_PINNING": False,
    }
    # OpenVINO counts the machine's cores; a container may have fewer.
    if usable_cores() < allowed_cores():
        settings["INFERENCE_NUM_THREADS"] = usable_cores()
    return settings


def compile_graph(model: Any, dtype: str) -> Callable[[Sequence[NDArray]], NDArray[np.float32]]:
    request = _core().compile_model(model, "CPU", compile_settings(dtype)).create_infer_request()
    tensor = import_openvino().Tensor
    computing = threading.Lock()

    def answer(inputs: Sequence[NDArray]) -> NDArray[np.float32]:
        with computing:
            for number, values in enumerate(inputs):
                request.set_input_tensor(number, tensor(values, shared_memory=True))
            request.infer()
            return request.get_output_tensor().data.copy()

    return answer


def has_bfloat16() -> bool:
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@cache
def _core() -> Any:
    return import_openvino().Core()


def import_openvino() -> Any:
    return import_for(PACKAGE, PACKAGE)
