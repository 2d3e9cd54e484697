"""Records how files were read, and which were skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

_LISTED = 20
_NAMED = 5


@dataclass(frozen=True)
class Facts:
    """The settings with which a file is read.

    Attributes:
        format: text, jsonl, json, csv, tsv or parquet.
    """

    format: str
    compression: str = ""
    encoding: str = ""
    delimiter: str = ""
    header: bool | None = None
    quoting: bool | None = None
    column: str = ""

    def describe(self) -> str:
        words = [self.format, self.compression, self.encoding.upper()]
        if self.delimiter:
            words.append(f"delimiter {self.delimiter}")
            words.append("first row names the columns" if self.header else "no header")
            words += [] if self.quoting else ["quotation marks are text"]
        if self.column:
            words.append(f"column {self.column}")
        return ", ".join(word for word in words if word)


@dataclass(frozen=True)
class Skipped:
    """A skipped file, named relative to the user's folder."""

    name: str
    reason: str


class Findings:
    """Counts a file's irregularities, such as short rows."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def count(self, text: str, where: str) -> None:
        """Counts an irregularity (a plural noun) and keeps its first place."""
        self.counts[text] += 1
        self.first.setdefault(text, where)

    def add(self, other: Findings) -> None:
        self.counts += other.counts
        self.first = {**other.first, **self.first}


@dataclass
class ReadingReport:
    """Records files as they are opened."""

    found: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    _facts: dict[str, Facts] = field(default_factory=dict)
    _findings: dict[str, Findings] = field(default_factory=dict)

    def add(self, shown: str, facts: Facts, findings: Findings | None = None) -> None:
        """Replaces a file's settings and findings."""
        self._facts[shown] = facts
        self._findings[shown] = findings or Findings()

    def to_json(self) -> dict[str, Any]:
        """Returns all of it, for `from_json`."""
        return {
            "found": self.found,
            "facts": {shown: asdict(facts) for shown, facts in self._facts.items()},
            "findings": {
                shown: [dict(found.counts), found.first] for shown, found in self._findings.items()
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ReadingReport:
        report = cls(found=values["found"])
        for shown, facts in values["facts"].items():
            findings = Findings()
            counts, first = values["findings"][shown]
            findings.counts, findings.first = Counter(counts), dict(first)
            report.add(shown, Facts(**facts), findings)
        return report

    def take(self, others: Iterable[ReadingReport]) -> None:
        """Takes over what other processes found; files can be in several of their reports."""
        findings: dict[str, Findings] = {}
        for other in others:
            self._facts |= other._facts
            for shown, found in other._findings.items():
                findings.setdefault(shown, Findings()).add(found)
        self._findings |= findings

    def describe_files(self) -> list[str]:
        """Returns a line per combination of settings."""
        groups: dict[Facts, list[str]] = {}
        for shown, facts in self._facts.items():
            groups.setdefault(facts, []).append(shown)
        opened = len(self._facts)
        rest = f" (of {self.found:,} files)" if opened < self.found else ""
        return [
            f"Read {_named(names)}{rest}: {facts.describe()}" for facts, names in groups.items()
        ]

    def describe_skipped(self) -> str:
        """Describes skipped files, if any."""
        if not self.skipped:
            return ""
        by_reason: dict[str, list[str]] = {}
        for one in self.skipped:
            by_reason.setdefault(one.reason, []).append(one.name)
        parts = [f"{_named(names)}: {reason}" for reason, names in by_reason.items()]
        total = len(self.skipped)
        return f"Skipped {total:,} {'file' if total == 1 else 'files'}. {'; '.join(parts)}"

    def describe_findings(self) -> list[str]:
        """Returns a line per kind of finding."""
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for found in self._findings.values():
            counts += found.counts
            first = {**found.first, **first}
        return [f"{count:,} {text}, first in {first[text]}" for text, count in counts.items()]

    def lines(self) -> list[str]:
        skipped = self.describe_skipped()
        return [
            *self.describe_files(), *([skipped] if skipped else []), *self.describe_findings()
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, with lists of bounded length."""
        facts = dict(list(self._facts.items())[:_LISTED])
        return {
            "found": self.found,
            "read": {name: _set_values(asdict(one)) for name, one in facts.items()},
            "skipped_count": len(self.skipped),
            "skipped": [asdict(one) for one in self.skipped[:_LISTED]],
            "findings": self.describe_findings(),
        }


def _set_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in ("", None)}


def _named(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
