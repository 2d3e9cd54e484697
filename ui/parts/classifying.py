"""Forms to query fine-tuned models: classify a text, or tag its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gradio as gr

from core.errors import StudioError
from ui import present
from ui.parts import answers, markup
from ui.parts.events import QUIET
from ui.parts.prompts import AskForm, picked

_ASKED_AT_ONCE = 8
_NOT_CLASSIFIED = markup.empty_state("No class yet", "Write a text to classify.")
_NOT_TAGGED = markup.empty_state("No tags yet", "Write a sentence to tag.")


class Classifies(Protocol):
    """Interface for querying fine-tuned models."""

    def classify(self, model: str, text: str, text_pair: str = ...) -> list[dict[str, Any]]:
        """See `core.finetuning.inference.classify`."""
        ...

    def tag(self, model: str, text: str) -> list[dict[str, Any]]:
        """See `core.finetuning.inference.tag`."""
        ...


def render_texts(
    answerer: Classifies, model: gr.Dropdown | str, chips: gr.HTML, *, visible: bool
) -> AskForm:
    """Renders the form for classifiers; `model` is a menu or the only one."""
    with gr.Column(visible=visible) as column:
        with gr.Column(elem_classes=["ps-card"]):
            text = _box("Text to classify", "Longer texts are cut off.", "playground-classified")
            pair = _box(
                "Second text", "Only for models of pairs; else leave it empty.", "playground-pair"
            )
            with gr.Row(elem_classes=["ps-buttons"]):
                ask = gr.Button("Classify", variant="primary", elem_id="playground-classify")
        answer = gr.HTML(_NOT_CLASSIFIED, elem_id="playground-classes")

    def classify(name: str | None, first: str, second: str) -> str:
        return answers.classes(answerer.classify(name or "", first, second or ""))

    started = _connect(classify, "classify", model, [ask.click, text.submit], [text, pair], answer)
    chips.pick(picked, None, text, **QUIET)
    return AskForm(column, text, answer, _NOT_CLASSIFIED, [started])


def render_words(
    answerer: Classifies, model: gr.Dropdown | str, chips: gr.HTML, *, visible: bool
) -> AskForm:
    """Renders the form for taggers; `model` is a menu or the only one."""
    with gr.Column(visible=visible) as column:
        with gr.Column(elem_classes=["ps-card"]):
            text = _box("Text to tag", "Words are separated by spaces.", "playground-tagged")
            with gr.Row(elem_classes=["ps-buttons"]):
                ask = gr.Button("Tag", variant="primary", elem_id="playground-tag")
        answer = gr.HTML(_NOT_TAGGED, elem_id="playground-tags")

    def tag(name: str | None, words: str) -> str:
        return answers.tags(answerer.tag(name or "", words))

    started = _connect(tag, "tag", model, [ask.click, text.submit], [text], answer)
    chips.pick(picked, None, text, **QUIET)
    return AskForm(column, text, answer, _NOT_TAGGED, [started])


def _box(label: str, info: str, id: str) -> gr.Textbox:
    return gr.Textbox(label=label, info=info, lines=2, max_lines=8, elem_id=id, submit_btn=False)


def _connect(
    handler: Callable[..., str],
    name: str,
    model: gr.Dropdown | str,
    triggers: list[Any],
    inputs: list[gr.Textbox],
    answer: gr.HTML,
) -> Any:
    def shown(*values: Any) -> str:
        try:
            return handler(*values)
        except StudioError as error:
            return present.error_card(error)

    def shown_of_one(*values: Any) -> str:
        return shown(model, *values)

    is_one = isinstance(model, str)
    return gr.on(
        triggers,
        present.guarded(shown_of_one if is_one else shown),
        [*([] if is_one else [model]), *inputs],
        answer,
        api_visibility="private",
        concurrency_id=name,
        concurrency_limit=_ASKED_AT_ONCE,
    )
