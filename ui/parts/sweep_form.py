"""Composes a sweep from the Train form and the settings that vary, and reads one from text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from core.config.options import choices_of, field_extra, option_label, plain_type, title_of
from core.config.sweep import SweepConfig, parallel_of
from core.config.train import TrainConfig
from core.config.values import changed_values
from core.errors import ConfigError, StudioError
from core.sweeps.client import checked, parse_sweep
from core.sweeps.packages import missing_packages
from core.sweeps.space import Space, can_vary, parse_space
from core.workspace.workspace import Workspace
from ui.forms import Form, ungrouped
from ui.parts import markup
from ui.parts.labels import relabel
from ui.parts.stage import Forecast
from ui.parts.where import require_check

# Settings of a sweep with a field of their own, in this order.
SHOWN = ("name", "method", "max_runs", "max_hours", "max_cost", "parallel", "pruner")
_OPTIONS = [name for name in SweepConfig.model_fields if name not in ("base", "options")]
_SEPARATORS = re.compile(r"[,;\s]+")

Answer = dict[str, Any]


def list_fields() -> list[dict[str, Any]]:
    """Describes the numeric and choice fields of the Train form, which a sweep may vary."""
    fields = []
    for name, field in TrainConfig.model_fields.items():
        kind, _ = plain_type(field)
        choices = choices_of(field)
        if not can_vary(TrainConfig, name) or not (choices or kind in (int, float)):
            continue
        extra = field_extra(field)
        if extra["group"] in _NOT_VARIED or name == "preset":
            continue
        fields.append(
            {
                "name": name,
                "title": title_of(name, field),
                "help": field.description,
                "group": extra["group"],
                "basic": extra["basic"],
                "choices": [[value, option_label(field, value)] for value in choices],
            }
        )
    return fields


# They don't change what a model learns.
_NOT_VARIED = (
    "Where to run", "Evaluation", "Evaluation during training", "Checkpoints", "Hub", "Reporting",
    "Several hosts", "Device",
)  # fmt: skip


def list_settings() -> list[dict[str, Any]]:
    """Describes a sweep's own fields."""
    settings = []
    for name in SHOWN:
        field = SweepConfig.model_fields[name]
        settings.append(
            {
                "name": name,
                "title": title_of(name, field),
                "help": _HELP.get(name, field.description),
                "value": _written(field.default),
                "choices": [
                    [value, _with_packages(name, value, option_label(field, value))]
                    for value in choices_of(field)
                ],
            }
        )
    return settings


_HELP = {"name": "Empty: sweep."}


def _with_packages(name: str, value: str, label: str) -> str:
    missing = missing_packages(name, value)
    return f"{label} (needs {' and '.join(missing)})" if missing else label


def compose(
    question: Mapping[str, Any],
    form: Form[TrainConfig],
    forecast: Callable[[TrainConfig], Forecast],
    workspace: Workspace,
) -> Answer:
    """Returns the text of a sweep, and what it takes or why it can't start.

    Args:
        question: `typed` values of the Train form, or a `base` of their own; `vary` by name; and
            the sweep's own `settings`.
    """
    typed = {name: value for name, value in dict(question.get("typed") or {}).items()
             if name in form.components}  # fmt: skip
    vary = dict(question.get("vary") or {})
    try:
        options = {name: _option(name, row) for name, row in vary.items()}
        settings = _settings(dict(question.get("settings") or {}))
        base = question.get("base")
        if base is None:
            base = _base(form.parse(typed), options)
        text = write_toml({**settings, "base": base, "options": options})
        config = parse_sweep(text)
    except ConfigError as error:
        return {"problem": _problem(error)}
    answer: Answer = {"text": text}
    try:
        config = checked(config, workspace)
        middle = _middle(config)
        form.check(middle)
        require_check(middle, workspace)
        answer |= _estimate(config, forecast)
    except StudioError as error:
        answer["problem"] = _problem(error)
    return answer


def read(text: str, workspace: Workspace) -> Answer:
    """Returns a text's `vary`, `settings` and `base`."""
    try:
        config = parse_sweep(text)
        checked(config, workspace)
    except StudioError as error:
        return {"problem": _problem(error)}
    fields = {field["name"] for field in list_fields()}
    if config.stage != "train" or not set(config.options) <= fields:
        return {"only_text": True, "stage": config.stage}
    settings = {name: getattr(config, name) for name in _OPTIONS}
    plain = {name: SweepConfig.model_fields[name].default for name in _OPTIONS}
    return {
        "vary": {name: _row(option) for name, option in config.options.items()},
        "settings": {
            name: _written(value)
            for name, value in settings.items()
            if value != plain[name] or name in SHOWN
        },
        "base": config.base,
    }


