"""The Playground tab: fill the masks of a sentence with a trained model, or let it write.

Which of the two is shown follows from the model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.events import api

from core.errors import StudioError
from core.inference import DTYPES, Dtype
from core.playground import PlaygroundClient
from core.workspace import Workspace
from ui import present
from ui.assets import script
from ui.parts import answers, artifacts, markup
from ui.parts.examples import architecture_of, examples, writes

_MOST_PREDICTIONS = 20
_MOST_NEW_TOKENS = 512
_MOST_TOP_K = 200
_WRITERS_AT_ONCE = 8
_NO_MODEL = markup.empty_state(
    "No model yet",
    "A finished training run leaves a model here. Until then the Runs tab shows how far it is.",
    tab="train",
    link="Train a model",
)
_NOTHING_ASKED = markup.empty_state(
    "Ask the model something", "Write a sentence with a mask in it, or take one of the examples."
)
_NOTHING_WRITTEN = markup.empty_state(
    "Let the model write", "Begin a text, or take one of the examples."
)
_PROMPT_HELP = {
    "gpt2": "The model goes on from here.",
    "t5": "Put <mask> or <extra_id_0>, <extra_id_1>, … where words are missing.",
    "bart": "Put <mask> where words are missing: the model writes the whole text anew.",
}


@dataclass(frozen=True)
class _Form:
    """What a kind of models is asked with.

    Attributes:
        column: Shown for models that it suits.
        text: What is asked about.
    """

    column: gr.Column
    text: gr.Textbox


def render(workspace: Workspace, line: gr.HTML) -> None:
    """Makes the tab.

    Args:
        workspace: Where models are found.
        line: The status line, whose `artifacts` event tells of new models.
    """
    client = PlaygroundClient(workspace)
    nothing = gr.HTML(_NO_MODEL)
    with gr.Column(visible=False) as card:
        with gr.Column(elem_classes=["ps-card"]):
            model = gr.Dropdown([], label="Model", elem_id="playground-model", interactive=True)
            chips = gr.HTML(
                html_template='<div class="ps-chips" role="group" aria-label="Examples"></div>',
                js_on_load=script("examples.js"),
                elem_id="playground-examples",
            )
        masks = _render_masks(client, model, chips, workspace)
        writing = _render_writing(client, model, chips, workspace)
    known = gr.State([])

    def refresh(current: str | None, before: list[str]) -> dict[Any, Any]:
        names = artifacts.list_names(workspace, "model")
        value = artifacts.follow_newest(names, current or "", before) or None
        return {
            nothing: gr.update(visible=not names),
            card: gr.update(visible=bool(names)),
            model: gr.update(choices=names, value=value),
            known: names,
        }

    def suit(name: str | None) -> tuple[Any, ...]:
        found = architecture_of(name, workspace)
        is_writer = writes(name, workspace)
        help_text = _PROMPT_HELP.get(found.model_type if found else "", _PROMPT_HELP["gpt2"])
        return (
            examples(name, workspace),
            gr.update(visible=not is_writer),
            gr.update(visible=is_writer),
            gr.update(info=help_text),
        )

    line.artifacts(
        present.guarded(refresh),
        [model, known],
        [nothing, card, model, known],
        show_progress="hidden",
        api_visibility="private",
    )
    model.change(
        present.guarded(suit),
        model,
        [chips, masks.column, writing.column, writing.text],
        show_progress="hidden",
        api_visibility="private",
    )

    def named(event: gr.EventData) -> Any:
        name = event._data["model"]
        return name if name in artifacts.list_names(workspace, "model") else gr.skip()

    chips.choose(named, None, model, show_progress="hidden", api_visibility="private")
    _offer_to_programs(client)


def _render_masks(
    client: PlaygroundClient, model: gr.Dropdown, chips: gr.HTML, workspace: Workspace
) -> _Form:
    with gr.Column() as column:
        with gr.Column(elem_classes=["ps-card"]):
            text = gr.Textbox(
                label="Text",
                info="One or several masks, each written as the model's mask token.",
                lines=2,
                max_lines=6,
                elem_id="playground-text",
                submit_btn=False,
            )
            with gr.Row(elem_classes=["ps-inline"]):
                top_k = gr.Slider(
                    1,
                    _MOST_PREDICTIONS,
                    value=5,
                    step=1,
                    label="Predictions for each mask",
                    elem_id="playground-top-k",
                )
                dtype = _precision("playground-dtype")
                ask = gr.Button(
                    "Fill the mask", variant="primary", elem_id="playground-ask", scale=0
                )
        answer = gr.HTML(_NOTHING_ASKED, elem_id="playground-answer")

    def fill(name: str | None, sentence: str, count: float, precision: Dtype) -> str:
        try:
            found = client.fill_mask(name or "", sentence, int(count), precision)
            return answers.predictions(found)
        except StudioError as error:
            return present.error_card(error)

    def fill_if_suitable(name: str | None, *values: Any) -> Any:
        return gr.skip() if writes(name, workspace) else fill(name, *values)

    inputs = [model, text, top_k, dtype]
    gr.on(
        [ask.click, text.submit, top_k.release, dtype.input],
        present.guarded(fill),
        inputs,
        answer,
        api_visibility="private",
    )
    chips.pick(_picked, None, text, show_progress="hidden", api_visibility="private").then(
        present.guarded(fill_if_suitable), inputs, answer, api_visibility="private"
    )
    return _Form(column, text)


def _render_writing(
    client: PlaygroundClient, model: gr.Dropdown, chips: gr.HTML, workspace: Workspace
) -> _Form:
    with gr.Column(visible=False) as column:
        with gr.Column(elem_classes=["ps-card"]):
            prompt = gr.Textbox(
                label="Prompt",
                info=_PROMPT_HELP["gpt2"],
                lines=2,
                max_lines=8,
                elem_id="playground-prompt",
                submit_btn=False,
            )
            settings = _render_settings()
            with gr.Row(elem_classes=["ps-buttons"]):
                ask = gr.Button("Write", variant="primary", elem_id="playground-write")
                stop = gr.Button("Stop", elem_id="playground-stop", visible=False)
        answer = gr.HTML(_NOTHING_WRITTEN, elem_id="playground-written")

    def write(name: str | None, text: str, *values: Any) -> Iterator[Any]:
        found = architecture_of(name, workspace)
        continues = found is None or found.kind == "decoder"
        options = _options(*values)
        yield (
            answers.writing(text, "", "the model is being loaded", continues=continues),
            gr.update(visible=False),
            gr.update(visible=True),
        )
        shown = ""
        for shown in _pieces_shown(client, name or "", text, options, continues):
            yield shown, gr.skip(), gr.skip()
        yield shown, gr.update(visible=True), gr.update(visible=False)

    started = gr.on(
        [ask.click, prompt.submit],
        present.guarded_stream(write),
        [model, prompt, *settings],
        [answer, ask, stop],
        show_progress="hidden",
        api_visibility="private",
        # One that is stopped before its first word counts as under way for a while.
        trigger_mode="multiple",
        concurrency_limit=_WRITERS_AT_ONCE,
    )
    # In two steps: what was on its way when it was stopped must not come after the last word.
    stop.click(
        lambda: None,
        cancels=[started],
        show_progress="hidden",
        api_visibility="private",
    ).then(
        lambda shown: (answers.stopped(shown), gr.update(visible=True), gr.update(visible=False)),
        answer,
        [answer, ask, stop],
        show_progress="hidden",
        api_visibility="private",
    )
    chips.pick(_picked, None, prompt, show_progress="hidden", api_visibility="private")
    return _Form(column, prompt)


def _render_settings() -> list[Any]:
    with gr.Column(elem_classes=["ps-knobs"]):
        new_tokens = gr.Slider(
            1, _MOST_NEW_TOKENS, 60, step=1, label="New tokens", elem_id="playground-new-tokens"
        )
        temperature = gr.Slider(
            0,
            2,
            0.8,
            step=0.05,
            label="Temperature",
            info="0 takes the most probable token each time.",
            elem_id="playground-temperature",
        )
        top_k = gr.Slider(
            0,
            _MOST_TOP_K,
            50,
            step=1,
            label="Top-k",
            info="Draw from so many of the most probable tokens; 0: from all.",
            elem_id="playground-write-top-k",
        )
        top_p = gr.Slider(
            0.05,
            1,
            0.95,
            step=0.05,
            label="Top-p",
            info="Draw from the most probable tokens that come to this together.",
            elem_id="playground-top-p",
        )
        seed = gr.Number(
            0,
            precision=0,
            minimum=0,
            label="Seed",
            info="The same one gives the same text.",
            elem_id="playground-seed",
        )
        dtype = _precision("playground-write-dtype")
    return [new_tokens, temperature, top_k, top_p, seed, dtype]


def _precision(elem_id: str) -> gr.Dropdown:
    return gr.Dropdown(
        list(DTYPES), value=DTYPES[0], label="Precision", elem_id=elem_id, interactive=True
    )


def _options(
    new_tokens: float, temperature: float, top_k: float, top_p: float, seed: float, dtype: Dtype
) -> dict[str, Any]:
    return {
        "max_new_tokens": int(new_tokens),
        "temperature": float(temperature),
        "top_k": int(top_k),
        "top_p": float(top_p),
        "seed": int(seed or 0),
        "dtype": dtype,
    }


def _pieces_shown(
    client: PlaygroundClient, name: str, prompt: str, options: dict[str, Any], continues: bool
) -> Iterator[str]:
    """Yields the answer as it grows, and in the end the whole of it, or the error."""
    text, began = "", 0.0
    with closing(client.generate(name, prompt, **options)) as stream:
        while True:
            try:
                text += next(stream)
            except StopIteration as end:
                seconds = time.monotonic() - began if began else 0.0
                yield answers.written(prompt, end.value, seconds, continues=continues)
                return
            except StudioError as error:
                yield present.error_card(error)
                return
            began = began or time.monotonic()
            yield answers.writing(prompt, text, "writing", continues=continues)


def _offer_to_programs(client: PlaygroundClient) -> None:
    def fill_mask(model: str, text: str, top_k: int = 5) -> list[Any]:
        """Fills the masks of a text with a model of the workspace."""
        return client.fill_mask(model, text, top_k)

    def generate(
        model: str,
        prompt: str,
        max_new_tokens: int = 50,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Lets a model of the workspace write."""
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        stream = client.generate(model, prompt, max_new_tokens=max_new_tokens, **options)
        while True:
            try:
                next(stream)
            except StopIteration as end:
                return dict(end.value)

    api(present.telling_programs(fill_mask), api_name="fill_mask")
    api(present.telling_programs(generate), api_name="generate")


def _picked(event: gr.EventData) -> str:
    return str(event._data["sentence"])
