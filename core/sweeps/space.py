"""Search space of a sweep: the options that it varies, and their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from core.config.base import StageConfig
from core.config.options import field_extra, plain_type
from core.config.spelling import suggest_names
from core.errors import ConfigError
from core.foreign_files import LARGEST_EXACT
from core.messages.values import shown

MOST_OPTIONS = 32
MOST_VALUES = 1_000
_NO_VALUE = ("none", "null", "")
# A trial's name, and files that trials would overwrite.
_FIXED = ("name", "output")
_RANGE_KEYS = ("min", "max", "log", "step", "count")
_EXAMPLE = "values = [1, 2], or min = 1 and max = 10"


@dataclass(frozen=True)
class Choice:
    """An option's list of values."""

    values: tuple[Any, ...]

    def draw(self, uniform: float) -> Any:
        """Maps a number of [0, 1) to a value."""
        return self.values[int(uniform * len(self.values))]

    def grid(self) -> tuple[Any, ...]:
        return self.values

    def count_values(self) -> int | None:
        """Returns the number of values; None if uncountable."""
        return len(self.values)


@dataclass(frozen=True)
class Range:
    """An option's range, with both ends.

    Attributes:
        step: Distance of values; 0: continuous.
        count: Values of a grid; 0: not given.
    """

    low: float
    high: float
    is_integer: bool
    log: bool = False
    step: float = 0.0
    count: int = 0

    def draw(self, uniform: float) -> Any:
        """Maps a number of [0, 1) to a value."""
        if self.step:
            return self._value(self.low + self.step * int(uniform * self._steps()))
        if not self.log:
            return self._value(self.low + uniform * (self.high - self.low))
        # The ends of an integer range are as probable as the others.
        margin = 0.5 if self.is_integer else 0.0
        low, high = math.log(self.low - margin), math.log(self.high + margin)
        return self._value(math.exp(low + uniform * (high - low)))

    def grid(self) -> tuple[Any, ...]:
        """Returns evenly spaced values; an integer range may give fewer than `count`."""
        if self.count:
            return tuple(
                dict.fromkeys(self._at(index / (self.count - 1)) for index in range(self.count))
            )
        if not self.step or self._steps() > MOST_VALUES:
            return ()
        return tuple(self._value(self.low + self.step * index) for index in range(self._steps()))

    def count_values(self) -> int | None:
        """Returns the number of values; None if uncountable."""
        return self._steps() if self.step else None

    def _at(self, share: float) -> Any:
        if not self.log:
            return self._value(self.low + share * (self.high - self.low))
        low, high = math.log(self.low), math.log(self.high)
        return self._value(math.exp(low + share * (high - low)))

    def _steps(self) -> int:
        return math.floor((self.high - self.low) / self.step + 1e-9) + 1

    def _value(self, value: float) -> Any:
        # Without 0.30000000000000004.
        value = min(max(float(f"{value:.12g}"), self.low), self.high)
        return round(value) if self.is_integer else value


Dimension = Choice | Range
Space = dict[str, Dimension]


def parse_space(
    model: type[StageConfig], base: Mapping[str, Any], options: Mapping[str, Any], *, is_grid: bool
) -> Space:
    """Parses the options to vary, and checks each of their values.

    Raises:
        ConfigError: With the key, such as `options.learning_rate.min`.
    """
    if not options:
        raise _error("options", "no option to vary", _EXAMPLE, "an empty table", "add an option")
    if len(options) > MOST_OPTIONS:
        most = f"at most {MOST_OPTIONS} options"
        raise _error("options", "too many options", most, str(len(options)), "leave some out")
    for name in options:
        _check_option(model, base, name)
    fields = model.model_fields
    space = {name: _dimension(name, fields[name], value) for name, value in options.items()}
    for name, dimension in space.items():
        if is_grid and not dimension.grid():
            raise _error(
                f"options.{name}", "a range without a number of values",
                f"count or step with method grid, for at most {MOST_VALUES:,} values",
                "min and max", "add count, or list the values",
            )  # fmt: skip
        _check_values(model, base, dimension, name)
    example_trial(model, base, space)
    return space


