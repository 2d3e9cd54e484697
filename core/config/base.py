"""Base of all stage configs."""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from core.config import targets
from core.config.options import (
    AUTOMATIC,
    BRANCH_PATTERN,
    CLUSTER_PATTERN,
    HUB_ID_PATTERN,
    LANGUAGE_PATTERN,
    MIRROR_PATTERN,
    PROJECT_PATTERN,
    WEBHOOK_PATTERN,
    choices_of,
    field_extra,
    plain_type,
)
from core.config.presets import Preset
from core.config.spelling import suggest_names
from core.errors import ConfigError
from core.foreign_files import LARGEST_INT
from core.messages.redaction import HIDDEN
from core.messages.suggestions import did_you_mean
from core.messages.values import shown
from core.processes import reporters
from core.workspace.manifests import fingerprint_of as fingerprint_of

_ANY_FIELD = "a name that docs/flags.md lists"
_WORDS_OF_PATTERNS = {
    HUB_ID_PATTERN: "a name like my-model or owner/my-model, with letters, digits, and . _ - "
    "inside",
    BRANCH_PATTERN: "a name like trial-2, with letters, digits, and . _ - inside; no /",
    MIRROR_PATTERN: "gs://bucket/folder, s3://bucket/folder, hf://buckets/owner/name, "
    "ssh://host/folder or file:///folder",
    targets.PATTERN: targets.EXPECTED,
    reporters.PATTERN: reporters.EXPECTED,
    PROJECT_PATTERN: "letters, digits, and . _ - inside",
    WEBHOOK_PATTERN: "an address that begins with https://",
    CLUSTER_PATTERN: "ray, ray://auto or ray://host:port",
    LANGUAGE_PATTERN: "comma-separated language codes, such as en, or de, fr",
}


class StageConfig(BaseModel):
    """Base of all stage configs."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )

    presets: ClassVar[dict[str, Preset]] = {}
    # Field that selects a preset's variant.
    variant: ClassVar[str] = ""
    # Fields that a form on top of another stage's form doesn't take from it.
    not_inherited: ClassVar[frozenset[str]] = frozenset({"name"})

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "preset" not in cls.model_fields:
            return values
        return {**cls.preset_values(values), **values}

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_mistyped(cls, value: Any, info: ValidationInfo) -> Any:
        """Reads `auto`; rejects ambiguous integers such as 10.000, and text that isn't UTF-8."""
        field = cls.model_fields[info.field_name or ""]
        is_automatic = field_extra(field)["automatic"] and plain_type(field)[1]
        if is_automatic and isinstance(value, str) and value.strip().lower() == AUTOMATIC:
            return None
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise PydanticCustomError("not_utf_8", "text in UTF-8; rename the file if necessary")
        if isinstance(value, str) and "." in value and plain_type(field)[0] is int:
            raise PydanticCustomError("int_dotted", "a whole number such as 10000")
        return _checked_size(value)

    @field_validator("*")
    @classmethod
    def _refuse_large(cls, value: Any) -> Any:
        """Refuses what was text before, too."""
        return _checked_size(value)

    @classmethod
    def inferred(
        cls, values: dict[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Adds values that `values` imply, given those before."""
        return values

    @classmethod
    def preset_values(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the values of the chosen preset and variant."""
        preset, variant = (
            values.get(name, cls.model_fields[name].default) if name else None
            for name in ("preset", cls.variant)
        )
        chosen_preset = cls.presets.get(preset) if isinstance(preset, str) else None
        return chosen_preset.values_for(variant) if chosen_preset else {}

    @classmethod
    def preset_fields(cls) -> list[str]:
        filled = [
            values
            for preset in cls.presets.values()
            for values in (preset.values, *preset.variants.values())
        ]
        return sorted({name for values in filled for name in values})

    @classmethod
    def implied_values(cls) -> dict[str, Any]:
        """Returns the values of fields that a stored config lacks, as they are younger."""
        extras = {name: field_extra(field) for name, field in cls.model_fields.items()}
        presets = cls.preset_fields()
        return {
            name: extra["earlier"]
            for name, extra in extras.items()
            if extra["is_later"] or name in presets
        }

    def __init__(self, **values: Any) -> None:
        """Validates values; raises ConfigError for the first wrong field."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise config_error(type(self), error) from error

    @classmethod
    def parse(cls, values: dict[str, Any]) -> typing.Self:
        """Makes a config from a dict; raises ConfigError."""
        return cls(**values)

    @classmethod
    def fields_outside_identity(cls) -> frozenset[str]:
        """Returns fields that don't affect the result."""
        fields = cls.model_fields.items()
        return frozenset(name for name, field in fields if not field_extra(field)["identity"])

    def fingerprint(self) -> str:
        """Returns 16 hex digits of the fields affecting the result."""
        return fingerprint_of(self._identity(self.fields_outside_identity()))

    def _identity(self, excluded: Collection[str] = ()) -> dict[str, Any]:
        """Returns plain values, without later fields that are as earlier configs imply."""
        values = self.model_dump(mode="json", exclude=set(excluded))
        for name in list(values):
            field, value = type(self).model_fields[name], getattr(self, name)
            if isinstance(value, StageConfig):
                values[name] = value._identity()
            elif isinstance(value, tuple) and value:
                values[name] = [nested._identity() for nested in value]
            elif field_extra(field)["is_later"] and value == field_extra(field)["earlier"]:
                del values[name]
        return values

    def without_secrets(self) -> typing.Self:
        """Returns the config without values that must not be stored."""
        fields = type(self).model_fields.items()
        secrets = {name: field.default for name, field in fields if field_extra(field)["secret"]}
        return self.model_copy(update=secrets) if secrets else self

    def pin_inferred(self, changed: dict[str, Any]) -> dict[str, Any]:
        """Adds values that parsing would infer differently."""
        return changed


def _checked_size(value: Any) -> Any:
    """Refuses integers that no array and no database holds."""
    if isinstance(value, int) and not -LARGEST_INT <= value <= LARGEST_INT:
        raise PydanticCustomError("int_large", "a whole number of at most 19 digits, below 2^63")
    return value


def describe_expected(problem: Mapping[str, Any]) -> str:
    """Describes the expected value of a pydantic error."""
    if problem["type"] == "string_pattern_mismatch":
        return _WORDS_OF_PATTERNS[problem["ctx"]["pattern"]]
    return str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")


def config_error(model: type[StageConfig], error: ValidationError) -> ConfigError:
    """Converts pydantic's first error into a ConfigError."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    name = str(first["loc"][-1]) if first["loc"] else ""
    others = len(error.errors()) - 1
    more = f" (and {others} more)" if others else ""
    if first["type"] == "extra_forbidden":
        return ConfigError(
            f"{model.__name__} has no field {where}{more}",
            expected=suggest_names(where, model.model_fields, _ANY_FIELD),
            received=where,
            field=name,
            fix="check the spelling",
        )
    field = model.model_fields.get(name)
    is_secret = field is not None and field_extra(field)["secret"]
    return ConfigError(
        f"⟬{where}⟭ has an invalid value{more}",
        expected=describe_expected(first),
        received=HIDDEN if is_secret else shown(first["input"]),
        fix=_suggested_choice(first, field) or f"set ⟬{where}⟭ to a valid value",
        field=name,
    )


def _suggested_choice(problem: Mapping[str, Any], field: FieldInfo | None) -> str:
    if field is None or problem["type"] != "literal_error":
        return ""
    return did_you_mean(str(problem["input"]), choices_of(field))
