"""A fine-tuning logs the values of its automatic settings when it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.config.finetune import FinetuneConfig
from core.finetuning.stage import run
from core.records.events import FolderReporter, RunStopped
from core.records.folder import RunFolder
from core.report.settings import list_settings
from core.workspace.workspace import Workspace
from tests.core.evaluation.models import write_models
from tests.core.finetuning.test_stage import write_texts


@pytest.mark.slow(5)
def test_automatic_settings_of_a_finetuning_are_logged(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    write_models(workspace, ("bert",))
    folder = RunFolder.of(workspace, "finetune-a")
    folder.path.mkdir(parents=True)
    folder.request_stop("save")
    reporter = FolderReporter(folder.path, echo=False)
    config = FinetuneConfig(
        model="bert", train_path=write_texts(tmp_path / "a.tsv", 40, 0), device="auto"
    )
    with pytest.raises(RunStopped):
        run(config, workspace, reporter)
    reporter.close()
    used = folder.resolved()
    assert used.pop("engine") in ("tensorflow", "jax") and used.pop("device") in ("cpu", "gpu")
    assert used == {"dtype_policy": "float32", "learning_rates": "3e-4 1e-3 3e-3"}
    settings = dict(list_settings(config, used))
    assert settings["Learning rates"] == "3e-4 1e-3 3e-3 (auto)"
