"""Declares options and reads their properties."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from core.architecture.family import Size as Size
from core.architecture.options import DTYPES as DTYPES
from core.architecture.options import Dtype as Dtype
from core.families import find_family, list_family_names

FittedPresetName = Literal["fitted", "classic", "flax", "custom"]
# Written for an automatic option, whose value follows from the text.
AUTOMATIC = "auto"


@dataclass(frozen=True)
class OneOf:
    """Limits a field to names listed at validation."""

    names: Callable[[], Sequence[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def _validate(self, value: Any) -> Any:
        names = self.names()
        if value in names:
            return value
        *others, last = map(repr, names)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise PydanticKnownError("literal_error", {"expected": expected})


Family = Annotated[str, OneOf(list_family_names)]


def _short_label(objective: str) -> str:
    label = OBJECTIVE_OPTIONS[objective][0].partition(" (")[0]
    return label[:1].lower() + label[1:]


OBJECTIVE_OPTIONS = {
    "mlm": ("Masked LM (BERT)", "predicts masked tokens"),
    "clm": ("Causal LM (GPT)", "predicts the next token"),
    "span_corruption": ("Span corruption (T5)", "predicts masked spans"),
    "denoising": ("Denoising (BART)", "restores a corrupted document"),
}
FAMILY_OPTIONS = {
    family.name: (
        family.title,
        f"{family.architecture.kind}; {', '.join(map(_short_label, family.objectives))}",
    )
    for family in map(find_family, list_family_names())
}

HUB_ID_PATTERN = r"^$|^([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*$"
# A / would be ambiguous in owner/name@branch.
BRANCH_PATTERN = r"^$|^[A-Za-z0-9][\w-]*(\.[\w-]+)*$"
MIRROR_PATTERN = r"^$|^((gs|s3|ssh|file)://|hf://buckets/)\S+$"
PROJECT_PATTERN = r"^$|^[A-Za-z0-9][\w.-]{0,95}$"
# Only a server on this machine may do without encryption.
WEBHOOK_PATTERN = (
    r"^$|^https://[^\s/]+/?\S*$|^http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/\S*)?$"
)
CLUSTER_PATTERN = r"^$|^ray(://[^\s/@]+)?$"
LANGUAGE_PATTERN = r"^[A-Za-z, -]*$"

# The Hub accepts more: https://huggingface.co/docs/hub/repositories-licenses.
LICENSES = ("apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "cc0-1.0", "gpl-3.0", "other")


def option(
    default: Any,
    help: str,
    *,
    title: str = "",
    group: str = "General",
    basic: bool = False,
    flag: str = "",
    choices: tuple[str, ...] = (),
    artifact: str = "",
    artifacts: str = "",
    path: bool = False,
    identity: bool = True,
    is_later: bool = False,
    secret: bool = False,
    is_list: bool = False,
    is_numbers: bool = False,
    hidden_with: Mapping[str, str] | None = None,
    options: Mapping[str, tuple[str, str]] | None = None,
    details: str = "",
    slider: tuple[float, float, float] | None = None,
    needs: str = "",
    automatic: bool = False,
    positional: bool = False,
    earlier: Any = None,
    **bounds: Any,
) -> Any:
    """Declares an option as a config field.

    Args:
        basic: Whether the basic form shows it.
        choices: Suggested values.
        artifact, artifacts: Kind of the artifact that it names, or of several; see `split_names`.
        path: Whether the web app confines it as a local path.
        identity: Whether it affects the result and fingerprint.
        is_later: Whether older configs lack it; fingerprinted only if not default, or not
            `earlier`, the value that they imply, if that is set.
        secret: Whether it is never stored, logged or shown.
        is_list: Whether its value is a list of names, for which a flag may be repeated.
        is_numbers: Whether its text is numbers, of which a sweep may vary one, or lists of them.
        hidden_with: Choices of other fields with which it has no effect; the form hides it.
        options: Label and explanation by choice.
        slider: Least and greatest value, and step, of a slider in the form.
        needs: Switch without which it has no effect; the form hides it.
        automatic: Whether None, also written `auto`, stands for a value that follows from the
            text; the run stores the value that it used.
        positional: Whether the command line also takes it without its flag.
        **bounds: For pydantic's `Field`.
    """
    extra: dict[str, Any] = {
        "group": group,
        "basic": basic,
        "flag": flag,
        "choices": list(choices),
        "artifact": artifact,
        "artifacts": artifacts,
        "path": path,
        "identity": identity,
        "is_later": is_later,
        "secret": secret,
        "is_list": is_list,
        "is_numbers": is_numbers,
        "hidden_with": dict(hidden_with or {}),
        "options": {value: list(texts) for value, texts in (options or {}).items()},
        "details": details,
        "slider": list(slider or ()),
        "needs": needs,
        "automatic": automatic,
        "positional": positional,
        "earlier": default if earlier is None else earlier,
    }
    return Field(default, title=title or None, description=help, json_schema_extra=extra, **bounds)


def option_like(config: type[BaseModel], name: str, **properties: Any) -> Any:
    """Declares another config's option with other properties; the basic form doesn't show it."""
    field = copy(config.model_fields[name])
    field.title = title_of(name, field)
    field.json_schema_extra = {**field_extra(field), "basic": False, **properties}
    return field


T = TypeVar("T")


def settled(value: T | None) -> T:
    """Returns an automatic option's value, which the start of the run has derived."""
    assert value is not None, "automatic options are derived at the start of a run"
    return value


