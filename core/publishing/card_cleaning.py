"""Describes in a dataset card how the text was cleaned.

The summary comes from a manifest, perhaps of somebody else: `table` escapes its names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from core.config.clean import CleanConfig
from core.config.options import title_of
from core.corpus.cleaning.report import STEPS, title_of_step
from core.publishing.markdown import table

_STEP_COUNTS = ("removed_documents", "changed_documents")
_SKIPPED = {"parts_skipped": "parts", "files_skipped": "files"}


def describe_cleaning(summary: Any) -> str:
    """Returns counts of each step, its rules with thresholds, and counts of each source."""
    values = mapping(summary)
    known = mapping(values.get("steps"))
    steps = {name: mapping(known[name]) for name in STEPS if name in known}
    if not steps:
        return ""
    read = count_of(values.get("read"), "documents")
    rows = [
        (title_of_step(name), *(count_of(step, key) for key in _STEP_COUNTS))
        for name, step in steps.items()
    ]
    parts = [
        f"{read} documents were cleaned before tokenisation:",
        table(("step", "documents removed", "documents changed"), rows),
        *_skipped(values),
        table(("step", "rule", "threshold", "documents removed"), _rules(steps)),
        table(("source", "documents read", "for training", "held out"), _sources(values)),
    ]
    return "\n\n".join(filter(None, parts))


def _skipped(values: Mapping[str, Any]) -> Iterator[str]:
    for name, things in _SKIPPED.items():
        if values.get(name):
            yield f"The text is incomplete: {count_of(values, name)} {things} could not be read."


def _rules(steps: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, counts in steps.items():
        removed, thresholds = mapping(counts.get("removed_by")), mapping(counts.get("thresholds"))
        for rule in dict.fromkeys([*thresholds, *removed]):
            shown = str(thresholds[rule]) if rule in thresholds else ""
            # A setting that isn't a rule removes nothing by itself.
            number = count_of(removed, rule) if rule in removed else "0"
            yield title_of_step(name), _title_of_rule(rule), shown, number


def _title_of_rule(rule: Any) -> str:
    field = CleanConfig.model_fields.get(str(rule))
    return title_of(str(rule), field) if field else str(rule)


def _sources(values: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, source in mapping(values.get("sources")).items():
        yield (
            str(name), count_of(mapping(source).get("read"), "documents"),
            count_of(source, "train_documents"), count_of(source, "validation_documents"),
        )  # fmt: skip


def mapping(value: Any) -> Mapping[str, Any]:
    """Returns a foreign value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def count_of(counts: Any, name: str) -> str:
    """Returns a foreign count."""
    value = mapping(counts).get(name)
    return f"{value:,}" if isinstance(value, int) else "unknown"
