"""Cards of saved machines, and fields for each kind, which compose the address of the Train form.

The browser composes it (`where.js`), so that no start button sends an older one. The address is the
only value that counts: export, import, clone and commands know nothing of cards and fields.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import gradio as gr

from core.config.topologies import TOPOLOGIES
from core.config.train import TrainConfig
from core.errors import ConfigError, RunError, StudioError
from core.hub.client import is_signed_in
from core.targets import flavors
from core.targets.saved import (
    SavedMachine,
    check_target,
    machine_at,
    read_machines,
    remove_machine,
    save_machine,
)
from core.targets.target import LABELS, open_target, place_of_target
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.present import UNSET, NotReadyError, answering, describe, escape, hide_secrets

GROUP = "Where to run"
LIMITS = ("max_hours", "max_cost", "price_per_hour")
_HERE = "This computer"
_REQUIRED = ("host", "flavor", "type", "zone", "resources")
_ANY = " ".join(LABELS)
_ADD = "ssh, TPU, cloud"
_FIRST_TPU = "v5e-8"
_UNSIGNED = "Sign in to the Hub first: hf auth login"
_QUESTION = ("address", "mirror", "name", "price", "replaces")
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
        server_functions=[
            machines_function(workspace),
            _test_function(workspace),
            _remove_function(workspace),
            list_flavors,
        ],
        elem_classes=["ps-where-host"],
        form=form_id,
        limits=LIMITS,
        unsigned=_UNSIGNED,
    )


def _template() -> str:
    return (
        '<div class="ps-where" data-kind="here" data-mode="here">'
        f'<fieldset id="where-machine"><legend>{GROUP}</legend>'
        f"{_card('here', _HERE, '')}{_card('add', 'Add a machine', _ADD)}</fieldset>"
        '<div class="ps-where-editor" hidden>'
        f'<fieldset id="where-kind"><legend>Kind of machine</legend>{_radios()}</fieldset>'
        f'<div class="ps-where-fields">{"".join(_fields())}</div></div>'
        '<div class="ps-where-actions" hidden>'
        '<button type="button" class="ps-button ps-where-check" id="where-check"></button>'
        '<button type="button" class="ps-button ps-where-change">Change</button>'
        '<button type="button" class="ps-button ps-where-remove">Remove</button>'
        '<div class="ps-where-answer"></div></div></div>'
    )


def _card(value: str, title: str, about: str) -> str:
    """A card; the browser makes those of saved machines alike."""
    described = f' aria-describedby="where-card-{value}-about"' if about else ""
    more = f'<small id="where-card-{value}-about">{escape(about)}</small>' if about else ""
    return (
        f'<label><input type="radio" name="where/group" value="{value}"'
        f' aria-labelledby="where-card-{value}"{described}{" checked" if value == "here" else ""}>'
        f'<span><b id="where-card-{value}">{escape(title)}</b>{more}</span></label>'
    )


def _radios() -> str:
    return "".join(
        f'<label><input type="radio" name="where-kind/group" value="{kind}">'
        f"<span>{escape(title)}</span></label>"
        for kind, title in LABELS.items()
    )


def _fields() -> Iterator[str]:
    yield _text("ssh", "host", "Host", "user@host:22", "As for the ssh command.")
    yield _text("ssh", "python", "Interpreter", UNSET, "Empty: packages are installed there.")
    yield _menu("hf", "flavor", "Flavour", [], "Kind of machine, with its price.")
    yield _text("hf", "namespace", "Namespace", UNSET, "Account that pays; empty: yours.")
    yield _menu("tpu", "type", "TPU type", list(TOPOLOGIES), "And number of cores or chips.")
    yield _text("tpu", "zone", "Zone", "us-west4-a", "Has your quota for this type.")
    yield _text("tpu", "project", "Project", UNSET, "Empty: that of your credentials.")
    yield _box("tpu", "spot", "Spot", "Cheaper; a preempted run continues on a new one.", on=True)
    yield _text("sky", "resources", "Resources", "A100:1", "Accelerator and count.")
    yield _text("sky", "cloud", "Cloud", UNSET, "Such as gcp or aws; empty: the cheapest.")
    yield _box("sky", "use_spot", "Spot", "Cheaper; a preempted run continues on a new one.")
    yield _text(_ANY, "name", "Name", "gpu-box", "Empty: after the address.")
    yield _text(_ANY, "price", "Dollars per hour", UNSET, "For costs and limits.")


def _text(kind: str, name: str, title: str, example: str, help: str) -> str:
    control = (
        f'<input type="text" {_named(name)} placeholder="{escape(example)}" '
        'autocomplete="off" autocapitalize="none" spellcheck="false">'
    )
    return _field(kind, name, f"{_title(name, title)}{control}", help)


def _menu(kind: str, name: str, title: str, choices: list[str], help: str) -> str:
    options = "".join(
        f'<option value="{choice}"{" selected" if choice == _FIRST_TPU else ""}>{choice}</option>'
        for choice in choices
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


def machines_function(workspace: Workspace) -> Callable[..., dict[str, Any]]:
    @answering
    def list_saved_machines(_: dict[str, Any]) -> dict[str, Any]:
        return {"machines": [_describe_machine(machine) for machine in read_machines(workspace)]}

    return list_saved_machines


def _describe_machine(machine: SavedMachine) -> dict[str, Any]:
    check = machine.check
    return {
        "name": machine.name,
        "target": machine.target,
        "state": machine.state,
        "about": " · ".join(filter(None, (machine.state, machine.price))),
        "price": "" if machine.price_per_hour is None else f"{machine.price_per_hour:g}",
        "answer": hide_secrets(check.answer) if check else "",
        "checked": check.time if check else 0,
    }


def _test_function(workspace: Workspace) -> Callable[..., dict[str, Any]]:
    listed = machines_function(workspace)

    @answering
    def test_machine(question: dict[str, Any]) -> dict[str, Any]:
        """Saves a machine, unless it is, and asks it; may take a minute.

        Takes `address`, `mirror`, and of a new or changed machine `name`, `price` and `replaces`.
        """
        values = {name: str(question.get(name, "")).strip() for name in _QUESTION}
        with _taking(_checks):
            machine = _saved(workspace, values)
            try:
                text = describe_target(machine.target, values["mirror"], workspace)
            except StudioError as error:
                return {"failed": describe(error), "name": machine.name, **listed({})}
            return {"text": text, "name": machine.name, **listed({})}

    return test_machine


def _saved(workspace: Workspace, values: Mapping[str, str]) -> SavedMachine:
    """Returns the saved machine that is asked for, saved first if it is new or changed."""
    TrainConfig.parse({"target": values["address"], "mirror": values["mirror"]})
    known = machine_at(workspace, values["address"])
    is_as_saved = not (values["name"] or values["price"] or values["replaces"])
    if known and is_as_saved:
        return known
    replaces = values["replaces"]
    if known and not replaces and values["name"] in ("", known.name):
        replaces = known.name
    price = _price(values["price"])
    return save_machine(workspace, values["address"], values["name"], price, replaces=replaces)


def _price(text: str) -> float | None:
    try:
        return float(text.lstrip("$").replace(",", ".")) if text else None
    except ValueError:
        raise ConfigError(
            "The price isn't a number",
            expected="US dollars per hour, such as 2.5",
            received=text[:100],
            fix="correct it, or leave it empty",
            field="price_per_hour",
        ) from None


def _remove_function(workspace: Workspace) -> Callable[..., dict[str, Any]]:
    listed = machines_function(workspace)

    @answering
    def remove_saved_machine(question: dict[str, Any]) -> dict[str, Any]:
        remove_machine(workspace, str(question.get("name", "")))
        return listed({})

    return remove_saved_machine


def name_of(config: TrainConfig, workspace: Workspace) -> str:
    """Names the run's machine: as it was saved, else by its host or kind."""
    try:
        machine = machine_at(workspace, config.target)
    except StudioError:
        machine = None
    return machine.name if machine else place_of_target(config.target)


