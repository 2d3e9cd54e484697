"""Moves the files that a run needs through a mirror, each once, named by its content's hash."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core.artifacts.finding import find_here
from core.artifacts.locating import find_run_checkpoint
from core.artifacts.subject import is_of_model
from core.config.evaluate import EvaluateConfig
from core.config.finetune import FinetuneConfig
from core.config.mixture import MixtureSource, format_mixture, parse_mixture
from core.config.remote import RemoteConfig
from core.config.train import TrainConfig
from core.corpus.finding import find_files
from core.errors import ConfigError, StudioError
from core.finetuning.file_kinds import holds_tables
from core.foreign_files import files_inside
from core.targets.code import CodeArchive
from core.targets.errors import MirrorError, NoRoomError
from core.targets.schema import DATA_FIELDS, MOST_FILES, Input, InputFile
from core.targets.store import ObjectStore
from core.workspace.atomic import commit_folder
from core.workspace.kinds import artifact_kinds
from core.workspace.manifests import MANIFEST_FILE, hash_file, read_manifest
from core.workspace.names import expand_path, flaw_of_names, name_from, path_inside
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

BLOBS = "blobs"
Progress = Callable[[int, int], None]


@dataclass
class Inputs:
    """The local files that a run reads.

    Attributes:
        values: Fields of the config that differ on the machine.
        paths: A local file for each hash.
    """

    inputs: list[Input] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)

    def add_folder(self, name: str, kind: str, folder: Path) -> None:
        """Adds a folder; with a manifest of this kind, as an artifact whose hashes are known."""
        manifest = read_manifest(folder) if (folder / MANIFEST_FILE).is_file() else None
        is_artifact = manifest is not None and manifest.kind == kind
        known = manifest.files if manifest and is_artifact else {}
        relatives = {path.relative_to(folder).as_posix(): path for path in files_inside(folder)}
        paths = {
            relative: path
            for relative, path in relatives.items()
            if not any(part.startswith(".") for part in relative.split("/"))
        }
        _check_count(name, len(paths))
        files = [self._describe(path, file, known.get(file)) for file, path in paths.items()]
        title = manifest.name if manifest and is_artifact else name_from(folder.name, fallback=name)
        self.inputs.append(
            Input(field=name, kind=kind if is_artifact else "", name=title, files=tuple(files))
        )

    def add_files(self, name: str, paths: Mapping[str, Path], title: str = "") -> None:
        """Adds files that aren't of an artifact.

        Args:
            paths: A file for each name that it has on the machine.
            title: Name of their folder there; "": the field's.
        """
        _check_count(name, len(paths))
        files = [self._describe(path, file_name, None) for file_name, path in paths.items()]
        self.inputs.append(Input(field=name, name=title or name, files=tuple(files)))

    def _describe(self, path: Path, name: str, known: Mapping[str, Any] | None) -> InputFile:
        sha256 = known["sha256"] if known else hash_file(path)
        # Uploaded later, perhaps from another working directory.
        self.paths[sha256] = path.absolute()
        return InputFile(name=name, bytes=path.stat().st_size, sha256=sha256)


def _check_count(name: str, count: int) -> None:
    """Raises ConfigError, before anything is hashed, for more files than a description names."""
    if count > MOST_FILES:
        raise ConfigError(
            "There are too many files to send to another machine",
            expected=f"at most {MOST_FILES:,} files",
            received=f"{count:,}",
            fix="pack them into one archive or into JSON lines",
            field=name,
        )


def collect_inputs(config: RemoteConfig, workspace: Workspace) -> Inputs:
    """Finds the local files that a run reads.

    What is at an address or on the Hub is none of them: the machine reads it itself.
    """
    inputs = Inputs()
    if isinstance(config, TrainConfig):
        _add_of_training(inputs, config, workspace)
    for name, kind in (("tokenizer", "tokenizer"), ("checkpoint", "model"), ("model", "model")):
        if reference := getattr(config, name, ""):
            _add_artifact(inputs, name, kind, reference, workspace)
    for name, file_format in _formats(config).items():
        if pattern := getattr(config, name):
            inputs.add_files(name, _files_of(pattern, name, file_format))
    return inputs


def _formats(config: RemoteConfig) -> dict[str, str]:
    """Returns the fields that name data which the run reads, each with the format of its files."""
    if isinstance(config, FinetuneConfig):
        has_tags = config.task == "token_classification"
        names = ("train_path", "validation_path", "test_path")
        paths = {name: path for name in names if (path := getattr(config, name))}
        return {
            name: "text" if has_tags and not holds_tables(path, name) else "auto"
            for name, path in paths.items()
        }
    if isinstance(config, EvaluateConfig):
        return {"path": config.file_format}
    if isinstance(config, TrainConfig) and config.evaluate_every:
        text_format = config.evaluation("text").file_format
        return {"evaluate_pairs_path": "auto", "evaluate_text_path": text_format}
    return {}


def _add_artifact(
    inputs: Inputs, name: str, kind: str, reference: str, workspace: Workspace
) -> None:
    """Adds the folder that a field names, or of a run's checkpoint the model alone."""
    folder = workspace.folder(kind) / reference
    if folder.is_dir():
        inputs.add_folder(name, kind, folder)
    elif name == "model" and (checkpoint := find_run_checkpoint(reference, workspace)):
        title = f"{checkpoint.run}-{checkpoint.label}"
        files = {path.name: path for path in checkpoint.folder.iterdir() if is_of_model(path.name)}
        inputs.add_files(name, files, title)
    else:
        folder = find_here(reference, workspace) or expand_path(reference, field=name)
        if folder.is_dir():
            inputs.add_folder(name, kind, folder)


