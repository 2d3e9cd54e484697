"""Lists artifacts with results, and shows those of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from core.workspace import Artifact, Workspace
from ui import present
from ui.parts import artifacts
from ui.parts.events import QUIET

_MOST_LISTED = 50


def render_results(
    workspace: Workspace,
    line: gr.HTML,
    *,
    id: str,
    title: str,
    nothing: str,
    find: Callable[[], Sequence[Artifact]],
    table: Callable[[Sequence[Artifact]], str],
    show: Callable[[Artifact], str],
) -> None:
    """Renders the list and a menu to choose from it.

    Args:
        line: Its `artifacts` event reports new artifacts.
        id: Prefix of element ids.
        nothing: Shown if there are none.
        find: Returns the artifacts, newest first.
        table: Renders the list.
        show: Renders the results of one.
    """
    gr.HTML(f'<h3 class="ps-subheading">{present.escape(title)}</h3>')
    with gr.Column(elem_classes=["ps-card"], visible=False) as card:
        chosen = gr.Dropdown([], label="Results of", elem_id=f"{id}-chosen", interactive=True)
        results = gr.HTML(elem_id=f"{id}-results")
    listed = gr.HTML(nothing, elem_id=f"{id}-list")
    known = gr.JSON([], visible=False)

    def refresh(current: str | None, before: list[str]) -> dict[Any, Any]:
        found = find()[:_MOST_LISTED]
        names = [one.name for one in found]
        value = artifacts.follow_newest(names, current or "", before)
        return {
            listed: table(found) if found else nothing,
            card: gr.update(visible=bool(found)),
            chosen: gr.update(choices=names, value=value or None),
            known: names,
            # A menu that only now appears reports no change.
            results: show_one(value),
        }

    def show_one(name: str | None) -> str:
        found = next((one for one in find() if one.name == name), None)
        return show(found) if found else ""

    line.artifacts(
        present.guarded(refresh), [chosen, known], [listed, card, chosen, known, results], **QUIET
    )
    chosen.change(present.guarded(show_one), chosen, results, **QUIET)
