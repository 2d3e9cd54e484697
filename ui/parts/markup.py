"""HTML pieces for several tabs; all text is escaped here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from core.messages.values import byte_count as byte_count
from ui.present import escape

# Logo: a falling loss.
MARK = (
    '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2.4" '
    'stroke-linecap="round" aria-hidden="true"><path d="M3 4v13a3 3 0 0 0 3 3h15"/>'
    '<path d="M7 6c2.5 7 5.500 9.500 14 10"/></svg>'
)


# Stands where the server's first answer will come.
SKELETON = '<div class="ps-skeleton" role="status" aria-label="Loading"></div>'


def heading(title: str, text: str) -> str:
    """Renders a tab's heading."""
    return f'<div class="ps-heading"><h2>{escape(title)}</h2><p>{escape(text)}</p></div>'


def empty_state(title: str, text: str, *, tab: str = "", link: str = "") -> str:
    """Renders an empty state with the next step."""
    go = f'<a class="ps-button" href="#{tab}" data-go="{tab}">{escape(link)}</a>' if tab else ""
    return f'<div class="ps-empty"><b>{escape(title)}</b><p>{escape(text)}</p>{go}</div>'


def tiles(figures: Iterable[tuple[str, str]], *, rows: bool = False) -> str:
    """Renders (name, value) pairs as tiles or compact lines."""
    cells = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in figures
    )
    return f'<div class="ps-tiles{" rows" if rows else ""}">{cells}</div>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, label: str) -> str:
    """Renders a table of plain texts."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-label="{escape(heading)}">{escape(cell)}</td>'
            for heading, cell in zip(headings, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<table class="ps-table" aria-label="{escape(label)}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def links_of_model(name: str) -> str:
    """Renders links to a model in the Playground and in Publish."""
    links = [("playground", "Open in Playground", " primary"), ("publish", "Publish", "")]
    buttons = "".join(
        f'<a class="ps-button{look}" href="#{tab}" data-go="{tab}/{escape(name)}">{words}</a>'
        for tab, words, look in links
    )
    return f'<div class="ps-actions">{buttons}</div>'


def code_blocks(blocks: Iterable[tuple[str, str]]) -> str:
    """Renders (label, code) pairs with copy buttons."""
    return "".join(
        f'<div class="ps-code"><span>{escape(label)}</span>'
        f'<button type="button" data-copy aria-label="Copy: {escape(label)}">Copy</button>'
        f'<pre tabindex="0"><code>{escape(code)}</code></pre></div>'
        for label, code in blocks
    )


def count(value: float) -> str:
    """Formats a whole number: 12,345."""
    return f"{round(value):,}"


def short_count(value: float) -> str:
    """Formats three digits: 950, 12.3 k, 4.37 M, 1.5 T."""
    rounded = _in_three_digits(value)
    for unit, divisor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(rounded) >= divisor:
            return f"{rounded / divisor:.3g} {unit}"
    return f"{rounded:.3g}"


def _in_three_digits(value: float) -> float:
    """Rounds before the unit is chosen: 999,600 is 1 M."""
    return float(f"{value:.3g}")


def rough_duration(seconds: float) -> str:
    """Formats seconds: 40 s, 12 min, 3.5 h, 9 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    hours = seconds / 3600
    if hours < 48:
        return f"{hours:.2g} h" if hours < 10 else f"{round(hours)} h"
    return f"{count(hours / 24)} days"


def date(seconds: float) -> str:
    """Formats Unix seconds in local time: 3 Mar 2026, 14:05."""
    moment = time.localtime(seconds)
    return f"{moment.tm_mday} {time.strftime('%b %Y, %H:%M', moment)}"


def dollars(value: float) -> str:
    """Formats US dollars: $0.80, $12.50, $1,240."""
    return f"${value:,.2f}" if value < 1000 else f"${value:,.0f}"


def dollar_span(values: Sequence[float]) -> str:
    """Formats the least and most: $3.20 – $6.40."""
    low, high = dollars(values[0]), dollars(values[-1])
    return low if low == high else f"{low} – {high}"


def percent(share: float) -> str:
    """Formats a fraction: 0.31 %."""
    return f"{100 * share:.3g} %"
