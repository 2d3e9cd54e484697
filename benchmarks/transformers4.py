"""What transformers 4.57 says of our checkpoints, and files of its TensorFlow and Flax classes.

Runs in an environment of its own, which `benchmarks/interop.py` says how to make; it knows nothing
of this project.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax.numpy as jnp
import numpy as np
import torch
import transformers

# Its T5 calls `clip` as JAX had it until 0.6.
_clip = jnp.clip
jnp.clip = lambda values, *bounds, a_max=None, **named: (
    _clip(values, *bounds, **named) if a_max is None else _clip(values, max=a_max)
)


def judge(folder: Path, arrays: dict[str, Any]) -> tuple[Any, Any]:
    """Loads a folder strictly, and returns the model and its logits."""
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    problems = {key: value for key, value in info.items() if value}
    assert not problems, problems
    with torch.no_grad():
        tensors = {key: torch.tensor(value).long() for key, value in arrays.items()}
        return model, model.eval()(**tensors).logits.numpy()


def write(folder: Path, model: Any, place: Path, prefix: str, arrays: dict[str, Any]) -> Any:
    """Writes a model with the class of another framework, and returns what that one says."""
    kind = getattr(transformers, prefix + type(model).__name__, None)
    if kind is None:
        return None
    theirs = kind.from_pretrained(folder, from_pt=True)
    theirs.save_pretrained(place)
    return np.asarray(theirs(**arrays).logits)


def main(folder: Path) -> None:
    arrays = dict(np.load(folder / "inputs.npz"))
    result: dict[str, Any] = {"transformers": transformers.__version__}
    for place in sorted(path for path in folder.iterdir() if (path / "config.json").is_file()):
        names = ["input_ids", "attention_mask"]
        family = json.loads((place / "config.json").read_text())["model_type"]
        if family in ("t5", "bart"):
            names.append("decoder_input_ids")
        given = {name: arrays[name] for name in names}
        model, logits = judge(place, given)
        said = {"torch": logits}
        for prefix in ("TF", "Flax"):
            other = write(place, model, place / prefix, prefix, given)
            if other is not None:
                said[prefix] = other
        np.savez(place / "said4.npz", **said)
        result[place.name] = sorted(said)
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
