"""Checks and stores what users write about a run: title, tags and notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core.errors import ConfigError, StudioError
from core.records.folder import RunFolder

MOST_TITLE_CHARACTERS = 120
MOST_TAGS = 20
MOST_TAG_CHARACTERS = 40
MOST_NOTES_CHARACTERS = 10_000
FIELDS = ("title", "tags", "notes")


def check_title(title: str) -> str:
    """Returns a title without space around it; raises ConfigError."""
    title = title.strip()
    if len(title) > MOST_TITLE_CHARACTERS or not title.isprintable():
        raise _wrong(
            "title", f"one line of at most {MOST_TITLE_CHARACTERS} characters", _described(title)
        )
    return title


def check_tags(tags: Iterable[str]) -> list[str]:
    """Returns different tags in their order; raises ConfigError."""
    different_tags = list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if len(different_tags) > MOST_TAGS:
        raise _wrong("tags", f"at most {MOST_TAGS} tags", f"{len(different_tags)} tags")
    for tag in different_tags:
        if len(tag) > MOST_TAG_CHARACTERS or "," in tag or not tag.isprintable():
            raise _wrong(
                "tags",
                f"tags of at most {MOST_TAG_CHARACTERS} characters, without commas",
                _described(tag),
            )
    return different_tags


def check_notes(notes: str) -> str:
    """Returns notes without space around them; raises ConfigError."""
    notes = notes.strip()
    if len(notes) > MOST_NOTES_CHARACTERS:
        raise _wrong(
            "notes", f"at most {MOST_NOTES_CHARACTERS:,} characters", f"{len(notes):,} characters"
        )
    return "".join(
        character for character in notes if character.isprintable() or character in "\n\t"
    )


def checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the given fields of `FIELDS`, and leaves others out."""
    checked_values: dict[str, Any] = {}
    if isinstance(values.get("title"), str):
        checked_values["title"] = check_title(values["title"])
    if isinstance(values.get("tags"), list):
        checked_values["tags"] = check_tags(map(str, values["tags"]))
    if isinstance(values.get("notes"), str):
        checked_values["notes"] = check_notes(values["notes"])
    return checked_values


def read_annotations(folder: RunFolder) -> dict[str, Any]:
    """Returns the user's notes about a run; {} if missing or invalid."""
    try:
        return checked(folder.read_notes())
    except StudioError:
        return {}


def _described(text: str) -> str:
    return ascii(text[:80]) + (f", {len(text):,} characters" if len(text) > 80 else "")


def _wrong(field: str, expected: str, received: str) -> ConfigError:
    return ConfigError(
        f"These {field} can't be stored" if field != "title" else "This title can't be stored",
        expected=expected,
        received=received,
        fix="shorten it, or write it into the notes" if field != "notes" else "shorten them",
        field=field,
    )
