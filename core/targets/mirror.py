"""Reads and writes one run's part of a mirror."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, TypeVar

from core.artifacts.checkpoint import (
    CHECKPOINTS_FOLDER,
    checkpoint_name,
    checkpoint_step,
    words_name,
    words_of_name,
)
from core.errors import ConfigError, StudioError
from core.foreign_files import files_inside
from core.records.events import STOP_FILE
from core.targets.errors import MirrorError, NoRoomError, SupersededError
from core.targets.opening import open_store
from core.targets.schema import (
    MOST_DOCUMENT_BYTES,
    MOST_LOG_BYTES,
    MOST_SEGMENT_BYTES,
    MOST_SPEC_BYTES,
    CheckpointReference,
    Claim,
    Exit,
    Heartbeat,
    RunSpec,
    StopRequest,
    claim_number,
    parse_document,
    segment_number,
)
from core.targets.signing import SIGNATURE_FILE, Seal
from core.targets.store import ObjectStore, StoredObject, missing
from core.workspace.atomic import commit_folder
from core.workspace.keys import Keys
from core.workspace.manifests import (
    MANIFEST_FILE,
    MOST_MANIFEST_BYTES,
    Manifest,
    hash_file,
    parse_manifest,
)
from core.workspace.names import is_run_id, path_inside
from core.workspace.places import make_folder

_MOST_CLAIM_TRIES = 20
_HEARTBEAT_WITHIN_SECONDS = 20.0
_RUNS = "runs"
_SPEC = "run.json"
_CHECKPOINT_FILE = re.compile(rf"incarnations/(\d{{6,7}})/{CHECKPOINTS_FOLDER}/([^/]+)/(.+)")

# The signer of a description: this workspace, nobody, or a workspace with another key.
Origin = Literal["own", "unsigned", "foreign"]

_T = TypeVar("_T", StopRequest, Heartbeat, Exit)


@dataclass(frozen=True)
class StoredCheckpoint:
    """A complete checkpoint in a mirror."""

    incarnation: int
    step: int
    files: Mapping[str, int]  # Size by name.

    @property
    def folder(self) -> str:
        return f"{_incarnation(self.incarnation)}/{CHECKPOINTS_FOLDER}/{checkpoint_name(self.step)}"


@dataclass(frozen=True)
class KeptModel:
    """A complete model in a mirror, kept at a number of words seen."""

    incarnation: int
    words: int
    files: Mapping[str, int]  # Size by name.

    @property
    def folder(self) -> str:
        return f"{_incarnation(self.incarnation)}/{CHECKPOINTS_FOLDER}/{words_name(self.words)}"


class Listing:
    """The objects of a run at one moment."""

    def __init__(self, objects: Mapping[str, StoredObject]) -> None:
        self.objects = objects

    @property
    def newest(self) -> int:
        """The number of the newest incarnation; 0 if nothing has claimed the run."""
        names = (
            name.removeprefix("claims/") for name in self.objects if name.startswith("claims/")
        )
        return max(filter(None, map(claim_number, names)), default=0)

    def segments(self, incarnation: int) -> list[int]:
        """Numbers of the segments of events that follow each other from 0."""
        prefix = f"{_incarnation(incarnation)}/events/"
        numbers = {
            number
            for name in self.objects
            if name.startswith(prefix)
            and (number := segment_number(name.removeprefix(prefix))) is not None
        }
        return list(range(next(n for n in range(len(numbers) + 1) if n not in numbers)))

    def checkpoints(self, incarnation: int) -> list[StoredCheckpoint]:
        """Complete checkpoints of one incarnation, newest first."""
        checkpoints = [
            StoredCheckpoint(incarnation, step, files)
            for (number, name), files in self._complete_folders.items()
            if number == incarnation and (step := checkpoint_step(name)) is not None
        ]
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True)

    def kept_models(self) -> dict[int, KeptModel]:
        """The models that were kept, by words; of several incarnations', the earliest one's."""
        models: dict[int, KeptModel] = {}
        for (incarnation, name), files in sorted(self._complete_folders.items()):
            if (words := words_of_name(name)) is not None:
                models.setdefault(words, KeptModel(incarnation, words, files))
        return models

    @cached_property
    def _complete_folders(self) -> dict[tuple[int, str], dict[str, int]]:
        """Sizes by file name of the checkpoints with a manifest, by incarnation and name."""
        files: dict[tuple[int, str], dict[str, int]] = {}
        for name, stored in self.objects.items():
            if match := _CHECKPOINT_FILE.fullmatch(name):
                files.setdefault((int(match[1]), match[2]), {})[match[3]] = stored.bytes
        return {place: sizes for place, sizes in files.items() if MANIFEST_FILE in sizes}

    def artifact(self, incarnation: int) -> dict[str, int] | None:
        """Sizes of the files that the run made; None if they aren't complete."""
        prefix = f"{_incarnation(incarnation)}/artifact/"
        files = {
            name.removeprefix(prefix): stored.bytes
            for name, stored in self.objects.items()
            if name.startswith(prefix)
        }
        return files if MANIFEST_FILE in files else None

    def version(self, name: str) -> str:
        """Returns a tag that changes with the object; "" if it is missing."""
        stored = self.objects.get(name)
        return f"{stored.bytes}-{stored.version}" if stored else ""


