"""Errors become notices and answers; their texts are escaped."""

import logging
from typing import Any

import gradio as gr
import pytest

from core.errors import CorpusError
from ui import present

SCRIPT = "<script>alert(1)</script>"


def test_notice_contains_all_parts_of_the_error() -> None:
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


def test_unexpected_error_is_logged_but_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise KeyError("a secret")

    with caplog.at_level(logging.ERROR), pytest.raises(gr.Error) as error:
        present.guarded(fail)()
    assert "a secret" in caplog.text
    assert "Traceback" in caplog.text
    assert "a secret" not in error.value.message


def test_server_function_returns_an_error_as_its_answer() -> None:
    def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise CorpusError("No text", fix="add some")

    answer = present.answering(fail)({})
    assert answer["problem"]["problem"] == "No text"
    assert answer["problem"]["fix"] == "add some"


def test_malformed_question_to_a_server_function_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def look_up(question: dict[str, Any]) -> dict[str, Any]:
        return {"found": question["missing"]}

    answer = present.answering(look_up)([1, 2, 3])
    assert "found" not in answer
    assert "missing" not in str(answer)
    assert "missing" in caplog.text
