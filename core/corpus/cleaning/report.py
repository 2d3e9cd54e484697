"""Counts what each step of cleaning did, with examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from core.config.clean import CleanConfig
from core.config.options import field_extra, title_of

_MOST_EXAMPLES = 3
_SHOWN_CHARACTERS = 300
_SHOWN_BEFORE_CHANGE = 100

LENGTH = "length"
# In the order of their application.
STEPS = (
    "fix_encoding", "unicode_form", "exact_duplicates", "boilerplate_lines", "gopher",
    "gopher_repetition", "c4", "fineweb", LENGTH, "languages", "replace_emails", "replace_phones",
    "replace_ip_addresses", "near_duplicates",
)  # fmt: skip


def title_of_step(step: str) -> str:
    return "Length" if step == LENGTH else title_of(step, CleanConfig.model_fields[step])


def steps_in_use(config: CleanConfig) -> list[str]:
    """Returns the steps that are switched on, in order."""
    return [step for step in STEPS if _is_on(step, config)]


def _is_on(step: str, config: CleanConfig) -> bool:
    if step == LENGTH:
        return not config.min_characters is config.max_characters is None
    value = getattr(config, step)
    return value != "none" and bool(value)


# Settings that no switch shows, by their step.
_SETTINGS = {
    LENGTH: ("min_characters", "max_characters"),
    "languages": ("languages", "min_language_probability"),
}


def thresholds_in_use(config: CleanConfig) -> dict[str, dict[str, Any]]:
    """Returns the settings of each step that is switched on; None is off."""
    return {
        step: {name: value for name in _settings_of(step)
               if (value := getattr(config, name)) is not None}
        for step in steps_in_use(config)
    }  # fmt: skip


def _settings_of(step: str) -> Iterable[str]:
    fields = CleanConfig.model_fields.items()
    return _SETTINGS.get(step) or [
        name for name, info in fields if field_extra(info)["needs"] == step
    ]


@dataclass(frozen=True)
class Example:
    """A removed or changed document.

    Attributes:
        document: Number in the corpus, from 1.
        rule: Option or reason within the step.
        after: Empty for removed documents.
    """

    document: int
    step: str
    rule: str
    explanation: str
    before: str
    after: str = ""


@dataclass
class StepTally:
    """Counts of one step.

    Attributes:
        removed: Documents by rule.
        items: Lines or places that were changed.
    """

    removed: Counter[str] = field(default_factory=Counter)
    removed_bytes: int = 0
    changed: int = 0
    items: int = 0

    def add(self, other: StepTally) -> None:
        self.removed += other.removed
        self.removed_bytes += other.removed_bytes
        self.changed += other.changed
        self.items += other.items

    def to_dict(self) -> dict[str, Any]:
        return {
            "removed_documents": self.removed.total(),
            "removed_bytes": self.removed_bytes,
            "changed_documents": self.changed,
            "changed_places": self.items,
            "removed_by": dict(sorted(self.removed.items())),
        }


class Tally:
    """Counts and examples of all steps.

    Args:
        most_examples: Per step and rule; None: all, in full length.
    """

    def __init__(self, most_examples: int | None = _MOST_EXAMPLES) -> None:
        self.steps: dict[str, StepTally] = {}
        self.examples: list[Example] = []
        self._most_examples = most_examples
        self._kept: Counter[tuple[str, str]] = Counter()

    def remove(self, step: str, rule: str, number: int, text: str, explanation: str) -> None:
        """Counts a removed document."""
        counts = self.steps.setdefault(step, StepTally())
        counts.removed[rule] += 1
        counts.removed_bytes += len(text.encode())
        if self._has_room(step, rule):
            before = self._shorten(text, 0)
            self._keep(Example(number + 1, step, rule, explanation, before))

    def change(self, step: str, number: int, before: str, after: str, items: int = 1) -> None:
        """Counts a changed document."""
        counts = self.steps.setdefault(step, StepTally())
        counts.changed += 1
        counts.items += items
        if self._has_room(step, ""):
            start = max(0, first_difference(before, after) - _SHOWN_BEFORE_CHANGE)
            texts = self._shorten(before, start), self._shorten(after, start)
            self._keep(Example(number + 1, step, "", "", *texts))

    def add(self, other: Tally) -> None:
        """Adds the counts of later documents."""
        for step, counts in other.steps.items():
            self.steps.setdefault(step, StepTally()).add(counts)
        for example in other.examples:
            if self._has_room(example.step, example.rule):
                self._keep(example)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for `from_dict`."""
        steps = {
            step: {**vars(counts), "removed": dict(counts.removed)}
            for step, counts in self.steps.items()
        }
        return {"steps": steps, "examples": [asdict(example) for example in self.examples]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Tally:
        tally = cls()
        for step, counts in values["steps"].items():
            tally.steps[step] = StepTally(**{**counts, "removed": Counter(counts["removed"])})
        for example in values["examples"]:
            tally._keep(Example(**example))
        return tally

    def _has_room(self, step: str, rule: str) -> bool:
        return self._most_examples is None or self._kept[step, rule] < self._most_examples

    def _keep(self, example: Example) -> None:
        self._kept[example.step, example.rule] += 1
        self.examples.append(example)

    def _shorten(self, text: str, start: int) -> str:
        if self._most_examples is None:
            return text
        shown = text[start : start + _SHOWN_CHARACTERS]
        return ("…" if start else "") + shown + ("…" if start + len(shown) < len(text) else "")


def first_difference(before: str, after: str) -> int:
    """Bisects, as comparing characters one by one is slow."""
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before[:middle] == after[:middle] else (low, middle - 1)
    return low


_KEPT = [(split, unit) for split in ("train", "validation") for unit in ("documents", "bytes")]


@dataclass
class SourceCounts:
    """Counts of one named source.

    Attributes:
        read: Documents and bytes before cleaning.
        written: Documents and bytes by split.
        removed: Documents by step.
    """

    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)

    def add_removed(self, tally: Tally) -> None:
        self.removed.update({step: counts.removed.total() for step, counts in tally.steps.items()})

    def to_dict(self) -> dict[str, Any]:
        removed = {step: count for step, count in sorted(self.removed.items()) if count}
        counts = {f"{split}_{unit}": self.written[f"{split}_{unit}"] for split, unit in _KEPT}
        return {**counts, "read": dict(self.read), "removed": removed}

    def describe(self) -> str:
        return (
            f"documents read {self.read['documents']:,}, kept {self.written['train_documents']:,} "
            f"for training and {self.written['validation_documents']:,} for validation"
        )


