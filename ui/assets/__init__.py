"""The web app's style sheets and scripts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def read(name: str) -> str:
    """Returns the text of a file in this folder."""
    return (_FOLDER / name).read_text("utf-8")


@cache
def style_sheets() -> str:
    """Joins all style sheets in this folder, `page.css` first and the others by name."""
    others = sorted(path.name for path in _FOLDER.glob("*.css") if path.name != "page.css")
    return "\n".join(map(read, ("page.css", *others)))


@cache
def script(*names: str) -> str:
    """Returns a component's script, with what all scripts share in front (it runs only once)."""
    return "\n".join(map(read, ("studio.js", *names)))
