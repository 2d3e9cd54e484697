"""The changes to Gradio's frontend."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brotli
import pytest
from gradio.route_utils import BUILD_PATH_LIB

from ui.parts.frontend import (
    CHANGES,
    Asset,
    FasterFrontend,
    changed_assets,
    script_asset,
    with_indexes,
)

_TREE = "{id:0,children:[{id:1,children:[{id:2}]},{id:3,children:[]}]}"


def installed_script() -> str:
    [path] = Path(str(BUILD_PATH_LIB)).glob("core-*.js")
    return path.read_text("utf-8")


def ask(asset: Asset | None, path: str, method: str = "GET") -> list[dict[str, Any]]:
    async def gradio(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 203, "headers": []})

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    return sent_by(FasterFrontend(gradio, assets=[asset] if asset else []), scope)


def sent_by(app: FasterFrontend, scope: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    asyncio.run(app(scope, receive, send))
    return sent


def test_installed_gradio_is_a_known_version() -> None:
    assets = changed_assets()
    assert len(assets) == len(CHANGES), "Gradio's scripts are new: adapt ui/parts/frontend.py"
    for asset in assets:
        assert (Path(str(BUILD_PATH_LIB)) / Path(asset.path).name).exists()
        assert b"common.complete" not in asset.body


def test_unknown_script_stays_as_it_is(tmp_path: Path) -> None:
    twice = installed_script() * 2
    assert with_indexes("function f(){}") is None
    assert with_indexes(twice) is None
    (tmp_path / "core-new.js").write_text("function f(){}")
    assert changed_assets(tmp_path) == []


def test_only_the_changed_script_is_answered() -> None:
    asset = Asset("/assets/core-1.js", b"fast")
    start, body = ask(asset, "/assets/core-1.js")
    assert (start["status"], body["body"]) == (200, b"fast")
    assert ask(asset, "/assets/core-1.js", "HEAD")[1]["body"] == b""
    for path, method in (("/assets/core-2.js", "GET"), ("/assets/core-1.js", "POST")):
        assert ask(asset, path, method)[0]["status"] == 203
    assert ask(None, "/assets/core-1.js")[0]["status"] == 203


@pytest.mark.skipif(not shutil.which("node"), reason="needs node, which npm brings")
def test_look_ups_find_what_the_searches_found() -> None:
    slow = (
        "function F(e,t){if(e.id===t)return e;if(e.children)for(let n of e.children)"
        "{let e=F(n,t);if(e)return e}return null}"
        "const tree={rerender(e,t){return 1},find_attached_events(e,t){let n=t.filter("
        "t=>t.targets.find(([t])=>t===e.id)).map(t=>{let n=t.targets.find(([t])=>t===e.id);"
        "return n?n[1]:null}).filter(Boolean);"
        "return e.props.shared_props.attached_events=n,e}};"
    )
    check = f"""
        const root = {_TREE};
        const found = [0, 1, 2, 3, 4, 2].map((id) => F(root, id)?.id ?? null);
        root.children[1].children.push({{ id: 4 }});
        tree.rerender();
        root.children[0].children = [{{ id: 5 }}];
        found.push(F(root, 4)?.id ?? null, F(root, 5)?.id ?? null, F(root, 2)?.id ?? null);
        const all = [
            {{ targets: [[1, "change"], [2, "click"], [1, "input"]] }},
            {{ targets: [] }},
            {{ targets: [[null, "load"], [1, "input"]] }},
        ];
        const events = [1, 2, 3].map((id) =>
            tree.find_attached_events({{ id, props: {{ shared_props: {{}} }} }}, all)
                .props.shared_props.attached_events);
        console.log(JSON.stringify([found, events]));
    """
    fast = with_indexes(slow)
    assert fast
    answers = [
        json.loads(subprocess.check_output(["node", "-e", code + check], text=True))
        for code in (slow, fast)
    ]
    assert answers[0] == answers[1]
    assert answers[0][1] == [["change", "input"], ["click"], []]


@pytest.mark.parametrize(
    ("accepted", "unpack"),
    [("gzip, br", brotli.decompress), ("gzip", gzip.decompress), ("", bytes)],
)
def test_page_is_compressed_and_runs_our_script_before_gradios(
    accepted: str, unpack: Callable[[bytes], bytes]
) -> None:
    page = b'<head><script type="module" crossorigin src="./assets/index.js"></script></head>'

    async def gradio(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(len(page)).encode()), (b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": page[:20], "more_body": True})
        await send({"type": "http.response.body", "body": page[20:]})

    first = {"text": "</script>" + "x" * 500}
    app = FasterFrontend(gradio, assets=[script_asset()], first=lambda: first)
    headers = [(b"accept-encoding", accepted.encode())]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    start, *bodies = sent_by(app, scope)
    packed = b"".join(one["body"] for one in bodies)
    assert int(dict(start["headers"])[b"content-length"]) == len(packed)
    seen = unpack(packed).decode()
    assert seen.count("</script>") == 3, "data can't end the script"
    assert "studioFirst" in seen
    assert seen.index(script_asset().path) < seen.index("./assets/index.js")


def test_scripts_are_kept_by_browsers() -> None:
    asset = script_asset()
    start, body = ask(asset, asset.path)
    assert b"immutable" in dict(start["headers"])[b"cache-control"]
    assert body["body"] == asset.body
