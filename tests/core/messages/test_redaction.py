"""Tokens and passwords are redacted in every output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from sqlalchemy.engine import make_url

from core.errors import StudioError
from core.messages.redaction import (
    HIDDEN,
    RedactingStream,
    parse_logins,
    redact,
    redact_forms,
)
from core.records.events import EventLog, read_events
from ui import present

TOKEN = "hf_" + "aB3dE5gH7jK9" * 3


@pytest.mark.parametrize("token", [TOKEN, "hf_oauth_" + "x1" * 20, "hf_jwt_" + "Ab9" * 12])
def test_tokens_are_redacted_anywhere_in_a_text(token: str) -> None:
    assert redact(f"https://user:{token}@host, Bearer {token}.") == (
        f"https://user:{HIDDEN}@host, Bearer {HIDDEN}."
    )


def test_text_that_resembles_a_token_is_kept() -> None:
    text = "hf_hub_download and hf_token of huggingface_hub; HF_TOKEN isn't set"
    assert redact(text) == text


def test_secrets_of_the_environment_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-token-of-another-kind")
    monkeypatch.setenv("STUDIO_AUTH", "ann:long-password,ben:long-password-2")
    monkeypatch.setenv("STUDIO_DATABASE_URL", "postgresql+psycopg://me:db-password@host/studio")
    text = "a-token-of-another-kind long-password-2 long-password db-password ann"
    assert redact(text) == f"{HIDDEN} {HIDDEN} {HIDDEN} {HIDDEN} ann"


def test_short_database_password_is_redacted_in_urls_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = "postgresql+psycopg://me:studio@host/runs"
    monkeypatch.setenv("STUDIO_DATABASE_URL", address)
    assert redact(f"/srv/studio/rows of {address}") == (
        f"/srv/studio/rows of postgresql+psycopg://me:{HIDDEN}@host/runs"
    )


def test_numbers_in_events_are_kept_although_a_password_has_their_digits(
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


def test_unparsable_database_url_is_redacted_entirely(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "postgresql://me:db-password@[host/studio"
    monkeypatch.setenv("STUDIO_DATABASE_URL", address)
    assert redact(f"not {address}.") == f"not {HIDDEN}."


def test_events_and_output_hold_no_token(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("note", text=f"401 for {TOKEN}")
    log.close()
    [line] = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["text"] == f"401 for {HIDDEN}"
    output = io.StringIO()
    print("refused:", TOKEN, file=RedactingStream(output))  # type: ignore[call-overload]
    assert output.getvalue() == f"refused: {HIDDEN}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_log_on_a_full_disk_loses_lines_and_ends_no_process() -> None:
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", closefd=False)
    for text in ("one", "x" * 100_000):
        print(text, file=RedactingStream(full, is_log=True), flush=True)  # type: ignore[call-overload]
    with pytest.raises(OSError, match="No space left"):
        print("one", file=RedactingStream(full), flush=True)  # type: ignore[call-overload]


def test_output_does_not_control_the_terminal() -> None:
    output = io.StringIO()
    foreign = (
        "\x1b]52;c;YQ==\x07\x1b[2K\rdone \x9b31m \x85\u202e\u2028\u2066\x7f\x0b\tä\u3000🙂\r\n"
    )
    print(foreign, end="", file=RedactingStream(output))  # type: ignore[call-overload]
    assert output.getvalue() == "?]52;c;YQ==??[2K\ndone ?31m ??????\tä\u3000🙂\n"


def test_messages_to_users_hold_no_token() -> None:
    error = StudioError(f"{TOKEN} failed", expected=TOKEN, received=TOKEN, fix=f"not {TOKEN}")
    shown = [present.error_card(error), str(present.notice(error)), str(present.describe(error))]
    with pytest.raises(Exception, match="failed") as told:
        present.telling_programs(lambda: (_ for _ in ()).throw(error))()
    for text in (*shown, str(told.value)):
        assert TOKEN not in text
        assert HIDDEN in text


PASSWORDS = [
    "p@ss-word-1", "p@:/#%s@w0rd", "a@b", "s3cr3t/with/slashes", "half#of?it&all", "100%sure%41",
    "pw", "spaces in it", "ends-in-@", "@begins", "umläut-pässword",
]  # fmt: skip


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("spelling", [str, lambda text: quote(text, safe=""), quote_plus])
def test_database_password_is_redacted_in_every_encoding(
    password: str, spelling: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"postgresql+psycopg://me:{spelling(password)}@db.example:5432/studio"
    monkeypatch.setenv("STUDIO_DATABASE_URL", address)
    forms = {password, quote(password, safe=""), quote_plus(password)}
    texts = [
        f"can't reach {address}",
        f"decoded: postgresql://me:{password}@db.example/studio",
        f"encoded: postgresql://me:{quote(password, safe='')}@db.example/studio",
        f"password={password} host=db.example",
        f"{{'password': {password!r}}}",
        f'FATAL: password "{password}" of me is wrong',
    ]
    with suppress(ValueError):  # SQLAlchemy parses some of them differently, and some not at all.
        url = make_url(address)
        forms.add(str(url.password))
        texts.append(f'could not translate host name "{url.host}" to address')
        texts.append(url.render_as_string(hide_password=False))
        texts.append(str(url))
    for text in texts:
        shown = redact(text)
        for form in filter(None, forms):
            assert f":{form}@" not in shown
            assert f"={form} " not in shown
            assert f"'{form}'" not in shown
            assert f'"{form}"' not in shown
            assert len(form) < 8 or form not in shown
        # A program that ends the password at an earlier @ reads the rest as part of the host.
        last = password.rpartition("@")[2] if spelling is str else password
        assert not last or f"{last}@db.example" not in shown


@pytest.mark.parametrize("name", ["password", "sslpassword"])
def test_password_in_url_parameters_is_redacted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"postgresql://db.example/studio?user=me&{name}=long%2Fp%40ssword&sslmode=require"
    monkeypatch.setenv("STUDIO_DATABASE_URL", address)
    shown = redact(f"no connection to {address}: FATAL for long/p@ssword")
    assert "ssword" not in shown.replace(name, "")
    assert "user=me" in shown
    assert "sslmode=require" in shown


def test_cli_prints_no_part_of_a_database_password(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "STUDIO_DATABASE_URL": "postgresql+psycopg://me:first@second@nowhere.invalid/studio",
    }
    command = [sys.executable, "-m", "core", "runs", "list", "--workspace", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    for part in ("first", "second"):
        assert part not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "name",
    ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "WANDB_API_KEY", "MY_SERVICE_PASSWORD",
     "SOME_SECRET", "AZURE_STORAGE_KEY", "PGPASSWORD", "SENTRY_AUTH_TOKEN"],
)  # fmt: skip
def test_secrets_of_other_services_are_redacted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "wJalrXUt/nFEMI+K7MDENG")
    assert redact("refused wJalrXUt/nFEMI+K7MDENG here") == f"refused {HIDDEN} here"
    assert redact("?s=wJalrXUt%2FnFEMI%2BK7MDENG") == f"?s={HIDDEN}"


def test_proxy_password_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:pr0xy-p@ssword@proxy.example:3128")
    assert "ssword" not in redact("ProxyError: http://me:pr0xy-p@ssword@proxy.example:3128")


def test_ordinary_text_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDIO_DATABASE_URL", "postgresql://me:a/data@db.example/studio")
    text = "train data/train.txt at http://127.0.0.1:7860/x@main, ann@db.example; key=value a=1"
    assert redact(text) == text


def test_anonymous_users_cannot_confirm_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right and wrong guesses get the same answer, apart from the guess itself."""
    monkeypatch.setenv("STUDIO_MODEL", "/models/demo")
    monkeypatch.setenv("HF_TOKEN", "the-real-secret")
    for guess in ("the-real-secret", "a-wrong-guess--"):
        error = StudioError("The text has no mask", received=f"{guess!r}, lower-cased {guess}")
        shown = [
            present.error_card(error),
            str(present.notice(error)),
            str(present.describe(error)),
        ]
        assert all(text.count(guess) == 2 and HIDDEN not in text for text in shown)
        assert redact_forms(guess) == guess


def test_users_own_input_is_shown_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDIO_AUTH", "ann:first-password,ben:other-password")

    def refuse(text: str) -> None:
        raise StudioError(f"No {text!r} here", received="first-password of somebody")

    def refuse_later(text: str) -> Iterator[str]:
        yield "a"
        refuse(text)

    for guess in ("other-password", "wrong-password"):
        with pytest.raises(Exception, match=guess) as told:
            present.guarded(refuse)(guess)
        assert "first-password" not in str(told.value)
        with pytest.raises(Exception, match=guess):
            list(present.guarded_stream(refuse_later)(guess))
        with pytest.raises(Exception, match=guess):
            present.telling_programs(refuse)(guess)
    assert "other-password" not in present.error_card(StudioError("other-password"))


def test_logins_are_parsed() -> None:
    assert parse_logins("") == []
    assert parse_logins("ann:a:b, ben:c\ncid: d ") == [("ann", "a:b"), ("ben", "c"), ("cid", " d")]


@pytest.mark.parametrize("text", ["ann", "ann:", ":x", "ann:x,ben", "ann:x,ann:y", "ann:x\n:y"])
def test_incomplete_login_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"entry|twice") as error:
        parse_logins(text)
    assert "x" not in str(error.value).replace("entry", "")
