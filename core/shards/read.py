"""Opens shards and reads sequences by index, checking each record's CRC.

Remote shards are downloaded first. Folders without a manifest work too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import MissingDataError, ShardError, StudioError
from core.hub.client import parse_hub_id
from core.network.outbound import allow_typed_hosts
from core.records.events import Reporter
from core.shards.records import (
    FixedRecords,
    Int64Records,
    MappedRecords,
    RecordLayout,
    detect_record_layout,
    find_padding,
    id_dtype,
)
from core.storage.files import fetch_shards, hub_address, is_address, is_cached
from core.storage.shard_names import parse_file_name
from core.workspace.manifests import (
    MANIFEST_FILE,
    Manifest,
    damaged_files,
    fingerprint_of_files,
    hash_file,
    read_manifest,
)
from core.workspace.names import expand_path, relative_name
from core.workspace.workspace import Workspace

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
TOKENIZER_FOLDER = "tokenizer"
TOKEN_COUNTS_FILE = "token_counts.npy"

_PAD_ID = "pad_id"
_ROWS_AT_ONCE = 8192
_SAMPLED_BYTES = 1 << 16
# Manifests are untrusted.
_MOST_ROW_LENGTH, _MOST_TOKENS = 1 << 24, 1 << 31


@dataclass(frozen=True)
class ShardFile:
    """A shard file and its stated records."""

    path: Path
    records: int


class Rows:
    """The sequences of one split.

    Args:
        files: In sequence order.
    """

    def __init__(self, files: Sequence[ShardFile], layout: RecordLayout) -> None:
        self.files = list(files)
        self.layout = layout
        self._ends = np.cumsum([file.records for file in self.files], dtype=np.int64)
        # Maps keep files open, and a process may have only so many.
        self._mapped: Callable[[int], MappedRecords] = lru_cache(_max_open_files())(self._map)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.files else 0

    @property
    def row_length(self) -> int:
        return self.layout.row_length

    def take(self, indices: NDArray[np.integer]) -> NDArray[np.int32]:
        """Returns sequences, int32 (n, row_length); raises ShardError at damaged records."""
        wanted = np.asarray(indices).astype(np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(f"sequences are numbered 0 to {len(self) - 1}")
        sequences = np.empty((len(wanted), self.row_length), np.int32)
        files = np.searchsorted(self._ends, wanted, side="right")
        order = np.argsort(files, kind="stable")
        for chosen in np.split(order, np.flatnonzero(np.diff(files[order])) + 1):
            if len(chosen):
                file = int(files[chosen[0]])
                sequences[chosen] = self._mapped(file).read(wanted[chosen] - self._start_of(file))
        return sequences

    def chunks(self, rows: int = _ROWS_AT_ONCE) -> Iterator[NDArray[np.int32]]:
        """Yields all sequences in chunks."""
        for start in range(0, len(self), rows):
            yield self.take(np.arange(start, min(start + rows, len(self))))

    def _start_of(self, file: int) -> int:
        return int(self._ends[file]) - self.files[file].records

    def _map(self, file: int) -> MappedRecords:
        return self.layout.map(self.files[file].path, self.files[file].records)


@dataclass(frozen=True)
class Shards:
    """Token sequences with their metadata.

    Attributes:
        path: Local copy of remote shards.
        manifest: Inferred if missing.
    """

    path: Path
    manifest: Manifest
    train: Rows
    validation: Rows

    @property
    def objective(self) -> str:
        """The layout's objective; `mlm` without a manifest."""
        return str(self.manifest.config.get("objective", "mlm"))

    @property
    def max_seq_length(self) -> int:
        """The model's sequence length; may be shorter than stored."""
        return self._stated_number("max_seq_length", self.manifest.config, self.row_length)

    def _stated_number(self, name: str, values: Mapping[str, Any], default: int) -> int:
        stated = values.get(name, default)
        if type(stated) is not int or stated < 1:
            raise ShardError(
                f"The manifest of the shards in {self.path} has an invalid {name}",
                expected="a whole number of at least 1",
                received=repr(stated)[:80],
                fix="restore the manifest from a copy, or build the shards again",
            )
        return stated

    @property
    def line_by_line(self) -> bool:
        """True if each sequence is a padded line."""
        return bool(self.manifest.config.get("line_by_line", False))

    @property
    def documents_per_sequence(self) -> float:
        """The mean number of training documents in a sequence; 0 if unknown."""
        documents = self._stated_number("train_documents", self.manifest.counts, 1)
        known = "train_documents" in self.manifest.counts and len(self.train)
        return documents / len(self.train) if known else 0.0

    @property
    def noise(self) -> tuple[float | None, float | None]:
        """Noise density and mean span length."""
        made_with = self.manifest.config
        return made_with.get("mlm_probability"), made_with.get("mean_noise_span_length")

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    @property
    def row_length(self) -> int:
        return (self.train if len(self.train) else self.validation).row_length

    @cached_property
    def vocab_size(self) -> int:
        """Without a manifest, the highest id plus one."""
        if self.manifest.counts.get("vocab_size"):
            return self._stated_number("vocab_size", self.manifest.counts, 0)
        highest = (
            int(rows.max()) for split in (self.train, self.validation) for rows in split.chunks()
        )
        return 1 + max(highest, default=-1)

    @property
    def tokenizer_folder(self) -> Path | None:
        """The tokenizer's copy, if present."""
        folder = self.path / TOKENIZER_FOLDER
        return folder if (folder / "tokenizer.json").is_file() else None

    @property
    def tokenizer_fingerprint(self) -> str:
        """Empty if unknown."""
        return self.manifest.inputs.get("tokenizer", "")

    @cached_property
    def token_counts(self) -> NDArray[np.int64]:
        """Counts of training ids, without padding if built here, int64 (vocab_size,)."""
        path = self.path / TOKEN_COUNTS_FILE
        if not path.is_file():
            counts = count_tokens(self.train.chunks(), self.vocab_size)
            pad_id = self.manifest.counts.get(_PAD_ID)
            if isinstance(pad_id, int) and 0 <= pad_id < len(counts):
                counts[pad_id] = 0
            return counts
        try:
            # Mapped first, as headers may claim any size; np.load opens other formats too.
            counts = np.lib.format.open_memmap(path, mode="r")
            if not _are_counts(counts, self.vocab_size):
                raise ValueError("another array, or no array")
            return np.array(counts, np.int64)
        except (OSError, ValueError, EOFError, MemoryError, RecursionError, TokenError) as error:
            raise ShardError(
                f"The token counts {path} can't be read",
                expected=f"an unchanged NumPy array of {self.vocab_size} counts",
                received=str(error) or type(error).__name__,
                fix="restore the file from a copy, or build the shards again",
            ) from error


