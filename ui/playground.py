"""The Playground tab: fill the masks of a sentence with a trained model."""

from __future__ import annotations

from typing import Any

import gradio as gr
from gradio.events import api

from core.errors import StudioError
from core.inference import DTYPES, Dtype
from core.playground import PlaygroundClient
from core.workspace import Workspace
from ui import present
from ui.assets import script
from ui.parts import artifacts, markup
from ui.parts.tokens import show
from ui.present import escape

_MOST_PREDICTIONS = 20
_NO_MODEL = markup.empty_state(
    "No model yet",
    "A finished training run leaves a model here. Until then the Runs tab shows how far it is.",
    tab="train",
    link="Train a model",
)
_NOTHING_ASKED = markup.empty_state(
    "Ask the model something", "Write a sentence with a mask in it, or take one of the examples."
)
# What stands where the mask token goes.
_HOLE = "{mask}"
_ROWS_TRIED = 60
_EXAMPLES_SHOWN = 4
_EXAMPLE_WORDS = 10
_HOLE_AT = 5
_EXAMPLES = (
    "Returns the {mask} of the array.",
    "If {mask} is not given, the default is used.",
    "The capital of {mask} is a large {mask}.",
)


def render(workspace: Workspace, line: gr.HTML) -> None:
    """Makes the tab.

    Args:
        workspace: Where models are found.
        line: The status line, whose `artifacts` event tells of new models.
    """
    client = PlaygroundClient(workspace)
    nothing = gr.HTML(_NO_MODEL)
    with gr.Column(elem_classes=["ps-card"], visible=False) as card:
        model = gr.Dropdown([], label="Model", elem_id="playground-model", interactive=True)
        text = gr.Textbox(
            label="Text",
            info="One or several masks, each written as the model's mask token.",
            lines=2,
            max_lines=6,
            elem_id="playground-text",
            submit_btn=False,
        )
        examples = gr.HTML(
            html_template='<div class="ps-chips" role="group" aria-label="Examples"></div>',
            js_on_load=script("examples.js"),
            elem_id="playground-examples",
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
            dtype = gr.Dropdown(
                list(DTYPES),
                value=DTYPES[0],
                label="Precision",
                elem_id="playground-dtype",
                interactive=True,
            )
            ask = gr.Button("Fill the mask", variant="primary", elem_id="playground-ask", scale=0)
    answer = gr.HTML(_NOTHING_ASKED, elem_id="playground-answer")
    known = gr.State([])

    def refresh(current: str | None, before: list[str]) -> dict[Any, Any]:
        names = artifacts.list_names(workspace, "model")
        value = artifacts.follow_newest(names, current or "", before) or None
        return {
            nothing: gr.update(visible=not names),
            card: gr.update(visible=bool(names)),
            answer: gr.update(visible=bool(names)),
            model: gr.update(choices=names, value=value),
            known: names,
        }

    def suggest(name: str | None) -> list[str]:
        return _examples(name, workspace)

    def fill(name: str | None, sentence: str, count: float, precision: Dtype) -> str:
        try:
            return _answer(client.fill_mask(name or "", sentence, int(count), precision))
        except StudioError as error:
            return present.error_card(error)

    line.artifacts(
        present.guarded(refresh),
        [model, known],
        [nothing, card, answer, model, known],
        show_progress="hidden",
        api_visibility="private",
    )
    model.change(
        present.guarded(suggest), model, examples, show_progress="hidden", api_visibility="private"
    )
    gr.on(
        [ask.click, text.submit, top_k.release, dtype.input],
        present.guarded(fill),
        [model, text, top_k, dtype],
        answer,
        api_visibility="private",
    )

    def named(event: gr.EventData) -> Any:
        name = event._data["model"]
        return name if name in artifacts.list_names(workspace, "model") else gr.skip()

    examples.choose(
        named,
        None,
        model,
        show_progress="hidden",
        api_visibility="private",
    )
    examples.pick(_picked, None, text, show_progress="hidden", api_visibility="private").then(
        present.guarded(fill), [model, text, top_k, dtype], answer, api_visibility="private"
    )

    def fill_mask(model: str, text: str, top_k: int = 5) -> list[Any]:
        """Fills the masks of a text with a model of the workspace."""
        return client.fill_mask(model, text, top_k)

    api(present.telling_programs(fill_mask), api_name="fill_mask")


def _picked(event: gr.EventData) -> str:
    return str(event._data["sentence"])


def _examples(name: str | None, workspace: Workspace) -> list[str]:
    """Returns sentences with a mask: from the model's own validation text, else plain English."""
    if not name:
        return []
    from core.tokenizer import load

    model = workspace.find("model", name)
    mask = load(str(model.path)).mask_token or ""
    own = _own_sentences(str(model.manifest.config.get("shards", "")), workspace)
    return [sentence.replace(_HOLE, mask) for sentence in own or _EXAMPLES]


def _own_sentences(shards_name: str, workspace: Workspace) -> list[str]:
    """Returns pieces of the validation rows with a hole in each, if the shards are still there."""
    import numpy as np

    from core.shards.read import open_shards
    from core.tokenizer import load

    try:
        shards = open_shards(shards_name, workspace)
        tokenizer = load(str(shards.tokenizer_folder), workspace)
        numbers = np.linspace(0, len(shards.validation) - 1, _ROWS_TRIED).astype(int)
        rows = shards.validation.take(np.unique(numbers))
    except StudioError:
        return []
    found = (_with_hole(tokenizer.decode(row)) for row in rows)
    return [sentence for sentence in found if sentence][:_EXAMPLES_SHOWN]


def _with_hole(text: str) -> str:
    """Returns some plain words of a text with a hole among them; nothing where there are none."""
    words = text.split()
    for start in range(1, len(words) - _EXAMPLE_WORDS):
        window = words[start : start + _EXAMPLE_WORDS]
        if all(word.rstrip(".,;:").isalpha() for word in window) and window[_HOLE_AT].isalpha():
            return " ".join([*window[:_HOLE_AT], _HOLE, *window[_HOLE_AT + 1 :]])
    return ""


def _answer(predictions: list[Any]) -> str:
    """Returns predictions as bars; of several masks one block each."""
    if predictions and isinstance(predictions[0], dict):
        blocks = _bars(predictions)
    else:
        blocks = "".join(
            f'<h3 class="ps-subheading">Mask {number}</h3>{_bars(one)}'
            for number, one in enumerate(predictions, 1)
        )
    return f'<div class="ps-card ps-answer-card">{blocks}</div>'


def _bars(predictions: list[dict[str, Any]]) -> str:
    return f'<ol class="ps-predictions">{"".join(map(_bar, predictions))}</ol>'


def _bar(prediction: dict[str, Any]) -> str:
    width = f"width:{100 * prediction['score']:.2f}%"
    return (
        f'<li><span class="word">{show(prediction["token_str"].strip(" ") or "␣")}</span>'
        f'<span class="ps-bar" aria-hidden="true"><i style="{width}"></i></span>'
        f'<span class="score">{markup.percent(prediction["score"])}</span>'
        f"<small>{escape(prediction['sequence'])}</small></li>"
    )
