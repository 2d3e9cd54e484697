"""Fields for each kind of machine, which compose the address of the Train form.

The browser composes it (`where.js`), so that no start button sends an older one. The address is the
only value that counts: export, import, clone and commands know nothing of the fields.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from typing import Any
from urllib.parse import urlsplit

import gradio as gr

from core.config import TrainConfig
from core.errors import RunError
from core.hub.client import is_signed_in
from core.targets import flavors
from core.targets.target import open_target
from core.training.topologies import TOPOLOGIES
from core.workspace import Workspace
from ui.assets import script
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.present import UNSET, answering, escape

GROUP = "Where to run"
LIMITS = ("max_hours", "max_cost", "price_per_hour")
KINDS = {
    "here": "This machine",
    "ssh": "SSH machine",
    "hf": "Hugging Face Jobs",
    "tpu": "Cloud TPU",
    "sky": "Other cloud (SkyPilot)",
}
_REQUIRED = ("host", "flavor", "type", "zone", "resources")
_FIRST_TPU = "v5e-8"
_UNSIGNED = "Sign in to the Hub first: hf auth login"
_PRICES_KEPT_SECONDS = 600.0
# A check may wait a minute for a machine that doesn't answer.
_MOST_CHECKS = 4
_checks = BoundedSemaphore(_MOST_CHECKS)


def render(form: Form[TrainConfig], workspace: Workspace) -> None:
    """Renders the form with these fields in its group."""
    fields: list[gr.HTML] = []
    form.render(before={GROUP: lambda: fields.append(_render_fields(form.id, workspace))})
    address = form.components["target"]
    address.change(None, address, fields[0], js="(address) => address", **QUIET)


def _render_fields(form_id: str, workspace: Workspace) -> gr.HTML:
    return gr.HTML(
        "",
        html_template=_template(),
        js_on_load=script("where.js"),
        server_functions=[_check_function(workspace), list_flavors],
        elem_classes=["ps-where-host"],
        form=form_id,
        limits=LIMITS,
        unsigned=_UNSIGNED,
    )


def _template() -> str:
    return (
        '<div class="ps-where" data-kind="here">'
        f'<fieldset id="where-kind"><legend>{GROUP}</legend>{_radios()}</fieldset>'
        f'<div class="ps-where-fields">{"".join(_fields())}</div>'
        '<div class="ps-where-actions" hidden>'
        '<button type="button" class="ps-button ps-where-check" id="where-check">Check</button>'
        '<div class="ps-where-answer"></div></div></div>'
    )


def _radios() -> str:
    return "".join(
        f'<label><input type="radio" name="where/group" value="{kind}"'
        f"{' checked' if kind == 'here' else ''}><span>{escape(title)}</span></label>"
        for kind, title in KINDS.items()
    )


def _fields() -> Iterator[str]:
    yield _text("ssh", "host", "Host", "user@host:22", "As for the ssh command.")
    yield _text("ssh", "python", "Interpreter", UNSET, "Empty: packages are installed there.")
    yield _menu("hf", "flavor", "Flavor", [], "Kind of machine, with its price.")
    yield _text("hf", "namespace", "Namespace", UNSET, "Account that pays; empty: yours.")
    yield _menu("tpu", "type", "TPU type", list(TOPOLOGIES), "And number of cores or chips.")
    yield _text("tpu", "zone", "Zone", "us-west4-a", "Has your quota for this type.")
    yield _text("tpu", "project", "Project", UNSET, "Empty: that of your credentials.")
    yield _box("tpu", "spot", "Spot", "Cheaper; a preempted run continues on a new one.", on=True)
    yield _text("sky", "resources", "Resources", "A100:1", "Accelerator and count.")
    yield _text("sky", "cloud", "Cloud", UNSET, "Such as gcp or aws; empty: the cheapest.")
    yield _box("sky", "use_spot", "Spot", "Cheaper; a preempted run continues on a new one.")


def _text(kind: str, name: str, title: str, example: str, help: str) -> str:
    control = (
        f'<input type="text" {_named(name)} placeholder="{escape(example)}" '
        'autocomplete="off" autocapitalize="none" spellcheck="false">'
    )
    return _field(kind, name, f"{_title(name, title)}{control}", help)


def _menu(kind: str, name: str, title: str, choices: list[str], help: str) -> str:
    options = "".join(
        f'<option value="{one}"{" selected" if one == _FIRST_TPU else ""}>{one}</option>'
        for one in choices
    )
    control = f"<select {_named(name)}>{options}</select>"
    return _field(kind, name, f"{_title(name, title)}{control}", help)


def _box(kind: str, name: str, title: str, help: str, *, on: bool = False) -> str:
    control = f'<input type="checkbox" {_named(name)}{" checked" if on else ""}>'
    return _field(kind, name, f"{control}{_title(name, title)}", help)


def _named(name: str) -> str:
    """Attributes of a control; a label around a menu would include its choices."""
    required = " required" if name in _REQUIRED else ""
    return (
        f'data-name="{name}" aria-labelledby="where-{name}-title" '
        f'aria-describedby="where-{name}-help"{required}'
    )


def _title(name: str, title: str) -> str:
    return f'<span id="where-{name}-title">{escape(title)}</span>'


def _field(kind: str, name: str, label: str, help: str) -> str:
    return (
        f'<div id="where-{name}" data-kinds="{kind}" hidden><label>{label}</label>'
        f'<p id="where-{name}-help">{escape(help)}</p></div>'
    )


def _check_function(workspace: Workspace) -> Callable[..., dict[str, Any]]:
    @answering
    def check_target(question: dict[str, Any]) -> dict[str, Any]:
        """Asks for a machine and its price; may take a minute."""
        values = {name: str(question.get(name, "")).strip() for name in ("address", "mirror")}
        with _taking(_checks):
            return {"text": describe_target(values["address"], values["mirror"], workspace)}

    return check_target


@contextmanager
def _taking(free: BoundedSemaphore) -> Iterator[None]:
    if not free.acquire(blocking=False):
        raise RunError(
            "Too many machines are being checked",
            expected=f"at most {_MOST_CHECKS} at once",
            received="one more",
            fix="wait for a minute, then check again",
        )
    try:
        yield
    finally:
        free.release()


def describe_target(address: str, mirror: str, workspace: Workspace) -> str:
    """Asks a target for its machine and price; raises StudioError if it refuses."""
    config = TrainConfig.parse({"target": address, "mirror": mirror})
    workspace.confine(config.mirror, field="mirror")
    target = open_target(config.target)
    said = target.check()
    target.mirror_root(config.mirror)
    return f"{said}."


class _Prices:
    """Prices of the Hub's flavors, kept for some minutes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: list[flavors.Flavor] = []
        self._asked = -math.inf

    def list(self) -> list[flavors.Flavor]:
        """Asks the Hub unless the prices are fresh; raises StudioError."""
        with self._lock:
            if time.monotonic() - self._asked > _PRICES_KEPT_SECONDS:
                self._known = flavors.list_flavors()
                self._asked = time.monotonic()
            return self._known

    def find(self, flavor: str) -> float | None:
        """Returns US dollars per hour without asking; None if unknown."""
        return next((one.price_per_hour for one in self._known if one.name == flavor), None)


_prices = _Prices()


def known_price(config: TrainConfig) -> float | None:
    """Returns US dollars per hour, set or told by the Hub before; None if unknown."""
    if config.price_per_hour is not None:
        return config.price_per_hour
    parts = urlsplit(config.target)
    return _prices.find(parts.netloc) if parts.scheme == "hf" else None


@answering
def list_flavors(_: dict[str, Any]) -> dict[str, Any]:
    if not is_signed_in():
        return {"flavors": []}
    return {"flavors": [{"name": one.name, "text": _describe(one)} for one in _prices.list()]}


def _describe(flavor: flavors.Flavor) -> str:
    price = flavor.price_per_hour
    cost = [] if price is None else [f"{markup.dollars(price)} per hour"]
    return " · ".join([flavor.name, flavor.title, *cost])
