"""Launchers: estimates, start button and command of a stage's tab.

If an earlier stage's artifact is missing or wanted anew, both are queued, each with its tab's
settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gradio as gr

from core.config.base import StageConfig
from core.errors import StudioError
from core.messages.redaction import redact
from core.runs.chain import link_stages, submit_chain
from core.runs.client import check_name_is_free
from core.runs.commands import python_script, shell_line
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.forms import Form, OtherFormError
from ui.parts import markup
from ui.parts.advice import describe_advice
from ui.parts.events import QUIET
from ui.parts.labels import relabel
from ui.parts.navigation import titles
from ui.present import NotReadyError, escape, guarded

_IN_ONE_GO = (
    '<p class="ps-note">Queued together; each run waits for the one before it and uses the '
    "settings of its tab:</p>"
)
_FIX, _BLOCKED = "Fix ", "Can't start yet"
_UNRESOLVED = '<p class="ps-note">Fix the marked settings first.</p>'

Stages = Sequence[tuple["Launcher", StageConfig]]


@dataclass(frozen=True)
class Forecast:
    """Summary of a form: button text, HTML facts, short text for phones, time and price."""

    button: str
    facts: str = ""
    summary: str = ""
    seconds: float | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True)
class Earlier:
    """An earlier stage whose artifact another one needs.

    Attributes:
        field: The later stage's field for it.
        choice: Label of the checkbox for a new one.
        check: Raises StudioError if both configs don't fit.
        replaced_by: A field that makes the artifact unnecessary.
    """

    launcher: Launcher
    field: str
    choice: str
    check: Callable[[Any, Any], object] = lambda before, config: None
    replaced_by: str = ""

    def is_asked_for(self, config: StageConfig, is_checked: bool) -> bool:
        """Whether the earlier stage runs first."""
        if self.replaced_by and getattr(config, self.replaced_by):
            return False
        return is_checked or not getattr(config, self.field)


class Launcher:
    """Starts a stage from its form.

    Args:
        forecast: Summarises a config; may raise StudioError.
        summarize: Describes a config without reading inputs.
        ask: Raises StudioError for problems that only the network reveals.
        require: Raises NotReadyError for what is still to be done before a start.
        explain: Explains a stage's automatic settings of a config; may raise StudioError.
    """

    def __init__(
        self,
        stage: str,
        form: Form[Any],
        workspace: Workspace,
        forecast: Callable[[Any], Forecast],
        summarize: Callable[[Any], str],
        earlier: Earlier | None = None,
        ask: Callable[[Any], object] = lambda config: None,
        require: Callable[[Any], object] = lambda config: None,
        explain: Callable[[str, Any, Workspace], object] | None = None,
    ) -> None:
        self.stage = stage
        self.form = form
        self._workspace = workspace
        self.forecast = forecast
        self.summarize = summarize
        self._earlier = earlier
        self._ask = ask
        self._require = require
        self._explain = explain
        if earlier:
            form.related.append(earlier.launcher.form)
        # Opened when the form shows another config.
        self.section: gr.Accordion | None = None
        self._choice: gr.Checkbox | None = None

    @property
    def inputs(self) -> list[Any]:
        """Returns the handlers' inputs, earlier stages' last."""
        return [*self.form.inputs, *self._earlier_inputs]

    def render_facts(self) -> None:
        """Renders derived numbers and the checkbox."""
        if self._earlier:
            self._choice = gr.Checkbox(
                False,
                label=self._earlier.choice,
                visible=False,
                elem_id=f"{self.stage}-anew",
                elem_classes=["ps-anew"],
            )
        self._facts = gr.HTML(elem_classes=["ps-facts"])

    def render_start(
        self, button: str, variant: Literal["primary", "secondary"] = "primary"
    ) -> None:
        """Renders start button, answer and command."""
        if self._explain:
            self._render_advice(self._explain)
        with gr.Column(elem_classes=["ps-start-bar"]):
            self._summary = gr.HTML(elem_classes=["ps-summary-host"])
            self._start = gr.Button(button, variant=variant, elem_id=f"{self.stage}-start")
        self._variant = variant
        self._answer = gr.HTML(elem_classes=["ps-answer"])
        with gr.Accordion("Show the command", open=False, elem_classes=["ps-command"]):
            self._command = gr.HTML()
        again = gr.HTML(
            html_template="",
            js_on_load=script("again.js"),
            elem_classes=["ps-unseen"],
            button=f"{self.stage}-start",
            blocked=[_FIX, _BLOCKED],
        )
        shown = [self._facts, self._summary, self._start, self._command, *self._choices]
        self.form.on_change(
            self._estimate,
            shown,
            otherwise=self._show_unresolved,
            also=self._earlier_inputs,
            when=self._changes,
        )
        again.again(
            self.form.guarded(self._estimate, live=True, otherwise=self._show_unresolved),
            self.inputs,
            [*shown, *self.form.problem_outputs],
            **QUIET,
        )
        self._start.click(
            self.form.guarded(self._submit),
            inputs=[*self.inputs, self._start],
            outputs=[self._answer, *self._names, *self.form.problem_outputs],
            **QUIET,
        )

    def _render_advice(self, explain: Callable[[str, Any, Workspace], object]) -> None:
        """Renders what automatic settings will be, and what keeps a run from learning."""
        advice = gr.HTML({}, html_template="", js_on_load=script("advice.js"))

        def advise(*raw: Any) -> dict[str, Any]:
            try:
                config = self.form.parse(*raw)
                return describe_advice(self.form, explain(self.stage, config, self._workspace))
            except StudioError:
                return {}  # The form shows its own errors.

        gr.on(
            self.form.changes,
            guarded(advise),
            self.form.inputs,
            advice,
            trigger_mode="always_last",
            **QUIET,
        )

    def updates(self, config: StageConfig) -> dict[Any, Any]:
        """Returns updates that show a config and uncheck a new artifact."""
        opened = {section: gr.update(open=True) for section in self._sections}
        return {**self.form.updates(config), **dict.fromkeys(self._choices, False), **opened}

    @property
    def outputs(self) -> list[Any]:
        """Returns the components that `updates` may change."""
        return [*self.form.fields, *self._choices, *self._sections]

    @property
    def anew(self) -> gr.Checkbox | None:
        """Returns the checkbox for a new artifact, once rendered."""
        return self._choice

    @property
    def _sections(self) -> list[Any]:
        return [self.section] if self.section else []

    @property
    def _choices(self) -> list[Any]:
        return [self._choice] if self._choice else []

    @property
    def _names(self) -> list[Any]:
        own = [component for name, component in self.form.components.items() if name == "name"]
        return [*own, *(self._earlier.launcher._names if self._earlier else [])]

    @property
    def _earlier_inputs(self) -> list[Any]:
        return [*self._choices, *self._earlier.launcher.inputs] if self._earlier else []

    @property
    def _changes(self) -> list[Any]:
        earlier = self._earlier.launcher._changes if self._earlier else []
        return [*self.form.changes, *(box.change for box in self._choices), *earlier]

    def _stages(self, raw: Sequence[Any], *, check_names: bool = True) -> Stages:
        config = self._own_config(raw, check_name=check_names)
        return [*self._stages_before(raw, config, check_names=check_names), (self, config)]

    def _own_config(self, raw: Sequence[Any], *, check_name: bool) -> StageConfig:
        config: StageConfig = self.form.parse(*raw[: len(self.form.inputs)])
        if check_name:
            check_name_is_free(self._workspace, self.stage, config)
        return config

    def _stages_before(
        self, raw: Sequence[Any], config: StageConfig, *, check_names: bool = True
    ) -> Stages:
        rest = raw[len(self.form.inputs) :]
        if self._earlier is None or not self._earlier.is_asked_for(config, bool(rest[0])):
            return []
        with _in_its_tab(self._earlier.launcher.form):
            before = self._earlier.launcher._stages(rest[1:], check_names=check_names)
        self._earlier.check(before[-1][1], config)
        return before

    def _check(self, stages: Stages) -> None:
        *before, (_, config) = stages
        if before:
            assert self._earlier is not None
            with _in_its_tab(self._earlier.launcher.form):
                self._earlier.launcher._check(before)
            self.form.check_nested(config)
        else:
            self.form.check(config)
        self._require(config)

    def _estimate(self, *raw: Any) -> dict[Any, Any]:
        config = self._own_config(raw, check_name=True)
        choices = self._choice_updates(config)
        try:
            stages = [*self._stages_before(raw, config), (self, config)]
        except StudioError as error:
            return {**choices, **self._show_unresolved(error), self._facts: self._hint(error)}
        forecast = self.forecast(config) if len(stages) == 1 else _forecast_of_all(stages)
        problem = self._problem(stages)
        shown = {
            **choices,
            self._facts: forecast.facts,
            self._summary: _summary(forecast, len(stages)),
            self._start: gr.update(value=forecast.button, variant=self._variant),
            self._command: self._commands(_configs(stages)),
        }
        if problem is None:
            return shown
        return {
            **shown,
            self._facts: self._hint(problem) + forecast.facts,
            self._start: self._blocked(problem),
            **self.form.shown_live(problem),
        }

    def _problem(self, stages: Stages) -> StudioError | None:
        try:
            self._check(stages)
        except StudioError as error:
            return error
        return None

    def _show_unresolved(self, error: StudioError) -> dict[Any, Any]:
        return {
            self._facts: self._hint(error),
            self._summary: "",
            self._command: _UNRESOLVED,
            self._start: self._blocked(error),
        }

    def _blocked(self, error: StudioError) -> Any:
        """Returns the button that goes to the problem instead of starting."""
        if isinstance(error, NotReadyError):
            return gr.update(value=error.action, variant="secondary")
        count, place = self.form.count_problems(error)
        words = f"{_FIX}{count} setting{'' if count == 1 else 's'}" if count else _BLOCKED
        where = f" in {titles()[place]}" if place else ""
        return gr.update(value=words + where, variant="secondary")

    def _hint(self, error: StudioError) -> str:
        """Returns a problem that no field of this tab shows."""
        count, place = self.form.count_problems(error)
        is_untouched = isinstance(error, NotReadyError) and not error.is_begun
        if is_untouched or (count and not place):
            return ""
        texts = error.rendered(partial(relabel, model=self.form.model))
        fix = f" {_upper(texts['fix'])}." if error.fix else ""
        words = f"{texts['problem'].removesuffix('.')}.{fix}"
        return f'<p class="ps-warning ps-hint" role="status">{escape(redact(words))}</p>'

    def _choice_updates(self, config: StageConfig) -> dict[Any, Any]:
        if self._earlier is None:
            return {}
        there_is_one = bool(getattr(config, self._earlier.field))
        return {choice: gr.update(visible=there_is_one) for choice in self._choices}

    def _submit(self, *inputs: Any) -> dict[Any, Any]:
        *raw, button = inputs
        if str(button).startswith((_FIX, _BLOCKED)):
            # Shows the problem. If it is gone by now, the button says so before a start.
            self._check(self._stages(raw))
            return {}
        # `submit_chain` checks the names.
        stages = self._stages(raw, check_names=False)
        self._check(stages)
        self._ask(stages[-1][1])
        runs = submit_chain(self._workspace, _configs(stages))
        # Kept, it would be refused as taken by the run just started.
        return {self._answer: _started(runs), **dict.fromkeys(self._used_names(stages), "")}

    def _used_names(self, stages: Stages) -> list[Any]:
        forms = [launcher.form for launcher, config in stages if getattr(config, "name", "")]
        return [form.components["name"] for form in forms]

    def _commands(self, stages: list[tuple[str, StageConfig]]) -> str:
        place = "" if self._workspace.root == Workspace().root else str(self._workspace.root)
        linked = link_stages(self._workspace, stages) if len(stages) > 1 else stages
        return markup.code_blocks(
            [
                ("In a shell", " &&\n".join(shell_line(*stage, place) for stage in linked)),
                ("In Python", python_script(linked, place)),
            ]
        )

    def describe(self, config: StageConfig) -> str:
        """Describes a config, with a link to its tab."""
        words = escape(self.summarize(config))
        return f'{words} <a href="#{self.stage}" data-go="{self.stage}">Change</a>'


@contextmanager
def _in_its_tab(form: Form[Any]) -> Iterator[None]:
    try:
        yield
    except OtherFormError:
        raise
    except StudioError as error:
        faulty = form.form_of(error)
        if faulty is None:
            raise
        problem = f"In the {titles()[faulty.place]} tab: {error.texts['problem']}"
        raise OtherFormError(error, problem, faulty) from error.__cause__


@contextmanager
def workbench() -> Iterator[None]:
    """Lays out a stage in a main and a side column."""
    with gr.Column(elem_classes=["ps-work"]):
        yield


def main_column() -> gr.Column:
    """Returns the form's wide column."""
    return gr.Column(elem_classes=["ps-main"])