def run_address(root: str, run_id: str) -> str:
    """Returns the address of a run below a mirror's root, as `RunMirror.open` takes it."""
    return f"{root.rstrip('/')}/{_RUNS}/{run_id}"


class RunMirror:
    """The part of a mirror that belongs to one run.

    Args:
        store: The mirror's root.
        keys: The run's keys; without them, nothing is signed or verified.
        signed_from: The first incarnation whose objects have to be signed.
    """

    def __init__(
        self,
        store: ObjectStore,
        run_id: str,
        keys: Keys | None = None,
        *,
        signed_from: int = 1,
    ) -> None:
        if not is_run_id(run_id):
            raise ConfigError(
                "That can't be a run's id",
                expected="the name of a folder in the mirror's runs/",
                received=ascii(run_id)[:100],
                fix="check the address",
                field="mirror",
            )
        self.store = store
        self.run_id = run_id
        self.signed_from = signed_from
        self._keys = keys
        self._root = f"{_RUNS}/{run_id}"

    @classmethod
    def open(cls, address: str) -> RunMirror:
        """Opens `ROOT/runs/ID`; raises ConfigError for another address."""
        root, _, rest = address.rstrip("/").rpartition(f"/{_RUNS}/")
        if not root or "/" in rest:
            raise ConfigError(
                "That isn't the address of a run",
                expected=f"the mirror's address, then /{_RUNS}/ and the run's id",
                received=address[:200],
                fix="the machine that trains prints the address at its start",
                field="mirror",
            )
        return cls(open_store(root), rest)

    @property
    def address(self) -> str:
        return run_address(self.store.address, self.run_id)

    def look(self) -> Listing:
        prefix = f"{self._root}/"
        objects = self.store.list_objects(self._root)
        return Listing(
            {
                name.removeprefix(prefix): stored
                for name, stored in objects.items()
                if name.startswith(prefix)
            }
        )

    # Written at home.

    def write_spec(self, spec: RunSpec, keys: Keys | None = None) -> str:
        """Writes what is to be run; returns the SHA-256 of what was written.

        Args:
            keys: Sign the description.
        """
        data = Seal(self.run_id, keys).add(_SPEC, spec.to_bytes())
        self.store.write(self._name(_SPEC), data)
        return hashlib.sha256(data).hexdigest()

    def read_signed_spec(self, keys: Keys) -> tuple[RunSpec, Origin]:
        """Reads what is to be run, and who has described it.

        Args:
            keys: A workspace's, for descriptions.
        """
        data = self.store.read(self._name(_SPEC), MOST_SPEC_BYTES)
        spec = self._parse_spec(data)
        if Seal(self.run_id, keys).has_signed(_SPEC, data or b""):
            return spec, "own"
        return spec, "foreign" if spec.signed_from else "unsigned"

    def read_spec(self, sha256: str = "") -> RunSpec:
        """Reads what is to be run; raises MirrorError if it is missing or damaged.

        Args:
            sha256: Hash of the only accepted description; "": any.
        """
        data = self.store.read(self._name(_SPEC), MOST_SPEC_BYTES)
        if data and sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise MirrorError(
                f"The description of the run at {self.address} was changed",
                expected=f"the one with the hash {sha256[:16]}…, which was launched",
                fix="see who else may write to the mirror, then resume the run",
            )
        return self._parse_spec(data)

    def _parse_spec(self, data: bytes | None) -> RunSpec:
        if data is None:
            raise MirrorError(
                f"There is no run at {self.address}",
                expected="a run.json, which the start of a run writes there",
                fix="check the address; runs that were deleted can't be followed",
            )
        spec = parse_document(RunSpec, data, self._name(_SPEC))
        if spec.id != self.run_id:
            raise MirrorError(
                f"{self.address} holds another run",
                expected=self.run_id,
                received=ascii(spec.id)[:100],
                fix="don't rename folders of a mirror",
            )
        return spec

    def write_stop(self, stop: StopRequest) -> None:
        self.store.write(self._name(STOP_FILE), stop.to_bytes())

    def clear_stop(self) -> None:
        """Withdraws a request to stop, before the run goes on."""
        self.store.remove([self._name(STOP_FILE)])

    def is_alive(self, incarnation: int) -> bool:
        """Waits for two heartbeats, and returns whether the second one differs."""
        name = heartbeat_name(incarnation)
        before = self.look().version(name)
        deadline = time.monotonic() + _HEARTBEAT_WITHIN_SECONDS
        while time.monotonic() < deadline:
            time.sleep(1.0)
            if self.look().version(name) != before:
                return True
        return False

    def read_stop(self) -> StopRequest | None:
        return self._read_document(StopRequest, STOP_FILE)

    # Claims.

    def claim(self, continues: CheckpointReference | None, **fields: object) -> Claim:
        """Claims the next incarnation.

        Raises SupersededError if others claim it again and again.
        """
        for _ in range(_MOST_CLAIM_TRIES):
            number = self.look().newest + 1
            claim = Claim.model_validate(
                {
                    "incarnation": number,
                    "time": time.time(),
                    "continues": continues,
                    **fields,
                }
            )
            data = self._signing.add(_claim(number), claim.to_bytes())
            if self.store.create(self._name(_claim(number)), data):
                return claim
        raise self.superseded("others that claim it at the same time")

    def read_claim(self, incarnation: int) -> Claim:
        name = _claim(incarnation)
        data = self._read_listed(name, MOST_DOCUMENT_BYTES)
        self._verifying(incarnation).check(name, data)
        claim = parse_document(Claim, data, name)
        reference = claim.continues
        if claim.incarnation != incarnation or (reference and reference.incarnation >= incarnation):
            raise MirrorError(
                f"{self.address}/{name} can't be used",
                expected=f"the claim of incarnation {incarnation}, which continues an earlier one",
                received=f"that of {claim.incarnation}",
                fix="somebody else wrote there; start the run again with another mirror",
            )
        return claim

    def superseded(self, by: str) -> SupersededError:
        return SupersededError(
            f"Another process has taken over the run {self.run_id}",
            expected="no newer claim",
            received=by,
            fix="nothing needs to be done: the newer process goes on",
        )

    # Written by the machine, below its incarnation.

    def create_segment(self, incarnation: int, number: int, data: bytes) -> bool:
        name = _segment(incarnation, number)
        return self.store.create(self._name(name), self._signing.add_line(name, data))

    def read_segment(self, incarnation: int, number: int) -> bytes:
        name = _segment(incarnation, number)
        data = self._read_listed(name, MOST_SEGMENT_BYTES)
        return self._verifying(incarnation).remove_line(name, data)

    def write_heartbeat(self, incarnation: int, heartbeat: Heartbeat) -> None:
        self.store.write(self._name(heartbeat_name(incarnation)), heartbeat.to_bytes())

    def read_heartbeat(self, incarnation: int) -> Heartbeat | None:
        return self._read_document(Heartbeat, heartbeat_name(incarnation))

    def write_log(self, incarnation: int, data: bytes) -> None:
        self.store.write(self._name(log_name(incarnation)), data)

    def read_log(self, incarnation: int) -> str:
        data = self.store.read(self._name(log_name(incarnation)), MOST_LOG_BYTES)
        return (data or b"").decode("utf-8", "replace")

    def write_exit(self, incarnation: int, ended: Exit) -> None:
        name = exit_name(incarnation)
        self.store.write(self._name(name), self._signing.add(name, ended.to_bytes()))

    def read_exit(self, incarnation: int) -> Exit | None:
        return self._read_document(Exit, exit_name(incarnation), self._verifying(incarnation))

    def times_of(self, launch: int, incarnations: int) -> tuple[float, float] | None:
        """Returns when the store got a launch's first claim and its last object, in Unix seconds.

        Args:
            incarnations: Number of incarnations before the launch.
        """
        listing = self.look()
        numbers = range(incarnations + 1, listing.newest + 1)
        own = [number for number in numbers if self.read_claim(number).launch == launch]
        prefixes = tuple(f"{_incarnation(number)}/" for number in own)
        claims = [listing.objects[_claim(number)].modified for number in own]
        times = [
            stored.modified for name, stored in listing.objects.items() if name.startswith(prefixes)
        ]
        return (claims[0], max([*claims, *times])) if claims else None

    # Folders with a manifest.

    def upload_checkpoint(self, folder: Path, incarnation: int, step: int) -> None:
        """Uploads a checkpoint; raises SupersededError if a newer incarnation has begun."""
        self._upload(folder, StoredCheckpoint(incarnation, step, {}).folder, incarnation)

    def upload_kept_model(self, folder: Path, incarnation: int, words: int) -> None:
        """Uploads a kept model; raises SupersededError if a newer incarnation has begun."""
        self._upload(folder, KeptModel(incarnation, words, {}).folder, incarnation)

    def upload_artifact(self, folder: Path, incarnation: int) -> None:
        """Uploads what the run made; raises SupersededError if a newer incarnation has begun."""
        self._upload(folder, f"{_incarnation(incarnation)}/artifact", incarnation)

    def _upload(self, folder: Path, name: str, incarnation: int) -> None:
        def confirm() -> None:
            self.check_newest(incarnation, self.look())

        upload_folder(
            self.store, folder, self._name(name), confirm, partial(self._signing.file, name)
        )

    def check_newest(self, incarnation: int, listing: Listing) -> None:
        """Raises SupersededError if another incarnation is newer."""
        if listing.newest > incarnation:
            raise self.superseded(f"incarnation {listing.newest}")

    def remove_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        """Removes a checkpoint, its manifest first, so that nobody takes it for complete."""
        names = sorted(checkpoint.files, key=lambda name: name != MANIFEST_FILE)
        self.store.remove([self._name(f"{checkpoint.folder}/{name}") for name in names])

    def download_checkpoint(self, checkpoint: StoredCheckpoint, folder: Path) -> None:
        """Downloads and verifies a checkpoint into a new folder."""
        manifest = self._download(
            checkpoint.folder, checkpoint.files, checkpoint.incarnation, folder
        )
        if manifest.kind != "checkpoint" or manifest.counts.get("step") != checkpoint.step:
            raise MirrorError(
                f"{checkpoint.folder} is not what its name says",
                expected=f"the checkpoint of step {checkpoint.step}",
                received=f"a {manifest.kind} of step {manifest.counts.get('step')}",
                fix="don't rename folders of a mirror",
            )

    def read_artifact(self, incarnation: int) -> Manifest:
        """Reads the manifest of what the run made; raises MirrorError."""
        return self._read_manifest(f"{_incarnation(incarnation)}/artifact", incarnation)[0]

    def download_artifact(
        self, incarnation: int, files: Mapping[str, int], folder: Path
    ) -> Manifest:
        """Downloads and verifies what the run made into a new folder; returns its manifest."""
        name = f"{_incarnation(incarnation)}/artifact"
        return self._download(name, files, incarnation, folder)

    def fetch_checkpoint(self, checkpoint: StoredCheckpoint, parent: Path) -> Path:
        """Downloads and verifies a checkpoint; its folder, which is returned, appears whole."""
        final = parent / checkpoint_name(checkpoint.step)
        _fetch_whole(final, lambda draft: self.download_checkpoint(checkpoint, draft))
        return final

    def fetch_kept_models(self, listing: Listing, wanted: Collection[int], parent: Path) -> None:
        """Fetches the kept models that aren't there yet; a damaged one is passed over.

        Args:
            wanted: Numbers of words; models at others are left alone.
        """
        for words, model in listing.kept_models().items():
            final = parent / words_name(words)
            if words in wanted and not final.exists():
                try:
                    _fetch_whole(final, partial(self._download_kept_model, model))
                except MirrorError as error:
                    print(error, file=sys.stderr, flush=True)

    def _download_kept_model(self, model: KeptModel, folder: Path) -> None:
        manifest = self._download(model.folder, model.files, model.incarnation, folder)
        if manifest.kind != "checkpoint" or manifest.name != words_name(model.words):
            raise MirrorError(
                f"{model.folder} is not what its name says",
                expected=f"the model at {model.words} words",
                received=f"a {manifest.kind} of the name {manifest.name}",
                fix="don't rename folders of a mirror",
            )

    def fetch_newest_checkpoint(self, listing: Listing, parent: Path) -> Path | None:
        """Fetches the newest checkpoint that is whole; None if it is there already, or none is."""
        for checkpoint in self.find_checkpoints(listing):
            if (parent / checkpoint_name(checkpoint.step)).exists():
                return None
            try:
                return self.fetch_checkpoint(checkpoint, parent)
            except MirrorError as error:
                # The machine removes old ones meanwhile.
                manifest = self._name(f"{checkpoint.folder}/{MANIFEST_FILE}")
                if self.store.read(manifest, MOST_MANIFEST_BYTES) is not None:
                    print(error, file=sys.stderr, flush=True)
        return None

    def find_checkpoints(self, listing: Listing) -> list[StoredCheckpoint]:
        """Returns the complete checkpoints of the newest incarnation's chain, newest first.

        An incarnation that another one left behind has checkpoints beyond the one that was resumed
        from: they are no part of the chain.
        """
        checkpoints: list[StoredCheckpoint] = []
        incarnation, most = listing.newest, None
        while incarnation:
            own = listing.checkpoints(incarnation)
            checkpoints += [
                checkpoint for checkpoint in own if most is None or checkpoint.step <= most
            ]
            continues = self.read_claim(incarnation).continues
            if continues is None:
                break
            most = continues.step if most is None else min(most, continues.step)
            incarnation = continues.incarnation
        return checkpoints

    def _download(
        self, name: str, files: Mapping[str, int], incarnation: int, folder: Path
    ) -> Manifest:
        manifest, data = self._read_manifest(name, incarnation)
        download_folder(self.store, self._name(name), manifest, files, folder)
        (folder / MANIFEST_FILE).write_bytes(data)
        return manifest

    def _read_manifest(self, name: str, incarnation: int) -> tuple[Manifest, bytes]:
        manifest, data = _read_manifest(self.store, self._name(name))
        seal = self._verifying(incarnation)
        if seal.keys:
            file = self._name(f"{name}/{SIGNATURE_FILE}")
            seal.check_file(name, data, self.store.read(file, MOST_DOCUMENT_BYTES))
        return manifest, data

    @property
    def _signing(self) -> Seal:
        return Seal(self.run_id, self._keys)

    def _verifying(self, incarnation: int) -> Seal:
        return Seal(self.run_id, self._keys if incarnation >= self.signed_from else None)

    def _read_document(self, model: type[_T], name: str, seal: Seal | None = None) -> _T | None:
        data = self.store.read(self._name(name), MOST_DOCUMENT_BYTES)
        if data is not None and seal:
            seal.check(name, data)
        return None if data is None else parse_document(model, data, name)

    def _read_listed(self, name: str, most_bytes: int) -> bytes:
        """Reads an object that a listing contained; raises MirrorError if it is gone."""
        data = self.store.read(self._name(name), most_bytes)
        if data is None:
            raise missing(f"{self.address}/{name}")
        return data

    def _name(self, name: str) -> str:
        return f"{self._root}/{name}"


