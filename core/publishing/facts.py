"""Gathers a model's metadata, as far as known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.architecture.architecture import Architecture
from core.artifacts.checkpoint import EVAL_RESULTS_FILE, STATE_FILE, read_state
from core.artifacts.evaluations import find_evaluations
from core.config.train import TrainConfig
from core.errors import StudioError
from core.families import objectives_of_family
from core.finetuning.names import is_of_finetuning
from core.foreign_files import read_object
from core.models.hf import read_architecture
from core.models.registry import count_parameters, size_of
from core.records.events import EVENTS_FILE, read_events
from core.records.folder import RunFolder
from core.runs.duration import logged_seconds
from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.roles import TOKENIZER_FILE
from core.workspace.manifests import MANIFEST_FILE, Manifest, read_manifest
from core.workspace.workspace import Workspace


@dataclass(frozen=True)
class LoggedFigures:
    """Metrics logged at a step."""

    step: int
    seconds: float
    values: dict[str, float]


@dataclass(frozen=True)
class ModelFacts:
    """A model's metadata; unknown values are empty, None or 0.

    Attributes:
        config: Training config with resolved `auto` values.
        seconds: Duration over all attempts.
        evaluations: The workspace's evaluations of these weights.
        finetuning: The manifest of a fine-tuned model.
    """

    folder: Path
    architecture: Architecture
    parameters: int
    tokenizer: StudioTokenizer | None = None
    config: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None
    planned_steps: int = 0
    fingerprints: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    log: tuple[LoggedFigures, ...] = ()
    shards: Manifest | None = None
    sources: dict[str, Manifest | None] = field(default_factory=dict)
    tokenizer_manifest: Manifest | None = None
    evaluations: tuple[Manifest, ...] = ()
    finetuning: Manifest | None = None

    @property
    def corpora(self) -> dict[str, dict[str, Any]]:
        """Corpus configs by the name of a mixture's source; one without a name otherwise."""
        if not self.sources:
            return {"": self.corpus}
        return {name: corpus_of(manifest) for name, manifest in self.sources.items()}

    @property
    def objective(self) -> str:
        """The training objective; the family's default if unknown."""
        named = str(self.config.get("objective", "auto"))
        return objectives_of_family(self.architecture.model_type)[0] if named == "auto" else named

    @property
    def size(self) -> str:
        """The published size, or layers x hidden size."""
        layers, width = self.architecture.num_hidden_layers, self.architecture.hidden_size
        return size_of(self.architecture) or f"{layers} x {width}"

    @property
    def corpus(self) -> dict[str, Any]:
        """Corpus config of the shards, else of the tokenizer."""
        return corpus_of(self.shards) or corpus_of(self.tokenizer_manifest)


def corpus_of(manifest: Manifest | None) -> dict[str, Any]:
    """Returns the corpus config of shards or a tokenizer; before cleaning, if it was cleaned."""
    corpus = manifest.config.get("corpus") if manifest else None
    if not manifest or not isinstance(corpus, dict):
        return {}
    cleaning = manifest.counts.get("cleaning")
    source = cleaning.get("source") if isinstance(cleaning, dict) else None
    is_cleaned = corpus.get("source") == "corpus" and isinstance(source, dict)
    return dict(source if is_cleaned and source else corpus)


