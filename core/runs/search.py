"""Finds and sorts runs by their settings and figures: `learning_rate>1e-4 state=done text`."""

from __future__ import annotations

import difflib
import math
import operator
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import ConfigError
from core.runs.duration import run_seconds
from core.runs.resolved import UsedSettings, flat_config
from core.store import RunRow, Store
from core.workspace.workspace import Workspace

MOST_RUNS = 2000
MOST_CHARACTERS = 500
MOST_TERMS = 20
HELP = (
    "Words are searched in the name, tags, notes, id and stage. NAME=VALUE, !=, <, <=, >, >= "
    "compare a setting or a figure, NAME~TEXT searches in it, -WORD leaves out, sort:NAME and "
    "sort:-NAME sort. Example: learning_rate>1e-4 state=done sort:eval_loss"
)
_TERM = re.compile(r"([A-Za-z_][\w./-]*?)(!=|<=|>=|=|<|>|~)(.*)", re.DOTALL)
_SORT = re.compile(r"sort:(-?)([A-Za-z_][\w./-]*)")
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ALIASES = {"status": "state", "tags": "tag", "run": "id", "note": "notes"}
_DURATION = "duration"
# Fields of a run besides settings, figures and the duration.
_FACTS: Mapping[str, Callable[[RunRow], Any]] = {
    "id": lambda row: row.id,
    "name": lambda row: row.title or row.name,
    "artifact": lambda row: row.name,
    "stage": lambda row: row.stage,
    "state": lambda row: row.state,
    "reason": lambda row: row.reason,
    "tag": lambda row: list(row.tags or []) or None,
    "notes": lambda row: row.notes,
    "created": lambda row: row.created,
    "step": lambda row: row.done if row.unit == "steps" else None,
    "cost": lambda row: row.remote.get("cost"),
}


@dataclass(frozen=True)
class Term:
    """One condition of a query.

    Attributes:
        name: Field; "" for a word.
        sign: A comparison, or "" for a word.
    """

    name: str
    sign: str
    value: str
    leaves_out: bool = False


@dataclass(frozen=True)
class Query:
    """A parsed query.

    Attributes:
        sort: Field to sort by; "": the newest first.
    """

    terms: tuple[Term, ...] = ()
    sort: str = ""
    descending: bool = False


@dataclass
class _Values:
    """Looks up fields of runs, resolved settings and figures only if they are asked for."""

    workspace: Workspace
    store: Store
    rows: Sequence[RunRow]
    _settings: dict[str, UsedSettings] = field(default_factory=dict)
    _figures: dict[tuple[str, str], Any] = field(default_factory=dict)

    def of(self, row: RunRow, name: str) -> Any:
        if name in _FACTS:
            return _FACTS[name](row)
        if name == _DURATION:
            return run_seconds(self.workspace, row)
        if row.id not in self._settings:
            self._settings[row.id] = UsedSettings(self.workspace, row)
        if name in self._settings[row.id]:
            return self._settings[row.id][name]
        if name in row.results:
            return row.results[name]
        if name not in row.metric_counts:
            return None
        key = (row.id, name)
        if key not in self._figures:
            self._figures[key] = self.store.latest_metrics(row.id, (name,)).get(name)
        return self._figures[key]

    def names(self) -> set[str]:
        names = {*_FACTS, _DURATION}
        for row in self.rows:
            names |= {name for name, _ in flat_config(row.config)}
            names |= {*row.results, *row.metric_counts}
        return names


def parse_query(text: str) -> Query:
    """Parses a query; raises ConfigError with what was expected."""
    if len(text) > MOST_CHARACTERS:
        raise _wrong(f"a query of at most {MOST_CHARACTERS} characters", f"{len(text)} characters")
    try:
        words = shlex.split(text.replace("\\", "\\\\").replace("'", "\\'"))
    except ValueError as error:
        raise _wrong("a closing quotation mark for each opening one", text) from error
    if len(words) > MOST_TERMS:
        raise _wrong(f"at most {MOST_TERMS} conditions", f"{len(words)} conditions")
    terms: list[Term] = []
    sort, descending = "", False
    for word in words:
        if sort_match := _SORT.fullmatch(word):
            sort, descending = _known_name(sort_match[2]), sort_match[1] == "-"
        elif word.startswith("sort:"):
            raise _wrong("sort:NAME or sort:-NAME", word)
        else:
            terms.append(_parse_term(word))
    return Query(tuple(terms), sort, descending)