def _fetch_whole(final: Path, download: Callable[[Path], None]) -> None:
    """Downloads into a folder that appears with all of its files."""
    draft = final.with_name(f".{final.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    make_folder(draft)
    try:
        download(draft)
        commit_folder(draft, final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def upload_folder(
    store: ObjectStore,
    folder: Path,
    name: str,
    confirm: Callable[[], None],
    sign: Callable[[bytes], bytes | None],
) -> None:
    """Uploads a folder with a manifest, which comes last.

    Args:
        confirm: Called before the manifest; raises if the folder must not become complete.
        sign: Returns the signature of the manifest, or None.
    """
    for path in sorted(files_inside(folder), key=lambda path: path.name == MANIFEST_FILE):
        if path.name == MANIFEST_FILE:
            confirm()
            if path.parent == folder and (signature := sign(path.read_bytes())):
                store.write(f"{name}/{SIGNATURE_FILE}", signature)
        store.upload(path, f"{name}/{path.relative_to(folder).as_posix()}")


def download_folder(
    store: ObjectStore, name: str, manifest: Manifest, files: Mapping[str, int], folder: Path
) -> None:
    """Downloads the files of a manifest, and verifies every one.

    Args:
        files: The listed sizes; a manifest that names other files or sizes is refused before
            anything large is fetched.

    Raises:
        MirrorError: A name, a size or a hash isn't right.
        NoRoomError: The files don't fit on the disk.
    """
    wrong = [file for file, entry in manifest.files.items() if files.get(file) != entry["bytes"]]
    if wrong:
        raise _damaged(name, f"another size of {wrong[0]}, or no such file")
    if sum(entry["bytes"] for entry in manifest.files.values()) > shutil.disk_usage(folder).free:
        raise _no_room(name, folder)
    for file, entry in manifest.files.items():
        path = path_inside(folder, file, f"The mirror's {name}")
        make_folder(path.parent)
        store.download(f"{name}/{file}", path, entry["bytes"])
        if path.stat().st_size != entry["bytes"] or hash_file(path) != entry["sha256"]:
            raise _damaged(name, f"another content of {file}")


def _read_manifest(store: ObjectStore, name: str) -> tuple[Manifest, bytes]:
    data = store.read(f"{name}/{MANIFEST_FILE}", MOST_MANIFEST_BYTES)
    if data is None:
        raise missing(f"{name}/{MANIFEST_FILE}")
    try:
        return parse_manifest(data), data
    except (StudioError, ValueError, TypeError, RecursionError) as error:
        raise _damaged(name, f"a manifest that can't be read: {error}"[:300]) from error


def log_name(incarnation: int) -> str:
    return f"{_incarnation(incarnation)}/log-tail.txt"


def exit_name(incarnation: int) -> str:
    return f"{_incarnation(incarnation)}/exit.json"


def heartbeat_name(incarnation: int) -> str:
    return f"{_incarnation(incarnation)}/heartbeat.json"


def _claim(incarnation: int) -> str:
    return f"claims/{incarnation:06d}.json"


def _segment(incarnation: int, number: int) -> str:
    return f"{_incarnation(incarnation)}/events/{number:06d}.jsonl"


def _incarnation(number: int) -> str:
    return f"incarnations/{number:06d}"


def _damaged(name: str, received: str) -> MirrorError:
    return MirrorError(
        f"{name} in the mirror is damaged",
        expected="the files that its manifest describes, byte for byte",
        received=received,
        fix="an older checkpoint is used if there is one; else start the run again",
    )


def _no_room(name: str, folder: Path) -> NoRoomError:
    return NoRoomError(
        f"{name} doesn't fit on this disk",
        expected="room for the files that its manifest describes",
        received=f"{shutil.disk_usage(folder).free:,} bytes free",
        fix="make room, or use another workspace",
    )
