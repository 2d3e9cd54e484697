"""With a password nobody else gets anything: not the page, not a file, not an endpoint."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError, AuthenticationError

from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from tests.ui.strangers import Stranger, gradio_routes, ways_to
from ui.parts.access import by_sign_in
from ui.parts.access_login import Passwords

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


def test_a_stranger_gets_nothing_on_any_route(stranger: Stranger) -> None:
    for method, path in gradio_routes():
        answer = stranger.ask(method, path, {} if method == "POST" else None)
        assert path in OPEN or answer.status == 401, (method, path)
    for path in ("//config", "/./config", "/config/../config", "/CONFIG", "/login/../config"):
        assert stranger.ask("GET", path).status == 401, path
    page = stranger.ask("GET", "/")
    assert page.status == 401
    assert b"Sign in" in page.body


def test_a_stranger_calls_nothing(stranger: Stranger) -> None:
    for number in range(80):
        question = {"fn_index": number, "data": [], "session_hash": "stranger"}
        assert stranger.ask("POST", "/gradio_api/queue/join", question).status == 401
        question = {"component_id": number, "fn_name": "ask", "data": {}, "session_hash": "x"}
        assert stranger.ask("POST", "/gradio_api/component_server", question).status == 401
    for target in (Path("/etc/passwd"), Path("/proc/self/environ")):
        for path in ways_to(target):
            assert stranger.ask("GET", path).status in (400, 401, 404), path


def test_who_knows_the_password_gets_in_but_to_no_file(url: str, place: Path) -> None:
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


def test_programs_sign_in(url: str) -> None:
    with pytest.raises(AuthenticationError):
        Client(url, verbose=False)
    client = Client(url, auth=("ann", "open sesame"), verbose=False)
    with pytest.raises(AppError, match="There is no model called 'nowhere'"):
        client.predict("nowhere", "a <mask>", 5, api_name="/fill_mask")


def give_password(visitor: Visitor, password: str) -> None:
    visitor.page.get_by_label("Name").fill("ann")
    visitor.page.get_by_label("Password").fill(password)
    visitor.page.get_by_role("button", name="Sign in").click()


@pytest.mark.slow
def test_a_person_signs_in(url: str) -> None:
    find_chromium()
    with visiting(url) as visit:
        visitor = visit(ready="form")
        give_password(visitor, "wrong")
        visitor.page.get_by_text("Wrong name or password.").wait_for()
        give_password(visitor, "open sesame")
        visitor.page.wait_for_selector(".ps-strip b, .ps-strip-text")
        for tab in ("Tokenizer", "Shards", "Train", "Runs", "Playground", "Corpus"):
            visitor.open(tab)
        refused = [text for text in visitor.errors if "401" in text or "400" in text]
        assert visitor.errors == refused, "but for the page and the password that were refused"
        assert visitor.outside == []


@pytest.mark.slow
def test_a_proxy_that_hides_the_host_is_named_at_the_sign_in(url: str) -> None:
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
def test_an_open_page_asks_for_the_password_again_where_nobody_knows_it(url: str) -> None:
    find_chromium()
    with visiting(url) as visit:
        visitor = visit(ready="form")
        give_password(visitor, "open sesame")
        visitor.page.wait_for_selector(".ps-strip b, .ps-strip-text")
        visitor.page.context.clear_cookies()
        visitor.page.get_by_label("Password").wait_for()
        give_password(visitor, "open sesame")
        visitor.page.wait_for_selector(".ps-strip b, .ps-strip-text")


def test_wrong_passwords_take_a_while() -> None:
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
def test_owners_who_are_signed_in_are_known(session: dict[str, Any], name: str | None) -> None:
    assert by_sign_in(["ann"])({"session": session}) == name