def _add_of_training(inputs: Inputs, config: TrainConfig, workspace: Workspace) -> None:
    if config.mixture:
        _add_mixture(inputs, config.mixture, workspace)
    else:
        _add_shards(inputs, config.shards, workspace)
    if config.model_config_path:
        path = expand_path(config.model_config_path, field="model_config_path")
        if not path.is_file():
            raise ConfigError(
                "The model's configuration is missing",
                expected="a file",
                received=str(path),
                fix="correct the path",
                field="model_config_path",
            )
        inputs.add_files("model_config_path", {"file.json": path})


def upload_inputs(
    store: ObjectStore, inputs: Inputs, code: CodeArchive | None, progress: Progress
) -> int:
    """Uploads the blobs that the mirror lacks; returns their bytes.

    Args:
        progress: Receives the bytes done and those in all.
    """
    there = store.list_objects(BLOBS)
    sizes = {file.sha256: file.bytes for run_input in inputs.inputs for file in run_input.files}
    missing = [
        sha256
        for sha256, size in sizes.items()
        if (stored := there.get(f"{BLOBS}/{sha256}")) is None or stored.bytes != size
    ]
    total = sum(sizes[sha256] for sha256 in missing)
    if code and f"{BLOBS}/{code.sha256}" not in there:
        total += len(code.data)
        store.write(f"{BLOBS}/{code.sha256}", code.data)
    done = 0
    for sha256 in missing:
        progress(done, total)
        store.upload(inputs.paths[sha256], f"{BLOBS}/{sha256}")
        done += sizes[sha256]
    progress(total, total)
    return total


def place_inputs(
    store: ObjectStore, inputs: Sequence[Input], workspace: Workspace, cache: Path
) -> dict[str, Any]:
    """Downloads and verifies the inputs of a run into a workspace.

    Args:
        cache: Keeps each file by its hash, for later runs.

    Returns:
        The fields of the config that name them.

    Raises:
        MirrorError: A file is missing, or isn't what its hash says, or a name isn't safe.
    """
    values: dict[str, Any] = {}
    for run_input in inputs:
        if run_input.kind and run_input.kind not in artifact_kinds():
            raise _strange(f"an artifact of the kind {run_input.kind}")
        if not run_input.files:
            raise _strange(f"no file for {run_input.field}")
        folder = _place_of(run_input, workspace)
        if not folder.exists():
            _place_files(store, run_input, folder, cache)
        if run_input.field != "mixture":  # The config has these names already.
            values[run_input.field] = (
                run_input.name if run_input.kind else _reference(run_input, folder)
            )
    return values


def _reference(run_input: Input, folder: Path) -> str:
    """Returns the value of a field for a placed input without a kind."""
    is_data = run_input.field in DATA_FIELDS
    if run_input.field == "model_config_path" or (is_data and len(run_input.files) == 1):
        return str(folder / run_input.files[0].name)
    # A folder alone would leave out some formats.
    return f"{glob.escape(str(folder))}/**/*" if is_data else str(folder)


def _place_of(run_input: Input, workspace: Workspace) -> Path:
    """Returns an input's folder; that of no artifact lies in one that its content names."""
    if run_input.kind:
        return path_inside(
            workspace.folder(run_input.kind), run_input.name, "The run's description"
        )
    listed = "\n".join(f"{file.sha256} {file.name}" for file in run_input.files)
    name = f"{hashlib.sha256(listed.encode()).hexdigest()[:16]}/{run_input.name}"
    return path_inside(workspace.root / "inputs", name, "The run's description")


