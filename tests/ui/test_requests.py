"""Requests to an app without a password: other websites, URLs in requests and body limits."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from urllib.parse import urlsplit

import pytest

from tests.ui.browser import running_app
from tests.ui.strangers import Answer, allowing_local_downloads, file_at, listening, send

pytestmark = pytest.mark.slow(3)

JOIN = "/gradio_api/queue/join"
JSON = "application/json"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studio") / "workspace"


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    with running_app(place, **allowing_local_downloads(place.parent / "python")) as url:
        yield url


def post(url: str, path: str, body: object, **headers: str) -> Answer:
    return send(url, "POST", path, json.dumps(body).encode(), Content_Type=JSON, **headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://localhost:3000"},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
        {"Referer": "http://localhost:3000/page"},
        {"Host": "evil.example"},
    ],
)
def test_another_website_can_neither_read_nor_act(url: str, headers: dict[str, str]) -> None:
    for method, path in (
        ("GET", "/config"),
        ("GET", "/gradio_api/info"),
        ("GET", "/gradio_api/token"),
        ("HEAD", "/config"),
        ("GET", "/logout"),
        ("GET", "/gradio_api/file=/etc/passwd"),
        ("POST", JOIN),
        ("OPTIONS", "/config"),
    ):
        answer = send(url, method, path, b"{}" if method == "POST" else None, **headers)
        assert answer.status == 403, (method, path)
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    ["/token", "/gradio_api/token", "/gradio_api/token/", "/gradio_api/dev/reload", "/monitoring"],
)
def test_routes_that_give_a_page_more_than_it_needs_are_closed(url: str, path: str) -> None:
    assert send(url, "GET", path).status == 404


def test_cors_preflight_grants_other_websites_nothing(url: str) -> None:
    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "x"}
    own = f"http://{urlsplit(url).netloc}"
    for origin in ("http://localhost:3000", "null", own):
        answer = send(url, "OPTIONS", JOIN, Origin=origin, **asked)
        assert not [name for name in answer.headers if name.startswith("access-control")], origin
    for origin in (own, None):
        answer = send(url, "GET", "/config", **({"Origin": origin} if origin else {}))
        assert answer.status == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_link_from_another_website_opens_the_web_app(url: str) -> None:
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert send(url, "GET", "/", Sec_Fetch_Dest="document", **link).status == 200
    assert send(url, "GET", "/?__theme=dark", **link).status == 200
    for dest in ("iframe", "object", "embed"):
        assert send(url, "GET", "/", Sec_Fetch_Dest=dest, **link).status == 403
    assert send(url, "POST", "/", b"", **link).status == 403


def test_web_app_and_api_clients_can_read_and_act(url: str) -> None:
    own = f"http://{urlsplit(url).netloc}"
    for headers in (
        {},
        {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors"},
        {"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate"},
        {"Sec_Fetch_Site": "same-origin", "Origin": own, "Referer": f"{own}/"},
        {"Referer": f"{own}/"},
    ):
        assert send(url, "GET", "/config", **headers).status == 200
        question = {"fn_index": 0, "data": [], "session_hash": "page"}
        assert post(url, JOIN, question, **headers).status == 200


def test_forged_forwarded_host_is_ignored(url: str) -> None:
    own = urlsplit(url).netloc
    for host in ("evil.example", own):
        found = send(url, "GET", "/config", X_Forwarded_Host=host, X_Forwarded_Proto="https")
        assert json.loads(found.body)["root"] == f"https://{own}"


def test_link_does_not_sign_out_a_browser_over_plain_http(url: str) -> None:
    browser = {"User_Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
    assert send(url, "GET", "/logout", **browser).status == 403
    own = f"http://{urlsplit(url).netloc}/"
    assert send(url, "GET", "/logout", Referer=own, **browser).status == 302
    assert send(url, "GET", "/logout").status == 302


def test_no_request_makes_the_app_fetch_a_url(url: str) -> None:
    config = json.loads(send(url, "GET", "/config").body)
    with listening() as (address, asked):
        host = urlsplit(address).netloc
        for target in (
            f"{address}/a",
            f"HTTP://{host}/b",
            f"//{host}/c",
            f" {address}/d",
            f"file://{host}/etc/passwd",
            "data:text/plain,x",
        ):
            file = file_at(target)
            for value in (file, [file], {"value": {"a": [file]}}, {**file, "url": target}):
                data = {"data": [value] * 4, "fn_index": 0, "session_hash": "a"}
                for path in (JOIN, "/gradio_api/call/fill_mask", "/gradio_api/run/fill_mask"):
                    answer = post(url, path, data)
                    assert target.startswith("//") or answer.status == 400, (path, target)
                    if answer.status == 400:
                        assert b"doesn't fetch addresses" in answer.body
        for number in range(0, len(config["dependencies"]), 7):
            data = {"data": [file_at(f"{address}/e")] * 8, "fn_index": number, "session_hash": "a"}
            assert post(url, JOIN, data).status == 400
        named = {"component_id": 1, "fn_name": "x", "session_hash": "a"}
        assert post(url, "/gradio_api/component_server", {**named, "data": file}).status == 400
        escaped = json.dumps(file_at(f"{address}/f")).replace("path", "p\\u0061th")
        asking = f'{{"data": [{escaped}], "fn_index": 0, "session_hash": "a"}}'.encode()
        assert send(url, "POST", JOIN, asking, Content_Type=JSON).status == 400
        twice = b'{"data": [{"path": "/a", "path": "%s/g", "meta": {"_type": "gradio.FileData"}}]}'
        answer = send(url, "POST", JOIN, twice % address.encode(), Content_Type=JSON)
        assert answer.status == 400
        for route in ("/gradio_api/file=", "/gradio_api/file/", "/gradio_api/proxy=", "/file="):
            for method in ("GET", "HEAD"):
                found = send(url, method, f"{route}{address}/h")
                assert found.status == 403, route
                if method == "GET" and "proxy" not in route:
                    assert b"doesn't fetch addresses" in found.body
        send(url, "GET", "/gradio_api/queue/data?session_hash=a")
        assert asked == []


def test_path_with_a_url_is_not_downloaded(url: str) -> None:
    with listening() as (address, asked):
        for route in ("/gradio_api/file=", "/gradio_api/file/", "/file="):
            for method in ("GET", "HEAD"):
                answer = send(url, method, f"{route}{address}/300.bin")
                assert asked == [], (method, route)
                assert answer.status == 403


def test_gradio_itself_cannot_download() -> None:
    """The download functions are replaced, in case the middleware lets a request through."""
    code = """
    import asyncio, sys, tempfile
    import gradio as gr
    from gradio import blocks, processing_utils, routes
    from ui.parts.access_gradio import DOWNLOADS, disable_downloads
    there = [n for n in DOWNLOADS if hasattr(processing_utils, n) or hasattr(routes, n)]
    assert there == list(DOWNLOADS), there
    disable_downloads()
    box = gr.Textbox()
    file = {"path": sys.argv[1], "meta": {"_type": "gradio.FileData"}}
    for call in (
        lambda: asyncio.run(processing_utils.async_move_files_to_cache([file], box)),
        lambda: processing_utils.move_files_to_cache([file], box),
        lambda: asyncio.run(routes.secure_url_stream_response(sys.argv[1], None)),
        lambda: asyncio.run(processing_utils.async_ssrf_protected_get(sys.argv[1])),
        lambda: processing_utils.unsafe_download(sys.argv[1], tempfile.mkdtemp()),
    ):
        try:
            call()
        except gr.Error as error:
            assert "doesn't fetch" in str(error)
        else:
            raise AssertionError("it was fetched")
    """
    with listening() as (address, asked):
        subprocess.run(
            [sys.executable, "-c", dedent(code), f"{address}/x"], check=True, timeout=120
        )
        assert asked == []


def test_body_of_the_wrong_type_or_size_is_refused_with_an_explanation(url: str) -> None:
    form = "multipart/form-data; boundary=x"
    for path in (JOIN, "/gradio_api/component_server", "/login", "/gradio_api/cancel"):
        answer = send(url, "POST", path, b"--x--\r\n", Content_Type=form)
        assert answer.status == 415, path
        assert b"Expected: Content-Type" in answer.body
    assert post(url, "/gradio_api/upload", {}).status == 415
    answer = send(url, "POST", JOIN, b"{}", Content_Type=JSON, Content_Length=str(9 << 20))
    assert answer.status == 413
    assert "at most 8388608 bytes" in json.loads(answer.body)["detail"]
    deep = b"[" * 100_000 + b"]" * 100_000
    for body in (b"[" * 100 + b"]" * 100, deep, b"\xff{}", b"{", b'{"a": 1, "a": 2}'):
        answer = send(url, "POST", JOIN, body, Content_Type=JSON)
        assert answer.status == 400, body[:20]
        assert "What to do" in json.loads(answer.body)["detail"]
    assert send(url, "GET", "/config", b"{}").status == 400
    assert send(url, "GET", "/config?" + "x" * 10_000).status == 414
    assert send(url, "GET", "/config", **{f"X-{n}": "1" for n in range(200)}).status == 431
    assert send(url, "GET", "/config").status == 200, "it goes on"


def test_too_large_or_aborted_upload_leaves_no_files(url: str, place: Path) -> None:
    kind = "multipart/form-data; boundary=x"
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\n'
    whole = send(url, "POST", "/gradio_api/upload", head + b"text\r\n--x--\r\n", Content_Type=kind)
    assert whole.status == 200
    uploads = place / "cache" / "uploads"
    [path] = json.loads(whole.body)
    assert Path(path).read_text() == "text"
    kept = sorted(uploads.rglob("*"))
    answer = send(
        url, "POST", "/gradio_api/upload", head, Content_Type=kind, Content_Length=str(5 << 30)
    )
    assert answer.status == 413
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        lines = f"POST /gradio_api/upload HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: {kind}"
        connection.sendall(f"{lines}\r\nContent-Length: {1 << 30}\r\n\r\n".encode())
        connection.sendall(head + b"x" * (1 << 20))
        deadline = time.monotonic() + 20
        while sorted(uploads.rglob("*")) == kept:
            assert time.monotonic() < deadline, "the upload began"
            time.sleep(0.05)
    while sorted(uploads.rglob("*")) != kept:
        assert time.monotonic() < deadline, "what was broken off is deleted"
        time.sleep(0.05)
