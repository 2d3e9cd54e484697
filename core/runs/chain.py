"""Queues stages that use each other's artifacts."""

from __future__ import annotations

from collections.abc import Sequence

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.quickstart import QuickstartConfig
from core.errors import ConfigError, StudioError
from core.runs.client import check_name_is_free, queue_run
from core.stages.quickstart import quickstart_stages
from core.stages.registry import STAGES, artifact_kind_of, parse_stage_config
from core.store import ACTIVE_STATES, RunRow, Store
from core.workspace.kinds import CORPUS
from core.workspace.workspace import Workspace

Stages = Sequence[tuple[str, StageConfig]]


def submit_chain(workspace: Workspace, stages: Stages) -> list[str]:
    """Queues stages one after the other; raises ConfigError for a taken name."""
    linked = link_stages(workspace, stages)
    for stage, config in linked:
        _check_name(workspace, stage, config, is_last=stage == linked[-1][0])
    runs: list[str] = []
    for stage, config in linked:
        runs.append(queue_run(workspace, stage, config, after=runs[-1:]))
    return runs


def submit_quickstart(workspace: Workspace, config: QuickstartConfig | None = None) -> list[str]:
    promised = reserved_names(workspace)
    stages = quickstart_stages(config or QuickstartConfig(), workspace, promised)
    return submit_chain(workspace, stages)


def reserved_names(workspace: Workspace) -> dict[str, set[str]]:
    """Returns the names reserved by active and queued runs."""
    promised: dict[str, set[str]] = {
        stage.artifact_kind: set() for stage in STAGES.values() if stage.artifact_kind
    }
    store = Store.open(workspace)
    try:
        rows = store.list_runs(states=("queued", *ACTIVE_STATES), limit=10_000)
    finally:
        store.close()
    for row in reversed(rows):
        if wanted := _wanted_name(row):
            kind = artifact_kind_of(row.stage)
            promised[kind].add(workspace.free_name(kind, wanted, promised[kind]))
    return promised


def link_stages(workspace: Workspace, stages: Stages) -> list[tuple[str, StageConfig]]:
    """Names each artifact and sets it as the next input."""
    linked: list[tuple[str, StageConfig]] = []
    promised = reserved_names(workspace)
    for stage, config in stages:
        if linked:
            earlier, made_by = linked[-1]
            config = _reading(config, linked)
            named = {artifact_kind_of(earlier): made_by.model_dump()["name"]}
            config = config if CORPUS.name in named else config.model_copy(update=named)
        if len(linked) < len(stages) - 1:
            config = _named(workspace, promised[artifact_kind_of(stage)], stage, config)
        linked.append((stage, config))
    return linked


def _reading(config: StageConfig, earlier: Stages) -> StageConfig:
    """Makes a stage read the corpus that an earlier one makes."""
    names = [made_by.model_dump()["name"] for stage, made_by in earlier
             if artifact_kind_of(stage) == CORPUS.name]  # fmt: skip
    corpus = getattr(config, "corpus", None)
    if not names or not isinstance(corpus, CorpusConfig):
        return config
    named = {"source": "corpus", "corpus_name": names[-1], "sources": ()}
    cleaned = corpus.model_copy(update=named)
    return config.model_copy(update={"corpus": cleaned})


def _named(
    workspace: Workspace, promised: set[str], stage: str, config: StageConfig
) -> StageConfig:
    if config.model_dump()["name"]:
        return config
    name = workspace.free_name(artifact_kind_of(stage), STAGES[stage].derive_name(config), promised)
    return config.model_copy(update={"name": name})


def _wanted_name(row: RunRow) -> str:
    if not artifact_kind_of(row.stage):
        return ""
    if name := str(row.config.get("name", "")):
        return name
    if not STAGES[row.stage].name_deriver:
        return ""
    try:
        return STAGES[row.stage].derive_name(parse_stage_config(row.stage, row.config))
    except StudioError:
        return ""


def _check_name(workspace: Workspace, stage: str, config: StageConfig, *, is_last: bool) -> None:
    """Only the last stage's form has the field."""
    try:
        check_name_is_free(workspace, stage, config)
    except ConfigError as error:
        if is_last:
            raise
        problem = f"{stage.capitalize()}: {error.texts['problem']}"
        raise ConfigError.like(error, problem=problem, field="") from error
