"""The tasks of GLUE, with their columns and official metrics.

Source: https://arxiv.org/abs/1804.07461, table 1; https://huggingface.co/datasets/nyu-mll/glue
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.config.finetune import FinetuneConfig
from core.config.values import changed_values
from core.errors import ConfigError

GLUE = "nyu-mll/glue"


@dataclass(frozen=True)
class GlueFacts:
    """A task of GLUE.

    Attributes:
        labels: Names of the classes; empty for regression.
        metrics: The official ones; the first selects the best epoch.
    """

    columns: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    test_split: str = "validation"


_ENTAILED = ("entailment", "not_entailment")
_EQUAL = ("not_equivalent", "equivalent")
TASKS = {
    "cola": GlueFacts(("sentence",), ("unacceptable", "acceptable"), ("matthews",)),
    "sst2": GlueFacts(("sentence",), ("negative", "positive"), ("accuracy",)),
    "mrpc": GlueFacts(("sentence1", "sentence2"), _EQUAL, ("f1", "accuracy")),
    "qqp": GlueFacts(
        ("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy")
    ),
    "stsb": GlueFacts(("sentence1", "sentence2"), (), ("pearson", "spearman")),
    "mnli": GlueFacts(
        ("premise", "hypothesis"), ("entailment", "neutral", "contradiction"), ("accuracy",),
        "validation_matched",
    ),
    "qnli": GlueFacts(("question", "sentence"), _ENTAILED, ("accuracy",)),
    "rte": GlueFacts(("sentence1", "sentence2"), _ENTAILED, ("accuracy",)),
    "wnli": GlueFacts(("sentence1", "sentence2"), _ENTAILED[::-1], ("accuracy",)),
}  # fmt: skip


def with_glue(config: FinetuneConfig) -> FinetuneConfig:
    """Returns the config with the dataset and columns of its GLUE task.

    Raises:
        ConfigError: An option has another value than the task's.
    """
    if not config.glue:
        return config
    facts = TASKS[config.glue]
    values = {
        "task": "classification" if facts.labels else "regression",
        "text_column": facts.columns[0],
        "text_pair_column": facts.columns[1] if len(facts.columns) > 1 else "",
        "label_column": "label",
    }
    if not config.train_path:
        values |= {
            "dataset_name": GLUE,
            "dataset_config": config.glue,
            "train_split": "train",
            "test_split": config.test_split or facts.test_split,
        }
    _check_not_contradicted(config, values)
    return config.model_copy(update=values)


def _check_not_contradicted(config: FinetuneConfig, values: Mapping[str, str]) -> None:
    changed = changed_values(config)
    for name, value in values.items():
        if name in changed and changed[name] != value:
            raise ConfigError(
                f"⟬{name}⟭ contradicts glue: the GLUE task {config.glue} sets ⟬{name}⟭ itself",
                expected=f"no value, or {value!r}" if value else "no value",
                received=repr(changed[name]),
                fix=f"leave out ⟬{name}⟭; for data of your own without GLUE's columns and labels, "
                "leave out ⟬glue⟭",
                field=name,
            )
