"""Renders tokens as coloured text; all text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable

from ui.present import escape

_COLOURS = 5
# Bounds of the colour levels, in nats.
SURPRISES = (1.0, 3.0, 5.0, 8.0)


# Invisible characters; background colours show spaces.
_VISIBLE = str.maketrans({"\n": "⏎", "\r": "␍", "\t": "⇥"})


def colour_tokens(pieces: Iterable[tuple[str, int]], special_ids: frozenset[int]) -> str:
    """Renders (piece, id) pairs as coloured spans."""
    spans = []
    for index, (piece, token) in enumerate(pieces):
        kind = "special" if token in special_ids else f"t{index % _COLOURS}"
        spans.append(f'<span class="{kind}" title="id {token}">{show(piece)}</span>')
        spans.append("<br>" if piece.endswith("\n") else "")
    return f'<p class="ps-tokens">{"".join(spans)}</p>'


def list_tokens(texts: Iterable[str]) -> str:
    """Renders tokens side by side."""
    spans = [
        f'<span class="t{index % _COLOURS}">{show(text)}</span>' for index, text in enumerate(texts)
    ]
    return f'<p class="ps-tokens list">{"".join(spans)}</p>'


def mark_masked(tokens: Iterable[tuple[str, str, bool]]) -> str:
    """Renders a sequence as the model sees it.

    Args:
        tokens: Input token, original, whether it is predicted.
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
    """Renders a text coloured by surprisal in nats (None: not scored)."""
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
    """Returns a token's HTML with visible line ends and tabs."""
    return escape(show_plainly(text))


def show_plainly(text: str) -> str:
    """Does the same without escaping."""
    return text.translate(_VISIBLE)
