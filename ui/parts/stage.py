"""What the tabs that start a run have in common: what will happen, the button, the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from core.config import StageConfig
from core.runs.client import submit
from core.runs.commands import python_lines, shell_line
from core.workspace import Workspace
from ui.forms import Form
from ui.parts import markup
from ui.present import escape

_UNSETTLED = '<p class="ps-note">First mend the settings that are marked.</p>'


@dataclass(frozen=True)
class Forecast:
    """What a form comes to.

    Attributes:
        button: What the start button says: what will be done.
        facts: HTML with the derived numbers.
    """

    button: str
    facts: str = ""


class Launcher:
    """The lower part of a stage's form.

    Args:
        stage: tokenizer, shards, train, ...
        form: Its form.
        workspace: Where the run goes.
        forecast: Tells what a config comes to; a StudioError is shown beside its field.
    """

    def __init__(
        self,
        stage: str,
        form: Form[Any],
        workspace: Workspace,
        forecast: Callable[[Any], Forecast],
    ) -> None:
        self.stage = stage
        self._form = form
        self._workspace = workspace
        self._forecast = forecast

    def render_facts(self) -> None:
        """Makes the place for the derived numbers."""
        self._facts = gr.HTML(elem_classes=["ps-facts"])

    def render_start(self, button: str) -> None:
        """Makes the start button, what it answers, and the command; then ties all together."""
        self._start = gr.Button(button, variant="primary", elem_id=f"{self.stage}-start")
        self._answer = gr.HTML(elem_classes=["ps-answer"])
        with gr.Accordion("Show the command", open=False, elem_classes=["ps-command"]):
            self._command = gr.HTML()
        unsettled = {self._facts: "", self._command: _UNSETTLED}
        self._form.on_change(
            self._foresee, [self._facts, self._start, self._command], otherwise=unsettled
        )
        self._start.click(
            self._form.guarded(self._submit),
            inputs=self._form.inputs,
            outputs=[self._answer, *self._form.problem_outputs],
            show_progress="hidden",
            api_visibility="private",
        )

    def _foresee(self, *raw: Any) -> dict[Any, Any]:
        config = self._form.parse(*raw)
        forecast = self._forecast(config)
        return {
            self._facts: forecast.facts,
            self._start: gr.update(value=forecast.button),
            self._command: self._commands(config),
        }

    def _submit(self, *raw: Any) -> dict[Any, Any]:
        config = self._form.parse(*raw)
        self._form.check(config)
        run = submit(self._workspace, self.stage, config)
        gr.Info("The run is queued. It goes on when this page is closed.")
        return {self._answer: _started(run)}

    def _commands(self, config: StageConfig) -> str:
        place = "" if self._workspace.root == Workspace().root else str(self._workspace.root)
        return markup.code_blocks(
            [
                ("In a shell", shell_line(self.stage, config, place)),
                ("In Python", python_lines(self.stage, config, place)),
            ]
        )


def _started(run: str) -> str:
    return (
        f'<p class="ps-started" role="status">Queued as <code>{escape(run)}</code>. '
        f'<a href="#runs" data-go="runs/{escape(run)}">Watch it in Runs →</a></p>'
    )
