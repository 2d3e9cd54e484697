"""Shared set-up of Gradio events."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from ui import present

# Without `show_progress_on`, Gradio's frontend still walks all outputs at each step of every event.
QUIET: dict[str, Any] = {
    "show_progress": "hidden",
    "show_progress_on": [],
    "api_visibility": "private",
}


def listen(
    event: Callable[..., Any],
    handler: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    **options: Any,
) -> None:
    """Registers a handler that returns one value per output; its errors become notices.

    Gradio assigns a whole return value to a single output, even a list of one.
    """

    @functools.wraps(handler)
    def assign(*values: Any) -> Any:
        updates = list(handler(*values))
        if len(updates) != len(outputs):
            raise ValueError(f"{handler} returns {len(updates)} values for {len(outputs)} outputs")
        return updates[0] if len(updates) == 1 else updates

    event(present.guarded(assign), list(inputs), list(outputs), **{**QUIET, **options})


def separate_events(page: gr.Blocks) -> None:
    """Gives each handler of a shared event its own event.

    With `trigger_mode="always_last"` Gradio repeats an event for all its handlers; two concurrent
    ones would trigger each other forever.
    """
    followers: dict[tuple[int | None, str], list[Any]] = defaultdict(list)
    for handler in page.fns.values():
        if handler.fn is not None and handler.trigger_mode == "always_last":
            for event in handler.targets:
                followers[event].append(handler)
    # Load events are not repeated.
    shared = {
        event: handlers
        for event, handlers in followers.items()
        if len(handlers) > 1 and event[1] != "load"
    }
    relays: dict[int, Any] = {}
    for event, handlers in shared.items():
        for handler in handlers:
            relays.setdefault(handler._id, gr.JSON(visible=False))
            handler.targets = [target for target in handler.targets if target != event]
        outputs = [relays[handler._id] for handler in handlers]
        component: Any = page.blocks[event[0]] if event[0] is not None else page
        relay = f"() => studio.relay({len(outputs)})"
        getattr(component, event[1])(None, None, outputs, js=relay, **QUIET)
    for handler in page.fns.values():
        if handler._id in relays:
            handler.targets = [*handler.targets, (relays[handler._id]._id, "change")]
