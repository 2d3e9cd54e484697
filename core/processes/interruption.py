"""Lets a check interrupt calls that block, such as those to a host that doesn't answer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_SECONDS = 1.0


@contextmanager
def interrupted_by(check: Callable[[], None]) -> Iterator[None]:
    """Calls a check every second; what it raises ends the block, whatever that waits for.

    Without effect in other threads than the main one, and where something else has set an alarm.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGALRM) not in (signal.SIG_DFL, None):
        yield
        return
    signal.signal(signal.SIGALRM, lambda *_: check())
    signal.setitimer(signal.ITIMER_REAL, _EVERY_SECONDS, _EVERY_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
