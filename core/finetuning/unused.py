"""Refuses options that have no effect with the chosen data."""

from __future__ import annotations

from collections.abc import Sequence

from core.config.finetune import FinetuneConfig
from core.config.values import changed_values, unused_error
from core.corpus.finding import Format, find_files
from core.corpus.format_options import reasons_of_formats
from core.errors import ConfigError
from core.finetuning.advice import naming_options
from core.finetuning.file_kinds import holds_tables

_OF_DATASETS = ("dataset_name", "dataset_config", "train_split", "validation_split", "test_split")
_OF_FILES = ("encoding", "quoting", "csv_header")
_SPLITS = ("validation", "test")
_PATHS = ("train_path", "validation_path", "test_path")


def check_used(config: FinetuneConfig) -> None:
    """Raises ConfigError for an option that would be ignored."""
    if config.task == "token_classification" and config.text_pair_column:
        raise ConfigError(
            "⟬text_pair_column⟭ has no effect in token classification, which reads no pairs",
            expected="no value",
            received=repr(config.text_pair_column),
            fix="leave out ⟬text_pair_column⟭; ⟬text_column⟭ is the column with the words",
            field="text_pair_column",
        )
    pairs = [(name, "train_path") for name in _OF_DATASETS]
    if not config.glue:
        pairs += [(f"{part}_split", f"{part}_path") for part in _SPLITS]
    changed = changed_values(config)
    for name, path in pairs:
        if name in changed and getattr(config, path):
            raise _unused(config, name, path)
    _check_used_by_files(config, [name for name in _OF_FILES if name in changed])


def _check_used_by_files(config: FinetuneConfig, changed: Sequence[str]) -> None:
    given = [path for path in _PATHS if getattr(config, path)]
    if not changed:
        return
    if given:
        formats = {file_format for path in given for file_format in _formats(config, path)}
        reasons = reasons_of_formats(changed, formats)
    else:
        reasons = dict.fromkeys(changed, "on a dataset on the Hub")
    for name, reason in reasons.items():
        raise unused_error(name, getattr(config, name), reason)


def _formats(config: FinetuneConfig, path: str) -> set[Format]:
    pattern = getattr(config, path)
    if config.task == "token_classification" and not holds_tables(pattern, path):
        return {"tsv"}  # Column files may have a header, too.
    with naming_options(path):
        return {file.format for file in find_files(pattern, field=path).files}


def _unused(config: FinetuneConfig, name: str, path: str) -> ConfigError:
    return ConfigError(
        f"⟬{name}⟭ has no effect together with ⟬{path}⟭, whose files are read instead",
        expected="either files or a dataset on the Hub",
        received=f"⟬{name}={getattr(config, name)!r}⟭ and ⟬{path}={getattr(config, path)!r}⟭",
        fix=f"leave out ⟬{name}⟭ or ⟬{path}⟭; the development set and the test set can be files: "
        "⟬validation_path⟭ and ⟬test_path⟭",
        field=name,
    )
