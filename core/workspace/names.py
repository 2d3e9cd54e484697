"""Validates names and paths; untrusted ones need `path_inside`."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from core.errors import ConfigError, StudioError

# Linux allows 255 bytes per part, 4,096 per path.
LONGEST_NAME_BYTES, LONGEST_PATH_BYTES = 255, 3_500
_LONGEST_RELATIVE_BYTES = 1_024
_MOST_PARTS = 32
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


class UnsafePathError(StudioError):
    """An untrusted name leads outside a folder."""


def has_control(text: str) -> bool:
    """Returns whether a text has control characters or lone surrogates."""
    if text.isascii():
        return not text.isprintable()
    return any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text)


def flaw_of_part(part: object) -> str:
    """Explains why a text can't name a file, or ""."""
    if not isinstance(part, str):
        return f"is a {type(part).__name__}, not a string"
    if part in ("", ".", ".."):
        return "has an empty part, or the part . or .."
    if "/" in part or "\\" in part:
        return "has a slash or a backslash"
    if has_control(part):
        return "has a control character or a lone surrogate"
    if len(part.encode("utf-8")) > LONGEST_NAME_BYTES:
        return f"has a part of more than {LONGEST_NAME_BYTES} bytes"
    return ""


def flaw_of_name(name: object) -> str:
    """Explains why a text can't be a relative path, or ""."""
    if not isinstance(name, str):
        return f"is a {type(name).__name__}, not a string"
    if len(name) > _LONGEST_RELATIVE_BYTES:
        return f"has more than {_LONGEST_RELATIVE_BYTES:,} bytes"
    parts = name.split("/")
    if len(parts) > _MOST_PARTS:
        return f"has more than {_MOST_PARTS} parts"
    if flaw := next(filter(None, map(flaw_of_part, parts)), ""):
        return flaw
    if len(name.encode("utf-8")) > _LONGEST_RELATIVE_BYTES:
        return f"has more than {_LONGEST_RELATIVE_BYTES:,} bytes"
    if any(part.startswith((".", "~")) for part in parts):
        return "has a hidden part, or one that begins with ~"
    return ""


def flaw_of_names(names: Iterable[object]) -> str:
    """Explains why names can't share a folder, or ""."""
    seen: set[str] = set()
    folders: set[str] = set()
    for name in names:
        if flaw := flaw_of_name(name):
            return f"{ascii(name)[:100]} {flaw}"
        folded = unicodedata.normalize("NFC", str(name)).casefold()
        if folded in seen:
            return f"{ascii(name)[:100]} occurs twice, or differs only in case"
        seen.add(folded)
        parts = folded.split("/")
        folders.update("/".join(parts[:count]) for count in range(1, len(parts)))
    both = seen & folders
    return f"{ascii(min(both))[:100]} is both a file and a folder" if both else ""


def is_run_id(text: object) -> bool:
    """Returns whether a text can be a run's id."""
    return not flaw_of_part(text) and not str(text).startswith((".", "~"))


def relative_name(name: object, source: str) -> str:
    """Checks an untrusted relative path; raises UnsafePathError.

    Args:
        source: Beginning of the error: "The manifest x/manifest.json".
    """
    if flaw := flaw_of_name(name):
        raise UnsafePathError(
            f"{source} contains a file name that is not accepted",
            expected="a relative path without hidden parts and without .., with / between its "
            "parts",
            received=f"{ascii(name)[:100]}, which {flaw}",
            fix="don't use this copy; get another one from a source that you trust",
        )
    return str(name)


def path_inside(folder: Path, name: object, source: str, *, roots: Iterable[Path] = ()) -> Path:
    """Joins an untrusted name to a folder; raises UnsafePathError.

    Args:
        roots: Further folders into which links may lead.
    """
    path = folder / relative_name(name, source)
    real = Path(os.path.realpath(path))
    allowed = [Path(os.path.realpath(root)) for root in (folder, *roots)]
    if not any(real.is_relative_to(root) for root in allowed):
        raise UnsafePathError(
            f"{source} lists a file outside its folder",
            expected=f"a file in {folder}",
            received=f"{name}, a link to {real}",
            fix="remove the link, or replace it with the file itself",
        )
    return path


def name_from(*texts: str, fallback: str, longest: int = 60) -> str:
    """Joins texts, such as a model's name and its data's, into a name.

    Args:
        fallback: Replaces a text without usable characters.
        longest: Characters taken of each text.
    """
    return "-".join(_NOT_PLAIN.sub("-", text).strip("-.")[:longest] or fallback for text in texts)


def check_name(name: str) -> None:
    """Raises ConfigError unless every system accepts a name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "The name is not valid",
            expected="1 to 96 of the letters a-z and A-Z, digits, dots, dashes, underscores; a "
            "letter or digit first",
            received=repr(name),
            fix="choose another name, or leave it empty",
            field="name",
        )


def expand_path(text: str | Path, *, field: str = "") -> Path:
    """Expands ~ in a typed path; raises ConfigError."""
    try:
        path = Path(os.path.expanduser(text))
        lengths = [len(os.fsencode(part)) for part in (str(path), *path.parts)]
    except ValueError:  # A null byte or a lone surrogate.
        lengths = [LONGEST_PATH_BYTES + 1]
    is_long = lengths[0] > LONGEST_PATH_BYTES or max(lengths[1:], default=0) > LONGEST_NAME_BYTES
    if is_long or "\0" in str(text):
        raise ConfigError(
            "The path is not valid",
            expected=f"at most {LONGEST_NAME_BYTES} bytes between slashes, and "
            f"{LONGEST_PATH_BYTES:,} in total",
            received=ascii(str(text))[:100],
            fix="check the path",
            field=field,
        )
    return path
