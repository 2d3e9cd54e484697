"""Uploaded files, kept in the workspace."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.config.corpus import CorpusConfig
from core.errors import CorpusError, StudioError
from core.store import Store
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

_KEPT_FOR_RUNS = ("queued", "running", "stopping", "stopped", "failed", "lost")
_JSON = re.compile(r"\.json(\.\w+)?$", re.IGNORECASE)
_UNSAFE = re.compile(r"[^\w.-]+")


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


def keep_uploads(files: Sequence[str], config: CorpusConfig, workspace: Workspace) -> KeptUploads:
    """Keeps uploaded files, unreadable ones apart."""
    from core.corpus.previewing import CheckedFiles, check_files

    path = keep_files(files, workspace)
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    kept = sorted(folder.iterdir())
    sizes = {one.name: one.stat().st_size for one in kept}
    try:
        found = check_files(kept, config, workspace)
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
    return any(folder in json.dumps(one, ensure_ascii=False) for one in configs)


def keep_files(files: Sequence[str] | None, workspace: Workspace) -> str:
    """Keeps files in a new folder; returns their path for a form."""
    if not files:
        raise CorpusError("No file came with the upload", fix="choose the files again")
    folder = _new_folder(workspace.uploads / time.strftime("%Y%m%d-%H%M%S"))
    for source in map(Path, files):
        name = safe_name(source.name)
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


def safe_name(name: str) -> str:
    """Returns a file name without special characters."""
    return _UNSAFE.sub("_", name).lstrip(".") or "file.txt"
