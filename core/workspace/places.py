"""Keeps workspaces private and detects moved or deleted ones.

A descriptor of the folder is compared with its path before writing.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOTDIR
from pathlib import Path

from core.errors import StudioError
from core.workspace.kinds import artifact_kinds, folder_of_kind

_WATCH_SECONDS = 0.5
_INTERRUPT_AGAIN_SECONDS = 10.0
_DELETED = " (deleted)"
# Threads share these; a signal handler may interrupt a lock holder.
_guards = 0
_remembered: dict[Path, int] = {}
# Moved ones whose guard ended: threads of a process that is about to exit may still write.
_lost: dict[Path, int] = {}
_lock = threading.RLock()

SHARED_VARIABLE = "STUDIO_SHARED_WORKSPACE"
_PRIVATE_UMASK = 0o077
_PRIVATE_FOLDER = 0o700
# The umask from before `private_files`.
_roots: set[Path] = set()
_ordinary_umask: int | None = None
# Marks of a workspace, and our files.
_MARKS = ("studio.db", "worker.lock", "database.lock")
_OURS = frozenset(
    {"runs", "sweeps", "reports", "cache", "uploads"}
    | {"studio.db", "studio.db-wal", "studio.db-shm", "studio.db-journal", ".mirror-key"}
)
_OUR_SUFFIXES = (".lock", ".log")


class WorkspaceMovedError(StudioError):
    """The workspace was moved during use."""

    reason = "workspace_moved"


@contextmanager
def guarding_workspaces() -> Iterator[None]:
    """Keeps descriptors of workspaces in use.

    Raises WorkspaceMovedError instead of errors that a move caused.
    """
    global _guards
    _guards += 1
    try:
        yield
    except Exception as error:
        if moved := _find_moved():
            raise moved from error
        raise
    finally:
        _guards -= 1
        if not _guards:
            _forget_all()


def remember_workspace(root: Path) -> None:
    """Opens a workspace's descriptor if guarded."""
    with _lock, suppress(OSError):
        if _guards and root not in _remembered:
            _remembered[root] = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def check_not_moved(path: Path) -> None:
    """Raises WorkspaceMovedError if a path's workspace was moved."""
    if moved := _find_moved(path):
        raise moved


def _find_moved(path: Path | None = None) -> WorkspaceMovedError | None:
    with _lock:
        known = [*_remembered.items(), *(_lost.items() if path else ())]
        for root, descriptor in known:
            if (path is None or _is_below(path, root)) and not _is_same(root, descriptor):
                return _moved(root, descriptor)
    return None


def make_folder(path: Path) -> None:
    """Makes a folder and its parents, but never a moved workspace's."""
    check_not_moved(path)
    missing = []
    for folder in (path, *path.parents):
        if folder.is_dir():
            break
        missing.append(folder)
    for folder in reversed(missing):
        check_not_moved(folder)  # Deleted, perhaps, after the first check.
        root = _root_of(folder)
        is_private = root is not None and not is_shared(root)
        try:
            folder.mkdir(_PRIVATE_FOLDER if is_private else 0o777)
        except FileExistsError:
            if folder.is_dir():
                continue
            if folder == path:
                raise
            raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(path)) from None
        if folder == root and is_private:
            # An inherited setgid bit would mark it as shared.
            folder.chmod(_PRIVATE_FOLDER)
        apply_umask(folder)


def register_root(root: Path) -> None:
    """Registers a folder, perhaps missing, as a workspace."""
    _roots.add(root)
    remember_workspace(root)


def is_shared(root: Path) -> bool:
    if os.environ.get(SHARED_VARIABLE, "").strip().lower() in ("1", "true", "yes", "on"):
        return True
    try:
        return bool(os.stat(root).st_mode & stat.S_ISGID)
    except OSError:
        return False


