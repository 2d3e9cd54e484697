"""The demo: one model for anonymous users, or a Space's instructions."""

from __future__ import annotations

import os
import re
from typing import Any

import gradio as gr

from core.families import title_of_family
from core.inference.models import read_out
from core.processes.environment import MODEL_VARIABLE
from core.serving.demo import MOST_CHARACTERS, MOST_NEW_TOKENS, MOST_PREDICTIONS, Demo
from ui import present
from ui.parts import classifying, markup, prompts
from ui.parts.access_requests import Argument, Number, Text
from ui.parts.examples import general_examples, load_once

MOST_WAITING = 100
FULL = "Many people are asking right now. Try again in a few seconds."
# Requests are a few kilobytes.
MOST_REQUEST_BYTES = 64 << 10
# For Gradio's frontend and gradio_client.
ROUTES = re.compile(
    r"(?:GET|HEAD) (?:"
    r"/|/config/?|/(?:gradio_api/)?theme\.css|/favicon\.ico|/robots\.txt|/manifest\.json"
    r"|/(?:assets|static|svelte)/[\w./@+-]+"
    r"|/gradio_api/(?:info/?|openapi\.json|app_id|startup-events|queue/data|queue/status"
    r"|heartbeat/[\w-]{1,64}|call/(?:fill_mask|generate|classify|tag)/[\w-]{1,64})"
    r")"
    r"|POST /gradio_api/(?:queue/join/?|cancel|reset|call/(?:fill_mask|generate|classify|tag))"
)
# Arguments of API functions.
OFFERED: dict[str, dict[str, Argument]] = {
    "fill_mask": {
        "text": Text(MOST_CHARACTERS),
        "top_k": Number(1, MOST_PREDICTIONS, is_whole=True),
    },
    "generate": {
        "prompt": Text(MOST_CHARACTERS),
        "max_new_tokens": Number(1, MOST_NEW_TOKENS, is_whole=True),
        "temperature": Number(0, 100),
        "top_k": Number(0, 2**31 - 1, is_whole=True, may_be_empty=True),
        "top_p": Number(0, 1),
        "seed": Number(0, 2**64, is_whole=True),
    },
    "classify": {"text": Text(MOST_CHARACTERS), "text_pair": Text(MOST_CHARACTERS)},
    "tag": {"text": Text(MOST_CHARACTERS)},
}
_WHAT_IT_DOES = {
    "encoder": "Mask a word, and see the model's predictions.",
    "decoder": "Write a prompt, and let the model continue it.",
    "encoder-decoder": "Leave out words, and let the model fill them in.",
}
_HEADS = {
    "sequence": "Write a text, and see its class.",
    "token": "Write a sentence, and see the tag of each word.",
}
_WRITERS = 4
_CLASSIFIERS = 4


def build_demo(demo: Demo, address: str) -> gr.Blocks:
    """Builds the demo of one model. Imports no backend.

    Args:
        address: URL for `gradio_client`.
    """
    asked = prompts.Asked(
        demo,
        demo.title,
        lambda _: demo.architecture,
        mask=demo.mask,
        has_precision=False,
        most_new_tokens=MOST_NEW_TOKENS,
        tokenizer=lambda _: load_once(demo.folder),
    )
    with gr.Blocks(title=f"{demo.title} · Pretrain Studio", analytics_enabled=False) as page:
        gr.HTML(_head(demo))
        if demo.card.figures:
            gr.HTML(markup.tiles(_figures(demo)))
        sentences = _examples(demo)
        with gr.Column(elem_classes=["ps-card"], visible=bool(sentences)):
            gr.HTML('<h3 class="ps-subheading">Try one of these, or write your own</h3>')
            chips = prompts.render_chips(sentences)
        if demo.fills:
            prompts.render_masks(asked, chips)
            _offer_masks(demo)
        if demo.writes:
            prompts.render_writing(asked, chips, visible=True, at_once=_WRITERS)
            _offer_writing(demo)
        if demo.head == "sequence":
            classifying.render_texts(demo, demo.title, chips, visible=True)
            _offer_classes(demo)
        if demo.head == "token":
            classifying.render_words(demo, demo.title, chips, visible=True)
            _offer_tags(demo)
        gr.HTML(_for_programs(demo, address))
    page.queue(max_size=MOST_WAITING, api_open=False)
    return page


def build_instructions() -> gr.Blocks:
    """Builds instructions for a Space without model."""
    space = os.environ.get("SPACE_ID", "")
    with gr.Blocks(title="Pretrain Studio", analytics_enabled=False) as page:
        gr.HTML(f'<div class="ps-top"><h1>{markup.MARK}Pretrain Studio</h1></div>')
        gr.HTML(_instructions(space))
    page.queue(max_size=1, api_open=False)
    return page


