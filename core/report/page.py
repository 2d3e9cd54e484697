"""Writes a run's report as self-contained HTML without scripts."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from core.config.base import StageConfig
from core.config.metrics import is_share
from core.errors import StudioError
from core.records.events import read_attempts
from core.records.folder import RunFolder
from core.report.curves import Curve, draw_curves
from core.report.settings import list_settings
from core.report.titles import accuracy_title
from core.runs.client import config_of
from core.runs.commands import shell_line
from core.runs.duration import run_seconds
from core.stages.registry import title_of_stage
from core.store import RunRow, Store
from core.workspace.atomic import write_atomically
from core.workspace.kinds import artifact_kinds
from core.workspace.manifests import Artifact, read_manifest
from core.workspace.names import expand_path
from core.workspace.workspace import Workspace

_MOST_POINTS = 1000
_CURVES = {
    "loss": "training loss",
    "eval_loss": "validation loss",
    "learning_rate": "learning rate",
    "tokens_per_second": "tokens a second",
    "eval_accuracy": "accuracy",
}
# Shown first; others follow by name.
_FIGURES = {
    "eval_loss": ("Validation loss", "nats"),
    "frequency_baseline_loss": ("Unigram baseline", "nats"),
    "eval_perplexity": ("Perplexity", ""),
    "eval_accuracy": ("Accuracy", ""),
    "num_train_steps": ("Steps", ""),
    "best_step": ("Best step", ""),
    "tokens": ("Tokens read", ""),
    "parameters": ("Parameters", ""),
    "seconds": ("Time in steps and validation", "seconds"),
    "url": ("Address", ""),
    "space_url": ("Address of the Space", ""),
    "repo_id": ("Hub id", ""),
    "bytes": ("Size", "bytes"),
}


def write_report(workspace: Workspace, run_id: str, path: str | Path) -> Path:
    """Writes a run's report to a file; raises RunError."""
    store = Store.open(workspace)
    try:
        text = report_page(workspace, store, store.find_run(run_id))
    finally:
        store.close()
    target = expand_path(path)
    write_atomically(target, text)
    return target


def _unnamed(config: StageConfig) -> StageConfig:
    """Clears the artifact name, which can't be used twice."""
    return config.model_copy(update={"name": ""}) if getattr(config, "name", "") else config


def report_page(workspace: Workspace, store: Store, row: RunRow) -> str:
    environment = Environment(
        loader=PackageLoader("core.report", "."), autoescape=True, undefined=StrictUndefined
    )
    config = config_of(row)
    made = _artifact_of(row)
    folder = RunFolder.of(workspace, row.id)
    attempts = read_attempts(folder.events)
    return environment.get_template("report.html").render(
        title=f"{title_of_stage(row.stage)} {row.name}".strip(),
        run=row,
        began=_when(attempts[0][0] if attempts else row.started),
        took=_duration(run_seconds(workspace, row) if row.ended else None),
        verdict=_verdict(row.results),
        figures=list(_figures(row.results, accuracy_title(row.config))),
        pictures=list(_pictures(store, row)),
        device=folder.device(),
        settings=list_settings(config, folder.resolved()) if config else sorted(row.config.items()),
        origin=list(_origin(workspace, made)),
        versions=sorted(made.manifest.versions.items()) if made else [],
        command=shell_line(row.stage, _unnamed(config)) if config else "",
        written=_when(time.time()),
    )


def _artifact_of(row: RunRow) -> Artifact | None:
    try:
        return Artifact(Path(row.artifact), read_manifest(Path(row.artifact)))
    except (StudioError, OSError):
        return None


def _figures(results: dict[str, Any], accuracy: str = "Accuracy") -> Iterator[tuple[str, str, str]]:
    known = {**_FIGURES, "eval_accuracy": (accuracy, "")}
    names = [*known, *(name for name in sorted(results) if name not in known)]
    for name in names:
        title, unit = known.get(name, (name.replace("_", " ").capitalize(), ""))
        value = results.get(name)
        if isinstance(value, str) and (not value or "\n" in value):
            continue
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            is_percent = is_share(name) and not isinstance(value, str)
            yield title, f"{100 * value:.1f} %" if is_percent else _number(value), unit


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    if not math.isfinite(value) or value != round(value):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,.0f}"


def _verdict(results: dict[str, Any]) -> str:
    loss, baseline = results.get("eval_loss"), results.get("frequency_baseline_loss")
    if not isinstance(loss, int | float) or not isinstance(baseline, int | float):
        return ""
    gain = float(baseline) - float(loss)
    level = f"the unigram baseline ({baseline:.2f}), the loss of predicting from token counts alone"
    return f"{gain:.2f} nats below {level}." if gain > 0 else f"Not below {level}."


def _pictures(store: Store, row: RunRow) -> Iterator[tuple[str, str]]:
    points, _ = store.sample_metrics(row.id, list(_CURVES), _MOST_POINTS)
    curves = {
        name: _curve(label, points[name], faint=name == "loss")
        for name, label in _CURVES.items()
        if name in points
    }
    if losses := [curves.pop(name) for name in ("loss", "eval_loss") if name in curves]:
        baseline = store.latest_metrics(row.id).get("frequency_baseline_loss")
        yield "Loss", _address(draw_curves(losses, baseline=baseline, form="svg"))
    titles = {"eval_accuracy": accuracy_title(row.config)}
    for name, curve in curves.items():
        title = titles.get(name, curve.name.capitalize())
        yield (
            title,
            _address(draw_curves([curve], form="svg", y_label=curve.name, share=is_share(name))),
        )


def _curve(label: str, points: list[tuple[int, float]], *, faint: bool) -> Curve:
    return Curve(label, [step for step, _ in points], [value for _, value in points], faint)


def _address(drawing: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(drawing).decode("ascii")


def _origin(workspace: Workspace, made: Artifact | None) -> Iterator[tuple[str, str, str]]:
    if made is None:
        return
    yield made.kind, made.name, made.fingerprint
    for kind, fingerprint in made.manifest.inputs.items():
        yield kind, _name_of(workspace, kind, fingerprint), fingerprint


def _name_of(workspace: Workspace, kind: str, fingerprint: str) -> str:
    if kind not in artifact_kinds():
        return ""
    artifact = workspace.find_made(kind, fingerprint)
    return artifact.name if artifact else ""


def _when(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds)) if seconds else ""


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h" if hours else "", f"{minutes} min" if minutes else "", f"{rest} s"]
    return " ".join(part for part in parts if part)
