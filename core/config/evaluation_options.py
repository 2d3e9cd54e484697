"""Lists the options that an evaluation reads, by its task and data, also during training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.config.evaluate import EvaluateConfig
from core.config.options import option_like

OF_DATASETS = ("dataset_name", "dataset_config", "split")
OF_FILES = (
    "text_unit", "encoding", "encoding_errors", "file_format", "csv_header", "delimiter", "quoting",
)  # fmt: skip
OF_TASKS = {
    "minimal_pairs": ("good_field", "bad_field", "paradigm_field", "phenomenon_field"),
    "text": (
        "text_unit", "text_column", "context_tokens", "file_format", "csv_header", "delimiter",
        "quoting",
    ),
}  # fmt: skip
_NOT_IN_TRAINING = {"model", "task", "path", *EvaluateConfig.fields_outside_identity()}
IN_TRAINING = [name for name in EvaluateConfig.model_fields if name not in _NOT_IN_TRAINING]


def names_in_training(task: str) -> dict[str, str]:
    """Returns the names that the options of an evaluation have in training."""
    names = {name: f"evaluate_{name}" for name in IN_TRAINING}
    if task == "text":
        return names | {name: f"evaluate_text_{name}" for name in ("path", *OF_DATASETS)}
    return {**names, "path": "evaluate_pairs_path"}


def declare_in_training(namespace: dict[str, Any], names: Iterable[str] = IN_TRAINING) -> None:
    """Declares options in a class body, whose `vars()` are given, by their names in training."""
    for name in names:
        namespace[f"evaluate_{name}"] = field = option_like(
            EvaluateConfig, name, group="Evaluation during training", identity=False
        )
        namespace["__annotations__"][f"evaluate_{name}"] = field.annotation


def options_read(task: str, *, has_path: bool) -> list[str]:
    """Returns the options that have an effect on the figures, without the model."""
    unread = {name for other, names in OF_TASKS.items() if other != task for name in names}
    unread |= set(OF_DATASETS if has_path else (*OF_FILES, "path"))
    unread |= {"model", *EvaluateConfig.fields_outside_identity()}
    return [name for name in EvaluateConfig.model_fields if name not in unread]
