"""The Playground tab: fill masks, generate, or measure perplexity."""

from __future__ import annotations

import contextvars
from typing import Any

import gradio as gr

from core.artifacts.finding import find_model, is_on_hub, must_be_fetched
from core.errors import StudioError
from core.inference.models import read_out
from core.records.events import Reporter
from core.serving.playground import PlaygroundClient
from core.workspace.workspace import Workspace
from ui import present
from ui.parts import artifacts, classifying, markup, prompts, scoring
from ui.parts.elsewhere import render_elsewhere
from ui.parts.events import QUIET
from ui.parts.examples import (
    architecture_of,
    comparable,
    describe_model,
    examples,
    fills,
    head_of,
    is_checkpoint,
    tokenizer_of,
    writes,
)
from ui.parts.playing import shared_client

_PROGRESS = gr.Progress()
_FETCHED_AT_ONCE = 4
_NO_MODEL = markup.empty_state(
    "No model yet",
    "A finished training run puts a model here. Models on the Hub can be tried by their id.",
    tab="train",
    link="Train a model",
)


class _Shown(Reporter):
    def __init__(self, bar: gr.Progress) -> None:
        self._bar = bar
        # Download threads report, but only this context knows the bar's session.
        self._context = contextvars.copy_context()

    def progress(
        self,
        done: float,
        total: float | None = None,
        unit: str = "",
        note: str = "",
        eta_seconds: float | None = None,
    ) -> None:
        share = done / total if total else 0.0
        # Two threads can't enter one context.
        self._context.copy().run(self._bar, share, desc=note)