def split_names(names: str) -> list[str]:
    """Splits names separated by commas or white space."""
    return names.replace(",", " ").split()


def split_references(references: str) -> list[str]:
    """Splits the value of a field that names several artifacts, leaving weights out."""
    return [split_weight(reference)[0] for reference in split_names(references)]


def split_weight(word: str) -> tuple[str, str]:
    """Splits `name=weight`; the weight is empty without one."""
    reference, equals, weight = word.rpartition("=")
    # An address may have this sign in a folder's name.
    return (reference, weight) if equals and "/" not in weight else (word, "")


def flag_of(name: str, field: FieldInfo) -> str:
    """Returns a field's flag without dashes."""
    return str(field_extra(field)["flag"] or name.replace("_", "-"))


def field_extra(field: FieldInfo) -> dict[str, Any]:
    """Returns a field's properties set by `option`."""
    defaults = {
        "group": "General",
        "basic": False,
        "flag": "",
        "choices": [],
        "artifact": "",
        "artifacts": "",
        "path": False,
        "identity": True,
        "is_later": False,
        "secret": False,
        "is_list": False,
        "is_numbers": False,
        "hidden_with": {},
        "options": {},
        "details": "",
        "slider": [],
        "needs": "",
        "automatic": False,
        "earlier": None,
    }
    extra = field.json_schema_extra
    return {**defaults, **extra} if isinstance(extra, dict) else defaults


def title_of(name: str, field: FieldInfo) -> str:
    return field.title or name.replace("_", " ").capitalize()


def help_of(field: FieldInfo) -> str:
    """Joins a field's help, choices and details."""
    extra = field_extra(field)
    explained = "; ".join(
        f"{value}: {text}" for value, (_, text) in extra["options"].items() if text
    )
    parts = [field.description or "", f"{explained}." if explained else "", extra["details"]]
    return " ".join(part for part in parts if part)


def option_label(field: FieldInfo, value: str) -> str:
    """Returns a choice's label."""
    texts = field_extra(field)["options"].get(value)
    return str(texts[0]) if texts else value


def plain_type(field: FieldInfo) -> tuple[Any, bool]:
    """Returns a field's type, and whether it may be None."""
    annotation = field.annotation
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation, False
    arguments = [part for part in typing.get_args(annotation) if part is not type(None)]
    return arguments[0], True


def choices_of(field: FieldInfo) -> list[str]:
    annotation, _ = plain_type(field)
    if names := next(
        (choices.names() for choices in field.metadata if isinstance(choices, OneOf)), None
    ):
        return list(names)
    return list(typing.get_args(annotation)) if typing.get_origin(annotation) is Literal else []
