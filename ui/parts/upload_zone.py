"""A drop zone: files are kept in the workspace, and their path is shown in a field of a form."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from core.config.corpus import CorpusConfig
from core.corpus.finding import is_text_of_unknown_kind
from core.corpus.previewing import CheckedFiles, check_files
from core.errors import CorpusError, StudioError
from core.store import Store
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace
from ui import present
from ui.assets import script
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.parts.labels import relabel

_KEPT_FOR_RUNS = ("queued", "running", "stopping", "stopped", "failed", "lost")
_JSON = re.compile(r"\.json(\.\w+)?$", re.IGNORECASE)
_UNSAFE = re.compile(r"[^\w.-]+")


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
        uploads = keep_uploads(listed, config_of(*raw) if config_of else None, workspace)
        remove_upload(str(before.get("folder", "")), workspace)
        return [
            uploads.path,
            {"path": uploads.path, "folder": str(uploads.folder)},
            _list(uploads) if config_of else "",
            *[offer_columns(uploads.columns)] * len(menus),
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


def _list(uploads: KeptUploads) -> str:
    read = len(uploads.sizes) - len(uploads.problems)
    rows = [
        (name, markup.byte_count(size), uploads.problems.get(name, "Ready"))
        for name, size in uploads.sizes.items()
    ]
    total = f"{read} of {len(rows)} uploaded {'file' if len(rows) == 1 else 'files'}"
    return (
        f'<p class="ps-note"><b>{total} can be read.</b> Add more files above; × removes one.</p>'
        + markup.table(("File", "Size", "Status"), rows, label="Uploaded files")
    )  # fmt: skip


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


def keep_uploads(
    files: Sequence[str], config: CorpusConfig | None, workspace: Workspace
) -> KeptUploads:
    """Keeps uploaded files, those that can't be read with a config apart."""
    path = keep_files(files, workspace)
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    if config is None:
        return KeptUploads(folder, path, {}, {}, [])
    paths = sorted(folder.iterdir())
    sizes = {path.name: path.stat().st_size for path in paths}
    try:
        checked = check_files(paths, config, workspace)
    except StudioError as error:
        checked = CheckedFiles(dict.fromkeys(paths, error), [])
    show = partial(relabel, model=CorpusConfig)
    problems = {path.name: error.describe(show) for path, error in checked.problems.items()}
    if problems and len(problems) < len(paths):
        _set_aside(folder, problems)
        path = _path_of(folder)
    return KeptUploads(folder, path, sizes, problems, checked.columns)


def _set_aside(folder: Path, names: Iterable[str]) -> None:
    """Moves files to a hidden folder, which isn't read."""
    refused = folder / ".refused"
    refused.mkdir(exist_ok=True)
    for name in names:
        (folder / name).rename(refused / name)


def remove_upload(folder: str, workspace: Workspace) -> None:
    """Removes kept files, unless a run may read them."""
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
    return any(folder in json.dumps(config, ensure_ascii=False) for config in configs)


def keep_files(files: Sequence[str] | None, workspace: Workspace) -> str:
    """Keeps files in a new folder; returns their path for a form."""
    if not files:
        raise CorpusError("No file came with the upload", fix="choose the files again")
    folder = _new_folder(workspace.uploads / time.strftime("%Y%m%d-%H%M%S"))
    for source in map(Path, files):
        name = safe_name(source.name)
        name = _beside_others(name, source) if len(files) > 1 else name
        _take_over(source, _free_path(folder / name))
    return _path_of(folder)


def _beside_others(name: str, source: Path) -> str:
    """.json, .zip and texts with an unknown suffix, such as logs, are read only alone."""
    if is_text_of_unknown_kind(source):
        return f"{name}.txt"
    if name.lower().endswith(".zip"):
        return name if Path(name).stem.endswith(".txt") else f"{name[:-4]}.txt.zip"
    return _JSON.sub(r".jsonl\1", name)


def _path_of(folder: Path) -> str:
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    if len(paths) == 1:
        return str(paths[0])
    # A folder path skips its .md files.
    return str(folder / "*" if any(".md" in path.suffixes for path in paths) else folder)


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


def safe_name(name: str) -> str:
    """Returns a file name without special characters."""
    return _UNSAFE.sub("_", name).lstrip(".") or "file.txt"
