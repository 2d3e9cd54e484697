"""What the page's events have in common."""

from __future__ import annotations

from typing import Any

# For events that show no progress. Without `show_progress_on`, Gradio's page would keep account of
# it for all their outputs all the same, and go through them at each step of each other event.
QUIET: dict[str, Any] = {
    "show_progress": "hidden",
    "show_progress_on": [],
    "api_visibility": "private",
}
