"""Password protection: anonymous users reach no tab, no file and no endpoint."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError, AuthenticationError

from core.network.logins import LoginLimits
from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from tests.ui.strangers import Answer, Stranger, gradio_routes, send, ways_to
from ui.parts.access import by_sign_in
from ui.parts.access_login import Passwords

pytestmark = pytest.mark.slow(3)

OPEN = ("/", "/login", "/login/", "/gradio_api/startup-events")
LOGINS = "ann:open sesame, ben:another:one"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studio") / "workspace"


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    with running_app(place, STUDIO_AUTH=LOGINS) as url:
        (place / "secret.txt").write_text("the-loot-of-the-workspace")
        yield url


@pytest.fixture(scope="module")
def stranger(url: str, place: Path) -> Stranger:
    loot = [b"the-loot-of-the-workspace", b"SQLite format 3", b"root:x:0", b"open sesame"]
    return Stranger(url, [*loot, b"fill_mask", b"dependencies", str(place).encode()])


def sign_in(url: str, name: str, password: str) -> tuple[int, str]:
    """Returns the status and the cookies."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    form = urlencode({"username": name, "password": password})
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/login", form, kind)
    response = connection.getresponse()
    return response.status, "; ".join(
        value.split(";")[0] for name, value in response.getheaders() if name == "set-cookie"
    )


def test_anonymous_user_gets_nothing_on_any_route(stranger: Stranger) -> None:
    for method, path in gradio_routes():
        answer = stranger.ask(method, path, {} if method == "POST" else None)
        assert path in OPEN or answer.status == 401, (method, path)
    for path in ("//config", "/./config", "/config/../config", "/CONFIG", "/login/../config"):
        assert stranger.ask("GET", path).status == 401, path
    page = stranger.ask("GET", "/")
    assert page.status == 401
    assert b"Sign in" in page.body


def test_anonymous_user_calls_no_function(stranger: Stranger) -> None:
    for number in range(80):
        question = {"fn_index": number, "data": [], "session_hash": "stranger"}
        assert stranger.ask("POST", "/gradio_api/queue/join", question).status == 401
        question = {"component_id": number, "fn_name": "ask", "data": {}, "session_hash": "x"}
        assert stranger.ask("POST", "/gradio_api/component_server", question).status == 401
    for target in (Path("/etc/passwd"), Path("/proc/self/environ")):
        for path in ways_to(target):
            assert stranger.ask("GET", path).status in (400, 401, 404), path


def test_signed_in_user_reaches_the_web_app_but_no_file(url: str, place: Path) -> None:
    assert sign_in(url, "ann", "another:one")[0] == 400
    assert sign_in(url, "carl", "open sesame")[0] == 400
    for name, password in (("ann", "open sesame"), ("ben", "another:one")):
        status, cookies = sign_in(url, name, password)
        assert status == 200
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    for path, wanted in (
        ("/config", 200),
        (f"/gradio_api/file={place / 'studio.db'}", 403),
        (f"/gradio_api/file={place / 'secret.txt'}", 403),
        ("/gradio_api/file=/etc/passwd", 403),
    ):
        connection.request("GET", path, headers={"Cookie": cookies})
        response = connection.getresponse()
        response.read()
        assert response.status == wanted, path


def test_api_client_signs_in(url: str) -> None:
    with pytest.raises(AuthenticationError):
        Client(url, verbose=False)
    client = Client(url, auth=("ann", "open sesame"), verbose=False)
    with pytest.raises(AppError, match="The model 'nowhere' was not found"):
        client.predict("nowhere", "a <mask>", 5, api_name="/fill_mask")


def give_password(visitor: Visitor, password: str) -> None:
    visitor.page.get_by_label("Name").fill("ann")
    visitor.page.get_by_label("Password").fill(password)
    visitor.page.get_by_role("button", name="Sign in").click()


@pytest.mark.slow
@pytest.mark.long
def test_user_signs_in_in_a_browser(url: str) -> None:
    find_chromium()
    with visiting(url) as visit:
        visitor = visit(ready="form")
        give_password(visitor, "wrong")
        visitor.page.get_by_text("Wrong name or password.").wait_for()
        sentence = {"detail": "Too many wrong passwords. What to do: wait 9 seconds."}
        visitor.page.route("**/login", lambda route: route.fulfill(status=429, json=sentence))
        give_password(visitor, "open sesame")
        visitor.page.get_by_text("wait 9 seconds").wait_for()
        visitor.page.unroute("**/login")
        give_password(visitor, "open sesame")
        visitor.page.wait_for_selector(".ps-strip b, .ps-strip-text")
        for tab in ("Tokenizer", "Shards", "Train", "Runs", "Playground", "Corpus"):
            visitor.open(tab)
        refused = [text for text in visitor.errors if re.search("40[01]|429", text)]
        assert visitor.errors == refused, "but for the page and the password that were refused"
        assert visitor.outside == []


