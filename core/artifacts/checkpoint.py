"""Checkpoints, committed atomically and verified before use."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import save_file

from core.errors import CheckpointError, StudioError
from core.foreign_files import parse_bounded_json, read_json, read_regular
from core.models.tensors import read_safetensors
from core.records.events import Reporter
from core.workspace.atomic import commit_folder, write_atomically
from core.workspace.manifests import (
    MANIFEST_FILE,
    Manifest,
    damaged_files,
    describe_files,
    fingerprint_of,
    fingerprint_of_files,
    library_versions,
    read_manifest,
    write_manifest,
)
from core.workspace.places import make_folder

CHECKPOINTS_FOLDER = "checkpoints"
STATE_FILE = "training_state.json"
ARRAYS_FILE = "training_state.safetensors"
TRAINING_CONFIG_FILE = "training_config.json"
EVAL_RESULTS_FILE = "eval_results.json"

_KIND = "checkpoint"
_FORMAT = 1
_PREFIX = "step-"
_WORDS_PREFIX = "words-"
_DAMAGED_PREFIX = "damaged-"
_DRAFT_SUFFIX = ".draft"
_REPLACED_SUFFIX = ".replaced"
_SKIPPED_FILE = "skipped.json"
_MOST_DIGITS = 19
_MOST_JSON_BYTES = 64 << 20


@dataclass(frozen=True)
class EvalResults:
    """Validation results; the loss is in nats.

    Attributes:
        sources: Figures of each source of a mixture, by its name.
    """

    step: int
    eval_loss: float
    eval_accuracy: float
    eval_perplexity: float
    frequency_baseline_loss: float
    sources: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """The results as metrics; those of a mixture's sources are named like `eval_loss/NAME`."""
        values = asdict(self)
        figures = {name: values[name] for name in values if name not in ("step", "sources")}
        for source, own in self.sources.items():
            figures |= {f"{name}/{source}": value for name, value in own.items()}
        return figures

    def to_json(self) -> dict[str, Any]:
        """Returns plain values; sources only if there are several."""
        values = asdict(self)
        if not self.sources:
            del values["sources"]
        return values


