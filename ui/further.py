"""The tab of a further stage, which `STUDIO_STAGES` adds: its form, and what it has made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from core.stages.registry import Stage
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from ui import present
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.parts.stage import Forecast, Launcher, main_column, side_column, workbench


def render(stage: Stage, workspace: Workspace, line: gr.HTML) -> Launcher:
    """Renders the tab and returns its launcher.

    Args:
        line: Its `artifacts` event reports new artifacts.
    """
    form: Form[Any] = Form(stage.config, stage.name, workspace, check=stage.check_config)
    launcher = Launcher(
        stage.name, form, workspace, lambda config: Forecast(stage.title),
        lambda config: stage.title,
    )  # fmt: skip
    with workbench():
        with main_column(), gr.Column(elem_classes=["ps-card"]):
            form.render()
        with side_column():
            launcher.render_facts()
            launcher.render_start("Start")
    listed = gr.HTML(markup.SKELETON, elem_id=f"{stage.name}-list")
    line.artifacts(
        present.guarded(lambda: _table(stage, workspace.list(stage.artifact_kind))),
        None, listed, **QUIET,
    )  # fmt: skip
    return launcher


def _table(stage: Stage, artifacts: Sequence[Artifact]) -> str:
    if not artifacts:
        return markup.empty_state("Nothing yet", "What this stage makes appears here.")
    names = [metric.name for metric in stage.metrics]
    headings = ("Name", *(metric.title or metric.name for metric in stage.metrics), "Created")
    rows = [
        (
            artifact.name,
            *(_figure(artifact.manifest.counts.get(name)) for name in names),
            markup.date(artifact.manifest.created),
        )
        for artifact in artifacts
    ]
    return markup.table(headings, rows, label=stage.title)


def _figure(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float) else "–"
