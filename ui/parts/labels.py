"""Rewrites option and choice names in messages as form labels.

Errors in `core` name options as the command line does (`vocab_size`, `--model`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from pydantic.fields import FieldInfo

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import choices_of, field_extra, flag_of, title_of
from core.stages.registry import STAGES

# Not in a path, flag, longer name or quotes.
_WORD = r"(?<![\w./\\'\"<-]){}(?![\w/\\'\">-]|\.\w)"
# Choices that aren't English words.
_NO_WORDS = ("mlm", "clm")
_VALUE = re.compile(r"(?<![\w./\\'\"<-])([a-z][a-z0-9_]*)=([\w.-]*\w)")


def relabel(text: str, model: type[StageConfig] | None = None) -> str:
    """Returns a message with form labels.

    Names like `size` are also words: only `size=base` and `set size to` are replaced.

    Args:
        model: Its labels take precedence.
    """
    models = (model, *_models()) if model else _models()
    text = _relabel_assignments(text, models)
    for pattern, label in _replacements(models):
        text = pattern.sub(_as(label), text)
    return text


def relabel_assignments(text: str) -> str:
    """Rewrites only `name=value`; the rest may be user text."""
    return _relabel_assignments(text, _models())


def title_of_option(name: str) -> str:
    """Returns the form's label of an option; `corpus.limit` is one of the corpus."""
    *groups, last = name.split(".")
    field = dict(_fields(_models())).get(last)
    title = title_of(last, field) if field else last.replace("_", " ").capitalize()
    return ": ".join([*(group.replace("_", " ").capitalize() for group in groups), title])


def _relabel_assignments(text: str, models: tuple[type[StageConfig], ...]) -> str:
    return _VALUE.sub(lambda match: _assignment(match, models), text)


def _as(label: str) -> Callable[[re.Match[str]], str]:
    return lambda _: label


@cache
def _models() -> tuple[type[StageConfig], ...]:
    return (*(stage.config for stage in STAGES.values()), CorpusConfig)


def _fields(models: Iterable[type[StageConfig]]) -> Iterator[tuple[str, FieldInfo]]:
    known = set()
    for model in models:
        for name, field in model.model_fields.items():
            if name not in known:
                known.add(name)
                yield name, field


def _assignment(match: re.Match[str], models: tuple[type[StageConfig], ...]) -> str:
    name, value = match.groups()
    field = dict(_fields(models)).get(name)
    if field is None:
        return match[0]
    texts = field_extra(field)["options"].get(value)
    return f"{title_of(name, field)} {texts[0] if texts else value}"


@cache
def _replacements(
    models: tuple[type[StageConfig], ...],
) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Lists the patterns of names and choices with their labels, the longest name first."""
    labels, verbs = _labels(models)
    flags = {flag_of(name, field): title_of(name, field) for name, field in _fields(models)}
    set_to = r"(?<=\b[Ss]et ){}(?= (?:to|empty)\b)"
    patterns = [(_WORD.format(f"`?{re.escape(name)}`?"), label) for name, label in labels.items()]
    patterns += [(rf"(?<![\w-])--{flag}(?![\w-])", label) for flag, label in flags.items()]
    patterns += [(set_to.format(re.escape(name)), label) for name, label in verbs.items()]
    longest_first = sorted(patterns, key=lambda pattern: len(pattern[0]), reverse=True)
    return tuple((re.compile(pattern), label) for pattern, label in longest_first)


def _labels(models: tuple[type[StageConfig], ...]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the labels of unmistakable names and choices, and those of names that are words."""
    labels: dict[str, str] = {}
    words: dict[str, str] = {}
    for name, field in _fields(models):
        (labels if "_" in name else words)[name] = title_of(name, field)
        for value in choices_of(field):
            if ("_" in value or value in _NO_WORDS) and (
                texts := field_extra(field)["options"].get(value)
            ):
                labels.setdefault(value, texts[0])
    return labels, words
