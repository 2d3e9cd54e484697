"""Makes calls of `tokenizers` stoppable and its panics catchable."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core.errors import TokenizerError
from core.events import Reporter

_POLL_SECONDS = 0.2


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


def run_native(
    call: Callable[[], object],
    reporter: Reporter,
    note: str,
    begun: Callable[[], bool] = lambda: True,
) -> None:
    """Runs a call in a thread, and abandons it on a stop request.

    Args:
        begun: Until true, the call reports by itself.

    Raises:
        RunStopped: The abandoned call continues.
        TokenizerError: The call panicked.
    """
    errors: list[BaseException] = []
    thread = threading.Thread(target=_run, args=(call, errors), daemon=True)
    start = time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        reporter.raise_if_stopped()
        if begun():
            reporter.progress(round(time.monotonic() - start, 1), None, "seconds", note)
    if errors:
        with native_calls("The tokenizer can't be trained on this text"):
            raise errors[0]


def _run(call: Callable[[], object], errors: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - re-raised in the waiting thread
        errors.append(error)
