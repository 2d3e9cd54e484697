"""Checkpoint folders: written whole or not at all, checked before they are trusted.

    checkpoints/step-00000500/
        config.json, model.safetensors     the model, as Hugging Face stores it
        tokenizer.json, ...                the tokenizer's files; of a decoder, to go on with text
        eval_results.json                  where this step was validated
        training_state.safetensors         optimizer slots and seed states by variable path
        training_state.json                step, seed, fingerprints, plan (`TrainingState`)
        manifest.json                      size and SHA-256 of each file

Nothing in a checkpoint depends on the engine that wrote it. No engine is imported here.
"""

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

from core.config import fingerprint_of
from core.errors import CheckpointError, StudioError
from core.events import Reporter
from core.foreign_files import read_json, read_regular
from core.models.tensors import read_safetensors
from core.places import make_folder
from core.workspace import (
    MANIFEST_FILE,
    Manifest,
    commit_folder,
    damaged_files,
    describe_files,
    fingerprint_of_files,
    library_versions,
    read_manifest,
    write_atomically,
    write_manifest,
)

CHECKPOINTS_FOLDER = "checkpoints"
STATE_FILE = "training_state.json"
ARRAYS_FILE = "training_state.safetensors"
EVAL_RESULTS_FILE = "eval_results.json"

_KIND = "checkpoint"
_FORMAT = 1
_PREFIX = "step-"
_DAMAGED_PREFIX = "damaged-"
_DRAFT_SUFFIX = ".draft"
_REPLACED_SUFFIX = ".replaced"
_SKIPPED_FILE = "skipped.json"
_MOST_DIGITS = 19
# Thousands of skipped windows, and plans of thousands of lines.
_MOST_JSON_BYTES = 64 << 20


@dataclass(frozen=True)
class EvalResults:
    """What validation said at a step.

    Attributes:
        step: Updates of the weights before it.
        eval_loss: Cross-entropy in nats, the mean over all predictions.
        eval_accuracy: Share of the predictions that were right.
        eval_perplexity: exp(eval_loss).
        frequency_baseline_loss: What the token counts alone come to on the same predictions.
    """

    step: int
    eval_loss: float
    eval_accuracy: float
    eval_perplexity: float
    frequency_baseline_loss: float


