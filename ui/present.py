"""The one place where an error becomes something a person sees.

A StudioError is shown with all it says. Anything else is a bug: it is logged with its traceback,
and the page says so without details.
"""

from __future__ import annotations

import functools
import html
import logging
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from core.errors import StudioError
from core.redaction import redact

logger = logging.getLogger("studio.page")

UNEXPECTED = StudioError(
    "Something went wrong that the studio didn't foresee",
    fix="try again; what happened is in the log of the app, in the terminal it was started from",
)


def escape(text: object) -> str:
    """Returns text that is safe to put into HTML, attributes included."""
    return html.escape(str(text), quote=True)


def notice(error: StudioError) -> gr.Error:
    """Returns an error to raise from a handler; Gradio shows it as a notice until it is closed."""
    lines = [f"<b>{label}:</b> {escape(text)}" for label, text in _parts(error)]
    return gr.Error(
        "<br>".join([escape(redact(error.problem)), *lines]), duration=None, print_exception=False
    )


def unexpected(error: Exception) -> gr.Error:
    """Logs an error that nobody foresaw and returns the notice to raise."""
    logger.error("A handler of the page failed", exc_info=error)
    return notice(UNEXPECTED)


def guarded(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an event handler so that its errors become notices."""

    @functools.wraps(handler)
    def wrapper(*args: Any) -> Any:
        try:
            return handler(*args)
        except StudioError as error:
            raise notice(error) from error
        except gr.Error:
            raise
        except Exception as error:
            raise unexpected(error) from error

    return wrapper


def guarded_stream(handler: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    """Wraps an event handler that yields, so that its errors become notices."""

    @functools.wraps(handler)
    def wrapper(*args: Any) -> Iterator[Any]:
        try:
            yield from handler(*args)
        except StudioError as error:
            raise notice(error) from error
        except gr.Error:
            raise
        except Exception as error:
            raise unexpected(error) from error

    return wrapper


def telling_programs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that programs call, so that its errors reach them as plain text."""

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except StudioError as error:
            raise gr.Error(redact(str(error)), print_exception=False) from error
        except Exception as error:
            logger.exception("A program's call failed")
            raise gr.Error(str(UNEXPECTED), print_exception=False) from error

    return wrapper


def answering(function: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    """Wraps a function that the page's scripts call, so that errors come back as an answer.

    The script gets `{"problem": {problem, expected, received, fix}}`.
    """

    @functools.wraps(function)
    def wrapper(question: Any) -> dict[str, Any]:
        try:
            return function(question if isinstance(question, dict) else {})
        except StudioError as error:
            return {"problem": describe(error)}
        except Exception:
            logger.exception("A question of the page's scripts failed")
            return {"problem": describe(UNEXPECTED)}

    return wrapper


def describe(error: StudioError) -> dict[str, str]:
    """Returns an error's parts as plain text."""
    return {
        "problem": redact(error.problem),
        "expected": redact(error.expected),
        "received": redact(error.received),
        "fix": redact(error.fix),
    }


def error_card(error: StudioError) -> str:
    """Returns an error as HTML, for the place where the result would have been."""
    lines = "".join(f"<p><b>{name}:</b> {escape(text)}</p>" for name, text in _parts(error))
    title = escape(redact(error.problem))
    return f'<div class="ps-error" role="alert"><strong>{title}</strong>{lines}</div>'


def _parts(error: StudioError) -> list[tuple[str, str]]:
    parts = [("Expected", error.expected), ("Received", error.received), ("What to do", error.fix)]
    return [(label, redact(text)) for label, text in parts if text]
