"""Finds a model by its name, folder or Hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.errors import ConfigError, StudioError
from core.hub.client import parse_hub_id
from core.hub.pull import find_fetched, is_fetched, pull_config, pull_model
from core.messages.suggestions import did_you_mean
from core.models.hf import CONFIG_FILE, WEIGHTS_FILE, read_architecture
from core.records.events import Reporter
from core.workspace.names import expand_path
from core.workspace.workspace import Workspace


def find_model(
    reference: str | Path,
    workspace: Workspace,
    *,
    field: str = "model",
    reporter: Reporter | None = None,
) -> Path:
    """Finds a checkpoint's folder; downloads a Hub model that isn't cached.

    Args:
        reference: A name, a folder, or `owner/name@revision`.

    Raises:
        ConfigError, HubError: There is no such model, or no connection.
    """
    if isinstance(reference, Path) and reference.is_absolute() and reference.is_dir():
        return reference
    if folder := find_here(reference, workspace):
        return folder.absolute()
    name = str(reference)
    if isinstance(reference, str) and parse_hub_id(name):
        return pull_model(name, reporter, field=field)
    models = workspace.list("model")
    # Pretrained models first.
    names = [
        model.name for model in sorted(models, key=lambda model: "task" in model.manifest.counts)
    ]
    known = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    raise ConfigError(
        f"The model {name!r} was not found" if name else "No model was given",
        expected=f"a model in the workspace ({known or 'there are none yet'}), a folder with "
        f"{CONFIG_FILE} and {WEIGHTS_FILE}, or a Hub id like user/name",
        received=name or "nothing",
        fix=did_you_mean(name, names) or "choose an existing model, or train one first",
        field=field,
    )


def must_be_fetched(reference: str, workspace: Workspace) -> bool:
    """Checks whether opening a model takes a download."""
    return is_on_hub(reference, workspace) and not is_fetched(reference)


def is_on_hub(reference: str, workspace: Workspace) -> bool:
    """Checks for a Hub id that names no local model."""
    return bool(parse_hub_id(reference)) and not find_here(reference, workspace)


def find_here(reference: str | Path, workspace: Workspace) -> Path | None:
    """Finds a local folder, preferably with a model."""
    if not str(reference):
        return None
    folders = (workspace.folder("model") / str(reference), expand_path(reference))
    existing_folders = [folder for folder in folders if folder.is_dir()]
    whole = [folder for folder in existing_folders if (folder / CONFIG_FILE).is_file()]
    return next(iter([*whole, *existing_folders]), None)


def with_family(
    values: dict[str, Any], workspace: Workspace, *, fetch: bool = True
) -> dict[str, Any]:
    """Adds the referenced model's family to config values without one."""
    if "family" in values:
        return values
    source = _find_config(values, workspace, fetch=fetch)
    if source is None:
        return values
    try:
        return {**values, "family": read_architecture(source).model_type}
    except StudioError:
        return values  # Opening the model reports it.


def _find_config(values: dict[str, Any], workspace: Workspace, *, fetch: bool) -> Path | None:
    checkpoint = str(values.get("checkpoint") or "")
    if not checkpoint:
        return Path(str(path)) if (path := values.get("model_config_path")) else None
    if (folder := find_here(checkpoint, workspace)) or not parse_hub_id(checkpoint):
        return folder
    if (fetched_file := find_fetched(checkpoint, CONFIG_FILE)) or not fetch:
        return fetched_file
    return pull_config(checkpoint, field="checkpoint")
