"""Records how files were read, and which were skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from core.errors import CorpusError

_LISTED = 20
_NAMED = 5
# The reasons to skip a row of a table.
NO_COLUMN, NO_VALUE, BLANK = "no column", "no value", "blank"
_WITHOUT_TEXT = {
    NO_COLUMN: "rows have no column {} and are skipped",
    NO_VALUE: "rows have no value in the column {} and are skipped",
    BLANK: "rows have a blank column {} and are skipped",
}


@dataclass(frozen=True)
class Facts:
    """The settings with which a file is read.

    Attributes:
        format: text, jsonl, json, csv, tsv, parquet or arrow.
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
    """Counts a file's irregularities, such as short rows.

    Attributes:
        rows: Rows of a table that were read, in "rows", and those that are skipped, by reason.
        columns: Columns of the rows, for errors.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.rows: Counter[str] = Counter()
        self.columns: list[str] = []

    def count(self, text: str, where: str, times: int = 1) -> None:
        """Counts an irregularity (a plural noun) and keeps its first place."""
        self.counts[text] += times
        self.first.setdefault(text, where)

    def skip(self, reason: str, column: str, where: str) -> None:
        """Counts a row without text."""
        self.rows[reason] += 1
        self.count(_WITHOUT_TEXT[reason].format(column), where)

    def add(self, other: Findings) -> None:
        self.counts += other.counts
        self.first = {**other.first, **self.first}
        self.rows += other.rows
        self.columns = list(dict.fromkeys([*self.columns, *other.columns]))

    def check_rows(self, shown: str, column: str) -> None:
        """Raises CorpusError if more than half of the rows lack the column or a value."""
        absent, rows = self.rows[NO_COLUMN] + self.rows[NO_VALUE], self.rows["rows"]
        if absent * 2 <= rows:
            return
        others = [name for name in self.columns if name != column]
        raise CorpusError(
            f"{absent:,} of {rows:,} rows of {shown} have no text in the column {column!r}",
            expected="text in this column in at least half of the rows",
            received=f"rows with the columns {', '.join(self.columns[:_LISTED]) or '(none)'}",
            fix="set ⟬text_column⟭ to the column that contains the text"
            + (f" ({', '.join(others[:_NAMED])})" if others else "")
            + ", give the text the same name in all rows, or remove the other rows",
            field="text_column",
        )


@dataclass
class ReadingReport:
    """Records files as they are opened.

    Attributes:
        splits: Number of files by split, if their names decide it.
    """

    file_count: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)
    _facts: dict[str, Facts] = field(default_factory=dict)
    _findings: dict[str, Findings] = field(default_factory=dict)

    def add(self, shown: str, facts: Facts, findings: Findings | None = None) -> None:
        """Replaces a file's settings and findings."""
        self._facts[shown] = facts
        self._findings[shown] = findings or Findings()

    def to_json(self) -> dict[str, Any]:
        """Returns all of it, for `from_json`."""
        return {
            "found": self.file_count,
            "facts": {shown: asdict(facts) for shown, facts in self._facts.items()},
            "findings": {
                shown: [dict(file.counts), file.first, dict(file.rows), file.columns]
                for shown, file in self._findings.items()
            },
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ReadingReport:
        report = cls(file_count=values["found"])
        for shown, facts in values["facts"].items():
            findings = Findings()
            counts, first, *rows = values["findings"][shown]
            findings.counts, findings.first = Counter(counts), dict(first)
            if rows:  # parts of earlier versions have none
                findings.rows, findings.columns = Counter(rows[0]), list(rows[1])
            report.add(shown, Facts(**facts), findings)
        return report

    def take(self, others: Iterable[ReadingReport]) -> None:
        """Takes over what other processes found; files can be in several of their reports.

        Raises:
            CorpusError: Most rows of a file lack the text column.
        """
        findings: dict[str, Findings] = {}
        for other in others:
            self._facts |= other._facts
            for shown, other_findings in other._findings.items():
                findings.setdefault(shown, Findings()).add(other_findings)
        self._findings |= findings
        for shown, file_findings in findings.items():
            file_findings.check_rows(shown, self._facts[shown].column)

    @property
    def rows(self) -> dict[str, int]:
        """Rows of tables that were read, and those that are skipped, by reason."""
        return dict(sum((findings.rows for findings in self._findings.values()), Counter[str]()))

    def add_findings(self, shown: str, findings: Findings) -> None:
        """Adds to the findings of a file that was added."""
        self._findings.setdefault(shown, Findings()).add(findings)

    def describe_files(self) -> list[str]:
        """Returns a line per combination of settings."""
        groups: dict[Facts, list[str]] = {}
        for shown, facts in self._facts.items():
            groups.setdefault(facts, []).append(shown)
        opened = len(self._facts)
        rest = f" (of {self.file_count:,} files)" if opened < self.file_count else ""
        counts = [f"{count:,} for {split}" for split, count in self.splits.items()]
        divided = [f"Files divided by the splits in their names: {', '.join(counts)}"]
        return (divided if counts else []) + [
            f"Read {_named(names)}{rest}: {facts.describe()}" for facts, names in groups.items()
        ]

    def describe_skipped(self) -> str:
        """Describes skipped files, if any."""
        if not self.skipped:
            return ""
        by_reason: dict[str, list[str]] = {}
        for file in self.skipped:
            by_reason.setdefault(file.reason, []).append(file.name)
        parts = [f"{_named(names)}: {reason}" for reason, names in by_reason.items()]
        total = len(self.skipped)
        return f"Skipped {total:,} {'file' if total == 1 else 'files'}. {'; '.join(parts)}"

    def describe_findings(self) -> list[str]:
        """Returns a line per kind of finding."""
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for findings in self._findings.values():
            counts += findings.counts
            first = {**findings.first, **first}
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
            "found": self.file_count,
            "read": {name: _set_values(asdict(file_facts)) for name, file_facts in facts.items()},
            "skipped_count": len(self.skipped),
            "skipped": [asdict(skipped) for skipped in self.skipped[:_LISTED]],
            "findings": self.describe_findings(),
            **({"splits": self.splits} if self.splits else {}),
        }


def count_skipped(with_text: int, without_text: int, rows: Mapping[str, int]) -> dict[str, Any]:
    """Returns the numbers of documents that were read, kept and skipped, the last by reason.

    Args:
        without_text: Documents without text, for whatever reason.
        rows: Rows of tables without text, by reason, as in `ReadingReport.rows`.
    """
    skipped, left = {}, without_text
    for reason, count in ((NO_COLUMN, rows.get(NO_COLUMN, 0)), (NO_VALUE, rows.get(NO_VALUE, 0)),
                          (BLANK, without_text)):  # fmt: skip
        if skipped_count := min(count, left):
            skipped[reason] = skipped_count
            left -= skipped_count
    return {"read": with_text + without_text, "kept": with_text, "skipped": skipped}


def describe_skipped(counts: Mapping[str, Any]) -> str:
    """Describes the result of `count_skipped` in one line."""
    skipped = counts["skipped"]
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in skipped.items())
    return (
        f"Documents read {counts['read']:,}, kept {counts['kept']:,}, skipped "
        f"{sum(skipped.values()):,}" + (f" ({reasons})" if reasons else "")
    )


def _set_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in ("", None)}


def _named(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")
