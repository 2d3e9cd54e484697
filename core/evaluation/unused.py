"""Refuses options that have no effect with the chosen task and data."""

from __future__ import annotations

from core.config.evaluate import OF_DATASETS, OF_FILES, OF_TASKS, EvaluateConfig
from core.config.values import changed_values, unused_error
from core.corpus.finding import find_files
from core.corpus.format_options import FORMATS_OF_OPTIONS, reasons_of_formats
from core.evaluation.advice import naming_options

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
        reasons |= dict.fromkeys(OF_DATASETS, "together with ⟬path⟭, whose files are read instead")
    else:
        reasons |= dict.fromkeys(OF_FILES, "on a dataset on the Hub")
    changed = changed_values(config)
    unused = {name: reasons[name] for name in changed if name in reasons}
    others = [name for name in changed if name in FORMATS_OF_OPTIONS and name not in reasons]
    if others and config.path and config.task == "text":
        with naming_options(config):
            files = find_files(config.path, field="path", file_format=config.file_format).files
        unused |= reasons_of_formats(others, {file.format for file in files})
    return unused
