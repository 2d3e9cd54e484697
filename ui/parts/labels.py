"""Shows options and choices that messages mention by the labels of forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from pydantic.fields import FieldInfo

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import flag_of, option_label, title_of
from core.messages.mentions import Mention, render
from core.stages.registry import STAGES


def relabel(text: str, model: type[StageConfig] | None = None) -> str:
    """Returns a message with form labels.

    Args:
        model: Its labels take precedence.
    """
    models = (model, *_models()) if model else _models()
    return render(text, lambda mention: _label(mention, models))


def title_of_option(name: str) -> str:
    """Returns the form's label of an option; `corpus.limit` is one of the corpus."""
    *groups, last = name.split(".")
    field = next((field for known, field in _fields(_models()) if known == last), None)
    title = title_of(last, field) if field else last.replace("_", " ").capitalize()
    return ": ".join([*(group.replace("_", " ").capitalize() for group in groups), title])


def _label(mention: Mention, models: tuple[type[StageConfig], ...]) -> str:
    for name, field in _fields(models):
        if mention.name == (flag_of(name, field) if mention.is_flag else name):
            value = option_label(field, mention.value)
            return value if mention.is_choice else f"{title_of(name, field)} {value}".rstrip()
    return str(mention)


@cache
def _models() -> tuple[type[StageConfig], ...]:
    return (*(stage.config for stage in STAGES.values()), CorpusConfig)


def _fields(models: Iterable[type[StageConfig]]) -> Iterator[tuple[str, FieldInfo]]:
    return ((name, field) for model in models for name, field in model.model_fields.items())