def _are_counts(values: Any, vocab_size: int) -> bool:
    return (
        isinstance(values, np.ndarray)
        and values.dtype == np.int64
        and values.shape == (vocab_size,)
        and bool((values >= 0).all())
    )


def open_shards(
    reference: str, workspace: Workspace | None = None, reporter: Reporter | None = None
) -> Shards:
    """Opens shards by workspace name, folder, address or Hub id.

    Raises:
        ConfigError: No such shards exist.
        ShardError: A file is damaged or can't be fetched.
    """
    workspace = Workspace.of(workspace)
    reporter = reporter or Reporter()
    if is_address(reference):
        allow_typed_hosts([reference])
        return _open_folder(fetch_shards(reference, workspace, reporter))
    if is_on_hub(reference, workspace):
        return _open_folder(fetch_shards(hub_address(reference), workspace, reporter))
    if _is_bare_folder(reference, workspace):
        return _open_bare(expand_path(reference))
    artifact = workspace.find("shards", reference)
    location = artifact.manifest.location
    if not location:
        return _open_folder(artifact.path)
    if is_address(location):
        return _open_folder(fetch_shards(location, workspace, reporter, artifact.fingerprint))
    if not Path(location).is_absolute():
        raise ShardError(
            f"The manifest of the shards {artifact.name} has an invalid location",
            expected="an absolute path or an address",
            received=location,
            fix="build the shards again, or set ⟬shards⟭ to the folder itself",
        )
    return _open_elsewhere(Path(location), artifact.manifest)


