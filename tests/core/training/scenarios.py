"""Training runs that a subprocess executes: `python -m … ENGINE WORKSPACE NAME…`.

Each function is a scenario: it takes a workspace with the shards `rows` and returns plain values
for the tests. A process runs several scenarios, because importing a backend and compiling are slow.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from core.artifacts.checkpoint import Checkpoints, verify
from core.config.train import TrainConfig
from core.errors import StudioError
from core.objectives.mlm import MaskedLanguageModel
from core.records.events import FolderReporter, RunStopped, StopMode, read_events
from core.shards.read import open_shards
from core.training import recipe
from core.training.batches import EVAL_SEED
from core.training.trainer import train
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from tests.damage import fill_disk, make_room

STEPS = 12
STOP_AT = 7


class StoppingReporter(FolderReporter):
    """Requests a stop once a step is reached."""

    def __init__(self, folder: Path, stop_at: int | None = None, mode: StopMode = "save") -> None:
        super().__init__(folder, echo=False, min_progress_seconds=0.0)
        self._stop_at = stop_at
        self._mode: StopMode = mode
        self.step = 0

    def progress(self, done: float, *arguments: Any, **more: Any) -> None:
        self.step = int(done)
        super().progress(done, *arguments, **more)

    def stop_requested(self) -> StopMode | None:
        return self._mode if self._stop_at is not None and self.step >= self._stop_at else None


def config_of(engine: str, **values: Any) -> TrainConfig:
    """The settings that all scenarios share: a model with one narrow layer."""
    defaults = {
        "preset": "custom",
        "shards": "rows",
        "engine": engine,
        "device": "cpu",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_train_steps": STEPS,
        "per_replica_batch_size": 8,
        "learning_rate": 3e-3,
        "eval_steps": 5,
        "eval_on_start": True,
        "logging_steps": 3,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    }
    return TrainConfig(**{**defaults, **values})


def run(
    workspace: Workspace,
    name: str,
    config: TrainConfig,
    stop_at: int | None = None,
    mode: StopMode = "save",
) -> Artifact | None:
    """Trains in the run folder `name`; returns None if the run was stopped."""
    reporter = StoppingReporter(workspace.runs / name, stop_at, mode)
    try:
        return train(config, workspace, reporter)
    except RunStopped:
        return None
    finally:
        reporter.close()


def weights_of(workspace: Workspace, name: str) -> str:
    """A hash of a run's last weights, optimizer slots and seeds."""
    folder = workspace.runs / name / "checkpoints" / f"step-{STEPS:08d}"
    files = ("model.safetensors", "training_state.safetensors")
    return sha256(b"".join((folder / file).read_bytes() for file in files)).hexdigest()


def metrics_of(workspace: Workspace, name: str) -> dict[str, dict[str, float]]:
    """Values by metric and step; values measured again after a resume replace earlier ones."""
    events, _ = read_events(workspace.runs / name / "events.jsonl")
    metrics: dict[str, dict[str, float]] = {}
    for event in events:
        for metric, value in event.get("values", {}).items():
            metrics.setdefault(metric, {})[str(event["step"])] = value
    return metrics


def messages_of(workspace: Workspace, name: str, kind: str) -> list[str]:
    """A run's notes or warnings."""
    events, _ = read_events(workspace.runs / name / "events.jsonl")
    return [event["message"] for event in events if event["kind"] == kind]


def whole(engine: str, workspace: Workspace) -> dict[str, Any]:
    """An uninterrupted run."""
    output = workspace.root / f"copy-{engine}"
    name = f"whole-{engine}"
    artifact = run(workspace, name, config_of(engine, name=name, output=str(output)))
    assert artifact is not None
    checkpoints = workspace.runs / name / "checkpoints"
    return {
        "path": str(artifact.path),
        "counts": artifact.manifest.counts,
        "inputs": artifact.manifest.inputs,
        "run": artifact.manifest.run,
        "files": sorted(path.name for path in artifact.path.iterdir()),
        "output": sorted(path.name for path in output.iterdir()),
        "checkpoints": sorted(path.name for path in checkpoints.iterdir()),
        "eval_results": json.loads((checkpoints / "eval_results.json").read_text()),
        "tensorboard": len(list((workspace.runs / name / "tensorboard").iterdir())),
        "metrics": metrics_of(workspace, name),
        "weights": weights_of(workspace, name),
    }


