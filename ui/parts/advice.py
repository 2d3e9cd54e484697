"""Values of automatic settings with their reasons, and warnings with a change that helps."""

from __future__ import annotations

from typing import Any

from core.config.options import option_label, title_of
from ui.forms import Form, to_raw
from ui.parts import markup
from ui.parts.labels import relabel


def describe_advice(form: Form[Any], explanation: Any) -> dict[str, Any]:
    """Returns an explanation's notes and warnings as `advice.js` shows them."""
    notes: dict[str, dict[str, Any]] = {}
    for setting in explanation.settings:
        name = setting.field.rpartition(".")[2]
        if owner := form.form_with(name):
            value = _words(owner, name, setting.value)
            notes.setdefault(owner.id, {})[name] = {"value": value, "reason": setting.reason}
    return {
        "notes": notes,
        "warnings": [_warning(form, warning) for warning in explanation.warnings],
    }


def _warning(form: Form[Any], warning: Any) -> dict[str, Any]:
    fields = form.model.model_fields
    changes = {n: value for n, value in warning.changes.items() if n in form.components}
    label = ", ".join(
        f"{title_of(name, fields[name])}: {_words(form, name, value)}"
        for name, value in changes.items()
    )
    return {
        "sentence": relabel(warning.text, form.model).removesuffix("."),
        "form": form.id,
        "values": {name: to_raw(fields[name], value) for name, value in changes.items()},
        "label": f"Set {label}" if label else "",
    }


def _words(form: Form[Any], name: str, value: Any) -> str:
    if value is None:
        return "automatic"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return markup.count(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return option_label(form.model.model_fields[name], str(value))