def require_check(config: TrainConfig, workspace: Workspace) -> None:
    """Raises NotReadyError unless the run's machine has passed a check in the last day."""
    if not config.target:
        return
    machine = machine_at(workspace, config.target)
    if machine and machine.has_passed:
        return
    name = name_of(config, workspace)
    problem, received = f"{name} has not passed a check in the last day", "no check"
    fix = "check it first; nothing is started or booked"
    if machine and machine.check and not machine.check.passed:
        received = machine.check.answer or received
        problem = f"{name} has not passed its last check: {machine.check.answer}"
        fix = "see to it that the machine is on and answers, then check it again"
    raise NotReadyError(
        problem,
        expected="a machine that answers",
        received=received,
        fix=fix,
        action=f"Check {name} first",
    )


def require_address(config: TrainConfig) -> None:
    """Raises NotReadyError while nothing is entered for the fields that name a machine."""
    parts = urlsplit(config.target)
    if parts.netloc and (parts.scheme != "tpu" or "zone" in parse_qs(parts.query)):
        return
    raise NotReadyError(
        "No machine is named yet",
        expected=f"what names a machine of {LABELS.get(parts.scheme, parts.scheme)}",
        received="nothing",
        fix="fill in the required fields",
        action="Name the machine",
        is_begun=False,
    )


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

    def ask() -> str:
        answer = target.check()
        target.mirror_root(config.mirror)
        return answer

    return f"{check_target(workspace, config.target, ask)}."


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

    def find(self, name: str) -> float | None:
        """Returns US dollars per hour without asking; None if unknown."""
        prices = {flavor.name: flavor.price_per_hour for flavor in self._known}
        return prices.get(name)


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
    listed = [{"name": flavor.name, "text": _describe(flavor)} for flavor in _prices.list()]
    return {"flavors": listed}


def _describe(flavor: flavors.Flavor) -> str:
    price = flavor.price_per_hour
    cost = [] if price is None else [f"{markup.dollars(price)} per hour"]
    return " · ".join([flavor.name, flavor.title, *cost])
