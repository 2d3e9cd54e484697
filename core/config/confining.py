"""Confines the paths and artifacts of a config to a workspace's allowed folders."""

from __future__ import annotations

from pydantic.fields import FieldInfo

from core.config.base import StageConfig
from core.config.options import field_extra, split_references
from core.workspace.workspace import Workspace


def confine(config: StageConfig, workspace: Workspace) -> None:
    """Raises StudioError for paths that a user of the web app, or an agent, may not name."""
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        nested = value if isinstance(value, tuple) else (value,)
        for inner in nested:
            if isinstance(inner, StageConfig):
                confine(inner, workspace)
        if isinstance(value, str):
            confine_value(name, field, value, workspace)


def confine_value(name: str, field: FieldInfo, value: str, workspace: Workspace) -> None:
    """Does the same for one field."""
    extra = field_extra(field)
    if extra["path"]:
        workspace.confine(value, field=name)
    elif extra["artifact"] and value:
        workspace.confine_artifact(extra["artifact"], value, field=name)
    elif extra["artifacts"]:
        for reference in split_references(value):
            workspace.confine_artifact(extra["artifacts"], reference, field=name)
