"""Recognises what the operating system refuses, whatever was being read or written.

A full disk or a missing right has nothing to do with the file that happened to be open.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
# Libraries in other languages say only the words, or the number.
_WORDS = re.compile(
    "|".join(re.escape(os.strerror(code)) for code in (*_FULL, *_TOO_MANY, errno.ENAMETOOLONG))
    + r"|\(os error (\d{1,3})\)"
)
_MOST_LINKS = 20


@dataclass(frozen=True)
class SystemAdvice:
    """A refusal of the system, and the advice that helps.

    Attributes:
        reason: The failed run's; "" if it needs none.
        received: The system's words, with the folder.
        is_passing: Whether it has nothing to do with the data, which must not be skipped then.
    """

    reason: str
    problem: str
    expected: str
    received: str
    fix: str
    is_passing: bool


def is_disk_full(error: BaseException) -> bool:
    """Returns whether a disk, quota or size limit was exceeded."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextmanager
def suppressed_if_full() -> Iterator[None]:
    """Ignores that a disk, quota or size limit was exceeded."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise


def advice_for(error: BaseException | None) -> SystemAdvice | None:
    """Finds what the system has refused in an error or its causes; None for anything else."""
    for cause in _chain(error):
        code = _code_of(cause)
        description = os.strerror(code) if code else ""
        path = getattr(cause, "filename", None)
        if code in _FULL:
            return _full(description, path)
        if code in _TOO_MANY:
            return SystemAdvice(
                "too_many_files", "Too many files are open",
                "a limit of open files that is large enough", description,
                "raise the limit (ulimit -n 65536) and start the program again, or use fewer "
                "workers", True,
            )  # fmt: skip
        if code == errno.ENAMETOOLONG:
            return SystemAdvice(
                "", "A name is too long for this disk", "a name of at most 255 bytes",
                f"{description}: {str(path)[:200]}" if path else description,
                "choose a shorter name, or a folder with a shorter path", False,
            )  # fmt: skip
        if code in _FORBIDDEN and isinstance(cause, OSError):
            return SystemAdvice(
                "", f"This account may not use {path or 'a file'}", "rights to it",
                f"{description}: {path}" if path else description,
                "give this account the rights (ls -l shows them), or choose another path", False,
            )  # fmt: skip
    return None


@contextmanager
def in_temporary_folder() -> Iterator[str]:
    """Names the temporary folder in the block's errors; yields its path."""
    folder = tempfile.gettempdir()
    try:
        yield folder
    except OSError as error:
        if _code_of(error) in _FULL and not error.filename:
            error.filename = os.path.join(folder, "temporary file")
        raise


def _full(description: str, path: object) -> SystemAdvice:
    temporary = tempfile.gettempdir()
    folder = _existing_folder(path) if isinstance(path, (str, os.PathLike)) else None
    if folder is None:
        places = "; ".join(f"{_free(place)} free in {place}" for place in (os.getcwd(), temporary))
        return SystemAdvice(
            "disk_full", "The disk is full", "free space", f"{description}; now {places}",
            "free disk space (delete artifacts or runs); for the temporary folder, set TMPDIR to "
            "one on another disk", True,
        )  # fmt: skip
    is_temporary = folder.is_relative_to(Path(temporary).resolve())
    fix = "free disk space there (delete artifacts or runs), then go on"
    if is_temporary:
        fix = "free space there, or set TMPDIR to a folder on a disk with more space"
    kind = "temporary folder" if is_temporary else "disk"
    return SystemAdvice(
        "disk_full", f"The {kind} is full: {folder}", f"free space in {folder}",
        f"{description}; {_free(folder)} free in {folder}", fix, True,
    )  # fmt: skip


def _existing_folder(path: str | os.PathLike[str]) -> Path | None:
    with suppress(OSError, ValueError):
        place = Path(os.path.abspath(path))
        return next(parent for parent in place.parents if parent.is_dir()).resolve()
    return None


def _free(folder: str | Path) -> str:
    with suppress(OSError):
        return f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB"
    return "an unknown number of bytes"


def _code_of(error: BaseException) -> int:
    if isinstance(error, OSError) and error.errno:
        return error.errno
    match = _WORDS.search(str(error)[:2000])
    if not match:
        return 0
    if match[1]:
        return int(match[1])
    codes = (*_FULL, *_TOO_MANY, errno.ENAMETOOLONG)
    return next(code for code in codes if os.strerror(code) == match[0])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MOST_LINKS):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
