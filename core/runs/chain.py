"""Several stages queued in one go: each names the artifact that the one before it will make."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from core.config import StageConfig
from core.errors import ConfigError, StudioError
from core.runs.client import check_name_is_free, submit
from core.stages import ARTIFACT_KINDS, parse_stage_config
from core.store import ACTIVE_STATES, RunRow, Store
from core.workspace import Workspace

Stages = Sequence[tuple[str, StageConfig]]

# Where the name of an artifact that nobody has named is made from its config.
_NAMERS = {"tokenizer": "core.tokenizer.training", "shards": "core.shards.build"}


def submit_chain(workspace: Workspace, stages: Stages) -> list[str]:
    """Queues stages, each waiting for the one before it, and returns their runs' ids.

    Args:
        workspace: Where they run.
        stages: Names and configs along the way of the data, as `link_stages` takes them.

    Raises:
        ConfigError: A name is taken; nothing is queued then.
        RunError: The worker couldn't queue one.
    """
    linked = link_stages(workspace, stages)
    for stage, config in linked:
        _check_name(workspace, stage, config, is_last=stage == linked[-1][0])
    runs: list[str] = []
    for stage, config in linked:
        runs.append(submit(workspace, stage, config, after=runs[-1:]))
    return runs


def link_stages(workspace: Workspace, stages: Stages) -> list[tuple[str, StageConfig]]:
    """Names what each stage but the last makes, and names it to the stage after it.

    Args:
        workspace: Where names must be free.
        stages: Names and configs along the way of the data, such as tokenizer, shards, train.
    """
    linked: list[tuple[str, StageConfig]] = []
    store = Store.open(workspace)
    try:
        for stage, config in stages:
            if linked:
                earlier, made_by = linked[-1]
                named = {ARTIFACT_KINDS[earlier]: made_by.model_dump()["name"]}
                config = config.model_copy(update=named)
            if len(linked) < len(stages) - 1:
                config = _named(workspace, store, stage, config)
            linked.append((stage, config))
    finally:
        store.close()
    return linked


def _named(workspace: Workspace, store: Store, stage: str, config: StageConfig) -> StageConfig:
    if config.model_dump()["name"]:
        return config
    name = _free_name(workspace, store, stage, config)
    return config.model_copy(update={"name": name})


def _free_name(workspace: Workspace, store: Store, stage: str, config: StageConfig) -> str:
    """Returns a derived name that no run which hasn't ended will take."""
    promised: set[str] = set()
    for row in reversed(store.list_runs(states=("queued", *ACTIVE_STATES), limit=10_000)):
        if row.stage == stage and (wanted := _wanted_name(row)):
            promised.add(workspace.free_name(ARTIFACT_KINDS[stage], wanted, promised))
    return workspace.free_name(ARTIFACT_KINDS[stage], _derive_name(stage, config), promised)


def _wanted_name(row: RunRow) -> str:
    if name := str(row.config.get("name", "")):
        return name
    try:
        return _derive_name(row.stage, parse_stage_config(row.stage, row.config))
    except StudioError:
        return ""


def _derive_name(stage: str, config: StageConfig) -> str:
    return str(importlib.import_module(_NAMERS[stage]).derive_name(config))


def _check_name(workspace: Workspace, stage: str, config: StageConfig, *, is_last: bool) -> None:
    """Refuses a name that is taken; only the last stage's name is a field of the form."""
    try:
        check_name_is_free(workspace, stage, config)
    except ConfigError as error:
        if is_last:
            raise
        raise ConfigError(
            f"{stage.capitalize()}: {error.problem}",
            expected=error.expected,
            received=error.received,
            fix=error.fix,
        ) from error
