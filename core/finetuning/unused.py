"""Refuses options that have no effect with the chosen data."""

from __future__ import annotations

from core.config.finetune import FinetuneConfig
from core.errors import ConfigError

_OF_DATASETS = ("dataset_name", "dataset_config", "validation_split", "test_split")
_SPLITS = ("validation", "test")


def check_used(config: FinetuneConfig) -> None:
    """Raises ConfigError for an option that would be ignored."""
    if config.task == "token_classification" and config.text_pair_column:
        raise ConfigError(
            "text_pair_column has no effect in token classification, which reads no pairs",
            expected="no value",
            received=repr(config.text_pair_column),
            fix="leave out text_pair_column; text_column is the column with the words",
            field="text_pair_column",
        )
    pairs = [(name, "train_path") for name in _OF_DATASETS]
    if not config.glue:
        pairs += [(f"{part}_split", f"{part}_path") for part in _SPLITS]
    for name, path in pairs:
        if getattr(config, name) and getattr(config, path):
            raise _unused(config, name, path)


def _unused(config: FinetuneConfig, name: str, path: str) -> ConfigError:
    return ConfigError(
        f"{name} has no effect together with {path}, whose files are read instead",
        expected="either files or a dataset on the Hub",
        received=f"{name}={getattr(config, name)!r} and {path}={getattr(config, path)!r}",
        fix=f"leave out {name} or {path}; the development set and the test set can be files: "
        "validation_path and test_path",
        field=name,
    )