def stopped(engine: str, workspace: Workspace) -> dict[str, Any]:
    """A run that is stopped and resumed after its newest checkpoint was damaged."""
    name, config = f"stopped-{engine}", config_of(engine)
    assert run(workspace, name, config, stop_at=STOP_AT) is None
    checkpoints = workspace.runs / name / "checkpoints"
    saved = sorted(path.name for path in checkpoints.glob("step-*"))
    assert run(workspace, name, config, stop_at=STOP_AT + 2) is None
    newest = max(checkpoints.glob("step-*"))
    damaged = newest / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    assert run(workspace, name, config) is not None
    return {
        "saved": saved,
        "newest": newest.name,
        "metrics": metrics_of(workspace, name),
        "weights": weights_of(workspace, name),
        "warnings": messages_of(workspace, name, "warning"),
        "notes": messages_of(workspace, name, "note"),
    }


def aborted(engine: str, workspace: Workspace) -> dict[str, Any]:
    """A run that is stopped without saving."""
    name = f"aborted-{engine}"
    config = config_of(engine, output_bias="log_frequency")
    assert run(workspace, name, config, stop_at=STOP_AT, mode="abort") is None
    checkpoints = workspace.runs / name / "checkpoints"
    return {
        "checkpoints": sorted(path.name for path in checkpoints.glob("step-*")),
        "metrics": metrics_of(workspace, name),
    }


def counted(engine: str, workspace: Workspace) -> dict[str, Any]:
    """A run with co-occurrence embeddings and local-attention initialisation that learns
    nothing.
    """
    config = config_of(
        engine,
        num_train_steps=1,
        learning_rate=1e-9,
        word_embeddings="cooccurrence",
        attention_kernels="neighbours",
    )
    artifact = run(workspace, f"counted-{engine}", config)
    assert artifact is not None
    tables = load_file(artifact.path / "model.safetensors")
    return {
        "words": tables["roberta.embeddings.word_embeddings.weight"].tolist(),
        "positions": tables["roberta.embeddings.position_embeddings.weight"].tolist(),
        "counts": open_shards("rows", workspace).token_counts.tolist(),
    }


def stopped_in_the_last_validation(engine: str, workspace: Workspace) -> dict[str, Any]:
    """A run that is stopped after its last step, before the last validation."""
    name, config = f"late-{engine}", config_of(engine)
    assert run(workspace, name, config, stop_at=STEPS) is None
    before = metrics_of(workspace, name)["eval_loss"]
    artifact = run(workspace, name, config)
    assert artifact is not None
    return {"before": before, "counts": artifact.manifest.counts}


def ended_before_the_first_save(engine: str, workspace: Workspace) -> dict[str, Any]:
    """A run that restarts from scratch, because it was aborted before its first checkpoint."""
    name, config = f"early-{engine}", config_of(engine, eval_on_start=None)
    assert run(workspace, name, config, stop_at=2, mode="abort") is None
    artifact = run(workspace, name, config)
    assert artifact is not None
    events, _ = read_events(workspace.runs / name / "events.jsonl")
    return {
        "counts": artifact.manifest.counts,
        "metrics": metrics_of(workspace, name),
        "resumed": [event["step"] for event in events if event["kind"] == "resumed"],
    }


def changed(engine: str, workspace: Workspace) -> dict[str, str]:
    """A stopped run that is resumed with other settings or data: refused before compilation."""
    name, first = f"changed-{engine}", config_of(engine)
    assert run(workspace, name, first, stop_at=0) is None
    changes: dict[str, dict[str, Any]] = {
        "learning_rate": {"learning_rate": 0.5},
        "seed": {"seed": 9},
        "weight_decay": {"weight_decay": 0.7},
        "shards": {"shards": "more"},
        "tokenizer": {"shards": "foreign"},
    }
    return {
        field: refusal(workspace, name, config_of(engine, **changes[field])) for field in changes
    }


def refusal(workspace: Workspace, name: str, config: TrainConfig) -> str:
    """The error of a run that cannot be resumed."""
    try:
        run(workspace, name, config)
    except StudioError as error:
        return str(error)
    return ""


def checkpoints_gone(engine: str, workspace: Workspace) -> dict[str, Any]:
    """A run whose checkpoints were deleted before it was resumed."""
    name, config = f"gone-{engine}", config_of(engine)
    assert run(workspace, name, config, stop_at=1) is None
    shutil.rmtree(workspace.runs / name / "checkpoints")
    return {"refused": refusal(workspace, name, config)}


