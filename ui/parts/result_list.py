"""Lists artifacts, and shows one that a menu chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr

from core.workspace.manifests import Artifact
from ui import present
from ui.parts import artifacts, markup
from ui.parts.events import QUIET

_MOST_LISTED = 50


def fill_list(
    line: gr.HTML,
    *,
    find: Callable[[], Sequence[Artifact]],
    table: Callable[[Sequence[Artifact]], str],
    nothing: str,
    listed: gr.HTML,
    card: gr.Column,
    chosen: gr.Dropdown,
    beside: tuple[gr.HTML, Callable[[str], str]] | None = None,
) -> None:
    """Fills a list and its menu, now and when artifacts change.

    Args:
        line: Its `artifacts` event reports new artifacts.
        find: Returns the artifacts, newest first.
        table: Renders the list.
        nothing: Shown if there are none.
        card: Visible if there is an artifact.
        beside: Something else to show for the chosen name, which is "" if there is none.
    """
    seen = gr.State([])

    def refresh(current: str | None, known: list[str]) -> dict[Any, Any]:
        listed_artifacts = find()
        names = [artifact.name for artifact in listed_artifacts]
        value = artifacts.follow_newest(names, current or "", known)
        return {
            listed: table(listed_artifacts) if listed_artifacts else nothing,
            card: gr.update(visible=bool(listed_artifacts)),
            chosen: gr.update(choices=names, value=value or None),
            seen: names,
            **({beside[0]: beside[1](value)} if beside else {}),
        }

    outputs = [listed, card, chosen, seen, *([beside[0]] if beside else [])]
    line.artifacts(present.guarded(refresh), [chosen, seen], outputs, **QUIET)


def render_results(
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
    listed = gr.HTML(markup.SKELETON, elem_id=f"{id}-list")

    def show_one(name: str | None) -> str:
        artifact = next((artifact for artifact in find() if artifact.name == name), None)
        return show(artifact) if artifact else ""

    fill_list(
        line, find=lambda: find()[:_MOST_LISTED], table=table, nothing=nothing, listed=listed,
        card=card, chosen=chosen,
        # A menu that only now appears reports no change.
        beside=(results, show_one),
    )  # fmt: skip
    chosen.change(present.guarded(show_one), chosen, results, **QUIET)


def results_table(
    listed_artifacts: Sequence[Artifact],
    *,
    origin: str,
    tasks: Mapping[str, str],
    headline: Callable[[Mapping[str, Any]], str],
    label: str,
) -> str:
    """Renders artifacts with their task and main figure.

    Args:
        origin: Heading of the model that each was made from.
        tasks: Titles by name.
        headline: Returns the main figure of an artifact's counts.
    """
    rows = []
    for artifact in listed_artifacts:
        counts = artifact.manifest.counts
        model, task = str(counts.get("model", "")), tasks.get(str(counts.get("task")), "")
        rows.append(
            (artifact.name, model, task, headline(counts), markup.date(artifact.manifest.created))
        )
    return markup.table(("Name", origin, "Task", "Result", "Created"), rows, label=label)
