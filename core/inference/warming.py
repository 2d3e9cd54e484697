"""Warms up models."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

from core.architecture.options import Dtype
from core.artifacts.locating import locate_model
from core.inference.generation import TextGenerator
from core.inference.masks import FillMask
from core.inference.models import keep
from core.inference.sampling import Sampling
from core.models import hf
from core.workspace.workspace import Workspace

_PROMPT = "a"


def prepare(
    model: str | Path, workspace: Workspace | None = None, dtype: Dtype = "float32"
) -> Generator[str, None, None]:
    """Loads a model and warms it up, most common requests first.

    `dtype` is for fill-mask only. Yields step descriptions.
    """
    folder = locate_model(model, workspace)
    if hf.read_architecture(folder).kind == "encoder":
        filler: FillMask = keep(folder, dtype, FillMask)
        started = time.monotonic()
        for shape in filler.prepare():
            yield f"{shape.rows} x {shape.length}, {shape.masks} masks"
            # Leaves half of the time to concurrent requests.
            time.sleep(time.monotonic() - started)
            started = time.monotonic()
    else:
        writer: TextGenerator = keep(folder, "float32", TextGenerator)
        for _ in writer.write(_PROMPT, 2, Sampling(temperature=0)):
            pass
        yield "writing"