def gather_facts(folder: Path, workspace: Workspace, run: Path | None = None) -> ModelFacts:
    """Gathers a model's known metadata."""
    architecture = read_architecture(folder)
    manifest = _manifest(folder)
    made = _of_state(folder) if (folder / STATE_FILE).is_file() else _of_manifest(manifest)
    run = run or _run_of(folder, manifest, workspace)
    tokenizer = StudioTokenizer(folder) if (folder / TOKENIZER_FILE).is_file() else None
    fingerprints = dict(made.get("fingerprints", {}))
    if tokenizer:
        fingerprints["tokenizer"] = tokenizer.fingerprint
    resolved = RunFolder(run).resolved() if run else {}
    return ModelFacts(
        folder=folder,
        architecture=architecture,
        parameters=count_parameters(architecture),
        tokenizer=tokenizer,
        config=_used(made.get("config", {}), resolved),
        seconds=logged_seconds(RunFolder(run)) if run else None,
        figures={**_eval_results(folder), **made.get("figures", {})},
        planned_steps=int(made.get("planned_steps", 0)),
        fingerprints=fingerprints,
        versions=dict(manifest.versions) if manifest else {},
        device=RunFolder(run).device().split(": ")[0] if run else "",
        log=_log(run),
        shards=_made_from(workspace, "shards", fingerprints),
        sources=_sources(workspace, fingerprints),
        tokenizer_manifest=_made_from(workspace, "tokenizer", fingerprints),
        evaluations=tuple(find_evaluations(folder, workspace)),
        finetuning=manifest if manifest and is_of_finetuning(manifest) else None,
    )


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder) if (folder / MANIFEST_FILE).is_file() else None
    except StudioError:
        return None


def _of_manifest(manifest: Manifest | None) -> dict[str, Any]:
    if manifest is None or manifest.kind != "model":
        return {}
    if is_of_finetuning(manifest):
        return {"fingerprints": manifest.inputs}
    return {
        "config": _training_config(manifest.config),
        "figures": _numbers(manifest.counts),
        "planned_steps": manifest.counts.get("num_train_steps", 0),
        "fingerprints": manifest.inputs,
    }


def _of_state(folder: Path) -> dict[str, Any]:
    state = read_state(folder)
    plan = state.plan
    figures = {
        "num_train_steps": state.step,
        "tokens": state.step * plan["global_batch_size"] * plan["row_length"],
        "seconds": state.seconds,
    }
    if state.evaluated:
        figures |= state.evaluated.figures
        figures["best_step"] = state.evaluated.step
    return {
        "config": _training_config(state.config),
        "figures": figures,
        "planned_steps": plan["num_train_steps"],
        "fingerprints": state.fingerprints,
    }


def _training_config(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in TrainConfig.model_fields if name in values}


def _used(config: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: resolved.get(name, value) if value in (None, "auto") else value
        for name, value in config.items()
    }


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _eval_results(folder: Path) -> dict[str, float]:
    values = read_object(folder / EVAL_RESULTS_FILE)
    step = {"best_step": values.pop("step")} if "step" in values else {}
    return _numbers({**values, **step})


def _run_of(folder: Path, manifest: Manifest | None, workspace: Workspace) -> Path | None:
    if manifest and manifest.run:
        path = RunFolder.of(workspace, manifest.run).path
    else:
        path = folder.parent.parent
    return path if (path / EVENTS_FILE).is_file() else None


def _log(run: Path | None) -> tuple[LoggedFigures, ...]:
    """Reads metrics, except those discarded by resuming."""
    events, _ = read_events(run / EVENTS_FILE) if run else ([], 0)
    rows: list[LoggedFigures] = []
    first = 0.0
    for event in events:
        if event["kind"] == "resumed":
            rows = [row for row in rows if row.step <= int(event["step"])]
        elif event["kind"] == "metrics":
            first = first or event["t"]
            rows.append(LoggedFigures(event["step"], round(event["t"] - first, 1), event["values"]))
    return tuple(rows)


def _sources(workspace: Workspace, fingerprints: Mapping[str, str]) -> dict[str, Manifest | None]:
    """Finds the shards of a mixture, which are named `shards/NAME` among the inputs."""
    named = {
        input_name.partition("/")[2]: value
        for input_name, value in fingerprints.items()
        if "/" in input_name
    }
    return {
        name: _made_from(workspace, "shards", {"shards": value}) for name, value in named.items()
    }


def _made_from(workspace: Workspace, kind: str, fingerprints: Mapping[str, str]) -> Manifest | None:
    artifact = workspace.find_made(kind, fingerprints[kind]) if fingerprints.get(kind) else None
    return artifact.manifest if artifact else None
