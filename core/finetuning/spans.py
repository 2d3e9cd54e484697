"""Spans of BIO tags, and their F1.

Source: https://aclanthology.org/W03-0419 (CoNLL-2003) and its script conlleval, which accepts a
span that begins with I.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_OUTSIDE = "O"
_MARKS = ("B-", "I-")


class Span(NamedTuple):
    """Words `start` to before `stop` of one type."""

    start: int
    stop: int
    type: str


def uses_spans(tags: Iterable[str]) -> bool:
    """Returns whether all tags are O, B-type or I-type, and some are not O."""
    others = [tag for tag in tags if tag != _OUTSIDE]
    return bool(others) and all(tag.startswith(_MARKS) for tag in others)


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Returns the spans of a sentence; an I after another type begins a new one."""
    found: list[Span] = []
    start, kind = 0, ""
    for place, tag in enumerate([*tags, _OUTSIDE]):
        own = tag[2:] if tag.startswith(_MARKS) else ""
        if kind and (own != kind or tag.startswith("B-")):
            found.append(Span(start, place, kind))
            kind = ""
        if own and not kind:
            start, kind = place, own
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
