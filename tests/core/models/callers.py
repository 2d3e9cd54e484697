"""All callers that open a model's weights, run by one process; see `test_callers.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import core.serving.demo
from core.config.train import TrainConfig
from core.inference.generation import generate
from core.inference.masks import FillMask, fill_mask
from core.inference.scoring import perplexity
from core.models import hf
from core.serving.demo import Demo
from core.training.trainer import train
from core.workspace.workspace import Workspace

TEXT = "the small cat runs"
SHARDS = {"t5": "spans", "bart": "sentences"}
# The demo selects its precision by timing, so it may differ between two models.
core.serving.demo._DTYPE = "float32"


def _masked(folder: Path) -> str:
    return TEXT.replace("cat", FillMask(folder).tokenizer.mask_token or "")


def _scores(filled: list[Any]) -> list[Any]:
    return [[one["token"], one["score"]] for one in filled]


def _fill(folder: Path, workspace: Workspace) -> Any:
    return _scores(fill_mask(folder, _masked(folder), workspace=workspace))


def _fill_compiled(folder: Path, workspace: Workspace) -> Any:
    return _scores(FillMask(folder, on_engine=True)([_masked(folder)])[0])


def _perplexity(folder: Path, workspace: Workspace) -> Any:
    return perplexity(folder, TEXT, workspace=workspace)["loss"]


def _generate(folder: Path, workspace: Workspace) -> Any:
    return generate(folder, TEXT, max_new_tokens=4, temperature=0, workspace=workspace)


def _demo(folder: Path, workspace: Workspace) -> Any:
    demo = Demo(str(folder))
    try:
        if demo.fills:
            return _scores(demo.fill_mask("", TEXT.replace("cat", demo.mask)))
        return list(demo.generate("", TEXT, max_new_tokens=4, temperature=0.0, seed=0))
    finally:
        demo.close()


def _config(folder: Path, **values: Any) -> TrainConfig:
    family = hf.read_architecture(folder).model_type
    defaults = {
        "preset": "custom", "shards": SHARDS.get(family, "rows"), "device": "cpu", "engine": "jax",
        "checkpoint": str(folder), "family": family, "per_replica_batch_size": 8,
        "max_eval_examples": 8, "max_train_examples": 16, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    return TrainConfig(**{**defaults, **values})


def _train(folder: Path, workspace: Workspace) -> Any:
    values = {"num_train_steps": 1, "eval_steps": 1, "warmup_steps": 0, "learning_rate": 1e-3}
    return train(_config(folder, **values), workspace).manifest.counts["eval_loss"]


def _evaluate(folder: Path, workspace: Workspace) -> Any:
    return train(_config(folder, evaluate_only=True), workspace).manifest.counts["eval_loss"]


CALLERS: dict[str, Callable[[Path, Workspace], Any]] = {
    "fill-mask": _fill,
    "compiled fill-mask": _fill_compiled,
    "perplexity": _perplexity,
    "generate": _generate,
    "demo": _demo,
    "train": _train,
    "evaluate-only": _evaluate,
}


def main() -> None:
    """Prints the result of each `[caller, folder]` of a JSON file."""
    workspace = Workspace(sys.argv[1])
    tasks = json.loads(Path(sys.argv[2]).read_text())
    answers = [CALLERS[caller](Path(folder), workspace) for caller, folder in tasks]
    print(json.dumps(answers, default=lambda value: np.asarray(value).tolist()))
