"""Shared set-up of the page's events."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from ui import present

# For events that show no progress. Without `show_progress_on`, Gradio's page would keep account of
# it for all their outputs all the same, and go through them at each step of each other event.
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
    """Registers a handler that returns a sequence with one value for each output.

    Gradio assigns the whole return value of a handler to its output where there is only one, so a
    list of one value would become that value.

    Args:
        event: The component's event, such as `button.click`.
        handler: Takes the values of `inputs`. Its errors become notices.
        inputs: The components whose values the handler takes.
        outputs: The components that it updates, in the order of what it returns. Their number may
            depend on a config model.
        **options: More options of the event.
    """

    @functools.wraps(handler)
    def assign(*values: Any) -> Any:
        updates = list(handler(*values))
        if len(updates) != len(outputs):
            raise ValueError(f"{handler} returns {len(updates)} values for {len(outputs)} outputs")
        return updates[0] if len(updates) == 1 else updates

    event(present.guarded(assign), list(inputs), list(outputs), **{**QUIET, **options})


def separate_events(page: gr.Blocks) -> None:
    """Gives each of several handlers that follow the same event an event of its own.

    A handler that runs when its event comes again is called once more afterwards
    (`trigger_mode="always_last"`). Gradio's page then repeats the event, for all its handlers. Two
    handlers that run at the same time so call each other for ever.

    Args:
        page: A page with all its handlers. Its context must be open.
    """
    followers: dict[tuple[int | None, str], list[Any]] = defaultdict(list)
    for handler in page.fns.values():
        if handler.fn is not None and handler.trigger_mode == "always_last":
            for event in handler.targets:
                followers[event].append(handler)
    # Events of the page's load are not repeated.
    shared = {
        event: handlers
        for event, handlers in followers.items()
        if len(handlers) > 1 and event[1] != "load"
    }
    relays: dict[int, Any] = {}
    for event, handlers in shared.items():
        for handler in handlers:
            relays.setdefault(handler._id, gr.JSON(visible=False))
            handler.targets = [one for one in handler.targets if one != event]
        outputs = [relays[handler._id] for handler in handlers]
        component: Any = page.blocks[event[0]] if event[0] is not None else page
        relay = f"() => studio.relay({len(outputs)})"
        getattr(component, event[1])(None, None, outputs, js=relay, **QUIET)
    for handler in page.fns.values():
        if handler._id in relays:
            handler.targets = [*handler.targets, (relays[handler._id]._id, "change")]
