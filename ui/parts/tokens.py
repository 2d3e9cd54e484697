"""Tokens as coloured text. Every text that comes in is escaped here."""

from __future__ import annotations

from collections.abc import Iterable

from ui.present import escape

_COLOURS = 5


# What can't be seen otherwise. In coloured tokens a space shows by the colour behind it.
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
    """Returns a row as the model sees it.

    Args:
        tokens: What stands there, what stood there, and whether the model must say so.
    """
    spans = []
    for shown, original, predicted in tokens:
        if predicted:
            title = f"the model must say: {original.strip() or 'a space'}"
            spans.append(f'<span class="masked" title="{escape(title)}">{escape(shown)}</span>')
        else:
            spans.append(escape(shown))
    return f'<p class="ps-tokens row">{"".join(spans)}</p>'


def show(text: str) -> str:
    """Returns a token's text as HTML in which line ends and tabs can be seen."""
    return escape(text.translate(_VISIBLE))