@contextmanager
def private_files(root: Path) -> Iterator[None]:
    """Makes files private, unless `root` is shared.

    For main functions only: the umask applies to all threads.
    """
    global _ordinary_umask
    if _ordinary_umask is not None or is_shared(root):
        yield
        return
    _ordinary_umask = os.umask(_PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(_ordinary_umask)
        _ordinary_umask = None


def user_umask() -> int:
    """Returns the user's umask, or -1 to inherit."""
    return -1 if _ordinary_umask is None else _ordinary_umask


def apply_umask(path: Path) -> None:
    """Applies the user's umask outside all workspaces."""
    if _ordinary_umask is None or _root_of(path) is not None:
        return
    with suppress(OSError):  # Another account's file stays unchanged.
        mode = os.lstat(path).st_mode
        if not stat.S_ISLNK(mode):
            os.chmod(path, (0o777 if stat.S_ISDIR(mode) else 0o666) & ~_ordinary_umask)


def apply_umask_below(folder: Path) -> None:
    """Applies `apply_umask` to a folder and its content."""
    if _ordinary_umask is None or _root_of(folder) is not None:
        return
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            apply_umask(Path(place, name))
    apply_umask(folder)


def restrict_access(root: Path) -> None:
    """Closes an earlier version's workspace to other accounts."""
    with suppress(OSError):
        status = os.stat(root)
        is_open = stat.S_IMODE(status.st_mode) & _PRIVATE_UMASK
        if not is_open or status.st_uid != os.geteuid() or is_shared(root):
            return
        names = os.listdir(root)
        if not any(mark in names for mark in _MARKS):
            return
        known = {*_OURS, *map(folder_of_kind, artifact_kinds())}
        ours = [name for name in names if name in known or name.endswith(_OUR_SUFFIXES)]
        for name in ours:
            _close(root / name)
        if len(ours) == len(names):
            _close(root)


def _close(path: Path) -> None:
    status = os.stat(path, follow_symlinks=path.is_dir())
    if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~_PRIVATE_UMASK)


def _root_of(path: Path) -> Path | None:
    if path in _roots:
        return path
    return next((parent for parent in path.parents if parent in _roots), None)


def _is_below(path: Path, root: Path) -> bool:
    # Works for a deleted folder too: a link above it stays.
    return path.is_relative_to(root) or path.is_relative_to(os.path.realpath(root))


def _is_same(root: Path, descriptor: int) -> bool:
    held = os.fstat(descriptor)
    try:
        status = os.stat(root)
    except OSError:
        return False
    return (held.st_dev, held.st_ino) == (status.st_dev, status.st_ino) and held.st_nlink > 0


def find_new_location(root: Path) -> Path | None:
    """Returns a remembered workspace's current path, if known."""
    with _lock:
        place = _new_place(_remembered[root]) if root in _remembered else ""
    return Path(place) if place else None


@contextmanager
def stopping_when_moved(root: Path) -> Iterator[None]:
    """Interrupts the main thread after a move; raises WorkspaceMovedError.

    Call it in the main thread.
    """
    # A shell's background job ignores SIGINT.
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    interrupt = signal.SIGUSR1 if is_ignored else signal.SIGINT
    before = signal.signal(interrupt, signal.default_int_handler) if is_ignored else None
    errors: list[WorkspaceMovedError] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_WATCH_SECONDS):
            try:
                check_not_moved(root)
            except WorkspaceMovedError as error:
                errors.append(error)
                signal.raise_signal(interrupt)
                break
        # A library may have swallowed the interrupt.
        while not ended.wait(_INTERRUPT_AGAIN_SECONDS):
            signal.raise_signal(interrupt)

    thread = threading.Thread(target=watch, daemon=True, name="place")
    thread.start()
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if not errors:
            raise
    finally:
        ended.set()
        thread.join()
        if is_ignored:
            signal.signal(interrupt, before)
    if errors:
        raise errors[0]


def forget_workspace(root: Path) -> None:
    """Closes a workspace's descriptor."""
    with _lock:
        descriptor = _remembered.pop(root, None)
        if descriptor is not None:
            os.close(descriptor)


def _moved(root: Path, descriptor: int) -> WorkspaceMovedError:
    place = _new_place(descriptor)
    return WorkspaceMovedError(
        f"The workspace {root} was moved or deleted while it was in use",
        expected="the folder that existed when this process started",
        received=f"it is now at {place}" if place else "it was deleted",
        fix=f"start again with --workspace {place}. To resume a run from its last checkpoint: "
        f"python -m core runs resume ID --workspace {place}"
        if place
        else f"restore the folder to {root}, or start again with another --workspace",
    )


def _new_place(descriptor: int) -> str:
    try:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        is_there = os.fstat(descriptor).st_nlink > 0 and os.path.isdir(place)
    except OSError:
        return ""
    return place if is_there and not place.endswith(_DELETED) else ""


def _forget_all() -> None:
    with _lock:
        for root, descriptor in _remembered.items():
            with suppress(OSError):
                if not _is_same(root, descriptor):
                    _lost.setdefault(root, descriptor)
                if _lost.get(root) != descriptor:
                    os.close(descriptor)
        _remembered.clear()
