"""Renders model answers as HTML; escapes all text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from core.inference.generation import with_sentinels
from ui.parts import markup
from ui.parts.tokens import colour_surprise, show, show_plainly, surprise_legend
from ui.present import escape

_CARET = '<i class="ps-caret" aria-hidden="true"></i>'
_MOST_SURPRISING = 5
_MOST_CLASSES = 50
_PSEUDO = (
    "Each token is masked in turn and guessed from all the others, so the figure can't be compared "
    "with that of a model that reads from left to right."
)
_SENTINEL = re.compile(r"<extra_id_(\d+)>")
_ENDINGS = {
    "eos": "the model ended the text",
    "length": "as long as was asked for",
    "positions": "the model has no more positions",
}


def predictions(masks: list[Any], texts: Sequence[Sequence[str]] = ()) -> str:
    """Renders predictions as bars, per mask.

    Args:
        texts: Text per prediction of each mask; default: its sequence.
    """
    if masks and isinstance(masks[0], dict):
        blocks = _bars(masks, *texts)
    else:
        shown = texts or [[prediction["sequence"] for prediction in mask] for mask in masks]
        blocks = "".join(
            f'<h3 class="ps-subheading">Mask {number}</h3>{_bars(mask, filled)}'
            for number, (mask, filled) in enumerate(zip(masks, shown, strict=True), 1)
        )
    return f'<div class="ps-card ps-answer-card">{blocks}</div>'


def classes(labels: Sequence[dict[str, Any]]) -> str:
    """Renders the classes of a text as bars, or the numbers of a regression."""
    is_unnamed = len(labels) == 1 and labels[0]["label"] == "LABEL_0"
    if is_unnamed or any(not 0 <= label["score"] <= 1 for label in labels):
        names = ["predicted"] if is_unnamed else [show_plainly(label["label"]) for label in labels]
        body = markup.tiles(
            [(name, f"{label['score']:.4g}") for name, label in zip(names, labels, strict=True)]
        )
    else:
        # Each probability of several classes at once tells something.
        is_one_of_all = math.isclose(sum(label["score"] for label in labels), 1, abs_tol=1e-3)
        most = _MOST_CLASSES if is_one_of_all else len(labels)
        bars = "".join(_row(show(label["label"]), label["score"]) for label in labels[:most])
        more = len(labels) - most
        rest = f'<p class="ps-note">{more} less probable classes.</p>' if more > 0 else ""
        body = f'<ol class="ps-predictions">{bars}</ol>{rest}'
    return f'<div class="ps-card ps-answer-card">{body}</div>'


def tags(tagged_words: Sequence[dict[str, Any]]) -> str:
    """Renders each word above its tag and the tag's probability."""
    words = "".join(
        f"<li><b>{show(tagged_word['word'])}</b><span>{show(tagged_word['tag'])}</span>"
        f"<small>{markup.percent(tagged_word['score'])}</small></li>"
        for tagged_word in tagged_words
    )
    return (
        '<div class="ps-card ps-answer-card"><ol class="ps-tags" aria-label="Words with their '
        f'tags and probabilities">{words}</ol></div>'
    )


def writing(prompt: str, text: str, note: str, *, continues: bool) -> str:
    """Renders a text during generation, with a progress note."""
    return _written(prompt, escape(text) + _CARET, note, continues)


def written(prompt: str, result: dict[str, Any], seconds: float, *, continues: bool) -> str:
    """Renders a generated text.

    Args:
        result: Result of `core.generate`.
        seconds: From first to last piece.
    """
    count = result["num_new_tokens"]
    facts = ["1 token" if count == 1 else f"{markup.count(count)} tokens"]
    if seconds > 0 and count > 1:
        facts.append(f"{markup.count((count - 1) / seconds)} a second")
    facts.append(_ENDINGS[result["finish_reason"]])
    text = result["text"]
    if not continues and (whole := fill_spans(prompt, text)):
        facts.append(f"put together: {whole}")
    return _written(prompt, escape(text), " · ".join(facts), continues)


def stopped(shown: str) -> str:
    """Renders a stopped generation.

    Args:
        shown: Result of `writing`, untrusted: the browser sends it.
    """
    before, _, after = shown.partition(_CARET)
    head, opening, rest = after.partition("<small>")
    _, closing, tail = rest.partition("</small>")
    return before + (f"{head}<small>stopped</small>{tail}" if opening and closing else after)


def fill_spans(prompt: str, text: str) -> str:
    """Fills T5's spans into a prompt; "" without spans."""
    parts = _SENTINEL.split(text)
    spans = dict(zip(map(int, parts[1::2]), (part.strip() for part in parts[2::2]), strict=True))
    if not spans:
        return ""
    return _SENTINEL.sub(lambda sentinel: spans.get(int(sentinel[1]), "…"), with_sentinels(prompt))


def surprise(perplexity: dict[str, Any]) -> str:
    """Renders perplexity and a text coloured by surprisal."""
    is_exact = perplexity["kind"] == "exact"
    tokens = [(token["token_str"], token["loss"]) for token in perplexity["tokens"]]
    scored = [(text, nats) for text, nats in tokens if nats is not None]
    most = sorted(scored, key=lambda token: -token[1])[:_MOST_SURPRISING]
    figures = [
        ("perplexity" if is_exact else "pseudo-perplexity", _figure(perplexity["perplexity"])),
        ("nats a token", f"{perplexity['loss']:.2f}"),
        ("tokens", markup.count(perplexity["num_tokens"])),
    ]
    rows = [(show_plainly(text if text.strip(" ") else "␣"), f"{nats:.2f}") for text, nats in most]
    table = markup.table(("Most surprising", "Nats"), rows, label="Most surprising tokens")
    note = "" if is_exact else f'<p class="ps-note">{_PSEUDO}</p>'
    return (
        f'<div class="ps-card ps-answer-card">{markup.tiles(figures)}{colour_surprise(tokens)}'
        f"{surprise_legend()}{table}{note}</div>"
    )


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}" if value < 1e9 else f"{value:.1e}"


def _written(prompt: str, text: str, note: str, continues: bool) -> str:
    given = f'<span class="given">{escape(prompt)}</span>'
    body = f"{given}{text}" if continues else f"{given}\n\n{text}"
    return (
        f'<div class="ps-card ps-answer-card"><p class="ps-written">{body}</p>'
        f"<small>{escape(note)}</small></div>"
    )


def _bars(predictions: list[dict[str, Any]], texts: Sequence[str] = ()) -> str:
    shown = texts or [prediction["sequence"] for prediction in predictions]
    return f'<ol class="ps-predictions">{"".join(map(_bar, predictions, shown))}</ol>'


def _bar(prediction: dict[str, Any], text: str) -> str:
    word = show(prediction["token_str"].strip(" ") or "␣")
    return _row(word, prediction["score"], f"<small>{escape(text)}</small>")


def _row(name: str, share: float, below: str = "") -> str:
    return (
        f'<li><span class="word">{name}</span><span class="ps-bar" aria-hidden="true">'
        f'<i style="width:{100 * share:.2f}%"></i></span>'
        f'<span class="score">{markup.percent(share)}</span>{below}</li>'
    )


def side_by_side(shown: Sequence[tuple[str, str]]) -> str:
    """Renders the answers of several models beside each other, each below the model's name."""
    columns = "".join(
        f'<section aria-label="{escape(name)}"><h4>{escape(name)}</h4>{answer}</section>'
        for name, answer in shown
    )
    return f'<div class="ps-beside-answers">{columns}</div>'
