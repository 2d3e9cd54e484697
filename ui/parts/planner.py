"""Planner of the Train tab: settings from a budget of hours or tokens.

It runs `python -m core suggest` in a process, as that may load a backend.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
from collections.abc import Mapping
from typing import Any

import gradio as gr

from core.config.options import title_of
from core.config.train import TrainConfig
from core.errors import ConfigError, RunError, StudioError
from core.processes.children import module_command
from core.runs.commands import shell_line
from core.runs.start import child_environment
from core.workspace.workspace import Workspace
from ui import present
from ui.forms import Form, ungrouped
from ui.parts import markup
from ui.parts.events import QUIET
from ui.present import escape

_ABOUT = """
<p class="ps-note">Derives size, batch size, steps and learning rate for the shards below from the
hours or tokens that you have. Hours are estimated for this machine.</p>
"""
# Not the decimal comma of 0,5.
_GROUPED = re.compile(r"\A[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
# Includes loading a backend and timing a matmul.
_MOST_SECONDS = 180


def render(form: Form[TrainConfig], workspace: Workspace) -> None:
    """Renders the planner, which can fill in the form."""
    with gr.Accordion(
        "Suggest settings from a time or token budget",
        open=False,
        elem_id="dial-section",
        elem_classes=["ps-card", "ps-section", "ps-dial"],
    ):
        gr.HTML(_ABOUT)
        with gr.Row(elem_classes=["ps-inline"]):
            unit = gr.Radio(
                [("Hours", "hours"), ("Tokens", "tokens")],
                value="hours",
                label="Budget in",
                elem_id="dial-unit",
                min_width=150,
                scale=0,
            )
            amount = gr.Textbox(
                "2",
                label="Amount",
                max_lines=1,
                elem_id="dial-amount",
                elem_classes=["ps-decimal"],
                min_width=150,
                scale=0,
            )
            ask = gr.Button("Suggest", elem_id="dial-suggest", scale=0)
        answer = gr.HTML(elem_id="dial-answer")
        use = gr.Button("Use these", elem_id="dial-use", visible=False)
    # In the browser: the server forgets sessions after an hour away.
    suggested = gr.JSON({}, visible=False)

    def suggest(*raw: Any) -> dict[Any, Any]:
        *of_form, chosen, typed = raw
        config = form.parse(*of_form)
        try:
            amount = _number(typed, whole=chosen == "tokens")
            suggestion = _ask(config, str(chosen), amount, workspace)
        except StudioError as error:
            problem = {answer: present.error_card(error), use: gr.update(visible=False)}
            return {**problem, **form.beside_field(error)}
        values = suggestion["values"]
        return {answer: _table(suggestion), use: gr.update(visible=True), suggested: values}

    gr.on(
        [ask.click, amount.submit],
        form.guarded(suggest),
        [*form.inputs, unit, amount],
        [answer, use, suggested, *form.problem_outputs],
        show_progress_on=[answer],
        api_visibility="private",
    )
    use.click(present.guarded(form.updates_of), suggested, form.fields, **QUIET)


def _number(typed: Any, *, whole: bool = False) -> float:
    """Parses 2, 0.5, 5e8 or 500,000,000; if whole, dots group digits too."""
    text = str(typed).strip()
    if whole:
        text = ungrouped(text)
    text = _GROUPED.sub(lambda match: match[0].replace(",", ""), text)
    try:
        number = float(re.sub(r"[\s_]", "", text))
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(
            "The hours or tokens can't be used",
            expected="a number above 0, such as 2, 0.5 or 5e8",
            received=str(typed) or "nothing",
            fix="give the hours or the tokens that you have; write half an hour as 0.5",
        )
    if whole and not number.is_integer():
        raise ConfigError(
            "The number of tokens can't be used",
            expected="a whole number from 1 on, such as 5e8",
            received=str(typed),
            fix="give the tokens that you have",
        )
    return number


def _ask(config: TrainConfig, unit: str, amount: float, workspace: Workspace) -> dict[str, Any]:
    line = shell_line("suggest", config, str(workspace.root))
    number = f"{amount:.0f}" if unit == "tokens" else f"{amount:g}"
    _, _, *words = shlex.split(line)
    amounts = ["--tokens" if unit == "tokens" else "--hours", number]
    try:
        ended = subprocess.run(
            module_command(*words, *amounts, "--json"),
            capture_output=True,
            text=True,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            timeout=_MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _no_answer(f"nothing within {_MOST_SECONDS} s") from error
    try:
        suggestion = json.loads(ended.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise _no_answer(ended.stderr.strip()[-500:]) from error
    if "error" in suggestion:
        raise StudioError(**suggestion["error"])
    return dict(suggestion)


def _no_answer(received: str) -> StudioError:
    return RunError(
        "The suggestion command gave no answer",
        expected="what `python -m core suggest` prints",
        received=received,
        fix="run that command in a shell to see what is wrong",
    )


def _table(suggestion: Mapping[str, Any]) -> str:
    rows = [
        (title_of(name, TrainConfig.model_fields[name]), _shown(value), suggestion["reasons"][name])
        for name, value in suggestion["values"].items()
    ]
    notes = (f'<p class="ps-note">{escape(remark)}</p>' for remark in suggestion["remarks"])
    return markup.table(("Setting", "Value", "Why"), rows, label="Suggested settings") + "".join(
        notes
    )


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return markup.count(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