@pytest.mark.slow
@pytest.mark.long
def test_sign_in_explains_a_proxy_that_hides_the_host(url: str) -> None:
    find_chromium()

    def pass_on(route: Any) -> None:
        headers = {**route.request.headers, "origin": "https://studio.example"}
        route.fulfill(response=route.fetch(headers=headers))

    with visiting(url) as visit:
        visitor = visit(ready="form")
        visitor.page.route("**/login", pass_on)
        give_password(visitor, "open sesame")
        visitor.page.get_by_text("A reverse proxy before it must pass the Host on").wait_for()


@pytest.mark.slow
@pytest.mark.long
def test_open_web_app_asks_for_the_password_again_without_its_cookie(url: str) -> None:
    find_chromium()
    with visiting(url) as visit:
        visitor = visit(ready="form")
        give_password(visitor, "open sesame")
        visitor.page.wait_for_selector(".ps-strip b, .ps-strip-text")
        visitor.page.context.clear_cookies()
        visitor.page.get_by_label("Password").wait_for()
        give_password(visitor, "open sesame")
        visitor.page.wait_for_selector(".ps-strip b, .ps-strip-text")


def cookies_of(url: str) -> str:
    return sign_in(url, "ann", "open sesame")[1]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_website_cannot_use_a_users_cookies(url: str, site: str) -> None:
    """A page on another port or a sibling subdomain sends the cookies along."""
    known = {"Cookie": cookies_of(url)}
    for mode in ("cors", "no-cors", "navigate", "websocket"):
        other = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": mode}
        for path in ("/config", "/gradio_api/token", "/gradio_api/info", "/logout", "/logout/"):
            assert send(url, "GET", path, **other, **known).status == 403, (mode, path)
    for origin in ("http://127.0.0.1:3000", "http://other.127.0.0.1:7860", "null"):
        answer = send(url, "GET", "/gradio_api/token", Origin=origin, **known)
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert send(url, "GET", "/config", **known).status == 200, "nobody was signed out"
    assert send(url, "GET", "/gradio_api/token", **known).status == 404, "no script gets the cookie"
    link = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert b"gradio" in send(url, "GET", "/", **link, **known).body, "a link opens the studio"


def login(url: str, password: str, source: str = "127.0.0.1", **headers: str) -> Answer:
    form = urlencode({"username": "ann", "password": password}).encode()
    kind = {"Content_Type": "application/x-www-form-urlencoded"}
    return send(url, "POST", "/login", form, source=source, **kind, **headers)


def test_cookies_are_hidden_from_scripts_and_other_websites(url: str) -> None:
    for headers, is_secure in (({}, False), ({"X_Forwarded_Proto": "https"}, True)):
        answer = login(url, "open sesame", **headers)
        given = answer.headers["set-cookie"].splitlines()
        assert len(given) == 2
        for cookie in given:
            attributes = [part.strip().lower() for part in cookie.split(";")]
            assert attributes.count("samesite=lax") == attributes.count("httponly") == 1
            assert ("secure" in attributes) == is_secure
            assert "samesite=none" not in attributes


def test_web_app_works_behind_an_https_proxy(url: str) -> None:
    """Sends the headers that docs/security.md names."""
    host = {"Host": "studio.example", "X_Forwarded_Proto": "https"}
    own = {"Origin": "https://studio.example", "Sec_Fetch_Site": "same-origin"}
    answer = login(url, "open sesame", **host, **own)
    assert answer.status == 200
    cookie = "; ".join(line.split(";")[0] for line in answer.headers["set-cookie"].splitlines())
    page = send(url, "GET", "/config", Cookie=cookie, **host)
    assert json.loads(page.body)["root"] == "https://studio.example"
    question = {"fn_index": 0, "data": [], "session_hash": "proxied"}
    asked = {"Content_Type": "application/json", "Cookie": cookie, **host, **own}
    body = json.dumps(question).encode()
    assert send(url, "POST", "/gradio_api/queue/join", body, **asked).status == 200