def count_tokens(rows: Iterable[NDArray], vocab_size: int) -> NDArray[np.int64]:
    """Counts each id, int64 (vocab_size,)."""
    counts = np.zeros(vocab_size, np.int64)
    for chunk in rows:
        counts += np.bincount(chunk.reshape(-1), minlength=vocab_size)
    return counts


def is_on_hub(reference: str, workspace: Workspace) -> bool:
    """True for a Hub id that names nothing local."""
    here = (workspace.folder("shards") / reference, expand_path(reference))
    return parse_hub_id(reference) is not None and not any(path.exists() for path in here)


def is_remote(reference: str, workspace: Workspace) -> bool:
    """True if opening contacts a store; cached artifacts don't."""
    if is_address(reference) or is_on_hub(reference, workspace):
        return True
    try:
        manifest = workspace.find("shards", reference).manifest
    except StudioError:
        return False  # opening reports the problem
    return is_address(manifest.location) and not is_cached(manifest.fingerprint, workspace)


def _is_bare_folder(reference: str, workspace: Workspace) -> bool:
    if not reference or (workspace.folder("shards") / reference / MANIFEST_FILE).is_file():
        return False
    folder = expand_path(reference)
    return not (folder / MANIFEST_FILE).is_file() and bool(_find_files(folder))


def _open_elsewhere(folder: Path, expected: Manifest) -> Shards:
    if not (folder / MANIFEST_FILE).is_file():
        raise MissingDataError(
            f"The shards {expected.name} are not at their location",
            expected=f"a manifest in {folder}",
            fix="restore the folder, or build the shards again",
        )
    shards = _open_folder(folder)
    if shards.fingerprint != expected.fingerprint:
        raise ShardError(
            f"The shards in {folder} have changed",
            expected=f"shards with the fingerprint {expected.fingerprint}",
            received=f"the fingerprint {shards.fingerprint}",
            fix="build the shards again, or set ⟬shards⟭ to the folder itself",
        )
    return shards


def _open_folder(folder: Path) -> Shards:
    if not (folder / MANIFEST_FILE).is_file():
        return _open_bare(folder)
    manifest = read_manifest(folder)
    _check_small_files(folder, manifest)
    layout = _stated_layout(folder, manifest)
    train, validation = (
        Rows(_stated_files(folder, manifest, split, layout), layout) for split in SPLITS
    )
    return Shards(folder, manifest, train, validation)


def _check_small_files(folder: Path, manifest: Manifest) -> None:
    small = {n: entry for n, entry in manifest.files.items() if not parse_file_name(Path(n).name)}
    if problems := damaged_files(folder, replace(manifest, files=small)):
        raise ShardError(
            f"The shards in {folder} are damaged",
            expected="unchanged files",
            received=", ".join(problems),
            fix="restore the files from a copy, or build the shards again",
        )


