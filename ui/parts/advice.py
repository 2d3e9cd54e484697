"""Values of automatic settings with their reasons, and warnings with a change that helps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.config.options import option_label, title_of
from core.workspace.workspace import Workspace
from ui.forms import Form, to_raw
from ui.parts import markup
from ui.parts.labels import relabel


def explain_form(
    stage: str, form: Form[Any], raw: Sequence[Any], workspace: Workspace
) -> dict[str, Any]:
    """Returns notes and warnings as `advice.js` shows them; raises StudioError."""
    # Reading texts and backends takes a second to import.
    from core.pretraining.explain import explain_automatic

    found = explain_automatic(stage, form.parse(*raw), workspace)
    notes: dict[str, dict[str, Any]] = {}
    for one in found.settings:
        name = one.field.rpartition(".")[2]
        if place := form.form_with(name):
            value = _words(place, name, one.value)
            notes.setdefault(place.id, {})[name] = {"value": value, "reason": one.reason}
    return {"notes": notes, "warnings": [_warning(form, one) for one in found.warnings]}


def _warning(form: Form[Any], warning: Any) -> dict[str, Any]:
    fields = form.model.model_fields
    changes = {n: value for n, value in warning.changes.items() if n in form.components}
    label = ", ".join(
        f"{title_of(name, fields[name])}: {_words(form, name, value)}"
        for name, value in changes.items()
    )
    return {
        "sentence": relabel(warning.sentence, form.model).removesuffix("."),
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