@pytest.mark.long
def test_large_or_slow_login_request_is_refused(url: str) -> None:
    kind = {"Content_Type": "multipart/form-data; boundary=x"}
    assert send(url, "POST", "/login", b"--x--", **kind).status == 415
    kind = {"Content_Type": "application/x-www-form-urlencoded"}
    answer = send(url, "POST", "/login", b"", Content_Length=str(512 << 20), **kind)
    assert answer.status == 413
    assert "at most 4096 bytes" in json.loads(answer.body)["detail"]
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        lines = f"POST /login HTTP/1.1\r\nHost: {parts.netloc}\r\nTransfer-Encoding: chunked\r\n"
        connection.sendall(f"{lines}Content-Type: {kind['Content_Type']}\r\n\r\n".encode())
        connection.sendall(b"10000\r\n" + b"x" * (64 << 10) + b"\r\n")
        assert b" 413 " in connection.recv(64)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(f"{lines}Content-Type: {kind['Content_Type']}\r\n\r\n1\r\n".encode())
        assert b" 408 " in connection.recv(64)


def test_wrong_passwords_are_rate_limited(url: str) -> None:
    with ThreadPoolExecutor(60) as pool:
        tried = list(pool.map(lambda n: login(url, f"w{n}", "127.0.0.9"), range(300)))
        assert [answer.status for answer in tried].count(400) <= 10
        refused = [answer for answer in tried if answer.status == 429]
        assert len(refused) >= 290
        assert 1 <= int(refused[0].headers["retry-after"]) <= 60
        assert "Too many wrong passwords" in json.loads(refused[0].body)["detail"]
        assert login(url, "open sesame", "127.0.0.9").status == 429, "nor is the right one"
        assert login(url, "open sesame", "127.0.0.8").status == 200, "its owner isn't locked out"
        # A client's X-Forwarded-For is ignored.
        forged = login(url, "open sesame", "127.0.0.9", X_Forwarded_For="127.0.0.7")
        assert forged.status == 429
        tried = list(pool.map(lambda n: login(url, f"w{n}", f"127.0.1.{n + 1}"), range(200)))
        assert [answer.status for answer in tried].count(400) <= 60
        assert login(url, "open sesame", "127.0.2.1").status == 429, "a new address has to wait"
        assert login(url, "open sesame", "127.0.0.8").status == 200, "one that was here hasn't"


def test_rate_limit_of_wrong_passwords_ends_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    limits = LoginLimits()
    for _ in range(10):
        assert limits.seconds_to_wait("ann", "10.0.0.1") == 0
        limits.count_wrong("ann", "10.0.0.1")
    wait = limits.seconds_to_wait("ann", "10.0.0.1")
    assert 1 <= wait <= 60
    assert limits.seconds_to_wait("ben", "10.0.0.1") == wait, "another name doesn't help"
    assert limits.seconds_to_wait("ann", "10.0.0.2") == 0
    for number in range(20):
        limits.count_wrong("ann", f"2001:db8:0:{number:x}::1")
    assert limits.seconds_to_wait("ann", "10.0.0.2") > 0, "the account's limit"
    assert limits.seconds_to_wait("ben", "10.0.0.2") == 0
    limits.remember("ann", "10.0.0.3")
    assert limits.seconds_to_wait("ann", "10.0.0.3") == 0
    for number in range(10):
        limits.count_wrong("ann", f"2001:db8:1:1::{number:x}")
    assert limits.seconds_to_wait("ann", "2001:db8:1:1::ffff") > 0, "a /64 is one address"
    monkeypatch.setattr(time, "time", lambda: now + 62)
    assert limits.seconds_to_wait("ann", "10.0.0.1") == 0


def test_wrong_password_is_refused_after_a_delay() -> None:
    passwords = Passwords([("ann", "a"), ("ben", "ü")])
    started = time.monotonic()
    assert asyncio.run(passwords.fits("ann", "a"))
    assert asyncio.run(passwords.fits("ben", "ü"))
    assert time.monotonic() - started < 0.5
    assert not asyncio.run(passwords.fits("ann", "ü"))
    assert time.monotonic() - started >= 1


@pytest.mark.parametrize(
    ("session", "name"),
    [
        ({}, None),
        ({"oauth_info": {"userinfo": {"preferred_username": "Ann"}, "expires_at": 9e9}}, "Ann"),
        ({"oauth_info": {"userinfo": {"preferred_username": "ann"}, "expires_at": 1}}, None),
        ({"oauth_info": {"userinfo": {"preferred_username": "eve"}, "expires_at": 9e9}}, None),
        ({"oauth_info": {"userinfo": {}, "expires_at": 9e9}}, None),
        ({"oauth_info": None}, None),
    ],
)
def test_signed_in_owner_is_recognised(session: dict[str, Any], name: str | None) -> None:
    assert by_sign_in(["ann"])({"session": session}) == name
