"""The room that is asked for before a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from core.config import TrainConfig
from core.errors import RunError
from core.models.architecture import Architecture
from core.models.registry import count_parameters
from core.training.export import check_room, checkpoint_disk_bytes

_ARCHITECTURE = Architecture(64, 16, 1, 2, 32, 18, 1)


def _leave_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))


def test_a_run_that_is_resumed_has_the_room_of_its_own_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig()
    needed = checkpoint_disk_bytes(config, count_parameters(_ARCHITECTURE))
    _leave_free(monkeypatch, needed)
    check_room(config, _ARCHITECTURE, tmp_path)
    checkpoint = tmp_path / "checkpoints" / "step-00000005"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"x" * 1000)
    _leave_free(monkeypatch, needed - 1000)
    check_room(config, _ARCHITECTURE, tmp_path)
    _leave_free(monkeypatch, needed - 1001)
    with pytest.raises(RunError, match=r"no room on the disk.*that are saved"):
        check_room(config, _ARCHITECTURE, tmp_path)
