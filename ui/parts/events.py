"""What the page's events have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

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
