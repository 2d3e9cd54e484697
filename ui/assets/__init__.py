"""The web app's style sheets and scripts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

UPLOT = "vendor/uplot/uPlot.iife.min.js"
UPLOT_STYLE = "vendor/uplot/uPlot.min.css"
_FOLDER = Path(__file__).parent


@cache
def read(name: str) -> str:
    """Returns a file's text."""
    return (_FOLDER / name).read_text("utf-8")


@cache
def style_sheets() -> str:
    """Joins the style sheets, `page.css` first."""
    others = sorted(path.name for path in _FOLDER.glob("*.css") if path.name != "page.css")
    return "\n".join(map(read, (UPLOT_STYLE, "page.css", *others)))


@cache
def script(*names: str) -> str:
    """Returns a script, preceded by `studio.js`, which runs only once."""
    return "\n".join(map(read, ("studio.js", *names)))
