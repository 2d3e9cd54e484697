"""Runs one session on Kaggle: the whole source of the script kernel, the same for each run.

It needs Python 3.8 and its standard library, and imports nothing of the project. Its inputs are
datasets: `studio-session`, a tar archive with the mirror, the bootstrap script and its arguments,
and the run's other files, each named by its SHA-256. The mirror is packed into the one file
`studio-mirror` of the output after each checkpoint and at the end. Before the session's limit of
time the program is asked to save, so that the next session can go on. The small objects of the
mirror are printed, because Kaggle shows a session's log at once, and its output at the end.

Environment: STUDIO_KAGGLE_ROOT is the folder with `input` and `working` (default: /kaggle).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

ROOT = os.environ.get("STUDIO_KAGGLE_ROOT") or "/kaggle"
HOME = os.environ.get("STUDIO_MACHINE_HOME") or "/tmp/pretrain-studio"
MIRROR = os.path.join(HOME, "mirror")
OUTPUT = os.path.join(ROOT, "working", "studio-mirror")
# The line of an object: this, its name, the beginning of its SHA-256, and its bytes.
SHOWN = "studio-object"
SHOWN_NAMES = re.compile(
    r"runs/[^/]+/(claims/\d+\.json|incarnations/\d+/"
    r"(events/\d+\.jsonl|heartbeat\.json|log-tail\.txt))"
)
MOST_SHOWN_BYTES = 1 << 20
# These are replaced again and again.
REPLACED = ("heartbeat.json", "log-tail.txt")
REPLACED_EVERY_SECONDS = 45.0
POLL_SECONDS = 2.0
EXIT_AGAIN = 75


def main() -> int:
    print("studio: placing the inputs", flush=True)
    started = time.monotonic()
    session = unpack_session()
    place_blobs(session["blobs"])
    given = set(list_files())
    child = subprocess.Popen(
        [sys.executable, "-u", os.path.join(HOME, "bootstrap.py"), *session["arguments"]]
        + ["--mirror", "file://" + MIRROR],
        env=dict(os.environ, STUDIO_MACHINE_HOME=HOME),
        stdin=subprocess.DEVNULL,
    )
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    show = Display(given)
    manifests: frozenset[str] = frozenset()
    is_asked = False
    while child.poll() is None:
        time.sleep(POLL_SECONDS)
        if not is_asked and time.monotonic() - started > session["seconds"]:
            is_asked = True
            child.terminate()
        names = list_files()
        show(names)
        complete = frozenset(name for name in names if name.endswith("manifest.json")) - given
        if complete != manifests:
            manifests = complete
            pack(given)
    show(list_files())
    pack(given)
    return 0 if child.returncode == EXIT_AGAIN else child.returncode


def unpack_session() -> dict[str, Any]:
    with tarfile.open(find_inputs()["studio-session"]) as archive:
        for member in archive:
            parts = member.name.split("/")
            if not member.isreg() or ".." in parts or member.name.startswith("/"):
                sys.exit("error: the session's archive has something else than files")
            content = archive.extractfile(member)
            assert content is not None
            path = os.path.join(HOME, *parts)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                shutil.copyfileobj(content, file)
    with open(os.path.join(HOME, "session.json")) as file:
        session: dict[str, Any] = json.load(file)
        return session


def place_blobs(names: Iterable[str]) -> None:
    """Copies the run's files to where the program looks for them first; verifies each."""
    inputs, folder = find_inputs(), os.path.join(HOME, "blobs")
    os.makedirs(folder, exist_ok=True)
    for name in names:
        if name not in inputs:
            sys.exit(f"error: the dataset with the run's inputs lacks {name}")
        digest = hashlib.sha256()
        with open(inputs[name], "rb") as source, open(os.path.join(folder, name), "wb") as file:
            for piece in iter(lambda: source.read(1 << 20), b""):
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != name:
            sys.exit(f"error: the dataset with the run's inputs has another content of {name}")


def find_inputs() -> dict[str, str]:
    """Returns a path for each file name, wherever Kaggle mounts the datasets."""
    return {
        name: os.path.join(folder, name)
        for folder, _, names in os.walk(os.path.join(ROOT, "input"))
        for name in names
    }


def list_files() -> list[str]:
    """Returns the names of the mirror's objects; drafts are hidden files."""
    names = [
        os.path.relpath(os.path.join(folder, name), MIRROR)
        for folder, _, files in os.walk(os.path.join(MIRROR, "runs"))
        for name in files
        if not name.startswith(".")
    ]
    # The exit comes last, as in a mirror that is written.
    return sorted(names, key=lambda name: (name.endswith("/exit.json"), name))


class Display:
    """Prints each small object once, and those that are replaced now and then."""

    def __init__(self, given: Iterable[str]) -> None:
        self.printed = set(given)
        self.replaced_at = -REPLACED_EVERY_SECONDS

    def __call__(self, names: Iterable[str]) -> None:
        is_due = time.monotonic() - self.replaced_at > REPLACED_EVERY_SECONDS
        for name in filter(SHOWN_NAMES.fullmatch, names):
            is_replaced = name.endswith(REPLACED)
            if is_due if is_replaced else name not in self.printed:
                self.print(name)
                self.printed.add(name)
                if is_replaced:
                    self.replaced_at = time.monotonic()

    def print(self, name: str) -> None:
        with open(os.path.join(MIRROR, name), "rb") as file:
            data = file.read(MOST_SHOWN_BYTES + 1)
        if len(data) <= MOST_SHOWN_BYTES:
            text = base64.b64encode(zlib.compress(data)).decode()
            digest = hashlib.sha256(data).hexdigest()[:16]
            print(f"{SHOWN} {name} {digest} {text}", flush=True)


def pack(given: set[str]) -> None:
    """Writes what is new in the mirror into the output; it appears whole."""
    with tarfile.open(OUTPUT + ".draft", "w") as archive:
        for name in list_files():
            if name not in given:
                # An old checkpoint may be removed meanwhile.
                with suppress(FileNotFoundError), open(os.path.join(MIRROR, name), "rb") as file:
                    archive.addfile(archive.gettarinfo(arcname=name, fileobj=file), file)
    os.replace(OUTPUT + ".draft", OUTPUT)


if __name__ == "__main__":
    sys.exit(main())
