"""The page's style sheet and scripts, kept as files of their own kind."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def read(name: str) -> str:
    """Returns the text of a file in this folder."""
    return (_FOLDER / name).read_text("utf-8")


@cache
def script(*names: str) -> str:
    """Returns a component's script, with what all scripts share in front (it runs only once)."""
    return "\n".join(map(read, ("studio.js", *names)))
