"""Kinds of artifacts and their folders."""

from __future__ import annotations

import re
from dataclasses import dataclass

from core.errors import ConfigError

_WORD = re.compile(r"[a-z]{1,32}")
# Folders without artifacts.
_RESERVED = ("runs", "cache", "uploads")


@dataclass(frozen=True)
class ArtifactKind:
    """A kind of artifact.

    Attributes:
        name: 1 to 31 lower-case letters.
        plural: Default: the name with a final s.
    """

    name: str
    title: str = ""
    plural: str = ""

    @property
    def folder(self) -> str:
        """The folder within a workspace."""
        return self.plural or _plural(self.name)

    @property
    def label(self) -> str:
        return self.title or self.name.capitalize()

    @property
    def plural_label(self) -> str:
        return self.plural.capitalize() or _plural(self.label)


_KINDS: dict[str, ArtifactKind] = {}


def register_kind(kind: ArtifactKind) -> ArtifactKind:
    """Registers a kind; raises ValueError if invalid or taken."""
    others = {other.folder for other in _KINDS.values() if other != kind}
    if not _WORD.fullmatch(kind.name) or not _WORD.fullmatch(kind.folder):
        raise ValueError(f"expected a kind of 1 to 31 lower-case letters, received {kind.name!r}")
    if kind.folder in (*_RESERVED, *others) or _KINDS.get(kind.name, kind) != kind:
        raise ValueError(f"expected a new kind, received {kind.name!r}, which is taken")
    _KINDS[kind.name] = kind
    return kind


def artifact_kinds() -> tuple[str, ...]:
    return tuple(_KINDS)


def find_kind(name: str) -> ArtifactKind:
    """Finds a kind by name; raises ConfigError."""
    if name not in _KINDS:
        raise ConfigError(
            f"The artifact kind {name!r} is unknown",
            expected="one of " + ", ".join(_KINDS),
            received=name,
            fix="choose a listed kind",
            field="kind",
        )
    return _KINDS[name]


def folder_of_kind(name: str) -> str:
    return find_kind(name).folder


def _plural(noun: str) -> str:
    return noun if noun.endswith("s") else f"{noun}s"


CORPUS = register_kind(ArtifactKind("corpus", plural="corpora"))
TOKENIZER = register_kind(ArtifactKind("tokenizer"))
SHARDS = register_kind(ArtifactKind("shards"))
MODEL = register_kind(ArtifactKind("model"))
EVALUATION = register_kind(ArtifactKind("evaluation"))
EXPORT = register_kind(ArtifactKind("export"))