@dataclass(frozen=True)
class TrainingState:
    """State of a run beside its arrays.

    Attributes:
        next_batch: `step` plus the skipped batches.
        seconds: Over all sessions.
        pending_losses: Losses since the last log line.
        skipped: Windows of non-finite loss: step before, first batch, batch after the last.
        evaluation_seconds: The part of `seconds` for evaluations on minimal pairs and text.
    """

    step: int
    next_batch: int
    seconds: float
    seed: int
    config: dict[str, Any]
    plan: dict[str, Any]
    fingerprints: dict[str, str]
    engine: str
    pending_losses: list[float] = field(default_factory=list)
    evaluated: EvalResults | None = None
    best: EvalResults | None = None
    skipped: list[list[int]] = field(default_factory=list)
    evaluation_seconds: float = 0.0

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrainingState:
        """Parses a `training_state.json`; raises ValueError."""
        known = {name: values[name] for name in cls.__annotations__ if name in values}
        # Strict validation of Python values would require EvalResults instances.
        adapter = TypeAdapter(cls)
        state: TrainingState = adapter.validate_json(json.dumps(known), strict=True)
        if min(state.step, state.next_batch) < 0 or any(
            len(window) != 3 for window in state.skipped
        ):
            raise ValueError("a negative step, or a skipped window without three numbers")
        return state

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {"format": _FORMAT, **asdict(self)}

    def skipping(self, window: list[int]) -> TrainingState:
        """Returns the state after a skipped window."""
        return replace(self, next_batch=window[2], skipped=[*self.skipped, window])


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for draft in folder.glob(f".*{_DRAFT_SUFFIX}"):
            _remove(draft)
        for prefix in (_PREFIX, _WORDS_PREFIX):
            for replaced in folder.glob(f"{prefix}*{_REPLACED_SUFFIX}"):
                _finish_replacement(replaced)

    def steps(self) -> list[int]:
        """Lists the saved steps, newest first."""
        return checkpoint_steps(self.folder)

    def path(self, step: int) -> Path:
        """Returns a step's folder."""
        return self.folder / checkpoint_name(step)

    def write(
        self,
        state: TrainingState,
        arrays: dict[str, NDArray],
        write_model: Callable[[Path], None],
    ) -> Path:
        """Commits and verifies a checkpoint; OSError leaves earlier files intact."""

        def write(draft: Path) -> None:
            write_model(draft)
            _write_state(draft, state, arrays)

        return self._write(checkpoint_name(state.step), write)

    def write_words(
        self,
        words: int,
        counts: dict[str, int],
        inputs: dict[str, str],
        write_model: Callable[[Path], None],
    ) -> Path:
        """Commits a model without training state, which `prune` keeps.

        Args:
            words: Number of words seen.
            counts: For the manifest.
        """

        def write(draft: Path) -> None:
            write_model(draft)
            _write_manifest(draft, words_name(words), counts, inputs)

        return self._write(words_name(words), write)

    def _write(self, name: str, write: Callable[[Path], None]) -> Path:
        draft, final = self.folder / f".{name}{_DRAFT_SUFFIX}", self.folder / name
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(self.folder)
        draft.mkdir()
        try:
            with _os_errors():
                write(draft)
            self._commit(draft, final)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        verify(final)
        return final

    def newest_valid(self, reporter: Reporter) -> Path | None:
        """Returns the newest undamaged checkpoint, and sets damaged ones aside.

        Raises:
            CheckpointError: All are damaged.
        """
        problems: dict[int, str] = {}
        self._check_skipped(reporter)
        for step in self.steps():
            try:
                verify(self.path(step))
            except CheckpointError as error:
                problems[step] = error.received
                continue
            self._set_aside(problems, step, reporter)
            return self.path(step)
        if problems:
            raise CheckpointError(
                f"All checkpoints in {self.folder} are damaged",
                expected="at least one undamaged checkpoint to resume from",
                received="; ".join(f"step {step}: {text}" for step, text in problems.items()),
                fix="restore a checkpoint from a copy, or start a new run; nothing was overwritten",
            )
        return None

    def remember_skipped(self, windows: list[list[int]]) -> None:
        """Saves skipped windows before the next checkpoint."""
        make_folder(self.folder)
        values = {"windows": windows, "seal": fingerprint_of({"windows": windows})}
        write_atomically(self.folder / _SKIPPED_FILE, json.dumps(values) + "\n")

    def skip_again(self, state: TrainingState) -> TrainingState:
        """Skips windows that broke the run after this state."""
        for window in self._read_skipped() or []:
            if window[0] == state.step and window not in state.skipped:
                state = state.skipping(window)
        return state

    def best(self) -> EvalResults | None:
        """Returns the best validation of an undamaged checkpoint."""
        candidates = []
        for step in self.steps():
            try:
                verify(self.path(step))
            except CheckpointError:
                continue
            results = read_state(self.path(step)).evaluated
            candidates += [results] if results and results.step == step else []
        return min(candidates, key=lambda results: results.eval_loss, default=None)

    def prune(self, keep_newest: int, best_step: int | None) -> None:
        """Deletes damaged checkpoints, and all but the newest and best."""
        for step in self.steps()[keep_newest:]:
            if step != best_step:
                shutil.rmtree(self.path(step))
        for damaged in self.folder.glob(f"{_DAMAGED_PREFIX}*"):
            shutil.rmtree(damaged)

    def _commit(self, draft: Path, final: Path) -> None:
        """Moves a checkpoint into place; the old or the new one always exists."""
        replaced = final.with_name(final.name + _REPLACED_SUFFIX)
        if final.exists():
            final.rename(replaced)
        try:
            commit_folder(draft, final)
        finally:
            if replaced.exists():
                _finish_replacement(replaced)

    def _read_skipped(self) -> list[list[int]] | None:
        path = self.folder / _SKIPPED_FILE
        if not path.exists():
            return []
        try:
            values = read_json(path, _MOST_JSON_BYTES)
            windows, seal = values["windows"], values["seal"]
            is_whole = seal == fingerprint_of({"windows": windows})
            return TypeAdapter(list[list[int]]).validate_python(windows) if is_whole else None
        except (StudioError, ValueError, KeyError, TypeError):
            return None

    def _check_skipped(self, reporter: Reporter) -> None:
        if self._read_skipped() is None:
            reporter.warn(
                f"{self.folder / _SKIPPED_FILE} is damaged: the batches skipped since the last "
                "checkpoint, which made the loss NaN or infinite, are tried again"
            )

    def _set_aside(self, problems: dict[int, str], good: int, reporter: Reporter) -> None:
        for step, problem in problems.items():
            reporter.warn(
                f"The checkpoint of step {step} is damaged ({problem}); resuming from step {good}",
                path=str(self.path(step)),
                alert="damaged_checkpoint",
            )
            aside = self.folder / f"{_DAMAGED_PREFIX}{self.path(step).name}"
            _remove(aside)
            self.path(step).rename(aside)


def checkpoint_name(step: int) -> str:
    """Returns a step's folder name."""
    return f"{_PREFIX}{step:08d}"


def checkpoint_step(name: str) -> int | None:
    """Returns a folder's step; None for other names."""
    return _number_in(name, _PREFIX, checkpoint_name)


def checkpoint_steps(folder: Path) -> list[int]:
    """Lists the saved steps, newest first."""
    names = (path.name for path in folder.glob(f"{_PREFIX}*") if path.is_dir())
    steps = (checkpoint_step(name) for name in names)
    return sorted((step for step in steps if step is not None), reverse=True)