def find_runs(
    workspace: Workspace, store: Store, text: str, *, limit: int = MOST_RUNS
) -> list[RunRow]:
    """Finds the runs that fit a query, the newest first unless it sorts them.

    Raises:
        ConfigError: The query is malformed, or names a field that no run has.
    """
    query = parse_query(text)
    rows = store.list_runs(limit=MOST_RUNS)
    values = _Values(workspace, store, rows)
    if rows:
        _check_names(query, values)
    matching_runs = [row for row in rows if all(_fits(term, row, values) for term in query.terms)]
    if query.sort:
        matching_runs = _sorted(matching_runs, query, values)
    return matching_runs[:limit]


def _parse_term(word: str) -> Term:
    leaves_out = word.startswith("-") and len(word) > 1
    word = word[1:] if leaves_out else word
    term_match = _TERM.fullmatch(word)
    if not term_match:
        return Term("", "", word.casefold(), leaves_out)
    name, sign, value = term_match.groups()
    if not value and sign != "=" and sign != "!=":
        raise _wrong(f"a value after {name}{sign}", word)
    if sign in _ORDERS and _number(value) is None:
        raise _wrong(f"a number after {name}{sign}", value)
    return Term(_known_name(name), sign, value, leaves_out)


def _known_name(name: str) -> str:
    return _ALIASES.get(name, name)


def _check_names(query: Query, values: _Values) -> None:
    named = [
        *(term.name for term in query.terms if term.name),
        *([query.sort] if query.sort else []),
    ]
    if not named:
        return
    known = values.names()
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=3)
            raise ConfigError(
                f"No run has a setting or figure named {name}",
                expected=" or ".join(map(repr, near))
                or "state, tag, learning_rate, eval_loss, and the like",
                received=name,
                fix="use the name of an option, as on the command line, or of a figure",
                field="filter",
            )


def _fits(term: Term, row: RunRow, values: _Values) -> bool:
    fits = (
        _has_word(term.value, row) if not term.name else _compares(term, values.of(row, term.name))
    )
    return fits != term.leaves_out


def _has_word(word: str, row: RunRow) -> bool:
    texts = (row.id, row.name, row.title, row.stage, row.state, row.notes, *(row.tags or []))
    return any(word in text.casefold() for text in texts if text)


def _compares(term: Term, run_value: Any) -> bool:
    if isinstance(run_value, list):
        is_all = term.sign == "!="
        return (all if is_all else any)(_compares(term, member) for member in run_value)
    if term.sign == "~":
        return run_value is not None and term.value.casefold() in str(run_value).casefold()
    if term.sign in _ORDERS:
        value, number = _as_number(run_value), _number(term.value)
        return value is not None and number is not None and _ORDERS[term.sign](value, number)
    return _equals(run_value, term.value) == (term.sign == "=")


def _equals(run_value: Any, text: str) -> bool:
    if run_value is None or run_value == "":
        return text in ("", "none")
    value, number = _as_number(run_value), _number(text)
    if value is not None and number is not None:
        return math.isclose(value, number, rel_tol=1e-9)
    return str(run_value).casefold() == text.casefold()


def _as_number(run_value: Any) -> float | None:
    is_number = isinstance(run_value, int | float) and not isinstance(run_value, bool)
    return float(run_value) if is_number else None


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _sorted(rows: Sequence[RunRow], query: Query, values: _Values) -> list[RunRow]:
    """Sorts numbers before texts; runs without a value come last."""
    known = [(values.of(row, query.sort), row) for row in rows]
    numbers = [
        (value, row) for sort_value, row in known if (value := _as_number(sort_value)) is not None
    ]
    texts = [
        (_text(sort_value), row)
        for sort_value, row in known
        if _as_number(sort_value) is None and sort_value not in (None, "")
    ]
    without = [row for sort_value, row in known if sort_value in (None, "")]
    first = sorted(numbers, key=operator.itemgetter(0), reverse=query.descending)
    then = sorted(texts, key=operator.itemgetter(0), reverse=query.descending)
    return [*(row for _, row in first), *(row for _, row in then), *without]


def _text(value: Any) -> str:
    return (", ".join(map(str, value)) if isinstance(value, list) else str(value)).casefold()


def _wrong(expected: str, received: str) -> ConfigError:
    return ConfigError(
        "The filter can't be read", expected=expected, received=received, fix=HELP, field="filter"
    )
