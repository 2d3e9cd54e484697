"""Perplexity card of the Playground."""

from __future__ import annotations

from typing import Any

import gradio as gr

from core.architecture.architecture import Architecture
from core.config.options import DTYPES, Dtype
from core.errors import StudioError
from core.serving.playground import PlaygroundClient
from ui import present
from ui.parts import answers, prompts

_ABOUT = """
<h3 class="ps-subheading">How well does it know a text?</h3>
<p class="ps-note">Each token is coloured by how much it surprises the model, in nats: 0 is
certainty, and the mean is the loss that training brings down. Perplexity is its exponential.</p>
"""


def has_perplexity(architecture: Architecture | None) -> bool:
    """Returns whether a model has a perplexity of text (T5 and BART don't)."""
    return architecture is not None and architecture.kind != "encoder-decoder"


def render(client: PlaygroundClient, model: gr.Dropdown, second: gr.Dropdown) -> prompts.AskForm:
    """Renders the card, visible for suitable models."""
    with gr.Column(visible=False) as column:
        with gr.Column(elem_classes=["ps-card"]):
            gr.HTML(_ABOUT)
            text = gr.Textbox(
                label="Text to score",
                info="Any text; the model's mask token isn't needed.",
                lines=2,
                max_lines=8,
                elem_id="playground-scored",
                submit_btn=False,
            )
            with gr.Row(elem_classes=["ps-inline"]):
                dtype = gr.Dropdown(
                    [dtype for dtype in DTYPES if dtype != "auto"],
                    value="float32",
                    label="Precision",
                    elem_id="playground-score-dtype",
                    interactive=True,
                )
                ask = gr.Button("Score the text", elem_id="playground-score", scale=0)
        answer = gr.HTML(elem_id="playground-surprise")

    def score(name: str | None, sentence: str, precision: Dtype) -> Any:
        try:
            return answers.surprise(client.perplexity(name or "", sentence, precision))
        except StudioError as error:
            return present.error_card(error)

    def score_both(name: str | None, other: str | None, sentence: str, precision: Dtype) -> Any:
        shown = score(name, sentence, precision)
        if not other:
            return shown
        both = [(name or "", shown), (other, score(other, sentence, precision))]
        return answers.side_by_side(both)

    scored = gr.on(
        [ask.click, text.submit],
        present.guarded(score_both),
        [model, second, text, dtype],
        answer,
        api_visibility="private",
        concurrency_id="perplexity",
        concurrency_limit=4,
    )
    return prompts.AskForm(column, text, answer, "", [scored])
