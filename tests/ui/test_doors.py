"""Other websites can't act here through the visitor's browser."""

import asyncio
from typing import Any

import pytest

from ui.parts.doors import OwnPagesOnly, is_local


def status_of(method: str, *, local_names_only: bool = True, **headers: str) -> int:
    sent: list[dict[str, Any]] = []

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {
        "type": "http",
        "method": method,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    door = OwnPagesOnly(behind, local_names_only=local_names_only)
    asyncio.run(door(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "[::1]:7860"])
def test_the_studios_own_page_may_act(host: str) -> None:
    assert status_of("POST", host=host, origin=f"http://{host}") == 200


def test_programs_may_act() -> None:
    assert status_of("POST", host="127.0.0.1:7860") == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1.evil.example"],
)
def test_other_websites_may_not(origin: str) -> None:
    assert status_of("POST", host="127.0.0.1:7860", origin=origin) == 403
    assert status_of("DELETE", host="127.0.0.1:7860", origin=origin) == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "", "[", "10.0.0.7:7860"])
def test_names_pointed_at_this_machine_are_refused(host: str) -> None:
    assert status_of("GET", host=host) == 403


def test_behind_a_password_any_name_will_do() -> None:
    assert status_of("GET", local_names_only=False, host="studio.example") == 200
    refused = status_of(
        "POST", local_names_only=False, host="studio.example", origin="http://evil.example"
    )
    assert refused == 403


def test_what_is_local() -> None:
    assert all(map(is_local, ("localhost", "127.0.0.1", "127.8.8.8", "::1")))
    assert not any(map(is_local, ("0.0.0.0", "10.0.0.1", "example.org", "")))