def words_name(words: int) -> str:
    """Returns the folder name of the checkpoint at a number of words seen."""
    return f"{_WORDS_PREFIX}{words}"


def words_of_name(name: str) -> int | None:
    """Returns the number of words of a checkpoint's folder; None for other names."""
    return _number_in(name, _WORDS_PREFIX, words_name)


def checkpoint_words(folder: Path) -> list[int]:
    """Lists the numbers of words at which models were kept, ascending."""
    names = (path.name for path in folder.glob(f"{_WORDS_PREFIX}*") if path.is_dir())
    word_counts = (words_of_name(name) for name in names)
    return sorted(words for words in word_counts if words is not None)


def _number_in(name: str, prefix: str, name_of: Callable[[int], str]) -> int | None:
    digits = name.removeprefix(prefix)
    if not digits.isdecimal() or len(digits) >= _MOST_DIGITS:
        return None
    number = int(digits)
    return number if name_of(number) == name else None


def saved_bytes(folder: Path) -> int:
    """Returns the checkpoints' disk usage."""
    return sum(path.stat().st_size for path in folder.glob(f"{_PREFIX}*/*"))


def verify(folder: Path) -> None:
    """Raises CheckpointError for missing or changed files."""
    problems = _manifest_problems(folder) or damaged_files(folder, read_manifest(folder))
    if problems:
        raise CheckpointError(
            f"The checkpoint {folder} is damaged",
            expected="unchanged files",
            received=", ".join(problems),
            fix="use another checkpoint",
        )


def read_state(folder: Path) -> TrainingState:
    """Reads a training state; raises CheckpointError."""
    path = folder / STATE_FILE
    try:
        # The perplexity may be infinite, which strict JSON excludes.
        values = parse_bounded_json(read_regular(path, _MOST_JSON_BYTES))
        if isinstance(values, dict) and values.get("format") == _FORMAT:
            return TrainingState.from_json(values)
        fault = "no object" if not isinstance(values, dict) else f"format {values.get('format')!r}"
    except StudioError as error:
        fault = error.received
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        fault = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems
        )
    except (ValueError, RecursionError) as error:
        fault = f"{type(error).__name__}: {error}"
    raise CheckpointError(
        f"The training state {path} can't be read",
        expected=f"format {_FORMAT}, which this version of the program reads",
        received=fault,
        fix="resume with the version that wrote it, or start a new run from its weights with "
        "⟬--checkpoint⟭",
    )


def read_arrays(folder: Path) -> dict[str, NDArray]:
    """Reads optimizer slots and seed states, by path."""
    path = folder / ARRAYS_FILE
    try:
        return read_safetensors(path)
    except CheckpointError as error:
        raise CheckpointError(
            f"The training state {path} can't be read",
            expected="a complete safetensors file",
            received=error.received,
            fix="use another checkpoint",
        ) from error


def write_eval_results(folder: Path, results: EvalResults) -> None:
    """Writes `eval_results.json`."""
    make_folder(folder)
    write_atomically(folder / EVAL_RESULTS_FILE, json.dumps(results.to_json(), indent=2) + "\n")


def _finish_replacement(replaced: Path) -> None:
    final = replaced.with_name(replaced.name.removesuffix(_REPLACED_SUFFIX))
    if final.exists():
        _remove(replaced)
    else:
        replaced.rename(final)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_state(folder: Path, state: TrainingState, arrays: dict[str, NDArray]) -> None:
    contiguous = {path: np.asarray(values, order="C") for path, values in arrays.items()}
    save_file(contiguous, folder / ARRAYS_FILE)
    (folder / STATE_FILE).write_text(json.dumps(state.to_json(), indent=2) + "\n", "utf-8")
    if state.evaluated and state.evaluated.step == state.step:
        write_eval_results(folder, state.evaluated)
    _write_manifest(folder, folder.name, {"step": state.step}, state.fingerprints)


def _write_manifest(
    folder: Path, name: str, counts: dict[str, int], inputs: dict[str, str]
) -> None:
    files = describe_files(folder)
    manifest = Manifest(
        kind=_KIND,
        name=name,
        fingerprint=fingerprint_of_files(files),
        inputs=inputs,
        counts=counts,
        files=files,
        versions=library_versions(),
    )
    write_manifest(folder, manifest)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Converts safetensors' disk errors to OSError."""
    try:
        yield
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):
            code = int(number[1])
            raise OSError(code, os.strerror(code)) from error
        raise


def _manifest_problems(folder: Path) -> list[str]:
    try:
        manifest = read_manifest(folder)
    except StudioError as error:
        return [f"{MANIFEST_FILE} can't be read: {error.received}"]
    return [] if manifest.kind == _KIND else [f"{MANIFEST_FILE} belongs to a {manifest.kind}"]