@dataclass(frozen=True)
class TrainingState:
    """Where a run stands, beside its arrays.

    Attributes:
        step: Updates of the weights so far.
        next_batch: The number of the batch that the next step takes. It runs ahead of `step` by
            the batches that were skipped.
        seconds: Spent on training and validation so far, in all sessions.
        seed: Of order and masks.
        config: The training config.
        plan: The plan, with what was `auto` resolved.
        fingerprints: Of shards and tokenizer.
        engine: The engine that wrote it.
        pending_losses: Losses since the last log line, so that the next line says the same as if
            the run had never stopped.
        evaluated: The last validation, if there was one.
        best: The best validation whose weights were saved.
        skipped: The windows of batches that are left out because the loss was not finite in them:
            the step they follow, their first batch, and the batch behind their last.
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

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrainingState:
        """Makes a state from the values of a `training_state.json`.

        Raises:
            ValueError: A value is missing, or of another type.
        """
        known = {name: values[name] for name in cls.__annotations__ if name in values}
        # From JSON, for of Python's values a strict check would want EvalResults themselves.
        adapter = TypeAdapter(cls)
        state: TrainingState = adapter.validate_json(json.dumps(known), strict=True)
        if min(state.step, state.next_batch) < 0 or any(len(one) != 3 for one in state.skipped):
            raise ValueError("steps below 0, or windows of batches without three numbers")
        return state

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {"format": _FORMAT, **asdict(self)}

    def skipping(self, window: list[int]) -> TrainingState:
        """Returns the state that goes on behind a window of batches."""
        return replace(self, next_batch=window[2], skipped=[*self.skipped, window])


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: Holds them; made when the first is written. What an interrupted save left there is
            removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for draft in folder.glob(f".*{_DRAFT_SUFFIX}"):
            _remove(draft)
        for replaced in folder.glob(f"{_PREFIX}*{_REPLACED_SUFFIX}"):
            _settle(replaced)

    def steps(self) -> list[int]:
        """Returns the steps that there are checkpoints of, the newest first."""
        names = {path.name for path in self.folder.glob(f"{_PREFIX}*") if path.is_dir()}
        digits = (name.removeprefix(_PREFIX) for name in names)
        steps = (int(part) for part in digits if part.isdecimal() and len(part) < _MOST_DIGITS)
        # Others may have put step-7 there; ours are step-00000007.
        return sorted((step for step in steps if self.path(step).name in names), reverse=True)

    def path(self, step: int) -> Path:
        """Returns the folder of a step's checkpoint."""
        return self.folder / f"{_PREFIX}{step:08d}"

    def write(
        self,
        state: TrainingState,
        arrays: dict[str, NDArray],
        write_model: Callable[[Path], None],
    ) -> Path:
        """Commits a checkpoint and reads it back.

        Args:
            state: Where the run stands.
            arrays: Optimizer slots and seed states, by path.
            write_model: Writes model and tokenizer files into the folder it is given.

        Returns:
            The checkpoint's folder.

        Raises:
            CheckpointError: What was read back differs from what was written.
            OSError: The disk is full, or can't be written to. What was there before stays whole.
        """
        draft = self.folder / f".{_PREFIX}{state.step:08d}{_DRAFT_SUFFIX}"
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(self.folder)
        draft.mkdir()
        try:
            with _os_errors():
                write_model(draft)
                _write_state(draft, state, arrays)
            self._commit(draft, self.path(state.step))
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        verify(self.path(state.step))
        return self.path(state.step)

    def newest_good(self, reporter: Reporter) -> Path | None:
        """Returns the newest checkpoint that is whole, with a warning for each that isn't.

        Returns:
            Its folder, or None where no checkpoint was ever written.

        Raises:
            CheckpointError: There are checkpoints, and all of them are damaged.
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
                expected="at least one whole checkpoint to go on from",
                received="; ".join(f"step {step}: {text}" for step, text in problems.items()),
                fix="restore one from a copy, or start a new run; nothing was overwritten",
            )
        return None

    def remember_skipped(self, windows: list[list[int]]) -> None:
        """Writes which windows of batches are left out, before the next checkpoint has it."""
        make_folder(self.folder)
        values = {"windows": windows, "seal": fingerprint_of({"windows": windows})}
        write_atomically(self.folder / _SKIPPED_FILE, json.dumps(values) + "\n")

    def skip_again(self, state: TrainingState) -> TrainingState:
        """Leaves out again what was found to break the run after this state was saved."""
        for window in self._read_skipped() or []:
            if window[0] == state.step and window not in state.skipped:
                state = state.skipping(window)
        return state

    def best(self) -> EvalResults | None:
        """Returns the best validation whose weights are here and whole."""
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
        """Deletes all but the newest checkpoints and the best one."""
        for step in self.steps()[keep_newest:]:
            if step != best_step:
                shutil.rmtree(self.path(step))
        for damaged in self.folder.glob(f"{_DAMAGED_PREFIX}*"):
            shutil.rmtree(damaged)

    def _commit(self, draft: Path, final: Path) -> None:
        """Puts a checkpoint in its place; at no instant is there neither the old nor the new."""
        replaced = final.with_name(final.name + _REPLACED_SUFFIX)
        if final.exists():
            final.rename(replaced)
        try:
            commit_folder(draft, final)
        finally:
            if replaced.exists():
                _settle(replaced)

    def _read_skipped(self) -> list[list[int]] | None:
        """Returns the windows that were written down; None where the file is damaged."""
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
                f"{self.folder / _SKIPPED_FILE} is damaged: batches that broke the loss since the "
                "last checkpoint are tried again"
            )

    def _set_aside(self, problems: dict[int, str], good: int, reporter: Reporter) -> None:
        """Renames damaged checkpoints, so that they aren't counted among the newest."""
        for step, problem in problems.items():
            reporter.warn(
                f"The checkpoint of step {step} is damaged ({problem}); going on from step {good}",
                path=str(self.path(step)),
                alert="damaged_checkpoint",
            )
            aside = self.folder / f"{_DAMAGED_PREFIX}{self.path(step).name}"
            _remove(aside)
            self.path(step).rename(aside)