@dataclass(frozen=True)
class Report:
    """Result of cleaning a corpus.

    Attributes:
        read: Documents and bytes before cleaning, in `documents` and `bytes`.
        written: Documents and bytes by split.
        by_source: Counts of named sources, in their order.
        thresholds: Settings of each step.
    """

    read: Mapping[str, int]
    written: Mapping[str, int]
    tally: Tally
    steps: list[str]
    by_source: Mapping[str, SourceCounts] = field(default_factory=dict)
    thresholds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Returns counts for the manifest."""
        sources = {name: counts.to_dict() for name, counts in self.by_source.items()}
        named = {"sources": sources} if sources else {}
        return {
            "validation_documents": 0,
            **self.written,
            "read": dict(self.read),
            "steps": dict(self._steps()),
            **named,
        }

    def to_dict(self) -> dict[str, Any]:
        """Returns counts with examples."""
        examples = sorted(
            self.tally.examples, key=lambda example: (example.step, example.rule, example.document)
        )
        return {
            **self.summary(),
            "examples": {
                step: [asdict(example) for example in examples if example.step == step]
                for step in self.steps
            },
        }

    def lines(self) -> list[str]:
        """Returns a line per step and named source for the log."""
        sources = [f"Source {name}: {counts.describe()}" for name, counts in self.by_source.items()]
        return [
            f"{title_of_step(step)}: documents removed {counts['removed_documents']:,}, changed "
            f"{counts['changed_documents']:,}"
            for step, counts in self._steps()
        ] + sources

    def _steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for step in self.steps:
            counts = self.tally.steps.get(step, StepTally()).to_dict()
            thresholds = dict(self.thresholds.get(step, {}))
            yield step, {**counts, **({"thresholds": thresholds} if thresholds else {})}
