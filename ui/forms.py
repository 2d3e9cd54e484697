"""Converts any config model to Gradio components and back."""

from __future__ import annotations

import functools
import itertools
import json
import re
import reprlib
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import gradio as gr
from gradio.components import Component
from gradio.context import Context
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from core.config.base import StageConfig, describe_expected, fingerprint_of
from core.config.confining import confine
from core.config.options import (
    choices_of,
    field_extra,
    option_label,
    plain_type,
    title_of,
)
from core.errors import ConfigError, StudioError
from core.workspace.workspace import Workspace
from ui import present
from ui.assets import script
from ui.parts.artifacts import list_names
from ui.parts.events import QUIET, listen
from ui.parts.labels import relabel

# More choices become a dropdown.
_MOST_BUTTONS = 4
_YES_OR_NO = [("Automatic", ""), ("Yes", "yes"), ("No", "no")]
# Dots group digits too, but not mixed with other separators.
_GROUPED_DIGITS = re.compile(r"-?[1-9]\d{0,2}(?:(?:[ ,_\u00a0\u202f]\d{3})+|(?:\.\d{3})+)")
_BASE = "(base)"
# The same problem shown twice must change the value.
_numbers = itertools.count(1)

_RELATIVE = "A relative path starts in the workspace, {}."
# Paths that a run writes.
_WRITTEN = ("output", "output_dir", "mirror")

ConfigT = TypeVar("ConfigT", bound=StageConfig)
Problems = dict[str, str]
Otherwise = Mapping[Any, Any] | Callable[[StudioError], Mapping[Any, Any]]

# JavaScript; %s is JSON.
_TYPED = "(value) => studio.typed(%s, %s, value)"
_REST = "() => studio.rest(%s)"
_KEEP = "(typed) => [Object.fromEntries(%s.filter((n) => n in typed).map((n) => [n, typed[n]]))]"
_CHOSEN = "(...all) => [...all.slice(0, -1), studio.changed(%s, all[1], %s)]"
_NOTED = "(value) => void studio.noted(%s, value)"
# If nothing was kept, the user may be typing already.
_APPLY = "() => studio.wanted(%s, %s)"
_RECALL = '(kept) => %s.map((name) => kept?.[name] ?? { __type__: "update" })'


class OtherFormError(ConfigError):
    """An error in the form of an earlier stage.

    Attributes:
        form: The form that marks it.
    """

    def __init__(self, error: StudioError, problem: str, form: Form[Any]) -> None:
        texts: dict[str, Any] = {**error.texts, "problem": problem}
        super().__init__(**texts, field=error.field)
        self.form = form
        self.__cause__ = error.__cause__