def saved_bytes(folder: Path) -> int:
    """Returns what the checkpoints in a folder take, those that were set aside as damaged apart."""
    return sum(path.stat().st_size for path in folder.glob(f"{_PREFIX}*/*"))


def verify(folder: Path) -> None:
    """Compares every file of a checkpoint with its manifest, and the manifest with itself.

    Raises:
        CheckpointError: Something is missing or differs; `received` names the file.
    """
    problems = _manifest_problems(folder) or damaged_files(folder, read_manifest(folder))
    if problems:
        raise CheckpointError(
            f"The checkpoint {folder} is damaged",
            expected="the files that were written, byte for byte",
            received=", ".join(problems),
            fix="use another checkpoint",
        )


def read_state(folder: Path) -> TrainingState:
    """Reads where a run stood.

    Raises:
        CheckpointError: The file can't be read, or was written by a later version.
    """
    path = folder / STATE_FILE
    try:
        # A perplexity may be infinite, which strict JSON isn't.
        values = json.loads(read_regular(path, _MOST_JSON_BYTES))
        if isinstance(values, dict) and values.get("format") == _FORMAT:
            return TrainingState.from_json(values)
        found = "no object" if not isinstance(values, dict) else f"format {values.get('format')!r}"
    except StudioError as error:
        found = error.received
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in problems)
    except (ValueError, RecursionError) as error:
        found = f"{type(error).__name__}: {error}"
    raise CheckpointError(
        f"The training state {path} can't be read",
        expected=f"format {_FORMAT} of this program",
        received=found,
        fix="resume with the version that wrote it, or use its weights with --checkpoint",
    )


def read_arrays(folder: Path) -> dict[str, NDArray]:
    """Reads optimizer slots and seed states, by path.

    Raises:
        CheckpointError: The file can't be read.
    """
    path = folder / ARRAYS_FILE
    try:
        return read_safetensors(path)
    except CheckpointError as error:
        raise CheckpointError(
            f"The training state {path} can't be read",
            expected="a whole safetensors file",
            received=error.received,
            fix="use another checkpoint",
        ) from error


def write_eval_results(folder: Path, results: EvalResults) -> None:
    """Writes `eval_results.json`."""
    make_folder(folder)
    write_atomically(folder / EVAL_RESULTS_FILE, json.dumps(asdict(results), indent=2) + "\n")


def _settle(replaced: Path) -> None:
    """Deletes a checkpoint that was replaced, or puts it back where the new one didn't arrive."""
    final = replaced.with_name(replaced.name.removesuffix(_REPLACED_SUFFIX))
    if final.exists():
        _remove(replaced)
    else:
        replaced.rename(final)


def _remove(path: Path) -> None:
    """Removes a folder with all it holds, or whatever else somebody put there."""
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
    files = describe_files(folder)
    manifest = Manifest(
        kind=_KIND,
        name=folder.name,
        fingerprint=fingerprint_of_files(files),
        inputs=state.fingerprints,
        counts={"step": state.step},
        files=files,
        versions=library_versions(),
    )
    write_manifest(folder, manifest)


@contextmanager
def _os_errors() -> Iterator[None]:
    """Raises what safetensors says of a full disk as the OSError that it is."""
    try:
        yield
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):
            code = int(number[1])
            raise OSError(code, os.strerror(code)) from error
        raise


def _manifest_problems(folder: Path) -> list[str]:
    """Returns what is wrong with a checkpoint's manifest, down to the last byte."""
    try:
        manifest = read_manifest(folder)
    except StudioError as error:
        return [f"{MANIFEST_FILE} can't be read: {error.received}"]
    return [] if manifest.kind == _KIND else [f"{MANIFEST_FILE} is that of a {manifest.kind}"]
