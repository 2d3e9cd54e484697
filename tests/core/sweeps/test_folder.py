"""Tests of a sweep's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.config.sweep import SweepConfig
from core.sweeps.folder import SweepFolder, SweepRecord

_DERIVED = {
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "intra_document_masking": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("base", "options", "expected"),
    [
        (_DERIVED, {}, 0.01),
        (_DERIVED | {"weight_decay": 0.3}, {}, 0.3),
        (_DERIVED, {"weight_decay": [0.1, 0.2]}, None),
        (_DERIVED | {"preset": "classic"}, {}, None),
        ({}, {}, None),
    ],
)
def test_sweep_of_an_earlier_version_keeps_its_weight_decay(
    tmp_path: Path, base: dict[str, object], options: dict[str, object], expected: float | None
) -> None:
    folder = SweepFolder(tmp_path)
    config = SweepConfig.parse({"base": base, "options": options or {"seed": [1, 2]}})
    folder.write_record(SweepRecord(config, 0.0, str(tmp_path), {}))
    assert folder.read_record().config.base.get("weight_decay") == expected
