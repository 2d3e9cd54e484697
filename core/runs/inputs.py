"""Refuses a run whose input does not exist, before it is queued."""

from __future__ import annotations

import glob
from collections.abc import Iterator

from core.artifacts.finding import find_model
from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import field_extra, split_references
from core.config.preflight import PreflightConfig
from core.config.source import SourceConfig
from core.errors import ConfigError
from core.runs.chain import reserved_names
from core.store import Store
from core.workspace.confinement import is_address
from core.workspace.names import expand_path
from core.workspace.workspace import Workspace

# A run makes these, or an address on another machine.
_NOT_READ = frozenset({"output", "output_dir", "mirror"})


def check_inputs(workspace: Workspace, config: StageConfig) -> None:
    """Checks that the artifacts and files that a config names exist.

    An artifact may also be one that a queued or running run will make. Hub ids and addresses are
    not looked up.

    Raises:
        ConfigError: An artifact, a file or a folder is missing.
        CorpusError: No file matches the path of a corpus.
    """
    missing = [
        reference for reference in _references(config) if not _is_there(workspace, *reference[1:])
    ]
    reserved = reserved_names(workspace) if missing else {}
    for name, kind, reference in missing:
        if reference not in reserved.get(kind, ()):
            _refuse(workspace, name, kind, reference)
    _check_files(config)


def _references(config: StageConfig) -> Iterator[tuple[str, str, str]]:
    """Yields the field, kind and reference of each artifact that a config names."""
    for name, field in type(config).model_fields.items():
        extra, value = field_extra(field), getattr(config, name)
        if isinstance(value, StageConfig):
            yield from _references(value)
        elif name == "sources":
            for source in value:
                yield from _references(source)
        elif extra["artifact"] and _is_used(config, name) and (value or _is_needed(config, name)):
            yield name, extra["artifact"], value
        elif extra["artifacts"] and value:
            for reference in split_references(value):
                yield name, extra["artifacts"], reference


def _is_used(config: StageConfig, name: str) -> bool:
    if isinstance(config, SourceConfig):
        return config.source == config.implied.get(name, config.source)
    # A publication names one artifact.
    return getattr(config, "kind", name) == name


def _is_needed(config: StageConfig, name: str) -> bool:
    is_main = bool(field_extra(type(config).model_fields[name])["basic"])
    return (
        is_main and not isinstance(config, PreflightConfig) and not getattr(config, "mixture", "")
    )


def _is_there(workspace: Workspace, kind: str, reference: str) -> bool:
    is_hub_id = reference.count("/") == 1 and reference[:1] not in ("/", ".", "~")
    if is_address(reference) or is_hub_id:
        return True
    if not reference:
        return False
    folders = (workspace.folder(kind) / reference, expand_path(reference))
    return any(folder.exists() for folder in folders) or (
        kind == "model" and _is_run(workspace, reference.partition("@")[0])
    )


def _is_run(workspace: Workspace, run_id: str) -> bool:
    if (workspace.runs / run_id).is_dir():
        return True
    store = Store.open(workspace)
    try:
        return store.get_run(run_id) is not None
    finally:
        store.close()


def _refuse(workspace: Workspace, name: str, kind: str, reference: str) -> None:
    if kind == "model":
        find_model(reference, workspace, field=name)
    workspace.find(kind, reference, field=name)


def _check_files(config: StageConfig) -> None:
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, StageConfig):
            _check_files(value)
        elif name == "sources":
            for source in value:
                _check_files(source)
        elif (
            field_extra(field)["path"]
            and name not in _NOT_READ
            and value
            and (not isinstance(config, SourceConfig) or config.source == "files")
        ):
            _check_path(config, name, str(value))


def _check_path(config: StageConfig, name: str, value: str) -> None:
    path = expand_path(value, field=name)
    if is_address(value) or path.exists() or path.is_symlink():
        return
    if isinstance(config, CorpusConfig):
        from core.corpus.finding import find_files

        find_files(value, field=name, file_format=config.file_format, keep_unreadable=True)
    elif not glob.glob(str(path), recursive=True):
        raise ConfigError(
            f"The file {value} was not found",
            expected="an existing file or folder",
            received=f"{path.absolute()}, which does not exist",
            fix="check the path, which is relative to the folder where the command was given",
            field=name,
        )
