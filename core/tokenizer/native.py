"""Calls into the native code of `tokenizers`.

What goes wrong in it becomes a TokenizerError. That includes its panics, which Python sees as a
BaseException that no `except Exception` catches. Long calls, which hear of no stop request by
themselves, run in a thread.
"""

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
    """Turns what `tokenizers` raises within the block into a TokenizerError.

    Args:
        what: What failed, in one sentence.

    Raises:
        TokenizerError: `tokenizers` raised an error of its own, or panicked. Other exceptions
            pass as they are.
    """
    try:
        yield
    except BaseException as error:
        if not (type(error) is Exception or is_panic(error)):
            raise
        raise TokenizerError(
            what,
            expected="a tokenizer whose parts fit each other",
            received=str(error)[:200] or "no reason",
            fix="use another tokenizer, or train one here",
            field="tokenizer",
        ) from error


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic of native code. Its class can't be imported."""
    return type(error).__name__ == "PanicException" and not isinstance(error, Exception)


def run_watched(
    call: Callable[[], object],
    reporter: Reporter,
    note: str,
    begun: Callable[[], bool] = lambda: True,
) -> None:
    """Makes a call in a thread, reports the seconds that pass, and leaves it when asked to stop.

    A call that is left goes on until it or the process ends; what it computes is lost.

    Args:
        call: What to call.
        reporter: Is told, and asked for a stop.
        note: What the call does.
        begun: Whether it does that yet; until then the call reports by itself.

    Raises:
        RunStopped: The reporter was asked to stop.
        TokenizerError: The call panicked.
        Exception: Whatever else the call raises.
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
    except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
        errors.append(error)
