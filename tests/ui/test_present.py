"""Errors become notices; nothing that came from outside becomes markup."""

import logging
from typing import Any

import gradio as gr
import pytest

from core.errors import CorpusError
from ui import present

SCRIPT = "<script>alert(1)</script>"


def test_a_notice_says_all_the_error_says() -> None:
    error = CorpusError("No text", expected="a file", received="a folder", fix="name a file")
    shown = present.notice(error)
    for part in ("a file", "a folder", "name a file"):
        assert part in shown.message
    assert "No text" in shown.message


def test_texts_in_errors_are_escaped() -> None:
    error = CorpusError(f"No {SCRIPT}", received=SCRIPT)
    shown = present.notice(error)
    assert SCRIPT not in shown.message
    assert SCRIPT not in present.error_card(error)


def test_what_nobody_foresaw_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise KeyError("a secret")

    with caplog.at_level(logging.ERROR), pytest.raises(gr.Error) as error:
        present.guarded(fail)()
    assert "a secret" in caplog.text
    assert "Traceback" in caplog.text
    assert "a secret" not in error.value.message


def test_a_script_gets_an_error_as_an_answer() -> None:
    def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise CorpusError("No text", fix="add some")

    answer = present.answering(fail)({})
    assert answer["problem"]["problem"] == "No text"
    assert answer["problem"]["fix"] == "add some"


def test_a_script_that_asks_nonsense_gets_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    def look_up(question: dict[str, Any]) -> dict[str, Any]:
        return {"found": question["missing"]}

    answer = present.answering(look_up)([1, 2, 3])
    assert "found" not in answer
    assert "missing" not in str(answer)
    assert "missing" in caplog.text
