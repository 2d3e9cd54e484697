"""What models answer, as HTML. Every text that comes in is escaped here."""

from __future__ import annotations

import re
from typing import Any

from core.inference.generation import with_sentinels
from ui.parts import markup
from ui.parts.tokens import show
from ui.present import escape

_CARET = '<i class="ps-caret" aria-hidden="true"></i>'
_SENTINEL = re.compile(r"<extra_id_(\d+)>")
_ENDINGS = {
    "eos": "the model ended the text",
    "length": "as long as was asked for",
    "positions": "the model has no more positions",
}


def predictions(found: list[Any]) -> str:
    """Returns predictions as bars; of several masks one block each."""
    if found and isinstance(found[0], dict):
        blocks = _bars(found)
    else:
        blocks = "".join(
            f'<h3 class="ps-subheading">Mask {number}</h3>{_bars(one)}'
            for number, one in enumerate(found, 1)
        )
    return f'<div class="ps-card ps-answer-card">{blocks}</div>'


def writing(prompt: str, text: str, note: str, *, continues: bool) -> str:
    """Returns a text that is being written.

    Args:
        prompt: What was given.
        text: What there is so far.
        note: A word on how it goes.
        continues: Whether the text goes on from the prompt.
    """
    return _written(prompt, escape(text) + _CARET, note, continues)


def written(prompt: str, result: dict[str, Any], seconds: float, *, continues: bool) -> str:
    """Returns a text that is written.

    Args:
        prompt: What was given.
        result: What `core.generate` returned.
        seconds: From the first piece to the last.
        continues: Whether the text goes on from the prompt.
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
    """Returns a text that was being written, and is no longer."""
    before, _, after = shown.partition(_CARET)
    return before + re.sub(r"<small>.*?</small>", "<small>stopped</small>", after, flags=re.DOTALL)


def fill_spans(prompt: str, text: str) -> str:
    """Puts what a T5 wrote for each sentinel into the prompt; nothing where there is none.

    Args:
        prompt: With sentinels or masks.
        text: As the model writes it: each sentinel and what stood there.
    """
    parts = _SENTINEL.split(text)
    spans = dict(zip(map(int, parts[1::2]), (part.strip() for part in parts[2::2]), strict=True))
    if not spans:
        return ""
    return _SENTINEL.sub(lambda found: spans.get(int(found[1]), "…"), with_sentinels(prompt))


def _written(prompt: str, text: str, note: str, continues: bool) -> str:
    given = f'<span class="given">{escape(prompt)}</span>'
    body = f"{given}{text}" if continues else f"{given}\n\n{text}"
    return (
        f'<div class="ps-card ps-answer-card"><p class="ps-written">{body}</p>'
        f"<small>{escape(note)}</small></div>"
    )


def _bars(found: list[dict[str, Any]]) -> str:
    return f'<ol class="ps-predictions">{"".join(map(_bar, found))}</ol>'


def _bar(prediction: dict[str, Any]) -> str:
    width = f"width:{100 * prediction['score']:.2f}%"
    return (
        f'<li><span class="word">{show(prediction["token_str"].strip(" ") or "␣")}</span>'
        f'<span class="ps-bar" aria-hidden="true"><i style="{width}"></i></span>'
        f'<span class="score">{markup.percent(prediction["score"])}</span>'
        f"<small>{escape(prediction['sequence'])}</small></li>"
    )
