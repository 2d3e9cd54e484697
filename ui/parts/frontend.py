"""The page: compressed, with our scripts in a file, quicker searches and no lost answers.

Gradio 6 walks all components for every input and output of every event, and all events for every
component while the page loads: seconds with the hundreds of components of this page.

One stream per page brings the answers to all events. The server closes it after the last one. An
event that joins before the page has read of that would wait for the next event: nobody opens a
stream for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradio.brotli_middleware import BrotliResponder, Mode
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipResponder

from ui.assets import bundle, bundle_path
from ui.parts.access import App, Message, Receive, Scope, Send, answer, route_path

_ASSETS = "/assets/"
_KEPT = b"private, max-age=31536000, immutable"
# Gradio leaves the page uncompressed. Quality, kind of content, window (power of two), block size.
_BROTLI = (5, Mode.text, 22, 0)
_LEAST_BYTES = 400
# Scripts of this kind run in order, after the document is read.
_GRADIOS_SCRIPT = b'<script type="module" crossorigin'
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
# The client's reaction to the end of the stream.
_CLOSE = re.compile(
    r"if\((\w+)\.msg===`close_stream`\)\{(\w+)\((\w+),(\w+)\.abort_controller\);return\}"
)
_CLOSE_AND_REOPEN = (
    r"if(\1.msg===`close_stream`){\2(\3,\4.abort_controller);"
    r"\4.unclosed_events.size&&\4.open_stream();return}"
)
# How it registers an event that has joined; its messages may have come before.
_JOIN = re.compile(
    r"\b(\w{1,9}) in (\w{1,9})&&\(\2\[\1\]\.forEach\((\w+)=>(\w+)\(\3\)\),delete \2\[\1\]\),"
    r"(\w+)\[\1\]=\4,(\w+)\.add\(\1\),(\w+)\.open\|\|await this\.open_stream\(\)"
)
_JOIN_UNLESS_DONE = (
    r"let psDone=\2[\1]?.some(({msg})=>msg===`process_completed`);"
    r"\1 in \2&&(\2[\1].forEach(\3=>\4(\3)),delete \2[\1]),"
    r"psDone||(\5[\1]=\4,\6.add(\1),\7.open||await this.open_stream())"
)
# Screen readers are told the key of a translation that Gradio has in no language.
_COMPLETE = re.compile(r"\b\w{1,9}\.i18n\(`common\.complete`\)")


@dataclass(frozen=True)
class Asset:
    """A file of the frontend; `is_kept`: browsers keep it, as its address names its content."""

    path: str
    body: bytes
    is_kept: bool = False


def with_indexes(code: str) -> str | None:
    """Replaces the searches in a script by look-ups; returns None if it isn't the known script."""
    pairs = [(_FIND, _FIND_WITH_INDEX), (_RERENDER, _RERENDER_WITH_INDEX)]
    changed = _replaced(code, [*pairs, (_EVENTS, _EVENTS_WITH_INDEX)])
    return changed and f"{changed}\n{_EVENT_INDEX}"


def with_open_stream(code: str) -> str | None:
    """Keeps a stream open while events wait; returns None if it isn't the known script."""
    return _replaced(code, [(_CLOSE, _CLOSE_AND_REOPEN), (_JOIN, _JOIN_UNLESS_DONE)])


def with_translation(code: str) -> str | None:
    """Translates the news of an event's end; returns None if it isn't the known script."""
    return _replaced(code, [(_COMPLETE, "`Done`")])


def _replaced(code: str, replacements: Iterable[tuple[re.Pattern[str], str]]) -> str | None:
    for pattern, replacement in replacements:
        code, count = pattern.subn(replacement, code)
        if count != 1:
            return None
    return code


# The changes to Gradio's scripts, by the pattern of their names.
CHANGES: Mapping[str, Callable[[str], str | None]] = {
    "core-*.js": with_indexes,
    "index-*.js": with_open_stream,
    "statustracker-*.js": with_translation,
}


def changed_assets(folder: Path | None = None) -> list[Asset]:
    """Returns the changed scripts of the installed Gradio, without those of an unknown version.

    Args:
        folder: The scripts of Gradio's frontend; by default the installed ones.
    """
    if folder is None:
        from gradio.route_utils import BUILD_PATH_LIB

        folder = Path(str(BUILD_PATH_LIB))
    return [
        Asset(_ASSETS + path.name, changed.encode())
        for names, change in CHANGES.items()
        for path in sorted(folder.glob(names))
        if (changed := change(path.read_text("utf-8")))
    ]


def script_asset() -> Asset:
    """Returns our scripts."""
    return Asset(bundle_path(), bundle().encode(), is_kept=True)


class FasterFrontend:
    """ASGI middleware that serves scripts, and compresses the page with a link to ours.

    Args:
        assets: Files served in place of Gradio's, or beside them.
        first: Returns data that the page holds from the start, as `studioFirst`.
    """

    def __init__(
        self,
        app: App,
        *,
        assets: Iterable[Asset],
        first: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._app = app
        self._assets = {asset.path: asset for asset in assets}
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        asset = self._assets.get(route_path(scope)) if is_read else None
        if asset:
            body = b"" if scope["method"] == "HEAD" else asset.body
            headers = [(b"cache-control", _KEPT)] if asset.is_kept else []
            await answer(send, 200, body, "text/javascript; charset=utf-8", headers)
        elif is_read and route_path(scope) in ("", "/"):
            await self._compressed(scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _compressed(self, scope: Scope) -> App:
        accepted = Headers(scope=scope).get("accept-encoding", "")
        if "br" in accepted:
            return BrotliResponder(self._page, *_BROTLI, _LEAST_BYTES)
        return GZipResponder(self._page, _LEAST_BYTES) if "gzip" in accepted else self._page

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Adds our script before Gradio's own, so that it has run when components load."""
        start: Message = {}
        parts: list[bytes] = []

        async def collect(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            parts.append(message.get("body", b""))
            if message.get("more_body"):
                return
            body = await run_in_threadpool(self._with_script, b"".join(parts))
            headers = [h for h in start["headers"] if h[0].lower() != b"content-length"]
            if scope["method"] == "GET":
                headers.append((b"content-length", str(len(body)).encode()))
            await send({**start, "headers": [*headers, (b"cache-control", b"no-cache")]})
            await send({"type": "http.response.body", "body": body})

        await self._app(scope, receive, collect)

    def _with_script(self, page: bytes) -> bytes:
        if _GRADIOS_SCRIPT not in page:
            return page
        first = json.dumps(dict(self._first())).replace("<", "\\u003c")
        ours = f'<script>window.studioFirst = {first}</script><script defer src=".{bundle_path()}">'
        return page.replace(_GRADIOS_SCRIPT, f"{ours}</script>".encode() + _GRADIOS_SCRIPT, 1)
