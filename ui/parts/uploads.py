"""Uploaded files: a drop zone, the list of its files, and their folder in the workspace."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from core.config import CorpusConfig
from core.corpus.previewing import CheckedFiles
from core.errors import CorpusError, StudioError
from core.store import Store
from core.workspace import Workspace
from core.workspace.places import make_folder
from ui import present
from ui.assets import script
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.parts.labels import relabel

_KEPT_FOR_RUNS = ("queued", "running", "stopping", "stopped", "failed", "lost")
_JSON = re.compile(r"\.json(\.\w+)?$", re.IGNORECASE)
_UNSAFE = re.compile(r"[^\w.-]+")

# Returns the problems of files, and the first table's columns.
Check = Callable[[Sequence[Path]], CheckedFiles]


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
    check: Callable[..., Check],
    workspace: Workspace,
    *,
    when: Sequence[Any] = (),
    offered: Mapping[str, Any] | None = None,
    is_listed: bool = True,
) -> None:
    """Keeps uploaded files in the workspace and shows their path in a field.

    Args:
        check: Takes the form's inputs and returns the check of the files.
        when: More triggers.
        offered: Menus of columns, by any name.
        is_listed: Whether the files are listed with their sizes and problems.
    """
    path, menus = form.components[field], list((offered or {}).values())

    def follow(files: Any, held: Any, *raw: Any) -> list[Any]:
        before = held if isinstance(held, dict) else {}
        skipped = [gr.skip()] * len(menus)
        if not files and not before:
            return [gr.skip()] * 3 + skipped
        if not files:
            is_shown = form.shown(raw[0])[field] == before.get("path")
            remove_uploads(str(before.get("folder", "")), workspace)
            return ["" if is_shown else gr.skip(), {}, "", *skipped]
        listed = [files] if isinstance(files, str) else files
        kept = keep_uploads(listed, check(*raw), workspace)
        remove_uploads(str(before.get("folder", "")), workspace)
        found = offer_columns(kept.columns)
        return [
            kept.path,
            {"path": kept.path, "folder": str(kept.folder)},
            _list(kept) if is_listed else "",
            *[found] * len(menus),
        ]

    gr.on(
        [getattr(zone.upload, "change"), *when],  # noqa: B009
        present.guarded(follow),
        [zone.upload, zone.held, *form.inputs],
        [path, zone.held, zone.listing, *menus],
        trigger_mode="always_last",
        **QUIET,
    )


def offer_columns(columns: Sequence[str]) -> Any:
    """Returns the update of a menu of columns."""
    return gr.update(choices=list(columns)) if columns else gr.skip()


@dataclass(frozen=True)
class KeptUploads:
    """Uploaded files kept in the workspace.

    Attributes:
        path: For the form; readable files only.
        sizes: Bytes, by name.
        problems: By name; these files move to `.refused` unless all fail.
        columns: From the first readable table.
    """

    folder: Path
    path: str
    sizes: dict[str, int]
    problems: dict[str, str]
    columns: list[str]


def keep_uploads(files: Sequence[str], check: Check, workspace: Workspace) -> KeptUploads:
    """Keeps uploaded files, unreadable ones apart."""
    path = _keep(files, workspace)
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    kept = sorted(folder.iterdir())
    sizes = {one.name: one.stat().st_size for one in kept}
    try:
        found = check(kept)
    except StudioError as error:
        found = CheckedFiles(dict.fromkeys(kept, str(error)), [])
    problems = {one.name: text for one, text in found.problems.items()}
    if problems and len(problems) < len(kept):
        _set_aside(folder, problems)
        path = _path_of(folder)
    return KeptUploads(folder, path, sizes, problems, found.columns)


def _set_aside(folder: Path, names: Iterable[str]) -> None:
    """Moves files to a hidden folder, which isn't read."""
    refused = folder / ".refused"
    refused.mkdir(exist_ok=True)
    for name in names:
        (folder / name).rename(refused / name)


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


def remove_uploads(folder: str, workspace: Workspace) -> None:
    """Removes a folder of uploads unless a run that may still start reads it."""
    path = Path(folder)
    if not folder or path.parent != workspace.uploads or path.is_symlink() or not path.is_dir():
        return
    if not _is_used(folder, workspace):
        shutil.rmtree(path, ignore_errors=True)


def _is_used(folder: str, workspace: Workspace) -> bool:
    store = Store.open(workspace)
    try:
        configs = [row.config for row in store.list_runs(limit=100_000, states=_KEPT_FOR_RUNS)]
        configs += [dict(row.payload) for row in store.pending_requests()]
    finally:
        store.close()
    return any(folder in json.dumps(one, ensure_ascii=False) for one in configs)


def _keep(files: Sequence[str] | None, workspace: Workspace) -> str:
    if not files:
        raise CorpusError("No file came with the upload", fix="choose the files again")
    folder = _new_folder(workspace.uploads / time.strftime("%Y%m%d-%H%M%S"))
    for source in map(Path, files):
        name = _safe_name(source.name)
        _take_over(source, _free_path(folder / (_beside_others(name) if len(files) > 1 else name)))
    return _path_of(folder)


def _beside_others(name: str) -> str:
    """.json and .zip are read only alone."""
    if name.lower().endswith(".zip"):
        return name if Path(name).stem.endswith(".txt") else f"{name[:-4]}.txt.zip"
    return _JSON.sub(r".jsonl\1", name)


def _path_of(folder: Path) -> str:
    kept = sorted(one for one in folder.iterdir() if one.is_file())
    if len(kept) == 1:
        return str(kept[0])
    # A folder path skips its .md files.
    return str(folder / "*" if any(".md" in path.suffixes for path in kept) else folder)


def _new_folder(wanted: Path) -> Path:
    folder, numbers = wanted, itertools.count(2)
    while True:
        try:
            make_folder(folder.parent)
            folder.mkdir()
            return folder
        except FileExistsError:
            folder = wanted.with_name(f"{wanted.name}-{next(numbers)}")


def _take_over(source: Path, target: Path) -> None:
    """Corpora can be large: link on the same file system, else copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _free_path(path: Path) -> Path:
    candidates = [path, *(path.with_name(f"{number}-{path.name}") for number in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())


def _safe_name(name: str) -> str:
    return _UNSAFE.sub("_", name).lstrip(".") or "file.txt"