def side_column() -> gr.Column:
    """Returns the launcher's narrow column, which stays in view."""
    return gr.Column(elem_classes=["ps-card", "ps-side"])


def _summary(forecast: Forecast, stages: int) -> str:
    words = f"{stages} runs, one after another" if stages > 1 else forecast.summary
    first, _, rest = words.partition(" · ")
    return f'<p class="ps-summary"><b>{escape(first)}</b>{escape(rest)}</p>' if words else ""


def _upper(words: str) -> str:
    return words[:1].upper() + words[1:].removesuffix(".")


def _configs(stages: Stages) -> list[tuple[str, StageConfig]]:
    return [(launcher.stage, config) for launcher, config in stages]


def _forecast_of_all(stages: Stages) -> Forecast:
    *firsts, (last, config) = stages
    names = " and ".join(f"the {launcher.stage}" for launcher, _ in firsts)
    steps = [launcher.describe(config_before) for launcher, config_before in firsts]
    words = last.summarize(config)
    listed = "".join(f"<li>{step}</li>" for step in [*steps, escape(words)])
    button = f"Make {names}, then {words[:1].lower() + words[1:]}"
    return Forecast(button, f'{_IN_ONE_GO}<ol class="ps-plan">{listed}</ol>')


def _started(runs: Sequence[str]) -> str:
    names = ", then ".join(f"<code>{escape(run)}</code>" for run in runs)
    go = f"runs/{escape(runs[0])}"
    return (
        f'<p class="ps-started" role="status" data-runs="{escape(" ".join(runs))}">'
        f"Queued as {names}; {'it goes' if len(runs) == 1 else 'they go'} on when this page is "
        "closed. "
        f'<a href="#runs" data-go="{go}">Watch {"it" if len(runs) == 1 else "them"} in Runs →</a>'
        "</p>"
    )
