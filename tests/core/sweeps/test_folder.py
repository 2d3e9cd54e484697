"""Tests of a sweep's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.config.sweep import SweepConfig
from core.config.train import TrainConfig, automatic_fields
from core.sweeps.folder import SweepFolder, SweepRecord

_DERIVED = {
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "intra_document_masking": False,
}  # fmt: skip


def read_base(
    folder: SweepFolder, base: dict[str, object], options: dict[str, object], *, is_earlier: bool
) -> dict[str, Any]:
    """Returns the base of a sweep as it is read again."""
    config = SweepConfig.parse({"base": base, "options": options or {"seed": [1, 2]}})
    folder.write_record(SweepRecord(config, 0.0, str(folder.path), {}))
    path = folder.path / "sweep.json"
    if is_earlier:
        values = json.loads(path.read_text("utf-8"))
        del values["holds_derived_settings"]
        path.write_text(json.dumps(values), "utf-8")
    return folder.read_record().config.base


@pytest.mark.parametrize(
    ("base", "options", "expected"),
    [
        (_DERIVED, {}, 0.01),
        (_DERIVED | {"weight_decay": 0.3}, {}, 0.3),
        (_DERIVED, {"weight_decay": [0.1, 0.2]}, None),
        (_DERIVED | {"preset": "classic"}, {}, None),
    ],
)
def test_sweep_of_an_earlier_version_keeps_its_weight_decay(
    tmp_path: Path, base: dict[str, object], options: dict[str, object], expected: float | None
) -> None:
    read = read_base(SweepFolder(tmp_path), base, options, is_earlier=True)
    assert read.get("weight_decay") == expected


@pytest.mark.parametrize("preset", ["fast", "classic", "custom"])
def test_new_trials_of_an_old_sweep_have_the_settings_of_those_before(
    tmp_path: Path, preset: str
) -> None:
    folder = SweepFolder(tmp_path)
    base: dict[str, object] = {"preset": preset, "num_train_epochs": 3.0}
    options: dict[str, object] = {"size": ["tiny", "mini"]}
    assert read_base(folder, base, options, is_earlier=False) == base
    read = read_base(folder, base, options, is_earlier=True)
    assert "size" not in read and read["num_train_epochs"] == 3.0
    trial = TrainConfig.parse({**read, "size": "tiny"})
    assert not automatic_fields(trial)
    # What an earlier version's trials ran with stays in the base when limits change.
    assert folder.read_record().config.base == read
    assert read_base(folder, read, options, is_earlier=False) == read
