"""Tokens and passwords are nowhere but where they were given."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from core.errors import StudioError
from core.events import EventLog, read_events
from core.redaction import (
    HIDDEN,
    RedactingStream,
    for_other_processes,
    for_strangers,
    parse_logins,
    redact,
)
from core.runs.worker import child_environment
from ui import present

TOKEN = "hf_" + "aB3dE5gH7jK9" * 3


@pytest.mark.parametrize("token", [TOKEN, "hf_oauth_" + "x1" * 20, "hf_jwt_" + "Ab9" * 12])
def test_tokens_are_hidden_wherever_they_stand(token: str) -> None:
    assert redact(f"https://user:{token}@host, Bearer {token}.") == (
        f"https://user:{HIDDEN}@host, Bearer {HIDDEN}."
    )


def test_what_only_looks_like_a_token_stays() -> None:
    text = "hf_hub_download and hf_token of huggingface_hub; HF_TOKEN isn't set"
    assert redact(text) == text


def test_the_environments_secrets_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-token-of-another-kind")
    monkeypatch.setenv("STUDIO_AUTH", "ann:long-password,ben:long-password-2")
    monkeypatch.setenv("STUDIO_DATABASE_URL", "postgresql+psycopg://me:db-password@host/studio")
    text = "a-token-of-another-kind long-password-2 long-password db-password ann"
    assert redact(text) == f"{HIDDEN} {HIDDEN} {HIDDEN} {HIDDEN} ann"


def test_a_short_password_of_a_database_is_hidden_in_addresses_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = "postgresql+psycopg://me:studio@host/runs"
    monkeypatch.setenv("STUDIO_DATABASE_URL", address)
    assert redact(f"/srv/studio/rows of {address}") == (
        f"/srv/studio/rows of postgresql+psycopg://me:{HIDDEN}@host/runs"
    )


def test_events_stay_what_they_are_beside_a_password_of_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_AUTH", "ann:2345")
    log = EventLog(tmp_path / "events.jsonl")
    log.append("metrics", step=123456, values={"loss": 0.12345, "of": None}, on=[True, "a 2345"])
    log.append("note", message=f"2345 {TOKEN}", path=Path("/x/2345"), **{TOKEN: 1})
    log.close()
    events, _ = read_events(tmp_path / "events.jsonl")
    assert [one["n"] for one in events] == [1, 2]
    assert events[0]["values"] == {"loss": 0.12345, "of": None}
    assert (events[0]["step"], events[0]["on"]) == (123456, [True, f"a {HIDDEN}"])
    assert events[1]["message"] == f"{HIDDEN} {HIDDEN}"
    assert (events[1]["path"], events[1][HIDDEN]) == (f"/x/{HIDDEN}", 1)


def test_an_address_that_cannot_be_read_is_hidden_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "postgresql://me:db-password@[host/studio"
    monkeypatch.setenv("STUDIO_DATABASE_URL", address)
    assert redact(f"not {address}.") == f"not {HIDDEN}."


def test_events_and_output_hold_no_token(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("message", text=f"401 for {TOKEN}")
    log.close()
    [line] = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["text"] == f"401 for {HIDDEN}"
    output = io.StringIO()
    print("refused:", TOKEN, file=RedactingStream(output))  # type: ignore[call-overload]
    assert output.getvalue() == f"refused: {HIDDEN}\n"


def test_what_a_person_sees_holds_no_token() -> None:
    error = StudioError(f"{TOKEN} failed", expected=TOKEN, received=TOKEN, fix=f"not {TOKEN}")
    shown = [present.error_card(error), str(present.notice(error)), str(present.describe(error))]
    with pytest.raises(Exception, match="failed") as told:
        present.telling_programs(lambda: (_ for _ in ()).throw(error))()
    for text in (*shown, str(told.value)):
        assert TOKEN not in text
        assert HIDDEN in text


def test_other_processes_do_not_get_what_only_the_app_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = {"STUDIO_AUTH": "a:b", "HF_TOKEN": "t", "HF_HOME": "/h", "PATH": "/bin"}
    assert for_other_processes(environment) == {"HF_TOKEN": "t", "HF_HOME": "/h", "PATH": "/bin"}
    assert for_strangers(environment) == {"HF_HOME": "/h", "PATH": "/bin"}
    monkeypatch.setenv("STUDIO_AUTH", "a:b")
    assert "STUDIO_AUTH" not in child_environment()


def test_names_and_passwords_are_read() -> None:
    assert parse_logins("") == []
    assert parse_logins("ann:a:b, ben:c\ncid: d ") == [("ann", "a:b"), ("ben", "c"), ("cid", " d")]


@pytest.mark.parametrize("text", ["ann", "ann:", ":x", "ann:x,ben", "ann:x,ann:y", "ann:x\n:y"])
def test_half_a_login_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"entry|twice") as error:
        parse_logins(text)
    assert "x" not in str(error.value).replace("entry", "")