def _examples(demo: Demo) -> list[str]:
    """Nobody knows which texts suit a fine-tuned model, except its card."""
    if demo.head:
        return list(demo.card.examples)
    return general_examples(demo.architecture, demo.folder, demo.card.examples)


def _head(demo: Demo) -> str:
    family = title_of_family(demo.architecture.model_type)
    layers, width = demo.architecture.num_hidden_layers, demo.architecture.hidden_size
    facts = [family, f"{layers} layers of {markup.count(width)}"]
    facts += [f"vocabulary of {markup.count(demo.architecture.vocab_size)}"]
    facts += [f"up to {markup.count(demo.longest)} tokens"]
    if not demo.card.figures:
        facts.insert(1, f"{markup.short_count(demo.num_parameters)} parameters")
    facts += [f"licence {demo.card.licence}"] if demo.card.licence else []
    does = _HEADS[demo.head] if demo.head else _WHAT_IT_DOES[demo.architecture.kind]
    about = demo.card.description or does
    source = _source(demo)
    return (
        f'<div class="ps-top"><h1>{markup.MARK}{present.escape(demo.title)}</h1>'
        f"<p>{present.escape(' · '.join(facts))}</p></div>"
        f'<p class="ps-demo-about">{present.escape(about)} {source}</p>'
    )


def _source(demo: Demo) -> str:
    if not demo.hub_id:
        return ""
    address = f"https://huggingface.co/{demo.hub_id}"
    return (
        f'<a href="{present.escape(address)}" target="_blank" rel="noopener">'
        f"{present.escape(demo.reference)} on the Hugging Face Hub</a>"
    )


def _figures(demo: Demo) -> list[tuple[str, str]]:
    figures = [(name, _figure(name, value)) for name, value in demo.card.figures.items()]
    return [("Parameters", markup.short_count(demo.num_parameters)), *figures]


def _figure(name: str, value: float) -> str:
    is_share = name == "Accuracy" and 0 <= value <= 1
    return f"{100 * value:.1f} %" if is_share else f"{value:.4g}"


def _for_programs(demo: Demo, address: str) -> str:
    if demo.head:
        name = "classify" if demo.head == "sequence" else "tag"
        call = f'client.predict("Some words.", api_name="/{name}")'
    elif not demo.fills:
        call = 'client.predict("The small", max_new_tokens=40, api_name="/generate")'
    else:
        call = f'client.predict("The {demo.mask} is blue.", top_k=5, api_name="/fill_mask")'
    code = f'from gradio_client import Client\n\nclient = Client("{address}")\nprint({call})'
    return (
        '<details class="ps-demo-code"><summary>From a program</summary>'
        + markup.code_blocks([("pip install gradio_client", code)])
        + "</details>"
    )


def _instructions(space: str) -> str:
    settings = f"https://huggingface.co/spaces/{space}/settings"
    link = f'<a href="{present.escape(settings)}" target="_blank" rel="noopener">settings</a>'
    code = markup.code_blocks([("Variable", f"{MODEL_VARIABLE}=owner/name")])
    return (
        '<div class="ps-card"><div class="ps-heading"><h2>This Space has no model yet</h2>'
        f"<p>Name one in the Space's {link if space else 'settings'}, under Variables: a model on "
        "the Hub that was trained here, or any BERT, RoBERTa, ModernBERT, GPT-2, T5 or BART with "
        f"safetensors. <code>owner/name@revision</code> holds it to one revision.</p></div>{code}"
        '<p class="ps-note">For a private model add a secret HF_TOKEN that may read it. To train, '
        "run the studio on a machine of your own.</p></div>"
    )


def _offer_masks(demo: Demo) -> None:
    def fill_mask(text: str, top_k: int = 5) -> list[Any]:
        """Fills the masks of a text."""
        return demo.fill_mask("", text, top_k)

    prompts.offer(fill_mask, at_once=prompts.ASKERS_AT_ONCE)


def _offer_writing(demo: Demo) -> None:
    def generate(
        prompt: str,
        max_new_tokens: int = 50,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Generates text with the model."""
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        stream = demo.generate("", prompt, max_new_tokens=max_new_tokens, **options)
        return read_out(stream)

    prompts.offer(generate, at_once=_WRITERS // 2)


def _offer_classes(demo: Demo) -> None:
    def classify(text: str, text_pair: str = "") -> list[dict[str, Any]]:
        """Classifies a text, or a pair of texts."""
        return demo.classify("", text, text_pair)

    prompts.offer(classify, at_once=_CLASSIFIERS)


def _offer_tags(demo: Demo) -> None:
    def tag(text: str) -> list[dict[str, Any]]:
        """Tags the words of a text."""
        return demo.tag("", text)

    prompts.offer(tag, at_once=_CLASSIFIERS)
