"""Spans of BIO, BIOES and BILOU tags, and their F1.

Sources: https://aclanthology.org/W03-0419 (CoNLL-2003) and its script conlleval, which accepts a
span that begins with I; https://github.com/chakki-works/seqeval, which reads BIOES likewise;
https://aclanthology.org/W09-1119, section 3.2 (BILOU).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_OUTSIDE = "O"
# S and U are spans of one word, E and L the last word of a longer one.
_SCHEMES = (frozenset("BIES"), frozenset("BILU"))
_BEGINNINGS, _ENDS, _MARKS = "BSU", "ESLU", "BIESLU"


class Span(NamedTuple):
    """Words `start` to before `stop` of one type."""

    start: int
    stop: int
    type: str


def uses_spans(tags: Iterable[str]) -> bool:
    """Returns whether all tags are O or those of one scheme (BIO, BIOES, BILOU), and not all O."""
    parts = [_split(tag) for tag in tags if tag != _OUTSIDE]
    marks = {mark for mark, _ in parts}
    return bool(marks) and any(marks <= scheme for scheme in _SCHEMES)


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Returns the spans of a sentence.

    A word that has another type than the one before, or follows the last word of a span, begins a
    span whatever its mark.
    """
    found: list[Span] = []
    start, kind, has_ended = 0, "", False
    for place, tag in enumerate([*tags, _OUTSIDE]):
        mark, own = _split(tag)
        if kind and (own != kind or has_ended or mark in _BEGINNINGS):
            found.append(Span(start, place, kind))
            kind = ""
        if own and not kind:
            start, kind = place, own
        has_ended = mark in _ENDS
    return found


def span_f1(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Computes precision, recall and F1 of spans with the right words and type."""
    hits = true = made = 0
    for right, tags in zip(truth, predicted, strict=True):
        wanted, found = set(spans_of(right)), set(spans_of(tags))
        hits, true, made = hits + len(wanted & found), true + len(wanted), made + len(found)
    return {
        "span_precision": hits / made if made else 0.0,
        "span_recall": hits / true if true else 0.0,
        "span_f1": 2 * hits / (true + made) if true + made else 0.0,
    }


def _split(tag: str) -> tuple[str, str]:
    """Returns a tag's mark and type; "-" and "" unless it has both."""
    mark, hyphen, kind = tag.partition("-")
    return (mark, kind) if hyphen and len(mark) == 1 and mark in _MARKS and kind else ("-", "")
