"""Turns rendered HTML into nodes as JSON, from which a script builds elements without parsing."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from ui.present import is_link

_TAGS = frozenset(
    "a b br button code details div em h3 h4 i li ol p pre section small span strong summary table "
    "tbody td th thead tr ul".split()
)
_ATTRIBUTES = frozenset({"class", "colspan", "href", "open", "rel", "role", "scope", "tabindex"})
_ATTRIBUTES |= {"target", "title", "type", "aria-label", "data-copy", "data-go", "data-label"}
_EMPTY_TAGS = frozenset({"br"})

# A text, or a tag with its attributes and children.
Node = str | list[Any]


def nodes_of(html: str) -> list[Node]:
    """Returns the nodes; raises ValueError for a tag or attribute that no result needs."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.root


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root: list[Node] = []
        self._open: list[list[Node]] = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        unknown = {name for name, _ in attrs} - _ATTRIBUTES
        unknown |= {name for name, value in attrs if name == "href" and not is_link(value)}
        if tag not in _TAGS or unknown:
            raise ValueError(f"<{tag}> with {sorted(unknown)}")
        children: list[Node] = []
        named = {name: True if value is None else value for name, value in attrs}
        self._open[-1].append([tag, named, children])
        if tag not in _EMPTY_TAGS:
            self._open.append(children)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _EMPTY_TAGS and len(self._open) > 1:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].append(data)
