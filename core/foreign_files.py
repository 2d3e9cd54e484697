"""Reads untrusted files, perhaps named pipes or gigabytes, within limits."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from core.errors import CheckpointError, StudioError
from core.messages.values import shown

_LFS_HEAD = b"version https://git-lfs.github.com/spec/"
_LONGEST_LFS_POINTER_BYTES = 1024
_DEEPEST_JSON = 64
_SHOWN_DIGITS = 80
# The largest integer of arrays and database columns.
LARGEST_INT = (1 << 63) - 1
# Exact as a float, and seconds that have a date.
LARGEST_EXACT = 1 << 53
_MANY_DIGITS = re.compile(rb"[0-9]{19}")


def open_regular(path: Path, *, error: type[StudioError] = CheckpointError) -> tuple[int, int]:
    """Opens a regular file without blocking; returns descriptor and size.

    Raises:
        error: Unreadable, not regular, or a git-LFS pointer.
    """
    try:
        # Otherwise, opening a named pipe blocks.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as problem:
        raise error(
            f"{path} can't be opened",
            expected="a readable file",
            received=getattr(problem, "strerror", None) or str(problem),
            fix="check the path and the file's permissions, or copy the file again",
        ) from problem
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise error(
                f"{path} is not a file",
                expected="a regular file",
                received=_kind_of(status.st_mode),
                fix="replace it with the file itself",
            )
        _refuse_lfs_pointer(path, os.pread(descriptor, _LONGEST_LFS_POINTER_BYTES, 0), error)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def check_regular(path: Path, *, error: type[StudioError] = CheckpointError) -> int:
    """Checks a file like `open_regular`; returns its size in bytes."""
    descriptor, size = open_regular(path, error=error)
    os.close(descriptor)
    return size


def files_inside(folder: Path, *, error: type[StudioError] = CheckpointError) -> list[Path]:
    """Lists the files below a folder; raises `error` for a link that leads out of it.

    What is copied or published from a folder of somebody else must not include other files of
    this computer.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        check_inside(path, folder, error=error)
    return files


def check_inside(path: Path, folder: Path, *, error: type[StudioError] = CheckpointError) -> Path:
    """Returns a file of a folder; raises `error` if it is a link that leads out of the folder.

    The files of a snapshot in the Hub's cache are links to the `blobs` beside it.
    """
    place, root = path.resolve(), folder.resolve()
    is_blob = root.parent.name == "snapshots" and place.parent == root.parent.parent / "blobs"
    if not place.is_relative_to(root) and not is_blob:
        raise error(
            f"{path.name} of {folder.name} is a link to a file outside of its folder",
            expected="files within the folder",
            received=f"a link to {place}",
            fix="replace the link with the file itself, if it belongs there",
        )
    return path


def read_regular(
    path: Path, most_bytes: int, *, error: type[StudioError] = CheckpointError
) -> bytes:
    """Reads a regular file of at most `most_bytes`."""
    descriptor, size = open_regular(path, error=error)
    with os.fdopen(descriptor, "rb") as file:
        if size > most_bytes:
            raise error(
                f"{path} is too large",
                expected=f"at most {most_bytes:,} bytes",
                received=f"{size:,} bytes",
                fix="check that it is the right file, or download it again",
            )
        return file.read(size)  # `read` allocates the size given.


def read_json(path: Path, most_bytes: int, *, error: type[StudioError] = CheckpointError) -> Any:
    """Reads strict JSON of limited size; raises `error`."""
    data = read_regular(path, most_bytes, error=error)
    try:
        return parse_json(data)
    except ValueError as problem:
        raise error(
            f"{path} isn't valid JSON",
            expected=f"UTF-8 with at most {_DEEPEST_JSON} nested levels, finite numbers and "
            "unique keys",
            received=str(problem),
            fix="download or export the file again",
        ) from problem


def parse_json(data: bytes | str) -> Any:
    """Parses JSON; raises ValueError for deep nesting, non-finite numbers or contradictory keys."""
    text = data if isinstance(data, str) else data.decode("utf-8-sig")
    try:
        values = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            object_pairs_hook=_without_contradiction,
        )
    except RecursionError:
        raise ValueError(f"it has more than {_DEEPEST_JSON} nested levels") from None
    check_depth(values)
    return values


def parse_bounded_json(data: bytes) -> Any:
    """Parses JSON; raises ValueError for integers that no array or database column holds."""
    if _MANY_DIGITS.search(data):
        return json.loads(data, parse_int=_bounded_int)
    return json.loads(data)


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object; {} if the file is missing, damaged or holds no object."""
    try:
        values = parse_bounded_json(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def is_plain_name(name: Any) -> bool:
    """Returns whether a name stays within its folder."""
    return (
        isinstance(name, str)
        and 0 < len(os.fsencode(name.encode("utf-8", "replace").decode())) <= 255
        and name not in (".", "..")
        and not re.search(r"[/\\\x00-\x1f\x7f\ud800-\udfff]", name)
    )


def _refuse_lfs_pointer(path: Path, head: bytes, error: type[StudioError]) -> None:
    if not head.startswith(_LFS_HEAD):
        return
    size = re.search(rb"^size (\d{1,18})$", head, re.MULTILINE)
    raise error(
        f"{path} is a Git LFS pointer, not the file",
        expected=f"the file of {int(size[1]):,} bytes" if size else "the file itself",
        received="a text file that points to it",
        fix=f"run git lfs install and git lfs pull in {path.parent}, or download the file again",
    )


def _kind_of(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for is_kind, name in kinds if is_kind(mode)), "something else")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a valid JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:_SHOWN_DIGITS]} is too large")
    return value


def _bounded_int(text: str) -> int:
    value = int(text)
    if abs(value) > LARGEST_INT:
        raise ValueError(f"the number {text[:_SHOWN_DIGITS]} is too large")
    return value


def _without_contradiction(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values and values[name] != value:
            raise ValueError(f"the key {shown(name)} has two values")
        values[name] = value
    return values


def check_depth(values: Any) -> None:
    """Raises ValueError for JSON too deep for recursion."""
    level, depth = [values], 0
    while level := [
        child
        for value in level
        if isinstance(value, (dict, list))
        for child in (value.values() if isinstance(value, dict) else value)
    ]:
        depth += 1
        if depth > _DEEPEST_JSON:
            raise ValueError(f"it has more than {_DEEPEST_JSON} nested levels")