class Form(Generic[ConfigT]):
    """Form for one config model.

    Gradio's frontend walks all handler inputs at each step of each call: seconds with a hundred
    fields. So the browser gathers changed values, by name, in the hidden `typed`, the handlers'
    only input. `rest` follows after a pause; updates listen to it.

    Args:
        id: Prefix of element ids.
        workspace: Suggests artifacts and confines paths.
        nested: Forms of config fields, rendered elsewhere.
        base: Form of the extended config model; its fields aren't repeated, its name isn't
            inherited.
        check: Raises StudioError if the run would fail at the start.

    Attributes:
        related: Forms of earlier stages, whose errors a start may reveal.
    """

    def __init__(
        self,
        model: type[ConfigT],
        id: str,
        workspace: Workspace,
        *,
        nested: Mapping[str, Form[Any]] | None = None,
        base: Form[Any] | None = None,
        check: Callable[[ConfigT], object] = lambda config: None,
    ) -> None:
        self.model = model
        self.id = id
        self.nested = dict(nested or {})
        self.base = base
        # Gradio adds listeners dynamically.
        self.components: dict[str, Any] = {}
        self.problems: gr.HTML
        self.typed: gr.JSON
        self.rest: Any
        self.related: list[Form[Any]] = []
        self._checks: dict[Callable[..., Any], str] = {}
        self._workspace = workspace
        self._check = check

    @property
    def place(self) -> str:
        """Returns the id of the tab with the form."""
        return self.id

    @property
    def inputs(self) -> list[Any]:
        """Returns the handlers' inputs, other forms' last."""
        return [form.typed for form in self._all()]

    @property
    def fields(self) -> list[Any]:
        """Returns the visible components of all forms."""
        return [component for form in self._all() for component in form.components.values()]

    @property
    def changes(self) -> list[Any]:
        """Returns the triggers: page load and changes."""
        page: Any = Context.root_block
        return [page.load, *(form.rest.change for form in self._all())]

    @property
    def problem_outputs(self) -> list[gr.HTML]:
        """Returns the components that show problems."""
        return [form.problems for form in self._forms()]

    def render(
        self,
        after: Mapping[str, Callable[[], None]] | None = None,
        before: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        """Renders the components.

        Args:
            after: Renders more below a group, by heading.
            before: Renders more above a group's fields, by heading.
        """
        fields = {n: f for n, f in self._own_fields().items() if not _is_config(f)}
        defaults = self.model()
        with gr.Column(elem_id=self.id, elem_classes=["ps-form"]):
            if any(not field_extra(field)["basic"] for field in fields.values()):
                _render_view_switch(self.id)
            for group, names in _grouped(fields):
                classes = ["ps-group", *self._condition(group), *self._switched(names)]
                with gr.Column(elem_classes=classes):
                    gr.HTML(f"<h3>{present.escape(group)}</h3>", elem_classes=["ps-group-title"])
                    if before and group in before:
                        before[group]()
                    with gr.Row(elem_classes=["ps-fields"]):
                        for name in names:
                            self.components[name] = self._component(
                                name, fields[name], getattr(defaults, name)
                            )
                if after and group in after:
                    after[group]()
        self._render_problems()
        self._gather()
        self._connect_presets()

    def _render_problems(self) -> None:
        # An update that comes before a tab is open takes the place of all props of this component.
        apply = f"studio.formOf({json.dumps(self.id)}).apply = () => trigger('apply');"
        self.problems = gr.HTML(
            html_template=f"<style>{self._css()}</style>",
            js_on_load=f"{apply}\n{script('problems.js', 'apply')}",
            elem_classes=["ps-unseen"],
            form=self.id,
            help=self._help(),
            presets=self._presets(),
        )
        names = json.dumps(list(self.components))
        code = _APPLY % (json.dumps(self.id), names)
        self.problems.apply(None, None, list(self.components.values()), js=code, **QUIET)

    def _presets(self) -> dict[str, Any]:
        """Returns the values at the start, those of each preset, and the names of inputs."""
        fields = self.model.model_fields
        first = {name: component.value for name, component in self.components.items()}
        by_preset: dict[str, dict[str, dict[str, Any]]] = {}
        if "preset" in first:
            for preset in choices_of(fields["preset"]):
                variants = self._variants() if self.model.variant else [""]
                filled = {variant: self._filled(preset, variant) for variant in variants}
                by_preset[preset] = {
                    variant: {n: value for n, value in values.items() if value != first[n]}
                    for variant, values in filled.items()
                }
        return {
            "first": first,
            "presets": by_preset,
            "variant": self.model.variant,
            "inputs": [name for name in first if _is_input(name, fields[name])],
        }

    def _help(self) -> dict[str, dict[str, Any]]:
        help_by_id = {}
        for name, component in self.components.items():
            field = self.model.model_fields[name]
            extra = field_extra(field)
            options = {value: texts for value, texts in extra["options"].items() if texts[1]}
            # An explanation replaces the help line.
            more = [field.description if options else "", extra["details"], self._places(extra)]
            if any(more) or extra["slider"]:
                help_by_id[component.elem_id] = {
                    "title": component.label,
                    "options": options,
                    "details": " ".join(filter(None, more)),
                    "value": component.value,
                    "slider": extra["slider"],
                    "optional": plain_type(field)[1],
                }
        return help_by_id

    def _places(self, extra: Mapping[str, Any]) -> str:
        return _RELATIVE.format(self._workspace.root) if extra["path"] else ""

    def _gather(self) -> None:
        self.typed, self.rest = gr.JSON({}, visible=False), gr.JSON(visible=False)
        id = json.dumps(self.id)
        for name, component in self.components.items():
            code = _TYPED % (id, json.dumps(name))
            component.change(None, component, self.typed, js=code, **QUIET)
        self.typed.change(None, None, self.rest, js=_REST % id, **QUIET)

    def parse(self, *raw: Any) -> ConfigT:
        """Parses the values of `inputs`.

        Raises:
            ConfigError: Invalid value or forbidden path.
        """
        typed, *rest = raw
        values = self._values(typed)
        for name, form in self.nested.items():
            values[name] = form.parse(*rest[: len(form.inputs)])
            rest = rest[len(form.inputs) :]
        config = self.model.parse({**self._inherited(rest), **values})
        self._confine(config)
        return config

    def _values(self, typed: Any) -> dict[str, Any]:
        values = {name: self._to_value(name, raw) for name, raw in self.shown(typed).items()}
        fields = self.model.model_fields
        paths = {name: values[name] for name in values if field_extra(fields[name])["path"]}
        resolved = {name: self._workspace.resolve_path(path) for name, path in paths.items()}
        return {**values, **resolved}

    def shown(self, typed: Any) -> dict[str, Any]:
        """Returns field values by name.

        Args:
            typed: Untrusted value of `typed`.

        Raises:
            ConfigError: Malformed.
        """
        shown = {name: component.value for name, component in self.components.items()}
        if not _is_typed(typed, shown):
            raise ConfigError(
                f"What was typed into the form {self.id} can't be read",
                expected="texts and ticks by the names of its fields",
                received=reprlib.repr(typed),
                fix="load the page again",
            )
        return {**shown, **typed}

    def check(self, config: ConfigT) -> None:
        """Raises StudioError if the run would fail at the start."""
        self.check_nested(config)
        self._check_paths(config)
        self._check(config)

    def _check_paths(self, config: StageConfig) -> None:
        """Raises ConfigError for a file to read that doesn't exist."""
        for name in self.components:
            extra = field_extra(self.model.model_fields[name])
            path = getattr(config, name) if extra["path"] and name not in _WRITTEN else ""
            if path and self._has_effect(name, config) and not self._workspace.has_path(path):
                raise ConfigError(
                    f"No file matches {path}",
                    expected="a file, a folder or a pattern",
                    fix="correct the path, or upload the file",
                    field=name,
                )

    def _has_effect(self, name: str, config: StageConfig) -> bool:
        """Returns whether the form shows a field with these choices."""
        group = _as_choice(field_extra(self.model.model_fields[name])["group"])
        return all(
            getattr(config, by) == group for by, choice in self._conditions() if choice == group
        )

    def check_nested(self, config: ConfigT) -> None:
        """Checks the nested configs only."""
        for name, form in self.nested.items():
            form.check(getattr(config, name))

    def updates(self, config: StageConfig) -> dict[Component, Any]:
        """Returns updates that show a config, nested included."""
        own = self.updates_of({name: getattr(config, name) for name in self.components})
        others = [form.updates(getattr(config, name)) for name, form in self.nested.items()]
        if self.base:
            others.append(self.base.updates(config))
        return functools.reduce(lambda left, right: {**left, **right}, others, own)

    def updates_of(self, values: Mapping[str, Any]) -> dict[Component, Any]:
        """Returns updates of some fields."""
        return {
            self.components[name]: self._shown_as(self.model.model_fields[name], name, value)
            for name, value in values.items()
        }

    def _shown_as(self, field: FieldInfo, name: str, value: Any) -> Any:
        choices = self._offered(name, choices_of(field))
        if choices and not _are_buttons(field, choices):
            return gr.update(value=to_raw(field, value), choices=labelled(field, choices))
        return gr.update(value=to_raw(field, value))

    def follow_artifacts(self, line: gr.HTML, *, fills: bool = True) -> None:
        """Keeps artifact menus up to date, and offers a new artifact instead of the chosen one.

        Args:
            line: Its `artifacts` event reports changes.
            fills: Whether basic fields get an artifact while they are empty.
        """
        kinds = {
            name: extra["artifact"]
            for name in self.components
            if (extra := field_extra(self.model.model_fields[name]))["artifact"]
        }
        basic = [
            name for name in kinds if fills and field_extra(self.model.model_fields[name])["basic"]
        ]
        menus = [self.components[name] for name in kinds]
        # In the browser: the server forgets sessions after an hour away.
        known = gr.HTML(
            {}, html_template="", js_on_load=script("offers.js"), elem_classes=["ps-unseen"],
            form=self.id,
        )  # fmt: skip

        def refresh(*values: Any) -> list[Any]:
            *chosen, before = values
            names = {name: self._names(kind) for name, kind in kinds.items()}
            updates = [
                _follow(names[name], value, _known(before, name), fills=name in basic)
                for name, value in zip(kinds, chosen, strict=True)
            ]
            return [*updates, {"names": names, "before": {n: _known(before, n) for n in basic}}]

        listen(line.artifacts, refresh, [*menus, known], [*menus, known])

    def _names(self, kind: str) -> list[str]:
        return list_names(self._workspace, kind)

    def guarded(
        self,
        handler: Callable[..., dict[Any, Any]],
        *,
        live: bool = False,
        otherwise: Otherwise = MappingProxyType({}),
    ) -> Any:
        """Wraps a handler: a StudioError appears beside its field or as a notice.

        Args:
            handler: Takes `inputs`, perhaps more.
            live: Runs while typing: no notices, no scrolling.
            otherwise: Updates after an error.
        """

        # Events with the same handler are one check, whose last answer holds.
        check = self._checks.setdefault(handler, f"check-{next(_numbers)}") if live else ""

        @functools.wraps(handler)
        def wrapper(*raw: Any) -> dict[Any, Any]:
            try:
                updates = {**self._shown({}, live=live), **handler(*raw)}
                return self._found_by(check, updates)
            except StudioError as error:
                beside = self._beside(error)
                if not live and not beside:
                    with present.sent_by_user(raw):
                        raise present.notice(error) from error
                shown = self._shown(beside, reveal=not live, live=live)
                more = otherwise(error) if callable(otherwise) else otherwise
                return self._found_by(check, {**shown, **more})
            except gr.Error:
                raise
            except Exception as error:
                raise present.unexpected(error) from error

        return wrapper

    def on_change(
        self,
        handler: Callable[..., dict[Any, Any]],
        outputs: Sequence[Any],
        otherwise: Otherwise,
        also: Sequence[Any] = (),
        when: Sequence[Any] = (),
    ) -> None:
        """Calls a handler on load and on each change.

        Args:
            otherwise: Updates while a value is invalid.
            also: More inputs.
            when: More triggers.
        """
        gr.on(
            list(dict.fromkeys([*self.changes, *when])),
            self.guarded(handler, live=True, otherwise=otherwise),
            inputs=[*self.inputs, *also],
            outputs=[*outputs, *self.problem_outputs],
            trigger_mode="always_last",
            **QUIET,
        )

    def beside_field(self, error: StudioError) -> dict[gr.HTML, Any]:
        """Returns updates that show an error beside its field."""
        return self._shown(self._beside(error), reveal=True)

    def shown_live(self, error: StudioError) -> dict[gr.HTML, Any]:
        """Returns updates that show an error beside its field without going there."""
        return self._shown(self._beside(error), live=True)

    def form_with(self, name: str) -> Form[Any] | None:
        """Returns the form among this one and those it reads that has a field."""
        return next((form for form in self._all() if name in form.components), None)

    def form_of(self, error: StudioError) -> Form[Any] | None:
        """Returns the form that marks an error."""
        return next(iter(self._beside(error)), None)

    def count_problems(self, error: StudioError) -> tuple[int, str]:
        """Returns how many fields an error marks, and the place of another tab's form, or ""."""
        for form, problems in self._beside(error).items():
            return len(problems), "" if form in (self, self.base) else form.place
        return 0, ""

    def _forms(self) -> list[Form[Any]]:
        """Returns this form and all whose problems it shows, the nearest first."""
        others = [*([self.base] if self.base else []), *self.nested.values(), *self.related]
        return list(dict.fromkeys([self, *(form for other in others for form in other._forms())]))

    def _all(self) -> list[Form[Any]]:
        others = [*self.nested.values(), *([self.base] if self.base else [])]
        return [self, *(inner for form in others for inner in form._all())]

    def _own_fields(self) -> dict[str, FieldInfo]:
        inherited = self.base.model.model_fields if self.base else {}
        return {n: f for n, f in self.model.model_fields.items() if n not in inherited}

    def _inherited(self, raw: Sequence[Any]) -> dict[str, Any]:
        if self.base is None:
            return {}
        return self.base.parse(*raw).model_dump(exclude=set(self.model.not_inherited))

    def _shown(
        self, beside: Mapping[Form[Any], Problems], *, reveal: bool = False, live: bool = False
    ) -> dict[gr.HTML, Any]:
        """While typing, a base form and those of earlier stages show their own problems."""
        own = (self, *self.nested.values())
        return {
            form.problems: {
                "form": form.id,
                "place": form.place,
                "problems": beside.get(form, {}),
                "reveal": reveal,
                "number": next(_numbers),
            }
            for form in self._forms()
            if form in own or not live
        }

    def _found_by(self, check: str, updates: dict[Any, Any]) -> dict[Any, Any]:
        """Names the check that found the problems of updates; a button's check has no name."""
        shown = {output: updates[output] for output in self.problem_outputs if output in updates}
        return {**updates, **{output: {**value, "check": check} for output, value in shown.items()}}

    def _beside(self, error: StudioError) -> dict[Form[Any], Problems]:
        """Returns the problems of the form that an error concerns."""
        forms = [error.form] if isinstance(error, OtherFormError) else self._forms()
        problems_by_form = {form: form._own_problems(error) for form in forms}
        return next(({form: texts} for form, texts in problems_by_form.items() if texts), {})

    def _own_problems(self, error: StudioError) -> Problems:
        if isinstance(error.__cause__, ValidationError):
            if error.__cause__.title != self.model.__name__:
                return {}
            problems = {
                str(e["loc"][-1]): _explain(e) for e in error.__cause__.errors() if e["loc"]
            }
            return {name: text for name, text in problems.items() if name in self.components}
        if error.field not in self.components:
            return {}
        return {error.field: error.describe(functools.partial(relabel, model=self.model))}

    def _component(self, name: str, field: FieldInfo, value: Any) -> Component:
        advanced = [] if field_extra(field)["basic"] else ["ps-advanced"]
        common = {
            "label": title_of(name, field),
            "info": field.description,
            "elem_id": f"{self.id}-{name}",
            "elem_classes": ["ps-field", *self._switched([name]), *advanced],
        }
        kind = field_extra(field)["artifact"]
        names = self._names(kind) if kind else field_extra(field)["choices"]
        choices = self._offered(name, choices_of(field))
        return _make_component(field, to_raw(field, value), common, names, choices)

    def _offered(self, name: str, choices: Sequence[str]) -> list[str]:
        """Returns the choices that the form offers."""
        return list(choices)

    def _confine(self, config: StageConfig) -> None:
        confine(config, self._workspace)

    def _to_value(self, name: str, raw: Any) -> Any:
        return _to_value(self.model.model_fields[name], raw)

    def _conditions(self) -> list[tuple[str, str]]:
        """Lists (field, choice) pairs whose choice names a group."""
        fields = self.model.model_fields.items()
        groups = {_as_choice(field_extra(field)["group"]) for _, field in fields}
        return [
            (name, choice)
            for name, field in fields
            for choice in choices_of(field)
            if field_extra(field)["basic"] and choice in groups
        ]

    def _condition(self, group: str) -> list[str]:
        for name, choice in self._conditions():
            if _as_choice(group) == choice:
                return ["ps-conditional", f"ps-when-{self.id}-{name}-{choice}"]
        return []

    def _switched(self, names: Iterable[str]) -> list[str]:
        """Returns the class of what a switch shows if it shows all of these fields."""
        switches = {field_extra(self.model.model_fields[name])["needs"] for name in names}
        return [f"ps-with-{self.id}-{name}" for name in switches if name and len(switches) == 1]

    def _css(self) -> str:
        needed = {field_extra(self.model.model_fields[name])["needs"] for name in self.components}
        return (
            "".join(
                f'body:has(#{self.id}-{name} input[value="{choice}"]:not(:checked)) '
                f".ps-when-{self.id}-{name}-{choice} {{ display: none !important; }}\n"
                for name, choice in self._conditions()
            )
            + "".join(
                f'body:has(#{self.id}-{other} input[value="{choice}"]:checked) '
                f"#{self.id}-{name} {{ display: none !important; }}\n"
                for name in self.components
                for other, choice in field_extra(self.model.model_fields[name])[
                    "hidden_with"
                ].items()
            )
            + "".join(
                f'body:not(:has(#{self.id}-{switch} input[type="checkbox"]:checked)) '
                f".ps-with-{self.id}-{switch}:not(.ps-wrong, :has(.ps-wrong)) "
                "{ display: none !important; }\n"
                for switch in sorted(switch for switch in needed if switch)
            )
        )

    def remember(self, page: gr.Blocks) -> None:
        """Keeps typed values in the browser across reloads, except artifact names.

        Call it outside the tabs: their components are created when opened.
        """
        fields = self.model.model_fields
        remembered = {
            name: component
            for name, component in self.components.items()
            if name != "name"
            and not field_extra(fields[name])["artifact"]
            and not field_extra(fields[name])["secret"]
        }
        names, root = json.dumps(list(remembered)), str(self._workspace.root)
        memory = gr.BrowserState(
            storage_key="studio-" + fingerprint_of([root, self.id, *remembered]),
            secret=self.id,
        )
        self.rest.change(None, self.typed, memory, js=_KEEP % names, **QUIET)
        page.load(None, memory, list(remembered.values()), js=_RECALL % names, **QUIET)

    def _connect_presets(self) -> None:
        if "preset" not in self.components:
            return
        names, outputs = self.model.preset_fields(), self.preset_outputs
        deciding = [self.components[name] for name in ("preset", self.model.variant) if name]

        def fill(preset: str, variant: str = "") -> list[Any]:
            values = self._filled(preset, variant)
            return [values[name] for name in names]

        listen(self.components["preset"].input, fill, deciding, outputs)
        if self.model.variant:
            self._connect_variant(deciding)

    def _connect_variant(self, deciding: list[Any]) -> None:
        menu = self.components[self.model.variant]
        is_new = gr.JSON(visible=False)
        id, first = json.dumps(menu.elem_id), json.dumps(menu.value)

        def follow(preset: str, variant: str, typed: Any, is_new: Any) -> list[Any]:
            return self.followed(preset, variant, typed) if is_new else self._unchanged()

        listen(
            menu.input,
            follow,
            [*deciding, self.typed, is_new],
            self.preset_outputs,
            js=_CHOSEN % (id, first),
        )
        menu.change(None, menu, None, js=_NOTED % id, **QUIET)

    def _unchanged(self) -> list[Any]:
        return [gr.skip() for _ in self.model.preset_fields()]

    @property
    def preset_outputs(self) -> list[Any]:
        """Returns the fields that presets set."""
        return [self.components[name] for name in self.model.preset_fields()]

    def followed(self, preset: str, variant: str, typed: Any) -> list[Any]:
        """Returns updates of `preset_outputs` for another family; typed values stay."""
        values, shown = self._filled(preset, variant), self.shown(typed)
        left = [self._filled(preset, family) for family in self._variants()]
        return [
            values[name] if shown[name] in [other[name] for other in left] else gr.skip()
            for name in self.model.preset_fields()
        ]

    def _variants(self) -> list[str]:
        return choices_of(self.model.model_fields[self.model.variant])

    def _filled(self, preset: str, variant: str) -> dict[str, Any]:
        settled = {"preset": preset, **({self.model.variant: variant} if variant else {})}
        config = self.model.parse(settled)
        return {
            name: to_raw(self.model.model_fields[name], getattr(config, name))
            for name in self.model.preset_fields()
        }


def _as_choice(group: str) -> str:
    """Returns the choice for which a group's heading stands."""
    return group.lower().replace(" ", "_")


def _is_typed(typed: Any, names: Collection[str]) -> bool:
    return isinstance(typed, dict) and all(
        name in names and isinstance(value, str | bool | None) for name, value in typed.items()
    )


def _known(before: Any, name: str) -> list[str]:
    """Returns the names that a menu offered before, from the browser."""
    names = before.get("names") if isinstance(before, dict) else None
    offered = names.get(name) if isinstance(names, dict) else None
    return [str(name) for name in offered] if isinstance(offered, list) else []


def _follow(names: list[str], chosen: str, known: list[str], *, fills: bool) -> Any:
    is_gone = chosen in known and chosen not in names
    if fills and (is_gone or not chosen):
        return gr.update(choices=names, value=next(iter(names), ""))
    return gr.update(choices=names)


def _is_input(name: str, field: FieldInfo) -> bool:
    """Returns whether a field says what to work on, rather than how."""
    extra = field_extra(field)
    return (
        name in ("name", "preset")
        or field.default == ()
        or bool(extra["artifact"] and extra["basic"])
    )


def _render_view_switch(form_id: str) -> None:
    gr.Radio(
        ["Basic", "Advanced"],
        value="Basic",
        label="Settings to show",
        interactive=True,
        elem_id=f"{form_id}-view",
        elem_classes=["ps-view"],
        show_label=False,
        container=False,
    )


def _are_buttons(field: FieldInfo, choices: Sequence[str]) -> bool:
    """Returns whether choices are radio buttons, as presets are whatever their number."""
    is_preset = "custom" in field_extra(field)["options"]
    return bool(choices) and (is_preset or len(choices) <= _MOST_BUTTONS)


def _make_component(
    field: FieldInfo, value: Any, common: dict[str, Any], names: list[str], choices: list[str]
) -> Component:
    annotation, optional = plain_type(field)
    if annotation is bool and not optional:
        return gr.Checkbox(value=value, **common)
    if annotation is bool:
        return gr.Dropdown(_YES_OR_NO, value=value, **common)
    if _are_buttons(field, choices):
        return gr.Radio(labelled(field, choices), value=value, **common)
    if choices:
        return gr.Dropdown(labelled(field, choices), value=value, filterable=False, **common)
    if field_extra(field)["artifact"] or names:
        return gr.Dropdown(names, value=value, allow_custom_value=True, **common)
    common["elem_classes"] = [*common["elem_classes"], *_keyboard(annotation)]
    if field_extra(field)["secret"]:
        return gr.Textbox(value=value, max_lines=1, type="password", **common)
    return gr.Textbox(
        value=value, max_lines=1, placeholder=present.UNSET if optional else "", **common
    )


def labelled(field: FieldInfo, values: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (label, value) pairs."""
    return [(option_label(field, value), value) for value in values]


def _keyboard(annotation: Any) -> list[str]:
    """Text fields, as `gr.Number` shows 0 for empty and changes on scrolling."""
    return {int: ["ps-integer"], float: ["ps-decimal"]}.get(annotation, [])


def to_raw(field: FieldInfo, value: Any) -> Any:
    """Returns a value as the field's component has it."""
    annotation, optional = plain_type(field)
    if annotation is bool:
        return value if not optional else {None: "", True: "yes", False: "no"}[value]
    if value is None or value == ():
        return ""
    if isinstance(value, tuple):
        values = [{**source.model_dump(mode="json", exclude_defaults=True), "source": source.source}
                  for source in value]  # fmt: skip
        return json.dumps(values, ensure_ascii=False)
    return _write_number(value) if isinstance(value, int | float) else value


def _to_value(field: FieldInfo, raw: Any) -> Any:
    annotation, _ = plain_type(field)
    if annotation is str or "" in choices_of(field):
        return (raw or "").strip()
    if not isinstance(raw, str):
        return raw
    text = raw.strip()
    if typing.get_origin(annotation) is tuple:
        return _read_list(text)
    return (ungrouped(text) if annotation is int else text) or None


def _read_list(text: str) -> list[Any]:
    try:
        values = json.loads(text or "[]")
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, list) and all(isinstance(source, dict) for source in values):
        return values
    raise ConfigError("A list of the form can't be read", fix="load the page again")


def ungrouped(text: str) -> str:
    """Removes digit grouping: 30,000 or 30.000."""
    return re.sub(r"[^\d-]", "", text) if _GROUPED_DIGITS.fullmatch(text) else text


def _write_number(value: float) -> str:
    text = repr(value)
    if "e" not in text:
        return text.removesuffix(".0")
    digits, exponent = text.split("e")
    return f"{digits}e{int(exponent)}"


def _explain(error: Mapping[str, Any]) -> str:
    if error["type"].startswith("int"):
        return "Enter a whole number, such as 1000."
    if error["type"].startswith(("float", "finite")):
        return "Enter a number, such as 0.1."
    if error["type"] == "string_pattern_mismatch":
        return f"Enter {describe_expected(error)}."
    return f"This should be {describe_expected(error)}."


def _sentence(text: str) -> str:
    return text.removesuffix(".")


def _is_config(field: FieldInfo) -> bool:
    annotation, _ = plain_type(field)
    return isinstance(annotation, type) and issubclass(annotation, StageConfig)


def _grouped(fields: Mapping[str, FieldInfo]) -> Iterator[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for name, field in fields.items():
        groups.setdefault(field_extra(field)["group"], []).append(name)
    yield from groups.items()
