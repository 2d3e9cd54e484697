"""Cards of saved machines, and fields for each kind, which compose the address of a form.

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

from core.config.remote import RemoteConfig
from core.config.targets import TARGETS, TargetField, members_of, place_of_target
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
from core.targets.target import LABELS, open_targets
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.present import UNSET, NotReadyError, answering, describe, escape, hide_secrets

GROUP = "Where to run"
LIMITS = ("max_hours", "max_cost", "price_per_hour")
_HERE = "This computer"
_OF_ALL = (
    TargetField("name", "Name", "Empty: after the address.", "gpu-box"),
    TargetField("price", "Dollars per hour", "For costs and limits."),
)
_ADD = "ssh, Slurm, cloud, notebook"
_POOL = "pool"
_MEMBERS = TargetField(
    "members",
    "Members",
    "Addresses, with spaces between them.",
    "ssh://a ssh://b?gpu=0",
    is_required=True,
)
TITLES = {**LABELS, _POOL: "Pool of machines"}
_UNSIGNED = "Sign in to the Hub first: hf auth login"
_QUESTION = ("address", "mirror", "name", "price", "replaces")
_PRICES_KEPT_SECONDS = 600.0
# A check may wait a minute for a machine that doesn't answer.
_MOST_CHECKS = 4
_checks = BoundedSemaphore(_MOST_CHECKS)


def render(
    form: Form[Any],
    workspace: Workspace,
    after: Mapping[str, Callable[[], None]] | None = None,
    before: Mapping[str, Callable[[], None]] | None = None,
) -> None:
    """Renders the form with these fields in its group, and with more as `Form.render` does."""
    fields: list[gr.HTML] = []
    own = {GROUP: lambda: fields.append(_render_fields(form.id, workspace))}
    form.render(after, {**(before or {}), **own})
    address = form.components["target"]
    address.change(None, address, fields[0], js="(address) => address", **QUIET)


def _render_fields(form_id: str, workspace: Workspace) -> gr.HTML:
    return gr.HTML(
        "",
        html_template=_template(f"{form_id}-where"),
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
        kinds=_describe_kinds(),
        unsigned=_UNSIGNED,
    )


def _template(prefix: str) -> str:
    """Returns the HTML; the ids of its elements begin with the prefix."""
    cards = f"{_card(prefix, 'here', _HERE, '')}{_card(prefix, 'add', 'Add a machine', _ADD)}"
    return (
        '<div class="ps-where" data-kind="here" data-mode="here">'
        f'<fieldset class="ps-where-machines" id="{prefix}-machines">'
        f"<legend>{GROUP}</legend>{cards}</fieldset>"
        '<div class="ps-where-editor" hidden>'
        f'<fieldset class="ps-where-kinds" id="{prefix}-kinds">'
        f"<legend>Kind of machine</legend>{_radios(prefix)}</fieldset>"
        f'<div class="ps-where-fields">{"".join(_fields(prefix))}</div></div>'
        '<div class="ps-where-actions" hidden>'
        f'<button type="button" class="ps-button ps-where-check" id="{prefix}-check"></button>'
        '<button type="button" class="ps-button ps-where-change">Change</button>'
        '<button type="button" class="ps-button ps-where-remove">Remove</button>'
        '<div class="ps-where-answer"></div></div></div>'
    )


def _card(prefix: str, value: str, title: str, about: str) -> str:
    """A card; the browser makes those of saved machines alike."""
    described = f' aria-describedby="{prefix}-card-{value}-about"' if about else ""
    more = f'<small id="{prefix}-card-{value}-about">{escape(about)}</small>' if about else ""
    return (
        f'<label><input type="radio" name="{prefix}/group" value="{value}"{described}'
        f' aria-labelledby="{prefix}-card-{value}"{" checked" if value == "here" else ""}>'
        f'<span><b id="{prefix}-card-{value}">{escape(title)}</b>{more}</span></label>'
    )


def _radios(prefix: str) -> str:
    return "".join(
        f'<label><input type="radio" name="{prefix}-kind/group" value="{kind}">'
        f"<span>{escape(title)}</span></label>"
        for kind, title in TITLES.items()
    )


def _fields(prefix: str) -> Iterator[str]:
    schemes: dict[TargetField, list[str]] = {_MEMBERS: [_POOL]}
    for scheme, kind in TARGETS.items():
        for field in kind.fields:
            schemes.setdefault(field, []).append(scheme)
    for field, kinds in [*schemes.items(), *((field, list(TITLES)) for field in _OF_ALL)]:
        yield (
            f'<div id="{prefix}-{field.name}" data-kinds="{" ".join(kinds)}" hidden>'
            f"<label>{_control(prefix, field)}</label>"
            f'<p id="{prefix}-{field.name}-help">{escape(field.help)}</p></div>'
        )


def _control(prefix: str, field: TargetField) -> str:
    """A control and its title, which a label around a menu would mix with the choices."""
    title = f'<span id="{prefix}-{field.name}-title">{escape(field.title)}</span>'
    attributes = (
        f'data-name="{field.name}" aria-labelledby="{prefix}-{field.name}-title" '
        f'aria-describedby="{prefix}-{field.name}-help"{" required" if field.is_required else ""}'
    )
    if field.control == "box":
        return f'<input type="checkbox" {attributes}{_if("checked", field.without == "1")}>{title}'
    if field.control == "menu":
        choices = "".join(
            f'<option value="{choice}"{_if("selected", choice == field.chosen)}>{choice}</option>'
            for choice in field.choices
        )
        return f"{title}<select {attributes}>{choices}</select>"
    return (
        f'{title}<input type="text" {attributes} placeholder="{escape(field.example or UNSET)}" '
        'autocomplete="off" autocapitalize="none" spellcheck="false">'
    )


def _if(attribute: str, holds: bool) -> str:
    return f" {attribute}" if holds else ""


def _describe_kinds() -> dict[str, dict[str, Any]]:
    """Describes how the browser composes each kind of address."""
    pool: dict[str, Any] = {"place": _MEMBERS.name, "parameters": [], "without": {}}
    return {_POOL: pool} | {
        scheme: {
            "place": kind.fields[0].name,
            "parameters": [field.name for field in kind.fields[1:]],
            "without": {field.name: field.without for field in kind.fields if field.without},
            "isHost": kind.is_host,
            "needsBucket": kind.needs_bucket,
        }
        for scheme, kind in TARGETS.items()
    }


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


def elsewhere(config: RemoteConfig, workspace: Workspace) -> str:
    """Names another machine in a few words; "" for this one."""
    return f" on {name_of(config, workspace)}" if config.target else ""


def name_of(config: RemoteConfig, workspace: Workspace) -> str:
    """Names the run's machine: as it was saved, else by its host or kind."""
    try:
        machine = machine_at(workspace, config.target)
    except StudioError:
        machine = None
    return machine.name if machine else place_of_target(config.target)


def require_check(config: RemoteConfig, workspace: Workspace) -> None:
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


def check_place(config: RemoteConfig) -> None:
    """Checks the address of a machine and its mirror, asking nobody; raises StudioError."""
    if not config.target:
        return
    _require_address(config)
    for target in open_targets(config.target):
        if TARGETS[urlsplit(target.address).scheme].needs_bucket:
            target.mirror_root(config.mirror)


def _require_address(config: RemoteConfig) -> None:
    """Raises NotReadyError while nothing is entered for the fields that name a machine."""
    for address in members_of(config.target):
        parts = urlsplit(address)
        given = parse_qs(parts.query)
        required = [field.name for field in TARGETS[parts.scheme].fields[1:] if field.is_required]
        if not parts.netloc or not all(name in given for name in required):
            raise NotReadyError(
                "No machine is named yet",
                expected=f"what names a machine of {LABELS.get(parts.scheme, parts.scheme)}",
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
    return f"{check_target(workspace, config.target, config.mirror)}."


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


def known_price(config: RemoteConfig) -> float | None:
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
