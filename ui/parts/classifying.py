"""Forms to query fine-tuned models: classify a text, or tag its words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        """See `core.inference.classification.classify`."""
        ...

    def tag(self, model: str, text: str) -> list[dict[str, Any]]:
        """See `core.inference.classification.tag`."""
        ...


def render_texts(
    answerer: Classifies,
    model: gr.Dropdown | str,
    chips: gr.HTML,
    *,
    visible: bool,
    second: gr.Dropdown | None = None,
) -> AskForm:
    """Renders the form for classifiers.

    Args:
        model: A menu, or the only model.
        second: Menu of a model that answers beside it.
    """
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

    menus = [model, second]
    started = _connect(classify, "classify", menus, [ask.click, text.submit], [text, pair], answer)
    chips.pick(picked, None, text, **QUIET)
    return AskForm(column, text, answer, _NOT_CLASSIFIED, [started])


def render_words(
    answerer: Classifies,
    model: gr.Dropdown | str,
    chips: gr.HTML,
    *,
    visible: bool,
    second: gr.Dropdown | None = None,
) -> AskForm:
    """Renders the form for taggers; see `render_texts`."""
    with gr.Column(visible=visible) as column:
        with gr.Column(elem_classes=["ps-card"]):
            text = _box("Text to tag", "Words are separated by spaces.", "playground-tagged")
            with gr.Row(elem_classes=["ps-buttons"]):
                ask = gr.Button("Tag", variant="primary", elem_id="playground-tag")
        answer = gr.HTML(_NOT_TAGGED, elem_id="playground-tags")

    def tag(name: str | None, words: str) -> str:
        return answers.tags(answerer.tag(name or "", words))

    menus = [model, second]
    started = _connect(tag, "tag", menus, [ask.click, text.submit], [text], answer)
    chips.pick(picked, None, text, **QUIET)
    return AskForm(column, text, answer, _NOT_TAGGED, [started])


def _box(label: str, info: str, id: str) -> gr.Textbox:
    return gr.Textbox(label=label, info=info, lines=2, max_lines=8, elem_id=id, submit_btn=False)


def _connect(
    handler: Callable[..., str],
    name: str,
    models: Sequence[gr.Dropdown | str | None],
    triggers: list[Any],
    inputs: list[gr.Textbox],
    answer: gr.HTML,
) -> Any:
    """Shows one model's answer, or two side by side."""
    menus = [model for model in models if isinstance(model, gr.Dropdown)]
    only = [model for model in models if isinstance(model, str)]

    def shown(model: str, *values: Any) -> str:
        try:
            return handler(model, *values)
        except StudioError as error:
            return present.error_card(error)

    def shown_of_all(*values: Any) -> str:
        chosen: list[Any] = [*only, *values[: len(menus)]]
        names = [chosen[0] or "", *filter(None, chosen[1:])]
        pairs = [(name, shown(name, *values[len(menus) :])) for name in names]
        return answers.side_by_side(pairs) if len(pairs) > 1 else pairs[0][1]

    return gr.on(
        triggers,
        present.guarded(shown_of_all),
        [*menus, *inputs],
        answer,
        api_visibility="private",
        concurrency_id=name,
        concurrency_limit=_ASKED_AT_ONCE,
    )