def can_vary(model: type[StageConfig], name: str) -> bool:
    """Returns whether a sweep may vary an option."""
    return name in model.model_fields and name not in _FIXED and _is_plain(model, name)


def _check_option(model: type[StageConfig], base: Mapping[str, Any], name: str) -> None:
    key = f"options.{name}"
    known = [option for option in model.model_fields if can_vary(model, option)]
    if name in _FIXED:
        raise _error(key, "an option that no sweep varies", "another option", name, "leave it out")
    if name not in known:
        shown = suggest_names(name, known, "an option of the stage, as its --help lists them")
        raise _error(key, "an unknown option", shown, name, "check the spelling")
    if name in base:
        raise _error(
            key, "an option with two values", "the option in base or in options", "both",
            f"remove base.{name}",
        )  # fmt: skip


def _is_plain(model: type[StageConfig], name: str) -> bool:
    kind, _ = plain_type(model.model_fields[name])
    is_nested = isinstance(kind, type) and issubclass(kind, StageConfig)
    field = model.model_fields[name]
    return not is_nested and field.default != () and not field_extra(field)["secret"]


def _dimension(name: str, field: FieldInfo, value: Any) -> Dimension:
    key = f"options.{name}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _choice(key, field, value)
    if not isinstance(value, Mapping):
        raise _error(key, "an invalid value", f"a list, or {_EXAMPLE}", repr(value), "make a list")
    if "values" in value:
        if others := [other_key for other_key in value if other_key != "values"]:
            raise _error(
                f"{key}.{others[0]}", "a key beside values", "values alone", others[0],
                "remove one of them",
            )  # fmt: skip
        return _choice(f"{key}.values", field, value["values"])
    return _range(key, field, value)


def _choice(key: str, field: FieldInfo, values: Any) -> Choice:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise _error(key, "an invalid value", "a list of values", repr(values), "make a list")
    if len(values) > MOST_VALUES:
        raise _error(key, "too long a list", f"at most {MOST_VALUES:,} values", f"{len(values):,}",
                     "leave some out")  # fmt: skip
    choices = [_value_of(key, field, value) for value in values]
    # True equals 1.
    if len({(isinstance(choice, bool), choice) for choice in choices}) < len(choices):
        raise _error(key, "a value twice", "different values", repr(list(values)), "remove one")
    return Choice(tuple(choices))


def _value_of(key: str, field: FieldInfo, value: Any) -> Any:
    """Returns a value as trials store it; raises ConfigError."""
    kind, is_optional = plain_type(field)
    if _is_grid(field, value):
        # One number is the same as a list of it.
        return " ".join(map(str, value)) if len(value) > 1 else value[0]
    if not isinstance(value, str | bool | int | float):
        kinds = "strings, numbers, true or false"
        expected = f"{kinds}, or lists of numbers" if field_extra(field)["is_numbers"] else kinds
        raise _error(key, "an invalid value", expected, repr(value), "correct it")
    if is_optional and isinstance(value, str) and value.lower() in _NO_VALUE:
        return None
    return int(value) if kind is int and isinstance(value, float) and value.is_integer() else value


