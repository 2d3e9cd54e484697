"""Signs what a workspace and its machines write into a mirror, so that nobody else's is used.

A workspace signs descriptions of runs with its key, which stays in the workspace. A key derived
from it for one run signs everything else; the run's machine gets that one as a secret, so that a
stolen one endangers no other run. Documents have their signature as a field, segments of events as
a last line, and folders as a file beside the manifest.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from core.processes.environment import RUN_KEY_VARIABLE
from core.targets.errors import MirrorError
from core.workspace.keys import Keys, make_keys, read_keys

SIGNATURE_FILE = "signature.json"
_FIELD = "signature"
_LAST_LINE = b'{"n":0,"t":0,"kind":"signature","signature":"'


def description_keys(root: Path, *, make: bool = False) -> Keys:
    """Returns a workspace's keys for descriptions of runs."""
    return (make_keys(root) if make else read_keys(root)).derive("descriptions")


def run_keys(root: Path, run_id: str) -> Keys:
    """Returns the keys of one run, derived from those of its workspace."""
    return make_keys(root).derive(f"run {run_id}")


def machine_keys() -> Keys | None:
    """Returns the keys that this machine was given for its run, if any."""
    given = os.environ.get(RUN_KEY_VARIABLE)
    return Keys.parse(given) if given else None


@dataclass(frozen=True)
class Seal:
    """Signs the objects of one run, and verifies them.

    Attributes:
        keys: None: nothing is signed or verified.
        run_id: Part of each signed name.
    """

    run_id: str
    keys: Keys | None = None

    def add(self, name: str, document: bytes) -> bytes:
        """Returns a JSON object with a signature."""
        if not self.keys:
            return document
        values = json.loads(document)
        signature = self.keys.sign(self._full(name), _canonical(values))
        return json.dumps({**values, _FIELD: signature}, indent=1).encode() + b"\n"

    def has_signed(self, name: str, document: bytes) -> bool:
        """Returns whether a JSON object has a signature of these keys."""
        try:
            values = json.loads(document)
            signature = values.pop(_FIELD, "")
            keys = self.keys or Keys()
            return keys.has_signed(self._full(name), _canonical(values), signature)
        except (ValueError, AttributeError, TypeError, RecursionError):
            return False

    def check(self, name: str, document: bytes) -> None:
        """Raises MirrorError for a document that these keys haven't signed."""
        if self.keys and not self.has_signed(name, document):
            raise self._unsigned(name)

    def add_line(self, name: str, lines: bytes) -> bytes:
        """Returns lines of JSON with a signature as the last one."""
        if not self.keys:
            return lines
        signature = self.keys.sign(self._full(name), lines)
        return lines + _LAST_LINE + signature.encode() + b'"}\n'

    def remove_line(self, name: str, lines: bytes) -> bytes:
        """Returns lines without their signature; raises MirrorError for a wrong one."""
        data, mark, rest = lines.rpartition(_LAST_LINE)
        is_signed = bool(mark) and len(rest) == 67 and rest.endswith(b'"}\n')
        if not self.keys:
            return data if is_signed else lines
        signature = rest[:64].decode("ascii", "replace")
        if not is_signed or not self.keys.has_signed(self._full(name), data, signature):
            raise self._unsigned(name)
        return data

    def file(self, name: str, manifest: bytes) -> bytes | None:
        """Returns the content of a folder's signature file; None without keys."""
        if not self.keys:
            return None
        return self.add(f"{name}/{SIGNATURE_FILE}", _statement(manifest))

    def check_file(self, name: str, manifest: bytes, signature: bytes | None) -> None:
        """Raises MirrorError for a folder whose manifest these keys haven't signed."""
        if not self.keys:
            return
        self.check(f"{name}/{SIGNATURE_FILE}", signature or b"")
        assert signature is not None
        if json.loads(signature).get("manifest") != json.loads(_statement(manifest))["manifest"]:
            raise self._unsigned(name)

    def _full(self, name: str) -> str:
        return f"{self.run_id}/{name}"

    def _unsigned(self, name: str) -> MirrorError:
        return MirrorError(
            f"{name} of the run {self.run_id} in the mirror isn't signed with the run's key",
            expected="what this workspace, or a machine that it has launched, has written",
            received="no signature, or another one",
            fix="see who else may write to the mirror; then start the run again in another one",
        )


def _statement(manifest: bytes) -> bytes:
    return json.dumps({"manifest": sha256(manifest).hexdigest()}).encode()


def _canonical(values: object) -> bytes:
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