def _place_files(store: ObjectStore, run_input: Input, folder: Path, cache: Path) -> None:
    """Fetches an input's files; the folder appears with all of them."""
    make_folder(folder.parent)
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    _check_room(store, run_input, draft)
    try:
        for file in run_input.files:
            path = path_inside(draft, file.name, "The run's description")
            make_folder(path.parent)
            _link(_fetch(store, file, cache), path)
        _check_manifests(run_input, draft)
        commit_folder(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _check_manifests(run_input: Input, folder: Path) -> None:
    """Raises MirrorError for manifests that lead elsewhere, or are of another kind."""
    for path in folder.rglob(MANIFEST_FILE):
        if path.parent != folder and not run_input.kind:
            continue
        try:
            manifest = read_manifest(path.parent)
        except StudioError:
            if run_input.kind:
                raise
            continue  # Another program's file.
        if manifest.location:
            raise _strange(f"{run_input.kind or run_input.field} whose files are elsewhere")
        if run_input.kind and path.parent == folder and manifest.kind != run_input.kind:
            raise _strange(f"{manifest.kind} as {run_input.kind}")
    if run_input.kind and not (folder / MANIFEST_FILE).is_file():
        raise _strange(f"{run_input.kind} without a manifest")


def _files_of(pattern: str, field: str, file_format: str) -> dict[str, Path]:
    """Returns the files of a path or pattern by their names within the folder that has them all."""
    files = find_files(pattern, field=field, file_format=file_format).files
    paths = list(dict.fromkeys(file.path for file in files))
    root = os.path.commonpath([path.parent for path in paths])
    paths_by_name = {path.relative_to(root).as_posix(): path for path in paths}
    if flaw := flaw_of_names(paths_by_name):
        raise ConfigError(
            "A file can't be sent to another machine under its name",
            expected="a name that every system accepts",
            received=flaw,
            fix="rename the file",
            field=field,
        )
    return paths_by_name


def _add_shards(inputs: Inputs, reference: str, workspace: Workspace) -> None:
    from core.shards.read import is_remote, open_shards
    from core.storage.files import is_address

    location = _location(reference, workspace)
    if is_address(location):
        inputs.values["shards"] = location
    elif not is_remote(reference, workspace):
        inputs.add_folder("shards", "shards", open_shards(reference, workspace).path)


def _add_mixture(inputs: Inputs, mixture: str, workspace: Workspace) -> None:
    """Adds the local sources, which have their artifact's name on the machine."""
    there: list[MixtureSource] = []
    for source in parse_mixture(mixture):
        own = Inputs()
        _add_shards(own, source.reference, workspace)
        for run_input in own.inputs:
            if not run_input.kind or any(run_input.name == other.reference for other in there):
                raise _not_portable(source.reference, run_input)
            inputs.inputs.append(run_input.model_copy(update={"field": "mixture"}))
        inputs.paths |= own.paths
        reference = own.inputs[0].name if own.inputs else source.reference
        there.append(replace(source, reference=own.values.get("shards", reference)))
    inputs.values["mixture"] = format_mixture(there)


def _not_portable(reference: str, run_input: Input) -> ConfigError:
    return ConfigError(
        f"The source {reference} of the mixture can't be sent to another machine",
        expected="shards with a manifest, each with a name of its own",
        received=f"another source of the name {run_input.name}"
        if run_input.kind
        else "no manifest",
        fix="build these shards again, under another name",
        field="mixture",
    )


def _location(reference: str, workspace: Workspace) -> str:
    try:
        return workspace.find("shards", reference).manifest.location
    except StudioError:
        return ""


def _fetch(store: ObjectStore, file: InputFile, cache: Path) -> Path:
    path = cache / file.sha256
    if path.is_file() and path.stat().st_size == file.bytes:
        return path
    make_folder(cache)
    draft = cache / f".{file.sha256}.{os.getpid()}"
    try:
        store.download(f"{BLOBS}/{file.sha256}", draft, file.bytes)
        if draft.stat().st_size != file.bytes or hash_file(draft) != file.sha256:
            raise _strange(f"another content of {file.name}")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _link(source: Path, path: Path) -> None:
    path.unlink(missing_ok=True)
    try:
        os.link(source, path)
    except OSError:
        shutil.copyfile(source, path)


def _check_room(store: ObjectStore, run_input: Input, folder: Path) -> None:
    make_folder(folder)
    needed, free = sum(file.bytes for file in run_input.files), shutil.disk_usage(folder).free
    if needed > free:
        raise NoRoomError(
            f"The {run_input.kind or run_input.field} of the run doesn't fit on this machine",
            expected=f"{needed:,} bytes of disk",
            received=f"{free:,} bytes free at {folder}",
            fix="use a machine with a larger disk",
        )


def _strange(received: str) -> MirrorError:
    return MirrorError(
        "The inputs of the run can't be used",
        expected="the files that the run's description lists, byte for byte",
        received=received,
        fix="start the run again: it uploads them again",
    )
