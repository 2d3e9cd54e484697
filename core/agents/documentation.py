"""The pages of the documentation, for agents."""

from __future__ import annotations

from pathlib import Path

from core.errors import ConfigError
from core.messages.suggestions import did_you_mean

_ROOT = Path(__file__).parents[2]
_LONGEST_PAGE = 60_000
_MOST_LINES = 40


def pages() -> dict[str, Path]:
    """Returns the pages by name; none if the program was installed without them."""
    paths = [_ROOT / "llms.txt", _ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]
    return {path.stem.lower(): path for path in paths if path.is_file()}


def list_pages() -> str:
    """Lists the pages with their headings."""
    return "\n".join(f"{name}: {_heading(path)}" for name, path in _known_pages().items())


def read_page(name: str) -> str:
    """Returns a page; raises ConfigError for an unknown name."""
    known = _known_pages()
    wanted = name.strip().lower().removesuffix(".md")
    if wanted not in known:
        raise ConfigError(
            "There is no such page",
            expected=", ".join(known),
            received=name[:100],
            fix=did_you_mean(wanted, list(known)) or "choose one of them",
            field="page",
        )
    return known[wanted].read_text("utf-8")[:_LONGEST_PAGE]


def search_pages(text: str) -> str:
    """Returns the lines with a text, in any case, each with its page."""
    wanted = text.casefold()
    lines = [
        f"{name}: {line.strip()}"
        for name, path in _known_pages().items()
        for line in path.read_text("utf-8").splitlines()
        if wanted in line.casefold()
    ]
    return "\n".join(lines[:_MOST_LINES]) or "No line of the documentation has this text."


def _known_pages() -> dict[str, Path]:
    known = pages()
    if not known:
        raise ConfigError(
            "The documentation isn't installed",
            expected=f"the folder {_ROOT / 'docs'}",
            received="none",
            fix="read it in the repository, or run the server from a checkout",
        )
    return known


def _heading(path: Path) -> str:
    lines = path.read_text("utf-8").splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("# ")), path.stem)
