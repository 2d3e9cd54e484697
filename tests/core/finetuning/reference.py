"""Logits of transformers on PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


class Reference:
    """A classifier of transformers; it loads without missing or unexpected tensors."""

    def __init__(self, folder: Path) -> None:
        self._torch = pytest.importorskip("torch", reason="pip install torch==2.13.0")
        import transformers

        (name,) = json.loads((folder / "config.json").read_text())["architectures"]
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
        self.problems = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
        self.model = model.eval()

    def logits(self, texts: list[Any], **options: Any) -> NDArray[np.float32]:
        """Returns the logits of texts or pairs of texts."""
        inputs = self.tokenizer(
            *map(list, zip(*texts, strict=True)), return_tensors="pt", padding=True
        )
        with self._torch.no_grad():
            found: NDArray[np.float32] = self.model(**inputs, **options).logits.numpy()
            return found
