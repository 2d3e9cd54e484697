"""Checkpoints: complete or absent, with verified contents."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.artifacts.checkpoint import (
    Checkpoints,
    EvalResults,
    TrainingState,
    read_arrays,
    read_state,
    verify,
)
from core.errors import CheckpointError
from core.records.events import Reporter
from tests.damage import damages_of, flips_of, leave

_FILES = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "eval_results.json",
    "training_state.json",
    "training_state.safetensors",
    "manifest.json",
]


class Listener(Reporter):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str, **fields: Any) -> None:
        self.warnings.append(message)


def _state(step: int, loss: float | None = 5.0) -> TrainingState:
    evaluated = EvalResults(step, loss, 0.1, 148.4, 6.0) if loss is not None else None
    return TrainingState(
        step=step,
        next_batch=step,
        seconds=1.5,
        seed=0,
        config={"learning_rate": 0.1},
        plan={"num_train_steps": 100},
        fingerprints={"shards": "aa", "tokenizer": "bb"},
        engine="jax",
        pending_losses=[0.1, 0.30000001192092896],
        evaluated=evaluated,
    )


def _write(checkpoints: Checkpoints, state: TrainingState) -> Path:
    def write_model(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(range(256)) * 8)

    arrays = {
        "adamw/iteration": np.array(state.step, np.int64),
        "slot": np.full((2, 3), state.step, np.float32),
    }
    return checkpoints.write(state, arrays, write_model)


def test_written_checkpoint_is_read_back(tmp_path: Path) -> None:
    path = _write(Checkpoints(tmp_path), _state(500))
    assert path.name == "step-00000500"
    assert sorted(file.name for file in path.iterdir()) == sorted(_FILES)
    assert read_state(path) == _state(500)
    arrays = read_arrays(path)
    iteration = arrays["adamw/iteration"]
    assert (iteration, iteration.shape, iteration.dtype) == (500, (), np.int64)
    assert np.array_equal(arrays["slot"], np.full((2, 3), 500, np.float32))


def test_newest_checkpoint_is_selected(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest_valid(Listener()) is None
    for step in (99, 100, 7):
        _write(checkpoints, _state(step))
    newest = checkpoints.newest_valid(Listener())
    assert newest is not None and newest.name == "step-00000100"


@pytest.mark.parametrize("name", _FILES)
def test_damaged_file_is_named_and_the_previous_checkpoint_is_used(
    tmp_path: Path, name: str
) -> None:
    checkpoints = Checkpoints(tmp_path)
    _write(checkpoints, _state(5))
    newest = _write(checkpoints, _state(10))
    content = (newest / name).read_bytes()
    for damage, damaged in damages_of(content):
        leave(newest / name, damaged)
        with pytest.raises(CheckpointError, match=name):
            verify(newest)
        listener = Listener()
        found = checkpoints.newest_valid(listener)
        assert found is not None and found.name == "step-00000005", damage
        (warning,) = listener.warnings
        assert "step 10" in warning and name in warning, damage
        assert checkpoints.steps() == [5]
        (tmp_path / f"damaged-{newest.name}").rename(newest)
        (newest / name).write_bytes(content)
    verify(newest)


@pytest.mark.parametrize("name", _FILES)
def test_damage_to_the_only_checkpoint_never_restarts_the_run(tmp_path: Path, name: str) -> None:
    only = _write(Checkpoints(tmp_path), _state(5))
    content = (only / name).read_bytes()
    for _, damaged in damages_of(content):
        leave(only / name, damaged)
        with pytest.raises(CheckpointError, match=f"are damaged.*step 5: .*{name}"):
            Checkpoints(tmp_path).newest_valid(Listener())
        (only / name).write_bytes(content)


def test_damage_to_the_list_of_skipped_batches_is_reported(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    state = read_state(_write(checkpoints, _state(5)))
    checkpoints.remember_skipped([[5, 5, 9]])
    assert checkpoints.skip_again(state).next_batch == 9
    path = tmp_path / "skipped.json"
    for damaged in flips_of(path.read_bytes().strip()):
        path.write_bytes(damaged)
        listener = Listener()
        assert checkpoints.newest_valid(listener) == checkpoints.path(5)
        (warning,) = listener.warnings
        assert "skipped.json is damaged" in warning
        assert checkpoints.skip_again(state) == state
        checkpoints.remember_skipped([[5, 5, 9]])


def test_damage_to_all_checkpoints_never_restarts_the_run(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (5, 10):
        (_write(checkpoints, _state(step)) / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"step 10: .*config.json.*step 5: "):
        checkpoints.newest_valid(Listener())
    assert checkpoints.steps() == [10, 5]


def test_failed_save_keeps_the_existing_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    _write(checkpoints, _state(5))

    def fail(folder: Path) -> None:
        (folder / "half").write_text("written")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoints.write(_state(10), {}, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]
    verify(checkpoints.path(5))


def test_draft_of_a_killed_save_is_removed_at_the_next_start(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    whole = _write(checkpoints, _state(5))
    shutil.copytree(whole, tmp_path / ".step-00000010.draft")
    assert Checkpoints(tmp_path).steps() == [5]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


def test_checkpoint_saved_twice_always_exists(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    _write(checkpoints, _state(5, None))
    path = _write(checkpoints, _state(5, 4.0))
    assert read_state(path) == _state(5, 4.0)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]
    path.rename(tmp_path / "step-00000005.replaced")
    assert Checkpoints(tmp_path).steps() == [5]
    verify(path)


def test_newest_and_best_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    losses: Mapping[int, float] = {10: 4.0, 20: 3.0, 30: 3.5, 40: 3.6, 50: 3.7}
    for step, loss in losses.items():
        _write(checkpoints, _state(step, loss))
    best = checkpoints.best()
    assert best is not None and best.step == 20
    checkpoints.prune(2, best.step)
    assert checkpoints.steps() == [50, 40, 20]


def test_best_checkpoint_is_an_undamaged_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step, loss in ((10, 4.0), (20, 3.0), (30, None)):
        _write(checkpoints, _state(step, loss))
    (checkpoints.path(20) / "model.safetensors").unlink()
    best = checkpoints.best()
    assert best is not None and best.step == 10


def test_state_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = _write(Checkpoints(tmp_path), _state(5))
    file = path / "training_state.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointError, match="format 2"):
        read_state(path)


@pytest.mark.parametrize(
    "change",
    [
        {"step": "5"}, {"step": -1}, {"evaluated": {"step": 1}}, {"best": 3}, {"skipped": [[1]]},
        {"plan": []}, {"pending_losses": "12"}, {"config": None}, {"seed": 1.5}, {"format": [1]},
        {"step": 1 << 63}, {"skipped": [[1, 2, 10**400]]},
    ],
)  # fmt: skip
def test_state_with_wrong_types_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = _write(Checkpoints(tmp_path), _state(500)) / "training_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match="can't be read"):
        read_state(path.parent)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"7", b"\xff", b"{}", None])
def test_invalid_state_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "training_state.json"
    os.mkfifo(path) if content is None else path.write_bytes(content)
    with pytest.raises(CheckpointError, match="can't be read"):
        read_state(tmp_path)


def test_folders_with_other_names_are_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    _write(checkpoints, _state(500))
    for name in ("step-7", "step-٣", f"step-{'9' * 30}", "step-", "step-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000900").write_text("no folder")
    assert checkpoints.steps() == [500]
    assert checkpoints.newest_valid(Listener()) == checkpoints.path(500)


def test_files_in_place_of_drafts_are_removed(tmp_path: Path) -> None:
    _write(Checkpoints(tmp_path), _state(500))
    for name in (".step-1.draft", "step-00000500.replaced", "damaged-step-00000600"):
        (tmp_path / name).write_text("no folder")
    (tmp_path / "step-00000600").mkdir()
    assert Checkpoints(tmp_path).newest_valid(Listener()) == tmp_path / "step-00000500"


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b'{"windows": 3, "seal": 3}', None])
def test_invalid_list_of_skipped_batches_is_ignored_and_reported(
    tmp_path: Path, content: bytes | None
) -> None:
    checkpoints, listener = Checkpoints(tmp_path), Listener()
    _write(checkpoints, _state(500))
    path = tmp_path / "skipped.json"
    os.mkfifo(path) if content is None else path.write_bytes(content)
    assert checkpoints.skip_again(_state(500)) == _state(500)
    checkpoints.newest_valid(listener)
    assert "is damaged" in listener.warnings[0]
