"""A drop zone: files are kept in the workspace, and their path is shown in a field of a form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from core.config.corpus import CorpusConfig
from core.workspace.workspace import Workspace
from ui import present
from ui.assets import script
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.parts.labels import relabel
from ui.parts.uploads import KeptUploads, keep_files, keep_uploads, remove_upload


@dataclass(frozen=True)
class UploadZone:
    """A drop zone.

    Attributes:
        listing: The kept files, with their problems.
        held: Path and folder of the kept files.
    """

    upload: gr.File
    listing: gr.HTML
    held: gr.JSON


def render_zone(
    id: str, label: str, *, classes: Sequence[str] = (), is_multiple: bool = True, height: int = 150
) -> UploadZone:
    """Renders a drop zone.

    Args:
        id: Prefix of element ids.
        height: In pixels.
    """
    # Any suffix: unreadable files are listed, the rest used.
    upload = gr.File(
        label=label,
        file_count="multiple" if is_multiple else "single",
        height=height,
        elem_id=f"{id}-upload",
        elem_classes=["ps-upload", *classes],
    )
    listing = gr.HTML(
        "",
        js_on_load=script("upload.js"),
        elem_id=f"{id}-files",
        elem_classes=["ps-upload-files", *classes],
        zone=f"{id}-upload",
        label=label,
    )
    return UploadZone(upload, listing, gr.JSON({}, visible=False))


def connect_zone(
    zone: UploadZone,
    form: Form[Any],
    field: str,
    config_of: Callable[..., CorpusConfig] | None,
    workspace: Workspace,
    *,
    when: Sequence[Any] = (),
    offered: Mapping[str, Any] | None = None,
) -> None:
    """Keeps uploaded files in the workspace and shows their path in a field.

    Args:
        config_of: Returns how the files are read, to check and list them, from the form's inputs;
            None: the form shows their problems itself.
        when: More triggers.
        offered: Menus of columns, by any name.
    """
    path, menus = form.components[field], list((offered or {}).values())

    def follow(files: Any, held: Any, *raw: Any) -> list[Any]:
        before = held if isinstance(held, dict) else {}
        skipped = [gr.skip()] * len(menus)
        if not files and not before:
            return [gr.skip()] * 3 + skipped
        if not files:
            is_shown = form.shown(raw[0])[field] == before.get("path")
            remove_upload(str(before.get("folder", "")), workspace)
            return ["" if is_shown else gr.skip(), {}, "", *skipped]
        listed = [files] if isinstance(files, str) else files
        if config_of is None:
            kept_path = keep_files(listed, workspace)
            folder, shown, columns = Path(kept_path).parent, "", []
            if Path(kept_path).is_dir():
                folder = Path(kept_path)
        else:
            kept = keep_uploads(listed, config_of(*raw), workspace)
            kept_path, folder, shown, columns = kept.path, kept.folder, _list(kept), kept.columns
        remove_upload(str(before.get("folder", "")), workspace)
        return [
            kept_path,
            {"path": kept_path, "folder": str(folder)},
            shown,
            *[offer_columns(columns)] * len(menus),
        ]

    handler = gr.on(
        [getattr(zone.upload, "change"), *when],  # noqa: B009
        present.guarded(follow),
        [zone.upload, zone.held, *form.inputs],
        [path, zone.held, zone.listing, *menus],
        trigger_mode="always_last",
        **QUIET,
    )
    handler.then(
        None, js=f"() => studio.uploadEnded?.[{json.dumps(zone.upload.elem_id)}]?.()", **QUIET
    )


def offer_columns(columns: Sequence[str]) -> Any:
    """Returns the update of a menu of columns."""
    return gr.update(choices=list(columns)) if columns else gr.skip()


def _list(kept: KeptUploads) -> str:
    read = len(kept.sizes) - len(kept.problems)
    rows = [
        (name, markup.byte_count(size), relabel(kept.problems.get(name, "Ready"), CorpusConfig))
        for name, size in kept.sizes.items()
    ]
    total = f"{read} of {len(rows)} uploaded {'file' if len(rows) == 1 else 'files'}"
    return (
        f'<p class="ps-note"><b>{total} can be read.</b> Add more files above; × removes one.</p>'
        + markup.table(("File", "Size", "Status"), rows, label="Uploaded files")
    )  # fmt: skip
