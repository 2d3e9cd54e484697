"""Reads a corpus that the stage `clean` made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.config import CorpusConfig
from core.corpus.files import FilesSource
from core.corpus.report import Facts, ReadingReport
from core.corpus.source import SourcePart, Split
from core.errors import CorpusError
from core.workspace import Artifact

_SPLITS = ("train", "validation")
_SUMMARY = ("read", "steps")


class CleanedSource:
    """Documents of a cleaned corpus, with its held-out documents.

    Raises:
        CorpusError: A file is missing, or isn't the corpus's.
    """

    def __init__(self, config: CorpusConfig, artifact: Artifact) -> None:
        self.artifact = artifact
        self._check_files()
        self.has_validation = (artifact.path / "validation").is_dir()
        validation = str(artifact.path / "validation") if self.has_validation else ""
        self._files = FilesSource(
            config.model_copy(
                update={
                    "source": "files", "path": str(artifact.path / "train"),
                    "validation_path": validation, "file_format": "jsonl", "text_column": "text",
                    "encoding": "", "encoding_errors": "strict", "skip_unreadable": False,
                }
            )
        )  # fmt: skip
        self.report = ReadingReport(found=1)
        self.report.add(artifact.name, Facts("cleaned corpus"))

    @property
    def identity(self) -> str:
        return self.artifact.fingerprint

    def columns(self) -> tuple[list[str], str]:
        return [], ""

    def documents(self, part: Split) -> Iterator[str]:
        return self._files.documents(part)

    def parts(self, part: Split, target_bytes: int) -> Iterator[SourcePart]:
        return self._files.parts(part, target_bytes)

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

    def _check_files(self) -> None:
        folder = self.artifact.path
        listed = {
            name: entry["bytes"]
            for name, entry in self.artifact.manifest.files.items()
            if name.partition("/")[0] in _SPLITS
        }
        found = {str(path.relative_to(folder)): path for path in _files_below(folder)}
        for name in sorted(listed.keys() ^ found.keys()):
            problem = "is missing" if name in listed else "is not one of its files"
            raise _damaged(self.artifact, f"{name} {problem}")
        for name, path in found.items():
            if path.stat().st_size != listed[name]:
                size = path.stat().st_size
                raise _damaged(self.artifact, f"{name} has {size:,} bytes, not {listed[name]:,}")


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
