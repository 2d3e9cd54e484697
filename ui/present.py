"""The one place that shows errors to users.

A StudioError is shown completely; anything else is a bug, logged with its traceback and shown
without details.
"""

from __future__ import annotations

import functools
import html
import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar
from typing import Any

import gradio as gr

from core.errors import ConfigError, StudioError
from core.messages.redaction import redact, redact_forms
from core.processes.environment import MODEL_VARIABLE
from core.workspace.names import is_run_id
from ui.parts.labels import relabel

logger = logging.getLogger("studio.page")

UNEXPECTED = StudioError(
    "An unexpected error occurred",
    fix="try again; what happened is in the log of the app, in the terminal it was started from",
)

# Placeholder of an optional field.
UNSET = "not set"

# Strings of the current request.
_sent: ContextVar[tuple[str, ...]] = ContextVar("sent", default=())


class NotReadyError(ConfigError):
    """A start that waits for one action.

    Attributes:
        action: Words of the button, "Check … first".
        is_begun: Whether the user has entered something; before, the button alone tells of it.
    """

    def __init__(self, problem: str, *, action: str, is_begun: bool = True, **parts: Any) -> None:
        super().__init__(problem, **parts)
        self.action = action
        self.is_begun = is_begun


def escape(text: object) -> str:
    """Escapes text for HTML, attributes too."""
    return html.escape(str(text), quote=True)


def is_link(address: object) -> bool:
    """Returns whether a stored value may become a link: a web page, or a part of this page."""
    return isinstance(address, str) and address.startswith(("https://", "http://", "#"))


@contextmanager
def sent_by_user(values: Any) -> Iterator[None]:
    """Shows these values' strings to their sender unredacted, within the block.

    So errors don't reveal if one holds a secret.
    """
    token = _sent.set(tuple(_strings_in(values)))
    try:
        yield
    finally:
        _sent.reset(token)


def hide_secrets(text: str) -> str:
    """Redacts secrets; in a demo, only what looks like one."""
    return redact_forms(text) if os.environ.get(MODEL_VARIABLE) else redact(text, _sent.get())


def _shows_back(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        with sent_by_user((args, options)):
            return function(*args, **options)

    return wrapper


def _shows_back_stream(function: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    """Separate because Gradio detects generator functions by kind."""

    @functools.wraps(function)
    def wrapper(*args: Any) -> Iterator[Any]:
        yield from _stream(function(*args), args)

    return wrapper


def _stream(values: Iterator[Any], sent: Any) -> Iterator[Any]:
    """Each step may run in another thread's context."""
    with ExitStack() as stack:
        if isinstance(values, Generator):
            stack.enter_context(closing(values))
        while True:
            with sent_by_user(sent):
                try:
                    value = next(values)
                except StopIteration as end:
                    return end.value
            yield value


def _strings_in(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from _strings_in(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _strings_in(value)


def notice(error: StudioError) -> gr.Error:
    """Returns an error to raise; Gradio's notice stays until closed."""
    lines = [f"<b>{label}:</b> {escape(text)}" for label, text in _parts(error)]
    return gr.Error(
        "<br>".join([escape(describe(error)["problem"]), *lines]),
        duration=None,
        print_exception=False,
    )


def unexpected(error: Exception) -> gr.Error:
    """Logs a bug and returns the notice to raise."""
    logger.error("A handler of the page failed", exc_info=error)
    return notice(UNEXPECTED)


def guarded(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Turns a handler's errors into notices."""

    @_shows_back
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
    """Turns a generator handler's errors into notices."""

    @_shows_back_stream
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
    """Gives an API function's errors to programs as plain text."""

    @_shows_back
    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except StudioError as error:
            raise gr.Error(hide_secrets(str(error)), print_exception=False) from error
        except Exception as error:
            logger.exception("A program's call failed")
            raise gr.Error(str(UNEXPECTED), print_exception=False) from error

    return wrapper


def answering(function: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
    """Returns errors to scripts as `{"problem": {problem, expected, received, fix}}`."""

    @_shows_back
    @functools.wraps(function)
    def wrapper(question: Any) -> dict[str, Any]:
        try:
            return function(question if isinstance(question, dict) else {})
        except StudioError as error:
            return {"problem": describe(error)}
        except Exception:
            logger.exception("A request of the web app's scripts failed")
            return {"problem": describe(UNEXPECTED)}

    return wrapper


def run_of(question: Mapping[str, Any]) -> str:
    """Returns the run that a question names by its id, which may be abbreviated.

    On the command line, some functions take the address of a mirror as well: with it, a visitor
    could read and write folders of this machine, and connect to any host.
    """
    run = str(question.get("run", ""))
    if not is_run_id(run):
        raise ConfigError(
            "That can't be a run's id",
            expected="the id of a run of this workspace",
            received=ascii(run)[:100],
            fix="choose a run in the list; resume one of a mirror with: studio runs resume ADDRESS",
        )
    return run


def describe(error: StudioError) -> dict[str, str]:
    """Returns an error's parts as relabelled plain text."""
    return {part: hide_secrets(text) for part, text in error.rendered(relabel).items()}


def error_card(error: StudioError) -> str:
    """Renders an error in place of a result."""
    lines = "".join(f"<p><b>{name}:</b> {escape(text)}</p>" for name, text in _parts(error))
    title = escape(describe(error)["problem"])
    return f'<div class="ps-error" role="alert"><strong>{title}</strong>{lines}</div>'


def _parts(error: StudioError) -> list[tuple[str, str]]:
    shown = describe(error)
    labels = {"expected": "Expected", "received": "Received", "fix": "What to do"}
    return [(label, shown[part]) for part, label in labels.items() if shown[part]]
