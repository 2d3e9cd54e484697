"""Refuses options that have no effect with the chosen task and data."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from core.config import EvaluateConfig
from core.config.values import changed_values, unused_error
from core.corpus.finding import Format, find_files
from core.evaluation.advice import naming_options
from core.evaluation.reading import OF_DATASETS, OF_FILES, OF_TASKS

_TABLES = frozenset[Format]({"jsonl", "json", "csv", "tsv", "parquet"})
_CSV = frozenset[Format]({"csv", "tsv"})
_NOT_PARQUET = frozenset[Format]({"text", "jsonl", "json", "csv", "tsv"})
# Formats of files in which an option of files has an effect.
FORMATS_OF_OPTIONS = {
    "csv_header": _CSV,
    "delimiter": _CSV,
    "quoting": _CSV,
    "encoding": _NOT_PARQUET,
    "encoding_errors": _NOT_PARQUET,
    "text_unit": frozenset[Format]({"text"}),
    "text_column": _TABLES,
}
_TASKS = {"minimal_pairs": "minimal pairs", "text": "held-out text"}


def check_used(config: EvaluateConfig) -> None:
    """Raises ConfigError for an option that would be ignored."""
    for name, reason in find_unused(config).items():
        default = EvaluateConfig.model_fields[name].default
        expected = f"no value, or {default!r}" if default else "no value"
        raise unused_error(name, getattr(config, name), reason, expected)


def find_unused(config: EvaluateConfig) -> dict[str, str]:
    """Returns the options with a value other than their default that have no effect, with reasons.

    Raises:
        ConfigError, CorpusError: There are no such files.
    """
    reasons: dict[str, str] = {}
    for task, names in OF_TASKS.items():
        if task != config.task:
            reasons |= dict.fromkeys(names, f"on {_TASKS[config.task]}")
    if config.path:
        reasons |= dict.fromkeys(OF_DATASETS, "together with path, whose files are read instead")
    else:
        reasons |= dict.fromkeys(OF_FILES, "on a dataset on the Hub")
    changed = changed_values(config)
    found = {name: reasons[name] for name in changed if name in reasons}
    others = [name for name in changed if name in FORMATS_OF_OPTIONS and name not in reasons]
    if others and config.path and config.task == "text":
        with naming_options(config):
            files = find_files(config.path, field="path", file_format=config.file_format).files
        found |= reasons_of_formats(others, {file.format for file in files})
    return found


def reasons_of_formats(names: Iterable[str], formats: Collection[Format]) -> dict[str, str]:
    """Returns the options without effect on files of these formats, with reasons."""
    reason = f"on files in the format {' or '.join(sorted(formats))}"
    return {name: reason for name in names if FORMATS_OF_OPTIONS[name].isdisjoint(formats)}
