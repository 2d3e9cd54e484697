"""Long calls into native code, which hear of no stop request by themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from core.events import Reporter

_POLL_SECONDS = 0.2


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
        Exception: Whatever the call raises.
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
        raise errors[0]


def _run(call: Callable[[], object], errors: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
        errors.append(error)
