"""A stage in one file: it counts words. `STUDIO_STAGES=tests.core.toy_stage` adds it."""

from __future__ import annotations

import json

from core.api import run_stage
from core.config.base import StageConfig
from core.config.metrics import Metric
from core.config.options import option
from core.errors import ConfigError
from core.records.events import Reporter
from core.stages.registry import Stage, register
from core.workspace.kinds import ArtifactKind
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace


class ToyConfig(StageConfig):
    name: str = option("", "The count's name.", identity=False)
    text: str = option("", "The text whose words are counted.", basic=True)
    smallest_length: int = option(0, "Shorter words aren't counted.", ge=0, basic=True)


def check(config: ToyConfig) -> None:
    if config.smallest_length > 99:
        raise ConfigError("No word is so long", field="smallest_length")


def derive_name(config: ToyConfig) -> str:
    return f"count-{config.fingerprint()}"


def run(config: ToyConfig, workspace: Workspace, reporter: Reporter) -> Artifact:
    """Counts the words of a text."""
    name = config.name or workspace.free_name("count", derive_name(config))
    with workspace.new_artifact("count", name, exact=bool(config.name)) as draft:
        words = [word for word in config.text.split() if len(word) >= config.smallest_length]
        (draft.folder / "words.json").write_text(json.dumps(words), "utf-8")
        draft.counts = {"words": len(words)}
        draft.config = config.model_dump(mode="json")
        reporter.progress(len(words), len(words), "words")
    assert draft.artifact is not None
    return draft.artifact


def count(config: ToyConfig, workspace: Workspace | None = None) -> Artifact:
    return run_stage("count", config, workspace)


register(
    Stage(
        name="count",
        title="Word count",
        help="Count the words of a text.",
        config=ToyConfig,
        function="tests.core.toy_stage:run",
        api="tests.core.toy_stage:count",
        artifact=ArtifactKind("count", "Word count"),
        check="tests.core.toy_stage:check",
        metrics=(Metric("words", "Words in the text", "maximize", "words"),),
        name_deriver="tests.core.toy_stage:derive_name",
        tab="count",
    )
)
