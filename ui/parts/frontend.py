"""Faster searches in Gradio's frontend.

Gradio 6 walks all components for every input and output of every event, and all events for every
component while the page loads: seconds with the hundreds of components of this page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ui.parts.access import App, Receive, Scope, Send, answer, route_path

_ASSETS = "/assets/"
# The function of the component tree that finds a component by id.
_FIND = re.compile(
    r"function (\w+)\((\w+),(\w+)\)\{if\(\2\.id===\3\)return \2;if\(\2\.children\)"
    r"for\(let (\w+) of \2\.children\)\{let (\w+)=\1\(\4,\3\);if\(\5\)return \5\}return null\}"
)
_FIND_WITH_INDEX = (
    "let psTree=new WeakMap;"
    "function psAdd(node,known){known.has(node.id)||known.set(node.id,node);"
    "for(const child of node.children??[])psAdd(child,known)}"
    r"function \1(node,id){let known=psTree.get(node);"
    "if(!known?.has(id))psTree.set(node,known=new Map),psAdd(node,known);"
    "return known.get(id)??null}"
)
# The method that replaces a part of the tree.
_RERENDER = re.compile(r"\brerender\((\w+),(\w+)\)\{")
_RERENDER_WITH_INDEX = r"rerender(\1,\2){psTree=new WeakMap;"
# The method that finds the events of a component.
_EVENTS = re.compile(
    r"find_attached_events\((\w+),(\w+)\)\{let \w+=\2\.filter\(.{1,200}?\)\.filter\(Boolean\);"
    r"return \1\.props\.shared_props\.attached_events=\w+,\1\}"
)
_EVENTS_WITH_INDEX = (
    r"find_attached_events(\1,\2){"
    r"(\1.props.shared_props.attached_events=psEvents(\2).get(\1.id)??[]);return \1}"
)
_EVENT_INDEX = (
    "const psIndexes=new WeakMap;"
    "function psEvents(all){let index=psIndexes.get(all);if(index)return index;"
    "psIndexes.set(all,index=new Map);"
    "for(const {targets} of all){const first=new Map;"
    "for(const [id,event] of targets)first.has(id)||first.set(id,event);"
    "for(const [id,event] of first)"
    "event&&(index.has(id)||index.set(id,[]),index.get(id).push(event))}"
    "return index}"
)


@dataclass(frozen=True)
class Asset:
    """A changed file of the frontend."""

    path: str
    body: bytes


def with_indexes(code: str) -> str | None:
    """Replaces the searches in a script by look-ups; returns None if it isn't the known script."""
    changed = code
    for pattern, replacement in (
        (_FIND, _FIND_WITH_INDEX),
        (_RERENDER, _RERENDER_WITH_INDEX),
        (_EVENTS, _EVENTS_WITH_INDEX),
    ):
        changed, count = pattern.subn(replacement, changed)
        if count != 1:
            return None
    return f"{changed}\n{_EVENT_INDEX}"


def faster_asset(folder: Path | None = None) -> Asset | None:
    """Returns the changed script of the installed Gradio; None for an unknown version.

    Args:
        folder: The scripts of Gradio's frontend; by default the installed ones.
    """
    if folder is None:
        from gradio.route_utils import BUILD_PATH_LIB

        folder = Path(str(BUILD_PATH_LIB))
    for path in sorted(folder.glob("core-*.js")):
        if changed := with_indexes(path.read_text("utf-8")):
            return Asset(_ASSETS + path.name, changed.encode())
    return None


class FasterFrontend:
    """ASGI middleware that serves the changed script; without one, Gradio's own."""

    def __init__(self, app: App, *, asset: Asset | None) -> None:
        self._app = app
        self._asset = asset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asset = self._asset
        if asset and scope["type"] == "http" and _is_read(scope, asset.path):
            body = b"" if scope["method"] == "HEAD" else asset.body
            await answer(send, 200, body, "text/javascript; charset=utf-8")
        else:
            await self._app(scope, receive, send)


def _is_read(scope: Scope, path: str) -> bool:
    return scope["method"] in ("GET", "HEAD") and route_path(scope) == path
