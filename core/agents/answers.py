"""Turns what a tool returns or raises into an answer that an agent can read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError

from core.errors import StudioError, from_os_error
from core.messages.redaction import redact, redact_values


def answering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a tool's errors readable for an agent, and its answer plain JSON without secrets."""
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def answer_later(*arguments: Any, **named: Any) -> Any:
            with _explaining():
                return _plain(await function(*arguments, **named))

        return answer_later

    @wraps(function)
    def answer(*arguments: Any, **named: Any) -> Any:
        with _explaining():
            return _plain(function(*arguments, **named))

    return answer


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except StudioError as error:
        raise ToolError(redact(str(error))) from error
    except OSError as error:
        raise ToolError(redact(str(from_os_error(error)))) from error


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(nested) for nested in value]
    return value if isinstance(value, Image) else _finite(redact_values(value))


def _finite(value: Any) -> Any:
    """Replaces numbers that JSON lacks by their names."""
    if isinstance(value, dict):
        return {name: _finite(nested) for name, nested in value.items()}
    if isinstance(value, list):
        return [_finite(nested) for nested in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
