"""Disk usage by artifact, and deletion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from core.config.base import fingerprint_of
from core.runs.client import delete_artifact
from core.runs.disk_usage import ArtifactUsage, DiskUsage, list_artifact_usage, measure_disk_usage
from core.store import ArtifactRow, Store
from core.workspace.kinds import artifact_kinds, find_kind
from core.workspace.manifests import Artifact
from core.workspace.names import check_name
from core.workspace.workspace import Workspace
from ui.assets import script
from ui.parts.markup import byte_count, count, empty_state
from ui.present import answering

_OTHER = "Database, cache, uploads"
_MOST_NAMES = 4
_EMPTY = empty_state(
    "Nothing is stored yet",
    "Tokenizers, shards and models of this workspace appear here with their sizes.",
    tab="home",
    link="Train a model",
)
_TEMPLATE = f"""
<div class="ps-disk-empty" hidden>{_EMPTY}</div>
<section class="ps-disk" aria-label="Disk usage" hidden>
  <h3 class="ps-subheading">Disk usage</h3>
  <p class="ps-note ps-disk-total"></p>
  <div class="ps-disk-parts" aria-hidden="true"></div>
  <ul class="ps-disk-legend"></ul>
  <div class="ps-disk-problem" aria-live="polite"></div>
  <div class="ps-scroll">
  <table class="ps-table ps-disk-table" aria-label="Artifacts, the newest first">
    <thead><tr><th scope="col">Artifact</th><th scope="col">Size</th>
    <th scope="col">Made</th><th scope="col">Links</th>
    <th scope="col"><span class="ps-spoken">Delete</span></th></tr></thead>
    <tbody></tbody>
  </table>
  </div>
</section>
"""


def render(workspace: Workspace, store: Store) -> None:
    """Renders the section."""
    gr.HTML(
        html_template=_TEMPLATE,
        js_on_load=script("disk.js"),
        server_functions=[_list_function(workspace, store), _delete_function(workspace)],
    )


def _list_function(workspace: Workspace, store: Store) -> Callable[..., dict[str, Any]]:
    @answering
    def disk_use(question: dict[str, Any]) -> dict[str, Any]:
        made = store.list_artifacts()
        listed = {
            "artifacts": [
                _describe(use, store, _maker_of(use.artifact, made))
                for use in list_artifact_usage(workspace, store)
            ],
            **_totals(measure_disk_usage(workspace)),
        }
        seen = fingerprint_of(listed)
        return {} if seen == question.get("seen") else {**listed, "seen": seen}

    return disk_use


def _delete_function(workspace: Workspace) -> Callable[..., dict[str, Any]]:
    @answering
    def delete_one(question: dict[str, Any]) -> dict[str, Any]:
        kind, name = str(question["kind"]), str(question["name"])
        # A path could delete outside this workspace.
        check_name(name)
        delete_artifact(workspace, kind, name)
        return {}

    return delete_one


def _totals(use: DiskUsage) -> dict[str, Any]:
    parts = [
        {
            "part": part,
            "title": _title_of_part(part),
            "bytes": size,
            "size": byte_count(size),
        }
        for part, size in use.parts.items()
        if size
    ]
    total, free = byte_count(use.total_bytes), byte_count(use.free_bytes)
    return {"parts": parts, "total": f"This workspace takes {total}; {free} are free."}


def _title_of_part(part: str) -> str:
    if part in artifact_kinds():
        return find_kind(part).plural_label
    return "Runs" if part == "runs" else _OTHER


def _describe(use: ArtifactUsage, store: Store, maker: str) -> dict[str, Any]:
    artifact, run = use.artifact, store.get_run(maker)
    return {
        "kind": artifact.kind,
        "name": artifact.name,
        "title": find_kind(artifact.kind).label,
        "size": byte_count(use.bytes),
        "location": artifact.manifest.location,
        "created": artifact.manifest.created,
        "run": run.id if run else "",
        "made_from": _listed([_called(artifact) for artifact in use.made_from]),
        "turned_into": _listed([_called(artifact) for artifact in use.turned_into]),
        "needed_by": _listed([f"{row.id} ({row.state})" for row in use.needed_by]),
    }


def _maker_of(artifact: Artifact, made: Sequence[ArtifactRow]) -> str:
    """Matches the fingerprint, as the folder may have been renamed."""
    known = (artifact.kind, artifact.fingerprint)
    alike = [row for row in made if (row.kind, row.fingerprint) == known]
    named = [row for row in alike if row.name == artifact.name]
    return next((row.run_id for row in named or alike), "")


def _called(artifact: Artifact) -> str:
    return f"{find_kind(artifact.kind).label.lower()} {artifact.name}"


def _listed(names: list[str]) -> str:
    """Joins names: a, b, c, d and 3 more."""
    more = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES])
    return f"{shown} and {count(more)} more" if more > 0 else shown
