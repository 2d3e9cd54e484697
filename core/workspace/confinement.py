"""Confines the web app and agents to allowed folders and remote storage."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from core.errors import ConfigError, StudioError
from core.network.outbound import check_reachable
from core.workspace.keys import KEY_FILE
from core.workspace.names import expand_path

ALLOWED_PATHS_VARIABLE = "STUDIO_ALLOWED_PATHS"
_STORES = ("gs", "gcs", "s3", "hf", "az", "abfs", "https")


def allowed_roots(root: Path) -> Sequence[Path]:
    """Returns a workspace's folder and those of STUDIO_ALLOWED_PATHS."""
    listed = os.environ.get(ALLOWED_PATHS_VARIABLE, "").split(os.pathsep)
    return [root.resolve(), *(expand_path(path).resolve() for path in listed if path)]


def allow_folders(folders: Sequence[Path]) -> None:
    """Makes folders readable, also for runs of this process; raises ConfigError."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"--allow {folder} is no folder",
                expected="a folder on this machine",
                received=str(folder),
                fix="check the path",
            )
    listed = [
        os.environ.get(ALLOWED_PATHS_VARIABLE, ""),
        *(str(path.resolve()) for path in folders),
    ]
    os.environ[ALLOWED_PATHS_VARIABLE] = os.pathsep.join(filter(None, listed))


def is_address(text: str) -> bool:
    return "://" in text or "::" in text


def check_readable(path: str, roots: Sequence[Path], *, field: str) -> None:
    """Raises ConfigError for a path or match outside `roots`."""
    if not path:
        return
    if is_address(path):
        _check_address(path, field)
        return
    for real in _real_places(expand_path(path, field=field)):
        if not any(real.is_relative_to(root) for root in roots) or real.name == KEY_FILE:
            raise ConfigError(
                f"The studio has no access to {path}",
                expected="a path inside " + " or ".join(map(str, roots)),
                received=str(real),
                fix="upload the file in the web app, or start the app (or studio mcp) with --allow "
                f"FOLDER, or set {ALLOWED_PATHS_VARIABLE}",
                field=field,
            )


def _real_places(path: Path) -> Iterator[Path]:
    """Yields the real paths of a path and a pattern's matches.

    A pattern's text isn't enough: `l*k/../x` may leave the folder.
    """
    yield path.resolve()
    if glob.has_magic(str(path)) and not path.exists():
        yield from (
            Path(os.path.realpath(match)) for match in glob.iglob(str(path), recursive=True)
        )


def _check_address(address: str, field: str) -> None:
    if "::" in address or address.partition("://")[0] not in _STORES:
        raise ConfigError(
            f"The studio has no access to {address}",
            expected="a path on this machine, or an address that begins with "
            + ", ".join(f"{store}://" for store in _STORES),
            received=address,
            fix="use an allowed address; the command line accepts any address that fsspec supports",
            field=field,
        )
    if address.startswith("https://"):
        try:
            check_reachable(address)
        except StudioError as error:
            problem = f"The studio has no access to {address}"
            raise ConfigError.like(error, problem=problem, field=field) from error