def render(workspace: Workspace, line: gr.HTML) -> None:
    """Renders the tab.

    Args:
        line: Its `artifacts` event reports new models.
    """
    client = shared_client(workspace)
    nothing = gr.HTML(_NO_MODEL, visible=False)
    with gr.Column():
        with gr.Column(elem_classes=["ps-card"]):
            model = gr.Dropdown(
                [],
                label="Model",
                info="A model of this workspace, a checkpoint of a run (RUN@best, RUN@500), or a "
                "Hub id: owner/name or owner/name@branch.",
                elem_id="playground-model",
                interactive=True,
                allow_custom_value=True,
            )
            second = gr.Dropdown(
                [],
                label="Compare with",
                info="A model that answers beside the first one; empty: none.",
                elem_id="playground-second",
                interactive=True,
                allow_custom_value=True,
            )
            fetched = gr.HTML(elem_id="playground-fetched")
            about = gr.HTML(elem_id="playground-about")
            chips = prompts.render_chips()
        asked = prompts.Asked(
            client,
            model,
            lambda name: architecture_of(name, workspace),
            tokenizer=lambda name: tokenizer_of(name, workspace),
            second=second,
        )
        masks = prompts.render_masks(asked, chips)
        writing = prompts.render_writing(asked, chips)
        score = scoring.render(client, model, second)
        texts = classifying.render_texts(client, model, chips, visible=False, second=second)
        words = classifying.render_words(client, model, chips, visible=False, second=second)
    # In the browser: the server forgets sessions after an hour away. The menu must not leave a
    # `kept` model, which was linked to or queried.
    known, chosen = gr.JSON([], visible=False), gr.JSON([], visible=False)

    def refresh(current: str | None, before: list[str], chosen: list[str]) -> dict[Any, Any]:
        names = artifacts.list_names(workspace, "model")
        stays = current in names and current in chosen
        value = current if stays else artifacts.follow_newest(names, current or "", before) or None
        return {
            nothing: gr.update(visible=not names),
            model: gr.update(choices=names, value=value),
            second: gr.update(choices=["", *comparable(value, names, workspace)]),
            known: names,
        }

    def fetch(name: str | None, progress: gr.Progress = _PROGRESS) -> tuple[str, list[str]]:
        if not name or not is_on_hub(name, workspace):
            return "", []
        must_come = must_be_fetched(name, workspace)
        try:
            find_model(name, workspace, reporter=_Shown(progress))
        except StudioError as error:
            return present.error_card(error), []
        if not must_come:
            return "", []
        return f'<p class="ps-note">Fetched {present.escape(name)} from the Hub.</p>', [name]

    def suit(name: str | None, other: str | None) -> tuple[Any, ...]:
        architecture, head = architecture_of(name, workspace), head_of(name, workspace)
        rivals = comparable(name, artifacts.list_names(workspace, "model"), workspace)
        stays = not other or other in rivals or bool(comparable(name, [other], workspace))
        tokenizer = tokenizer_of(name, workspace) if fills(name, workspace) else None
        return (
            _about(describe_model(name, workspace)) + render_elsewhere(name, workspace),
            gr.update(choices=["", *rivals])
            if stays
            else gr.update(choices=["", *rivals], value=""),
            (tokenizer.mask_token or "") if tokenizer else "",
            examples(name, workspace),
            gr.update(visible=fills(name, workspace)),
            gr.update(visible=writes(name, workspace)),
            gr.update(info=prompts.prompt_help(architecture)),
            gr.update(visible=scoring.has_perplexity(architecture) and not head),
            gr.update(visible=head == "sequence"),
            gr.update(visible=head == "token"),
            # Remove the other model's answers.
            masks.nothing,
            writing.nothing,
            score.nothing,
            texts.nothing,
            words.nothing,
            gr.update(visible=True),
            gr.update(visible=False),
        )

    def suit_what_arrived(name: str | None, other: str | None, arrived: list[str]) -> Any:
        # Another may be chosen meanwhile.
        return suit(name, other) if name in arrived else [gr.skip()] * len(suited)

    line.artifacts(
        present.guarded(refresh),
        [model, known, chosen],
        [nothing, model, second, known],
        **QUIET,
    )
    assert masks.words is not None
    suited = [
        about,
        second,
        masks.words,
        chips,
        masks.column,
        writing.column,
        writing.text,
        score.column,
        texts.column,
        words.column,
        masks.answer,
        writing.answer,
        score.answer,
        texts.answer,
        words.answer,
        *writing.buttons,
    ]
    # First, so that no running answer overwrites the new state.
    forms = (masks, writing, score, texts, words)
    model.change(None, cancels=[event for form in forms for event in form.events], **QUIET)
    model.change(present.guarded(suit), [model, second], suited, **QUIET)
    # Separate, so that downloads don't wait for each other.
    arrived = gr.JSON([], visible=False)
    model.change(
        present.guarded(fetch),
        model,
        [fetched, arrived],
        show_progress="full",
        show_progress_on=[fetched],
        api_visibility="private",
        trigger_mode="multiple",
        concurrency_id="fetch",
        concurrency_limit=_FETCHED_AT_ONCE,
    ).then(
        present.guarded(suit_what_arrived),
        [model, second, arrived],
        suited,
        **QUIET,
    )

    def named(event: gr.EventData) -> Any:
        name = event._data["model"]
        is_there = name in artifacts.list_names(workspace, "model") or is_checkpoint(
            name, workspace
        )
        return (name, [name]) if is_there else (gr.skip(), gr.skip())

    chips.choose(named, None, [model, chosen], **QUIET)
    for form in forms:
        form.text.change(None, model, chosen, js="(name) => [[name]]", **QUIET)
    _offer_to_programs(client)


def _about(text: str) -> str:
    """Renders the description of a model."""
    return f'<p class="ps-note">{present.escape(text)}</p>' if text else ""


def _offer_to_programs(client: PlaygroundClient) -> None:
    def fill_mask(model: str, text: str, top_k: int = 5) -> list[Any]:
        """Fills the masks of a text with a model of the workspace."""
        return client.fill_mask(model, text, top_k, "auto")

    def generate(
        model: str,
        prompt: str,
        max_new_tokens: int = 50,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Generates text with a model of the workspace."""
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        stream = client.generate(model, prompt, max_new_tokens=max_new_tokens, **options)
        return read_out(stream)

    def perplexity(model: str, text: str) -> dict[str, Any]:
        """Returns a text's perplexity, token by token."""
        return client.perplexity(model, text)

    def classify(model: str, text: str, text_pair: str = "") -> list[dict[str, Any]]:
        """Classifies a text with a fine-tuned model."""
        return client.classify(model, text, text_pair)

    def tag(model: str, text: str) -> list[dict[str, Any]]:
        """Tags the words of a text with a fine-tuned model."""
        return client.tag(model, text)

    prompts.offer(classify, at_once=4)
    prompts.offer(tag, at_once=4)
    prompts.offer(fill_mask, at_once=prompts.ASKERS_AT_ONCE)
    prompts.offer(generate, at_once=prompts.WRITERS_AT_ONCE // 2)
    prompts.offer(perplexity, at_once=4)
