"""Spans of tags such as BIO, BIOES, BILOU, BMES and IOE, and their F1.

Sources: https://aclanthology.org/W03-0419 (CoNLL-2003) and its script conlleval, which accepts a
span that begins with I; https://github.com/chakki-works/seqeval, which reads BIOES likewise, marks
after the type and marks alone; https://aclanthology.org/W09-1119, section 3.2 (BILOU).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_OUTSIDE = ("O", "o")
# A scheme has at most one mark of each group: B, the inside, the last word, a span of one word.
_ALTERNATIVES = ("IM", "EL", "SUW")
_BEGINNINGS, _ENDS, _MARKS = "BSUW", "ESLUW", "BIMELSUW"
_DELIMITERS = "-_:/"
# The type of marks without one.
_ONLY = "_"
_MOST_SHOWN = 5


class Span(NamedTuple):
    """Words `start` to before `stop` of one type."""

    start: int
    stop: int
    type: str


@dataclass(frozen=True)
class Scheme:
    """How tags mark spans.

    Attributes:
        delimiter: Between mark and type; empty: marks alone.
        mark_first: Whether the mark precedes the type.
    """

    delimiter: str = "-"
    mark_first: bool = True

    def split(self, tag: str) -> tuple[str, str]:
        """Returns a tag's mark and type, two empty texts for other tags."""
        mark, kind = tag, _ONLY
        if self.delimiter and self.mark_first:
            mark, _, kind = tag.partition(self.delimiter)
        elif self.delimiter:
            kind, _, mark = tag.rpartition(self.delimiter)
        mark = mark.upper()
        return (mark, kind) if len(mark) == 1 and mark in _MARKS and kind else ("", "")

    def spans_of(self, tags: Sequence[str]) -> list[Span]:
        """Returns the spans of a sentence; other tags are outside.

        A word that has another type than the one before, or follows the last word of a span,
        begins a span whatever its mark.
        """
        spans: list[Span] = []
        start, kind, has_ended = 0, "", False
        for place, tag in enumerate([*tags, _OUTSIDE[0]]):
            mark, own = self.split(tag)
            if kind and (own != kind or has_ended or mark in _BEGINNINGS):
                spans.append(Span(start, place, kind))
                kind = ""
            if own and not kind:
                start, kind = place, own
            has_ended = bool(mark) and mark in _ENDS
        return spans

    def f1(
        self, truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """Computes precision, recall and F1 of spans with the right words and type."""
        hits = true = made = 0
        for right, tags in zip(truth, predicted, strict=True):
            wanted, predicted_spans = set(self.spans_of(right)), set(self.spans_of(tags))
            hits, true, made = (
                hits + len(wanted & predicted_spans),
                true + len(wanted),
                made + len(predicted_spans),
            )
        return {
            "span_precision": hits / made if made else 0.0,
            "span_recall": hits / true if true else 0.0,
            "span_f1": 2 * hits / (true + made) if true + made else 0.0,
        }


_SCHEMES = (
    *(Scheme(delimiter, is_first) for is_first in (True, False) for delimiter in _DELIMITERS),
    Scheme(""),
)


def find_scheme(tags: Iterable[str]) -> tuple[Scheme | None, str]:
    """Finds the scheme of a task's tags, and what to say about tags outside of it.

    There are no spans without a scheme; it is said why if the tags look as if there were some.
    """
    given = set(tags)
    names = sorted(given.difference(_OUTSIDE))
    for scheme in _SCHEMES:
        if not _flaw(scheme, names):
            return scheme, ""
    best = max(_SCHEMES, key=lambda scheme: len(_marked(scheme, names)))
    marked = _marked(best, names)
    others = _shown(name for name in names if name not in marked)
    flaw = _flaw(best, marked)
    # Words that only look like marks have one per type.
    types = {best.split(name)[1] for name in marked}
    if not flaw and (len(types) < len(marked) or given.intersection(_OUTSIDE)):
        return best, (
            f"The tags {others} mark no span: the figures of spans count their words as outside"
        )
    has_marks = bool(marked and best.delimiter)
    if not names or not (has_marks or given.intersection(_OUTSIDE)):
        return None, ""
    why = (marked and flaw) or f"{others} have no mark such as B- or I-"
    return None, f"There are no figures of spans, as the tags follow no scheme such as BIO: {why}"


def _marked(scheme: Scheme, names: Iterable[str]) -> list[str]:
    return [name for name in names if scheme.split(name)[0]]


def _flaw(scheme: Scheme, names: Sequence[str]) -> str:
    """Returns why tags aren't those of a scheme; empty if they are."""
    marks = {scheme.split(name)[0] for name in names}
    if not names or "" in marks:
        return "some tags have no mark"
    for group in _ALTERNATIVES:
        if len(clashing_marks := sorted(marks & set(group))) > 1:
            return f"the marks {' and '.join(clashing_marks)} exclude each other"
    # Such letters are also ends of words, and parts of speech.
    is_clear = scheme == _SCHEMES[0] or marks & {"B", "I"}
    return "" if is_clear else "no mark is B or I"


def _shown(names: Iterable[str]) -> str:
    all_names = list(names)
    listed = ", ".join(name[:30] for name in all_names[:_MOST_SHOWN])
    return (
        listed
        if len(all_names) <= _MOST_SHOWN
        else f"{listed} and {len(all_names) - _MOST_SHOWN} more"
    )