def _is_grid(field: FieldInfo, value: Any) -> bool:
    """Returns whether a value is a list of numbers that the option tries one after the other."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    return (
        field_extra(field)["is_numbers"]
        and is_list
        and all(
            isinstance(number, int | float) and not isinstance(number, bool) for number in value
        )
    )


def _range(key: str, field: FieldInfo, value: Mapping[str, Any]) -> Range:
    if unknown := next((range_key for range_key in value if range_key not in _RANGE_KEYS), ""):
        shown = "values, or " + ", ".join(_RANGE_KEYS)
        raise _error(f"{key}.{unknown}", "an unknown key", shown, unknown, "check the spelling")
    kind, _ = plain_type(field)
    if kind not in (int, float) and not field_extra(field)["is_numbers"]:
        raise _error(key, "a range of an option without numbers", "values = [...]",
                     "min and max", "list the values")  # fmt: skip
    is_integer = kind is int
    low, high = (_number(key, value, name, is_integer) for name in ("min", "max"))
    if low >= high:
        raise _error(f"{key}.max", "an empty range", f"a number above min = {low:g}", f"{high:g}",
                     "correct min or max")  # fmt: skip
    log = value.get("log", False)
    if not isinstance(log, bool):
        raise _error(f"{key}.log", "an invalid value", "true or false", repr(log), "correct it")
    if log and low <= 0:
        raise _error(f"{key}.min", "a logarithmic range", "a number above 0", f"{low:g}",
                     "raise min, or remove log")  # fmt: skip
    step = _number(key, value, "step", is_integer) if "step" in value else 0.0
    if "step" in value and (step <= 0 or step > high - low):
        shown = f"a number above 0, at most {high - low:g}"
        raise _error(f"{key}.step", "an invalid value", shown, f"{step:g}", "correct it")
    if step and log:
        raise _error(f"{key}.step", "a step in a logarithmic range", "step or log", "both",
                     "remove one of them")  # fmt: skip
    if is_integer and not step and not log:
        step = 1.0
    return Range(low, high, is_integer, log, step, _count(key, value))


def _number(key: str, value: Mapping[str, Any], name: str, is_integer: bool) -> float:
    kind = "a whole number" if is_integer else "a number"
    if name not in value:
        raise _error(f"{key}.{name}", "no value", f"{kind}, as in {_EXAMPLE}", "nothing", "add it")
    number = value[name]
    allowed = (int,) if is_integer else (int, float)
    is_number = isinstance(number, allowed) and not isinstance(number, bool)
    # Floats can't tell larger values of a range apart, and NaN is none.
    if not is_number or not abs(number) <= LARGEST_EXACT:
        raise _error(f"{key}.{name}", "an invalid value", kind, shown(number), "correct it")
    return float(number)


def _count(key: str, value: Mapping[str, Any]) -> int:
    count = value.get("count", 0)
    if "count" in value and (type(count) is not int or not 2 <= count <= MOST_VALUES):
        expected = f"a whole number from 2 to {MOST_VALUES:,}"
        raise _error(f"{key}.count", "an invalid value", expected, repr(count), "correct it")
    return int(count)


def _check_values(
    model: type[StageConfig], base: Mapping[str, Any], dimension: Dimension, name: str
) -> None:
    """Raises ConfigError for a value that the option itself refuses."""
    for key, value in _bounds(dimension):
        try:
            model.parse({**base, name: value})
        except ConfigError as error:
            if error.field == name:
                key = f"options.{name}.{key}"
                raise _error(
                    key, "an invalid value", error.expected, repr(value), f"correct {key}"
                ) from error
            # Another option may make it valid.


def example_trial(
    model: type[StageConfig],
    base: Mapping[str, Any],
    space: Space,
    check: Callable[[Any], Any] | None = None,
) -> StageConfig:
    """Returns a trial's config; raises ConfigError if none of a few combinations is valid.

    Args:
        check: Raises ConfigError for a config that the stage would refuse.
    """
    for uniform in (0.0, 0.25, 0.5, 0.75, 0.999):
        settings = {name: dimension.draw(uniform) for name, dimension in space.items()}
        try:
            config = model.parse({**base, **settings})
            if check:
                check(config)
            return config
        except ConfigError as error:
            last_error = error
    key = f"base.{last_error.field}" if last_error.field in base else last_error.field or "base"
    problem = f"No trial of the sweep would be valid: {last_error.texts['problem']}"
    raise ConfigError.like(last_error, problem=problem, field=key) from last_error


def _bounds(dimension: Dimension) -> list[tuple[str, Any]]:
    if isinstance(dimension, Choice):
        return [("values", value) for value in dimension.values]
    convert = round if dimension.is_integer else float
    return [("min", convert(dimension.low)), ("max", convert(dimension.high))]


def _error(key: str, problem: str, expected: str, received: str, fix: str) -> ConfigError:
    return ConfigError(
        f"The sweep has {problem}: {key}",
        expected=expected, received=received, fix=fix, field=key,
    )  # fmt: skip
