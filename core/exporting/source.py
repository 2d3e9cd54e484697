"""Describes the model that an export reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core.architecture.architecture import Architecture
from core.tokenizer.loading import StudioTokenizer


@dataclass(frozen=True)
class Source:
    """A model and its tokenizer.

    Attributes:
        name: For files and metadata.
    """

    folder: Path
    architecture: Architecture
    tokenizer: StudioTokenizer
    name: str