def write_toml(values: Mapping[str, Any]) -> str:
    """Writes a sweep's values: plain ones, then the tables base and options."""
    plain = [f"{name} = {_toml(value)}" for name, value in values.items()
             if not isinstance(value, Mapping)]  # fmt: skip
    base = [f"{name} = {_toml(value)}" for name, value in values["base"].items()]
    tables = [
        "\n".join([f"[options.{name}]", *(f"{key} = {_toml(table[key])}" for key in table)])
        for name, table in values["options"].items()
    ]
    return "\n\n".join(["\n".join(plain), "\n".join(["[base]", *base]), *tables]).strip() + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and "." not in repr(value):
        return repr(value).replace("e", ".0e")
    # TOML's basic strings and booleans are JSON's; it has no surrogate pairs.
    return json.dumps(value, ensure_ascii=False)


def _base(config: TrainConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    values = changed_values(config)
    left_out = {"name", "output", *options}
    return {name: value for name, value in values.items()
            if name not in left_out and value is not None}  # fmt: skip


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    settings = {}
    for name, raw in values.items():
        field = SweepConfig.model_fields.get(name)
        text = str(raw).strip()
        if field is None or name not in _OPTIONS or text == _written(field.default):
            continue
        settings[name] = _number(name, text, plain_type(field)[0])
    return settings


def _option(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values or the range of an option; raises ConfigError."""
    field = TrainConfig.model_fields.get(name)
    if field is None:
        raise ConfigError(f"There is no setting {name[:80]}", fix="load the page again")
    kind, _ = plain_type(field)
    key = f"options.{name}"
    if row.get("kind") != "range":
        listed = row.get("values")
        words = listed if isinstance(listed, list) else _SEPARATORS.split(str(listed or "").strip())
        return {"values": [_number(key, str(text), kind) for text in words if str(text).strip()]}
    bounds: dict[str, Any] = {
        end: _number(key, str(row.get(end) or ""), kind) for end in ("min", "max")
    }
    if row.get("log"):
        bounds["log"] = True
    if count := str(row.get("count") or "").strip():
        bounds["count"] = _number(key, count, int)
    return bounds


def _number(key: str, text: str, kind: Any) -> Any:
    if kind is bool or text in ("true", "false"):
        return text == "true"
    if kind not in (int, float) or text.lower() in ("none", "null"):
        return text
    try:
        number = kind(ungrouped(text) if kind is int else text)
        if not math.isfinite(number):
            raise ValueError
        return number
    except ValueError:
        raise ConfigError(
            "A value is no number",
            expected="a whole number" if kind is int else "a number, such as 0.1",
            received=repr(text) if text else "nothing",
            fix="enter a number",
            field=key,
        ) from None


def _row(option: Any) -> dict[str, Any]:
    if not isinstance(option, Mapping):
        return {"kind": "list", "values": [_written(value) for value in option]}
    if "values" in option:
        return {"kind": "list", "values": [_written(value) for value in option["values"]]}
    ends = {name: _written(option[name]) for name in ("min", "max", "count") if name in option}
    return {"kind": "range", "log": bool(option.get("log")), **ends}


def _written(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _problem(error: StudioError) -> dict[str, Any]:
    """Returns an error with the option or setting that it concerns."""
    table, _, rest = error.field.partition(".")
    name = rest.partition(".")[0] if table == "options" else ""
    is_own = table in _OPTIONS and table != "stage"
    model = SweepConfig if is_own else TrainConfig
    return {
        "option": name,
        "setting": table if is_own else "",
        "field": rest if table == "base" else table if table in TrainConfig.model_fields else "",
        "words": StudioError.like(error, fix="").describe(partial(relabel, model=model)),
    }


def _space(config: SweepConfig) -> Space:
    return parse_space(TrainConfig, config.base, config.options, is_grid=config.method == "grid")


def _middle(config: SweepConfig) -> TrainConfig:
    """Returns the trial in the middle of the space."""
    settings = {name: dimension.draw(0.5) for name, dimension in _space(config).items()}
    return TrainConfig.parse({**config.base, **settings})


def _estimate(config: SweepConfig, forecast: Callable[[TrainConfig], Forecast]) -> Answer:
    """Returns trials, and the time and cost of all of them, where they are known."""
    space = _space(config)
    sizes = [
        len(dimension.grid()) if config.method == "grid" else dimension.count_values()
        for dimension in space.values()
    ]
    distinct = math.prod(size for size in sizes if size) if all(sizes) else config.max_runs
    trials = min(config.max_runs, distinct)
    words = f"{trials} trial{'' if trials == 1 else 's'}"
    try:
        seen = forecast(_middle(config))
    except StudioError:
        return {"trials": trials, "words": words}
    more = []
    if seen.seconds is not None:
        hours = trials * seen.seconds / 3600
        limited = min(hours, config.max_hours) if config.max_hours else hours
        at_a_time = min(trials, parallel_of(config) or 1)
        more.append(f"about {markup.rough_duration(3600 * limited / at_a_time)}")
        if seen.price_per_hour is not None:
            dollars = limited * seen.price_per_hour
            more.append(markup.dollars(min(dollars, config.max_cost or dollars)))
    return {"trials": trials, "words": " · ".join([words, *more])}
