"""Makes panics of `tokenizers` catchable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.errors import TokenizerError


@contextmanager
def native_calls(what: str = "The tokenizer can't process this text") -> Iterator[None]:
    """Turns errors and panics into TokenizerError."""
    try:
        yield
    except BaseException as error:
        if not (type(error) is Exception or is_panic(error)):
            raise
        raise TokenizerError(
            what,
            expected="a tokenizer with components that work together",
            received=str(error)[:200] or "an error without a message",
            fix="use another tokenizer, or train one here",
            field="tokenizer",
        ) from error


def is_panic(error: BaseException) -> bool:
    """Checks for a panic, whose class can't be imported."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)
