"""Tokens as coloured text. Every text that comes in is escaped here."""

from __future__ import annotations

from collections.abc import Iterable

from ui.present import escape

_COLOURS = 5
# From so many nats on, a token is shown as more surprising.
SURPRISES = (1.0, 3.0, 5.0, 8.0)


# Invisible characters. In coloured tokens a space shows by the colour behind it.
_VISIBLE = str.maketrans({"\n": "⏎", "\r": "␍", "\t": "⇥"})


def colour_tokens(pieces: Iterable[tuple[str, int]], special_ids: frozenset[int]) -> str:
    """Returns (piece, id) pairs as a run of coloured spans; the id shows on hover."""
    spans = []
    for index, (piece, token) in enumerate(pieces):
        kind = "special" if token in special_ids else f"t{index % _COLOURS}"
        spans.append(f'<span class="{kind}" title="id {token}">{show(piece)}</span>')
        spans.append("<br>" if piece.endswith("\n") else "")
    return f'<p class="ps-tokens">{"".join(spans)}</p>'


def list_tokens(texts: Iterable[str]) -> str:
    """Returns tokens one beside the other, each as it reads in a text."""
    spans = [
        f'<span class="t{index % _COLOURS}">{show(text)}</span>' for index, text in enumerate(texts)
    ]
    return f'<p class="ps-tokens list">{"".join(spans)}</p>'


def mark_masked(tokens: Iterable[tuple[str, str, bool]]) -> str:
    """Renders a sequence as the model sees it.

    Args:
        tokens: The input token, the original token, and whether the model predicts it.
    """
    spans = []
    for shown, original, predicted in tokens:
        if predicted:
            title = f"the model must say: {original.strip() or 'a space'}"
            spans.append(f'<span class="masked" title="{escape(title)}">{escape(shown)}</span>')
        else:
            spans.append(escape(shown))
    return f'<p class="ps-tokens row">{"".join(spans)}</p>'


def colour_surprise(tokens: Iterable[tuple[str, float | None]]) -> str:
    """Renders a text whose tokens are coloured and underlined by their surprisal.

    Args:
        tokens: Text and surprisal in nats of each; None if it isn't scored.
    """
    spans = []
    for text, nats in tokens:
        if nats is None:
            spans.append(f'<span class="special" title="not scored">{show(text)}</span>')
        else:
            level = sum(nats >= bound for bound in SURPRISES)
            spans.append(f'<span class="s{level}" title="{nats:.2f} nats">{show(text)}</span>')
        spans.append("<br>" if text.endswith("\n") else "")
    return f'<p class="ps-tokens surprise">{"".join(spans)}</p>'


def surprise_legend() -> str:
    """Renders the legend of `colour_surprise`."""
    bounds = [0, *SURPRISES]
    names = [f"{low:g} to {high:g}" for low, high in zip(bounds, SURPRISES, strict=False)] + [
        f"{bounds[-1]:g} and more"
    ]
    spans = "".join(f'<span class="s{level}">{name}</span>' for level, name in enumerate(names))
    return f'<p class="ps-tokens surprise list">{spans} nats</p>'


def show(text: str) -> str:
    """Returns a token's text as HTML in which line ends and tabs can be seen."""
    return escape(show_plainly(text))


def show_plainly(text: str) -> str:
    """Returns a token's text, not yet HTML, in which line ends and tabs can be seen."""
    return text.translate(_VISIBLE)
