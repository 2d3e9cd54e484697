"""Runs transformers on our folders, and writes files with 4.57's TensorFlow and Flax classes.

Also a script for a process with transformers 4.57 instead of 5; it imports nothing of this project.
See `test_transformers4.py`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

_IN_SEVERAL_FILES = "40KB"


def reference(folder: Path, arrays: dict[str, Any]) -> tuple[Any, Any]:
    """Loads a folder, checks that every weight matched, and returns the model and its logits."""
    import torch
    import transformers

    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    model, info = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    problems = {key: value for key, value in info.items() if value and key.endswith("_keys")}
    assert not problems, problems
    with torch.no_grad():
        tensors = {key: torch.tensor(value).long() for key, value in arrays.items()}
        return model, model.eval()(**tensors).logits.numpy()


def write(folder: Path, model: Any, prefix: str, arrays: dict[str, Any]) -> Any:
    """Saves a model with another framework's class, and returns that class's logits."""
    import transformers

    kind = getattr(transformers, prefix + type(model).__name__, None)
    # Flax's Llama has neither a tied head nor scaled positions.
    if kind is None or folder.name == "llama":
        return None
    theirs = kind.from_pretrained(folder, from_pt=True)
    theirs.save_pretrained(folder / prefix)
    theirs.save_pretrained(folder / f"{prefix}-parts", max_shard_size=_IN_SEVERAL_FILES)
    return np.asarray(theirs(**arrays).logits)


def ask(folder: Path, model: Any, task: dict[str, Any]) -> dict[str, Any]:
    """A text's ids, and the output of a pipeline or of `generate`."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    options = {"max_new_tokens": task["new_tokens"], "do_sample": False}
    said: dict[str, Any] = {"ids": tokenizer(task["text"]).input_ids}
    if folder.name in task["fills"]:
        filler = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer)
        said["filled"] = filler(task["masked"])
    if folder.name in task["decoders"]:
        writer = transformers.pipeline("text-generation", model=str(folder))
        said["written"] = writer(task["text"], **options)[0]["generated_text"]
    elif folder.name in ("t5", "bart"):
        given = tokenizer(task["text"], return_tensors="pt")
        said["written_ids"] = model.generate(**given, **options)[0].tolist()
    return said


def cut(folder: Path, texts: list[str]) -> dict[str, list[list[int]]]:
    """The ids of texts for each tokenizer in a folder."""
    import transformers

    loaded = {
        place.name: transformers.AutoTokenizer.from_pretrained(place)
        for place in sorted(folder.iterdir())
        if (place / "tokenizer.json").is_file()
    }
    return {
        name: [tokenizer(text).input_ids for text in texts] for name, tokenizer in loaded.items()
    }


def clip_as_before() -> None:
    """Restores the signature that `clip` had before JAX 0.6, which transformers' T5 uses."""
    import jax.numpy as jnp

    clip = jnp.clip
    jnp.clip = lambda values, *bounds, a_max=None, **named: (
        clip(values, *bounds, **named) if a_max is None else clip(values, max=a_max)
    )


def main(folder: Path) -> None:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["JAX_PLATFORMS"] = "cpu"
    # The initial weights are discarded: optimised compilation would take far longer.
    os.environ["XLA_FLAGS"] = (
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )
    clip_as_before()
    import transformers

    arrays = dict(np.load(folder / "inputs.npz"))
    task = json.loads((folder / "task.json").read_text())
    result: dict[str, Any] = {"transformers": transformers.__version__}
    result["cut"] = cut(Path(task["tokenizers"]), task["texts"])
    for place in sorted(path for path in folder.iterdir() if (path / "config.json").is_file()):
        names = ["input_ids", "attention_mask"]
        if place.name in ("t5", "bart"):
            names.append("decoder_input_ids")
        given = {name: arrays[name] for name in names}
        model, logits = reference(place, given)
        said = {"torch": logits}
        for prefix in ("TF", "Flax"):
            other = write(place, model, prefix, given)
            if other is not None:
                said[prefix] = other
        np.savez(place / "said4.npz", **said)
        result[place.name] = ask(place, model, task)
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
