"""Labelled examples of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

NO_TAG = ""


class Example(NamedTuple):
    """A text or a pair of texts with its class or number; `place` names it in errors."""

    texts: tuple[str, ...]
    label: str
    place: str = ""


class Sentence(NamedTuple):
    """The words of a sentence and their tags; words with NO_TAG are neither learned nor counted."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True)
class Splits:
    """Examples to train, to stop early, and for the results.

    Attributes:
        test_name: Names the examples that the results are measured on.
        class_names: The classes in the order that the training data define, if they do.
        is_sample: Whether the option `limit` chose the training examples.
    """

    train: Sequence[Example | Sentence]
    validation: Sequence[Example | Sentence]
    test: Sequence[Example | Sentence]
    test_name: str
    class_names: tuple[str, ...] = ()
    is_sample: bool = False
