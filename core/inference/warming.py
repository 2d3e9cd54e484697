"""Makes a model ready before somebody asks: loaded, and tried or compiled for short texts.

Importing this imports no engine.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

from core.config import Dtype
from core.inference.generation import Writer
from core.inference.masks import FillMask
from core.inference.models import keep
from core.inference.sampling import Sampling
from core.models import hf
from core.models.finding import find_model
from core.workspace import Workspace

_PROMPT = "a"


def prepare(
    model: str | Path, workspace: Workspace | None = None, dtype: Dtype = "float32"
) -> Generator[str, None, None]:
    """Loads a model and makes it ready for what is asked for most often, that first.

    Args:
        model: A model's name in the workspace, a checkpoint's folder, or an id on the Hub.
        workspace: Where names are looked up.
        dtype: Precision that it is going to be asked for masks in; of what writes it is float32.

    Yields:
        What was made ready.

    Raises:
        StudioError: The model can't be found, or is damaged.
    """
    folder = find_model(model, workspace or Workspace())
    if hf.read_architecture(folder).kind == "encoder":
        filler: FillMask = keep(folder, dtype, FillMask)
        started = time.monotonic()
        for shape in filler.prepare():
            yield f"{shape.rows} x {shape.length}, {shape.masks} masks"
            # Half of the time is for those who ask already.
            time.sleep(time.monotonic() - started)
            started = time.monotonic()
    else:
        writer: Writer = keep(folder, "float32", Writer)
        for _ in writer.write(_PROMPT, 2, Sampling(temperature=0)):
            pass
        yield "writing"
