"""The classes of a task."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import CorpusError
from core.messages.values import shown

MOST_LABELS = 10_000
LONGEST_LABEL = 200
# With fewer, fractions may be classes.
_FEW_LABELS = 20
_FRACTION = re.compile(r"[+-]?\d{1,20}(\.\d{1,20})?(e[+-]?\d{1,3})?")
_NUMBER = re.compile(r"-?\d{1,9}")


@dataclass(frozen=True)
class Labels:
    """The names of the classes by number."""

    names: tuple[str, ...]

    def number(self, name: str) -> int:
        return self.names.index(name)

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(
        cls, values: Iterable[str], order: Sequence[str] = (), *, is_sample: bool = False
    ) -> Labels:
        """Collects names in order: numbers by value, others by alphabet.

        Args:
            order: The order of the names, if it has all of them.
            is_sample: Whether the option `limit` chose the training examples.

        Raises:
            CorpusError: There are fewer than two classes, or so many or such long ones that it
                must be a mistake.
        """
        counts = Counter(values)
        names = [name for name in order if name in counts]
        if len(names) < len(counts):
            names = sorted(counts, key=_key(counts))
        if len(names) < 2:
            raise CorpusError(
                "All training examples have the same label" if names else "There are no labels",
                expected=f"2 to {MOST_LABELS:,} classes",
                received=", ".join(names) or "no labels",
                fix="raise limit, so that the sample has several classes"
                if is_sample
                else "add examples of another class, or set ⟬label_column⟭ to the column with the "
                "classes",
                field="limit" if is_sample else "label_column",
            )
        if len(names) > MOST_LABELS:
            raise CorpusError(
                f"The training examples have {len(names):,} different labels",
                expected=f"2 to {MOST_LABELS:,} classes",
                received=", ".join(names[:5]),
                fix="set ⟬label_column⟭ to the column with the classes, or ⟬task⟭ to regression",
                field="label_column",
            )
        if _are_measured(counts):
            raise CorpusError(
                f"The {len(names):,} different labels are numbers, and no classes",
                expected="classes, of which examples share some",
                received=", ".join(names[:5]),
                fix="set ⟬task⟭ to regression to predict numbers, or ⟬label_column⟭ to the column "
                "with the classes",
                field="task",
            )
        longest = max(names, key=len)
        if len(longest) > LONGEST_LABEL:
            raise CorpusError(
                "A label of the training examples is too long for a class",
                expected=f"at most {LONGEST_LABEL} characters",
                received=f"{len(longest):,} characters: {shown(longest)}",
                fix="set ⟬label_column⟭ to the column with the classes, or shorten their names",
                field="label_column",
            )
        return cls(tuple(names))


def _are_measured(counts: Counter[str]) -> bool:
    """Returns whether labels are fractions that hardly any two examples share."""
    different = len(counts)
    is_rare = different > _FEW_LABELS and 2 * different > counts.total()
    return is_rare and all(_FRACTION.fullmatch(name) for name in counts)


def check_known(
    labels: Labels, values: Sequence[str], where: str, *, is_sample: bool = False
) -> None:
    """Raises CorpusError for a label that the training examples lack; see `Labels.of`."""
    known = set(labels.names)
    if unknown := sorted({value for value in values if value not in known}):
        raise CorpusError(
            f"{where} has labels that the training examples lack",
            expected=", ".join(labels.names[:20]),
            received=", ".join(unknown[:10]),
            fix="raise limit, so that the sample has each class, or correct the labels"
            if is_sample
            else "correct the labels, or add training examples of each class",
            field="limit" if is_sample else "label_column",
        )


def _key(names: Iterable[str]) -> Callable[[str], Any]:
    if all(_NUMBER.fullmatch(name) for name in names):
        return int
    return str