def _stated_layout(folder: Path, manifest: Manifest) -> RecordLayout:
    try:
        row_length = _count(manifest, "row_length", _MOST_ROW_LENGTH)
        if manifest.config.get("record_format") == Int64Records.name:
            return Int64Records(row_length)
        return FixedRecords(
            row_length, id_dtype(_count(manifest, "vocab_size", _MOST_TOKENS)).itemsize
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ShardError(
            f"The manifest in {folder} doesn't define the sequence layout",
            expected="valid counts row_length and vocab_size",
            received=f"{type(error).__name__}: {error}",
            fix="restore the manifest from a copy, or build the shards again",
        ) from error


def _count(manifest: Manifest, name: str, most: int) -> int:
    value = manifest.counts[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {ascii(value)[:60]}")
    if not 1 <= value <= most:
        raise ValueError(f"{name} is {ascii(value)[:60]}")
    return value


def _stated_files(
    folder: Path, manifest: Manifest, split: str, layout: RecordLayout
) -> list[ShardFile]:
    files = []
    for name, entry in manifest.files.items():
        numbers = parse_file_name(Path(name).name)
        if name.startswith(f"{split}/") and numbers:
            path = folder / relative_name(name, f"The manifest in {folder}")
            _check_size(path, entry["bytes"], numbers[1], layout)
            files.append((numbers[0], ShardFile(path, numbers[1])))
    return [file for _, file in sorted(files, key=lambda pair: pair[0])]


def _check_size(path: Path, size: int, records: int, layout: RecordLayout) -> None:
    if not path.is_file():
        raise MissingDataError(
            f"The shard {path} is missing",
            expected=f"a file of {size} bytes",
            fix="restore the file from a copy, or build the shards again",
        )
    if records > size:
        raise ShardError(
            f"The name of the shard {path} gives an impossible number of records",
            expected=f"at most as many records as fit into {size} bytes",
            received=f"{str(records)[:40]} records",
            fix="restore the file from a copy, or build the shards again",
        )
    if path.stat().st_size != size:
        layout.map(path, records)
        raise ShardError(
            f"The shard {path} has the wrong size",
            expected=f"{size} bytes",
            received=f"{path.stat().st_size} bytes",
            fix="restore the file from a copy, or build the shards again",
        )


def _open_bare(folder: Path) -> Shards:
    files_by_split = _find_files(folder)
    layouts = {
        split: detect_record_layout(files[0].path)
        for split, files in files_by_split.items()
        if files
    }
    if not layouts:
        raise ShardError(
            f"There are no shards in {folder}",
            expected="files named like dataset-0-1000.tfrecord, in this folder or in train/ and "
            "validation/",
            fix="choose the folder that contains the shards",
        )
    layout = next(iter(layouts.values()))
    if any(other != layout for other in layouts.values()):
        raise ShardError(
            f"The training and validation sequences in {folder} have different layouts",
            expected=f"validation sequences with the layout of the training sequences: {layout}",
            received=str(layouts[VALIDATION]),
            fix="build both splits with the same sequence length and format",
        )
    splits = {split: Rows(files_by_split.get(split, []), layout) for split in SPLITS}
    if isinstance(layout, FixedRecords):
        for file in (file for rows in splits.values() for file in rows.files):
            layout.map(file.path, file.records)
    return Shards(folder, _guessed_manifest(folder, splits), splits[TRAIN], splits[VALIDATION])


def _find_files(folder: Path) -> dict[str, list[ShardFile]]:
    files_by_split = {split: _files_in(folder / split) for split in SPLITS}
    if not any(files_by_split.values()):
        files_by_split = {TRAIN: _files_in(folder)}
    return {split: files for split, files in files_by_split.items() if files}


def _files_in(folder: Path) -> list[ShardFile]:
    # Opening a compressed one says what to do.
    paths = folder.glob("*.tfrecord*") if folder.is_dir() else iter(())
    named = [
        (numbers, path)
        for path in paths
        if (numbers := parse_file_name(path.name.removesuffix(".gz"))) and path.is_file()
    ]
    return [ShardFile(path, numbers[1]) for numbers, path in sorted(named)]


def _guessed_manifest(folder: Path, splits: Mapping[str, Rows]) -> Manifest:
    counts = {"row_length": splits[TRAIN].row_length}
    for split, rows in splits.items():
        counts |= {f"{split}_rows": len(rows), f"{split}_tokens": len(rows) * rows.row_length}
    config: dict[str, Any] = {"record_format": splits[TRAIN].layout.name}
    padding = {
        find_padding(rows.files[0].path, rows.files[0].records, rows.layout)
        for rows in splits.values()
        if rows.files
    } - {None}
    if padding:
        config["line_by_line"] = True
        counts[_PAD_ID] = int(padding.pop() or 0)
    tokenizer = folder / TOKENIZER_FOLDER / "tokenizer.json"
    files = {
        str(file.path.relative_to(folder)): _sample(file.path)
        for rows in splits.values()
        for file in rows.files
    }
    return Manifest(
        kind="shards",
        name=folder.name,
        fingerprint=fingerprint_of_files(files),
        config=config,
        inputs={"tokenizer": hash_file(tokenizer)[:16]} if tokenizer.is_file() else {},
        counts=counts,
        files=files,
    )


def _sample(path: Path) -> dict[str, Any]:
    """Hashes only both ends, as a full hash is slow."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_SAMPLED_BYTES)
        file.seek(max(0, size - _SAMPLED_BYTES))
        digest = sha256(str(size).encode() + start + file.read())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _max_open_files() -> int:
    try:
        import resource
    except ImportError:
        return 256
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else max(16, min(4096, soft // 2))