def damaged_record(engine: str, workspace: Workspace) -> dict[str, Any]:
    """Shards with a damaged record: one run stops there, another skips it.

    Then a validation record is damaged too, and evaluation skips it.
    """
    folder = workspace.root / "damaged"
    shutil.copytree(workspace.folder("shards") / "rows", folder)
    record = _damage(open_shards(str(folder), workspace).train, 5)
    name, measured = f"left-out-{engine}", f"left-out-measured-{engine}"
    strict = config_of(engine, shards=str(folder), num_train_epochs=1, num_train_steps=None)
    tolerant = strict.model_copy(update={"damaged_records": "skip"})
    artifact = run(workspace, name, tolerant)
    assert artifact is not None
    stopped = refusal(workspace, f"stopped-there-{engine}", strict)
    validation_record = _damage(open_shards(str(folder), workspace).validation, 1)
    only = {"evaluate_only": True, "checkpoint": str(artifact.path)}
    assert run(workspace, measured, tolerant.model_copy(update=only)) is not None
    return {
        "record": record,
        "stopped": stopped,
        "warnings": messages_of(workspace, name, "warning"),
        "validation_record": validation_record,
        "measured_warnings": messages_of(workspace, measured, "warning"),
    }


def _damage(rows: Any, index: int) -> str:
    """Flips a bit of a record in the first file; returns the expected message."""
    path, number = rows.files[0].path, index
    content = bytearray(path.read_bytes())
    content[(number + 1) * len(content) // rows.files[0].records - 9] ^= 1
    path.write_bytes(content)
    return f"Record {number} of {path} is damaged"


def weights_taken_over(engine: str, workspace: Workspace) -> dict[str, Any]:
    """Evaluates the model of `whole`, and trains it further in a new run."""
    name = f"whole-{engine}"
    measured = run(
        workspace, f"measured-{engine}", config_of(engine, checkpoint=name, evaluate_only=True)
    )
    further = run(workspace, f"further-{engine}", config_of(engine, checkpoint=name))
    assert measured is not None and further is not None
    return {
        "measured": measured.manifest.counts,
        "measured_path": str(measured.path),
        "further": metrics_of(workspace, f"further-{engine}"),
        "name": further.name,
    }


def full_disk(engine: str, workspace: Workspace) -> dict[str, Any]:
    """A run with a full disk while it saves at step 6, and free space again at step 9.

    Fills the run folder's own small disk, if there is one; otherwise limits file sizes.
    """
    name = f"full-{engine}"
    folder = workspace.runs / name
    found: dict[str, Any] = {}

    class Filler(StoppingReporter):
        is_full = False

        def progress(self, done: float, *arguments: Any, **more: Any) -> None:
            if done == 6 and not self.is_full:
                self.is_full = True
                fill_disk(folder, 0)
                self.note("x" * 20_000)
            if done == 7 and self.is_full:
                self.is_full = False
                found["steps_then"] = Checkpoints(folder / "checkpoints").steps()
                verify(folder / "checkpoints" / "step-00000003")
                make_room(folder, 0)
            super().progress(done, *arguments, **more)

    reporter = Filler(folder)
    artifact = train(config_of(engine, save_steps=3, save_total_limit=5), workspace, reporter)
    reporter.close()
    events = read_events(folder / "events.jsonl")[0]
    return {
        **found,
        "steps": Checkpoints(folder / "checkpoints").steps(),
        "warnings": messages_of(workspace, name, "warning"),
        "num_train_steps": artifact.manifest.counts["num_train_steps"],
        "numbers": [event["n"] for event in events],
    }


def diverged(engine: str, workspace: Workspace) -> dict[str, str]:
    """A run with an absurd learning rate."""
    config = config_of(
        engine,
        learning_rate=10.0,
        adam_epsilon=1e-30,
        warmup_steps=0,
        weight_decay=1.0,
        num_train_steps=400,
        eval_steps=400,
        lr_scheduler_type="constant",
    )
    try:
        run(workspace, f"diverged-{engine}", config)
    except StudioError as error:
        return {"error": str(error)}
    return {"error": ""}


class Poison:
    """Makes the losses of some batches NaN."""

    def __init__(self, numbers: set[int]) -> None:
        self.numbers = numbers

    def __call__(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def batch(objective: Any, rows: Any, seed: int, step: int | range, **more: Any) -> Any:
            made = original(objective, rows, seed, step, **more)
            steps = step if isinstance(step, range) else range(step, step + 1)
            weights = made["label_weights"].reshape(len(steps), -1)
            broken = [number in self.numbers for number in steps]
            if seed != EVAL_SEED:
                weights[broken] = np.nan
            return made

        return batch


def rolled_back(engine: str, workspace: Workspace) -> dict[str, Any]:
    """A run with a batch that breaks the loss: once uninterrupted, once killed after the
    rollback.
    """
    original = MaskedLanguageModel.batch
    MaskedLanguageModel.batch = Poison({7})(original)  # type: ignore[method-assign]
    try:
        config = config_of(engine)
        name = f"poisoned-{engine}"
        artifact = run(workspace, name, config)
        assert artifact is not None
        events = read_events(workspace.runs / name / "events.jsonl")[0]
        again = f"poisoned-again-{engine}"
        _train_until_it_goes_back(workspace, again, config)
        assert run(workspace, again, config) is not None
        return {
            "warnings": messages_of(workspace, name, "warning"),
            "resumed_at": [event["step"] for event in events if event["kind"] == "resumed"],
            "skipped": artifact.manifest.counts["skipped_batches"],
            "steps": artifact.manifest.counts["num_train_steps"],
            "weights": weights_of(workspace, name),
            "weights_again": weights_of(workspace, again),
            "warnings_again": messages_of(workspace, again, "warning"),
        }
    finally:
        MaskedLanguageModel.batch = original  # type: ignore[method-assign]


def _train_until_it_goes_back(workspace: Workspace, name: str, config: TrainConfig) -> None:
    """Aborts a run right after a rollback, before it saves again."""

    class Aborter(StoppingReporter):
        def event(self, kind: str, **fields: Any) -> None:
            super().event(kind, **fields)
            if kind == "resumed":
                self._stop_at, self._mode = 0, "abort"

    reporter = Aborter(workspace.runs / name)
    try:
        train(config, workspace, reporter)
    except RunStopped:
        return
    finally:
        reporter.close()
    raise AssertionError("it never went back")


def extended(engine: str, workspace: Workspace) -> dict[str, Any]:
    """A finished run that is given more steps, then fewer."""
    name = f"extended-{engine}"
    first = run(workspace, name, config_of(engine))
    more = run(workspace, name, config_of(engine, num_train_steps=STEPS + 6))
    assert first is not None
    assert more is not None
    try:
        run(workspace, name, config_of(engine, num_train_steps=STEPS - 2))
    except StudioError as error:
        refused = str(error)
    rates = metrics_of(workspace, name)["learning_rate"]
    return {
        "steps": more.manifest.counts["num_train_steps"],
        "names": [first.name, more.name],
        "rates": {step: rates[step] for step in rates if int(step) > STEPS},
        "refused": refused,
    }


def settled(engine: str, workspace: Workspace) -> dict[str, Any]:
    """A run that resolves its precision and learning rate at its first start, and is resumed.

    On resume, the learning rate for its hidden size is another one, as with another version.
    """
    name = f"settled-{engine}"
    config = config_of(engine, dtype_policy="auto", learning_rate=None)
    assert run(workspace, name, config, stop_at=2) is None
    (state_file,) = (workspace.runs / name / "checkpoints").glob("step-*/training_state.json")
    chosen = json.loads(state_file.read_text())["plan"]["dtype_policy"]
    rates = dict(recipe._RATES)
    recipe._RATES[config.optimizer] = (7e-4, None)
    try:
        artifact = run(workspace, name, config)
    finally:
        recipe._RATES.update(rates)
    assert artifact is not None
    return {
        "chosen": chosen,
        "notes": messages_of(workspace, name, "note"),
        "rate": artifact.manifest.config["learning_rate"],
        "rate_by_width": rates[config.optimizer][0],
    }


def left_for_the_other(engine: str, workspace: Workspace) -> dict[str, Any]:
    """An uninterrupted run without dropout, and one that is stopped for the other backend to
    resume.
    """
    config = config_of(engine, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    assert run(workspace, f"alone-{engine}", config) is not None
    assert run(workspace, f"passed-{engine}", config, stop_at=STOP_AT) is None
    return {"metrics": metrics_of(workspace, f"alone-{engine}")}


def taken_from_the_other(engine: str, workspace: Workspace) -> dict[str, Any]:
    """Resumes the run that the other backend left."""
    other = "jax" if engine == "tensorflow" else "tensorflow"
    config = config_of(engine, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    assert run(workspace, f"passed-{other}", config) is not None
    return {"metrics": metrics_of(workspace, f"passed-{other}")}


SCENARIOS: Mapping[str, Callable[[str, Workspace], dict[str, Any]]] = {
    scenario.__name__: scenario
    for scenario in (
        whole,
        stopped,
        aborted,
        counted,
        changed,
        checkpoints_gone,
        damaged_record,
        stopped_in_the_last_validation,
        ended_before_the_first_save,
        weights_taken_over,
        full_disk,
        diverged,
        rolled_back,
        extended,
        settled,
        left_for_the_other,
        taken_from_the_other,
    )
}


if __name__ == "__main__":
    engine_name, root, *names = sys.argv[1:]
    results = {name: SCENARIOS[name](engine_name, Workspace(root)) for name in names}
    print(json.dumps(results))
