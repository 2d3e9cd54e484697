"""Reads a corpus that the stage `clean` made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from core.config.corpus import CorpusConfig
from core.corpus.files import FilesSource
from core.corpus.report import Facts, ReadingReport
from core.corpus.source import SourcePart, Split
from core.errors import CorpusError
from core.workspace.manifests import Artifact
from core.workspace.names import check_name
from core.workspace.verified import find_damage

_SPLITS = ("train", "validation")
_SUMMARY = ("read", "steps", "sources", "parts_skipped", "files_skipped")


class CleanedSource:
    """Documents of a cleaned corpus, with its held-out documents.

    Args:
        names: Named sources to read; empty: all, in order.

    Raises:
        CorpusError: A file is missing, or isn't the corpus's.
    """

    def __init__(self, config: CorpusConfig, artifact: Artifact, names: Sequence[str] = ()) -> None:
        self.artifact = artifact
        self.names = _source_names(artifact)
        self._config = config
        self._check_files()
        self.has_validation = (artifact.path / "validation").is_dir()
        self._files = [self._open(name) for name in names or self.names or [""]]
        self.report = ReadingReport(file_count=1)
        self.report.add(artifact.name, Facts("cleaned corpus"))

    def _open(self, name: str) -> FilesSource:
        """Opens the files of a named source, or all."""
        train, validation = (self.artifact.path / split / name for split in _SPLITS)
        alike = {
            "source": "files", "path": str(train), "file_format": "jsonl", "text_column": "text",
            "validation_path": str(validation) if validation.is_dir() else "",
            "encoding": "", "encoding_errors": "strict", "skip_unreadable": False,
        }  # fmt: skip
        return FilesSource(self._config.model_copy(update=alike))

    def part(self, name: str) -> CleanedSource:
        """Returns one of its named sources."""
        return CleanedSource(self._config, self.artifact, [name])

    @property
    def identity(self) -> str:
        return self.artifact.fingerprint

    @property
    def stored_bytes(self) -> int:
        """Size of the files with training documents."""
        return sum(files.stored_bytes for files in self._files)

    def columns(self) -> tuple[list[str], str]:
        return [], ""

    def documents(self, split: Split) -> Iterator[str]:
        return itertools.chain.from_iterable(files.documents(split) for files in self._with(split))

    def parts(self, split: Split, target_bytes: int) -> Iterator[SourcePart]:
        for files in self._with(split):
            yield from files.parts(split, target_bytes)

    def _with(self, split: Split) -> list[FilesSource]:
        return [files for files in self._files if split == "train" or files.has_validation]

    def all_documents(self) -> Iterator[str]:
        yield from self.documents("train")
        if self.has_validation:
            yield from self.documents("validation")

    def summary(self) -> dict[str, Any]:
        """Returns what cleaning did, for the artifacts made of the corpus."""
        manifest = self.artifact.manifest
        return {
            "corpus": self.artifact.name,
            "source": self._origin(),
            **{name: manifest.counts[name] for name in _SUMMARY if name in manifest.counts},
        }

    def _origin(self) -> Any:
        """Returns the config of the corpus before it was cleaned for the first time."""
        manifest = self.artifact.manifest
        earlier = manifest.counts.get("cleaning")
        own = manifest.config.get("corpus")
        return earlier.get("source", own) if isinstance(earlier, dict) else own

    def check_content(self, cache: Path) -> None:
        """Compares the files with their hashes, once per change; raises CorpusError."""
        if problems := find_damage(self.artifact.path, self.artifact.manifest, cache):
            raise _damaged(self.artifact, ", ".join(problems[:3]))

    def _check_files(self) -> None:
        folder = self.artifact.path
        listed = {
            name: entry["bytes"]
            for name, entry in self.artifact.manifest.files.items()
            if name.partition("/")[0] in _SPLITS
        }
        stored = {str(path.relative_to(folder)): path for path in _files_below(folder)}
        for name in sorted(listed.keys() ^ stored.keys()):
            problem = "is missing" if name in listed else "is not one of its files"
            raise _damaged(self.artifact, f"{name} {problem}")
        for name, path in stored.items():
            if path.stat().st_size != listed[name]:
                size = path.stat().st_size
                raise _damaged(self.artifact, f"{name} has {size:,} bytes, not {listed[name]:,}")


def _source_names(artifact: Artifact) -> list[str]:
    """Returns the names of the sources of which it was made, in order."""
    by_source = artifact.manifest.counts.get("sources")
    names = list(by_source) if isinstance(by_source, dict) else []
    for name in names:
        check_name(name)
    return names


def _files_below(folder: Path) -> list[Path]:
    return sorted(
        path for split in _SPLITS for path in (folder / split).rglob("*") if not path.is_dir()
    )


def _damaged(artifact: Artifact, received: str) -> CorpusError:
    return CorpusError(
        f"The corpus {artifact.name} is damaged",
        expected="the files that its manifest lists",
        received=received,
        fix="clean the source again, or restore the folder from a copy",
        field="corpus_name",
    )
