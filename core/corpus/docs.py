"""Extracts English docstrings of installed packages, without download, licence or imports."""

from __future__ import annotations

import copy
import json
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from typing import Any

from core.config.base import fingerprint_of
from core.corpus.docstrings import docstrings
from core.corpus.finding import TextFile
from core.corpus.holdout import document_hash
from core.corpus.source import SourcePart
from core.corpus.stretches import Range, Stretch, cut_lines
from core.errors import CorpusError
from core.records.events import Reporter
from core.workspace.atomic import writing_whole_file
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

# All come with requirements.txt.
PACKAGES: dict[str, str] = {
    "tensorflow": "tensorflow",
    "keras": "keras",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "transformers": "transformers",
    "numpy": "numpy",
    "scipy": "scipy",
    "pandas": "pandas",
    "sqlalchemy": "sqlalchemy",
    "datasets": "datasets",
    "huggingface_hub": "huggingface_hub",
    "gradio": "gradio",
    "gradio_client": "gradio_client",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "h5py": "h5py",
    "pillow": "PIL",
    "rich": "rich",
    "fsspec": "fsspec",
    "pygments": "pygments",
    "click": "click",
    "typer": "typer",
    "anyio": "anyio",
    "jinja2": "jinja2",
    "urllib3": "urllib3",
    "httpx": "httpx",
    "fastapi": "fastapi",
    "starlette": "starlette",
    "filelock": "filelock",
    "absl-py": "absl",
    "optree": "optree",
    "dill": "dill",
    "multiprocess": "multiprocess",
    "setuptools": "setuptools",
    "grpcio": "grpc",
}
SHORTEST_CHARACTERS = 64

_SKIPPED_FOLDERS = {"tests", "test", "_vendor", "__pycache__", "site-packages", "dist-packages",
                    "idlelib", "lib2to3"}  # fmt: skip
# Increment when the same packages yield other texts.
_EXTRACTION = 3


class DocsSource:
    """Distinct docstrings in a fixed mixed order."""

    has_validation = False

    def __init__(self, workspace: Workspace, reporter: Reporter) -> None:
        self.versions = installed_versions()
        self._path = workspace.cache / "docs" / f"{fingerprint_of(self.identity)}.jsonl"
        self._range: tuple[int, int | None] = (0, None)
        if not self._path.is_file():
            _write_documents(self._path, _extract(_source_files(self.versions), reporter))

    @property
    def identity(self) -> dict[str, Any]:
        return {"extraction": _EXTRACTION, "shortest": SHORTEST_CHARACTERS, **self.versions}

    def columns(self) -> tuple[list[str], str]:
        return [], ""

    def documents(self, split: str) -> Iterator[str]:
        with self._path.open("rb") as file:
            for line in Range.of(file, *self._range):
                yield json.loads(line)

    def parts(self, split: str, target_bytes: int) -> Iterator[SourcePart]:
        whole = Stretch.whole(TextFile(self._path, "jsonl"))
        for stretch in cut_lines(whole, "line", "utf-8", target_bytes):
            limited = copy.copy(self)
            limited._range = (stretch.start, stretch.stop)
            unit = f" (bytes {stretch.start:,} on)" if stretch.is_cut else ""
            yield SourcePart(
                limited, f"the documentation of the installed packages{unit}", stretch.bytes
            )


def installed_versions() -> dict[str, str]:
    """Returns the versions of Python and the installed packages."""
    versions = {name: version for name in PACKAGES if (version := _version(name))}
    if not versions:
        raise CorpusError(
            "No installed documentation was found",
            expected="the packages of requirements.txt in this Python environment",
            field="source",
            fix="install requirements.txt (make setup), or set ⟬source⟭ to files or hub",
        )  # fmt: skip
    return {"python": sys.version.split()[0], **versions}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _source_files(versions: dict[str, str]) -> list[Path]:
    folders = [Path(sysconfig.get_path("stdlib"))]
    for name in versions.keys() & PACKAGES.keys():
        spec = util.find_spec(PACKAGES[name])  # without importing it
        folders += [Path(folder) for folder in (spec and spec.submodule_search_locations) or []]
    return [path for folder in folders for path in _python_files(folder) if path.is_file()]


def _python_files(folder: Path) -> Iterator[Path]:
    for parent, children, names in os.walk(folder):
        children[:] = [child for child in children if child not in _SKIPPED_FOLDERS]
        yield from (Path(parent, name) for name in names if name.endswith(".py"))


def _extract(files: Sequence[Path], reporter: Reporter) -> list[str]:
    """Returns distinct docstrings, ordered by hash."""
    texts: set[str] = set()
    with warnings.catch_warnings(action="ignore"):  # of invalid escapes
        for done, path in enumerate(files, 1):
            reporter.raise_if_stopped()
            with suppress(OSError):
                texts.update(docstrings(path.read_bytes(), SHORTEST_CHARACTERS))
            reporter.progress(done, len(files), "files", "reading the installed documentation")
    return sorted(texts, key=_place)


def _place(text: str) -> int:
    """Returns a sort key unrelated to the split's hash, which would put validation first."""
    return document_hash(b"place " + text.encode("utf-8"))


def _write_documents(path: Path, texts: Sequence[str]) -> None:
    make_folder(path.parent)
    with writing_whole_file(path) as draft, draft.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
