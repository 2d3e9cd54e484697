"""Holds the facts that only the author of a repository knows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from core.hub.client import hub_id

_BETWEEN_CODES = re.compile(r"[,\s]+")


@dataclass(frozen=True)
class CardNotes:
    """Card content that only the author knows.

    Attributes:
        license: Hub licence id, such as apache-2.0.
        language: Comma-separated ISO 639 codes.
    """

    repo_id: str
    license: str = ""
    language: str = ""
    description: str = ""
    branch: str = ""

    @property
    def name(self) -> str:
        return self.repo_id.rsplit("/", 1)[-1]

    @property
    def reference(self) -> str:
        """The argument for the studio's commands."""
        return hub_id(self.repo_id, self.branch)

    @property
    def arguments(self) -> str:
        """Arguments for `from_pretrained` and `pipeline`."""
        return f'"{self.repo_id}"' + (f', revision="{self.branch}"' if self.branch else "")

    @property
    def languages(self) -> list[str]:
        return [code for code in _BETWEEN_CODES.split(self.language) if code]
