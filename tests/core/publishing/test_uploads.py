"""Tests of uploads during a training: their content, and their warnings on failure."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from core.config.train import TrainConfig
from core.tokenizer.loading import load
from core.training.uploads import Uploads
from core.workspace.manifests import Artifact, Manifest
from core.workspace.workspace import Workspace
from tests.checkpoints import write_checkpoint
from tests.core.publishing.conftest import Listener
from tests.hub_server import HubServer

CONFIG = TrainConfig(push_to_hub=True, hub_model_id="me/held", hub_every_saves=2)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_checkpoint_can_be_deleted_during_its_upload(
    workspace: Workspace, hub: HubServer, tmp_path: Path
) -> None:
    hub.fail("POST /api/repos/create", 503)  # Retried after half a second.
    listener = Listener()
    uploads = Uploads(CONFIG, workspace, tmp_path, "held", listener)
    for step in (1, 2):
        checkpoint = tmp_path / "checkpoints" / f"step-{step}"
        uploads.offer(write_checkpoint(checkpoint, load("unigram", workspace), seed=step))
    weights = (checkpoint / "model.safetensors").read_bytes()
    shutil.rmtree(checkpoint)

    def sent() -> dict[str, bytes]:
        repository = hub.find("models", "me/held")
        return repository.files if repository and len(repository.files) > 1 else {}

    wait_until(sent)
    assert sent()["model.safetensors"] == weights
    uploads.close()
    assert listener.warnings == [] and not (tmp_path / "uploading").exists()


def test_failed_final_upload_is_reported_with_a_command_to_push_later(
    workspace: Workspace, hub: HubServer, tmp_path: Path
) -> None:
    hub.fail("POST .*/commit/", 403, times=9)
    listener = Listener()
    uploads = Uploads(CONFIG, workspace, tmp_path, "held", listener)
    manifest = Manifest("model", "plain", "", counts={"num_train_steps": 2})
    uploads.finish(Artifact(workspace.folder("model") / "plain", manifest))
    failed, advice = listener.warnings
    assert "403" in failed
    assert advice.endswith("python -m core push --model plain --repo-id me/held")


def test_public_run_makes_a_private_repository_public_only_once(
    workspace: Workspace, hub: HubServer, tmp_path: Path
) -> None:
    repository = hub.add("models", "me/hidden", {}, private=True)
    config = TrainConfig(push_to_hub=True, hub_model_id="me/hidden", hub_private_repo=False)
    listener = Listener()
    uploads = Uploads(config, workspace, tmp_path, "hidden", listener)
    uploads.offer(write_checkpoint(tmp_path / "step-1", load("unigram", workspace), seed=1))
    wait_until(lambda: not repository.private)
    repository.private = True
    manifest = Manifest("model", "plain", "", counts={"num_train_steps": 2})
    model = Artifact(workspace.folder("model") / "plain", manifest)
    uploads.finish(model)
    assert repository.messages[-1] == "Push the best checkpoint"
    assert repository.private and listener.warnings == []
    resumed = Uploads(config, workspace, tmp_path, "hidden", listener)
    resumed.finish(model)
    assert repository.private and listener.warnings == []


def test_upload_succeeds_if_the_repository_cannot_be_made_public(
    workspace: Workspace, hub: HubServer, tmp_path: Path
) -> None:
    repository = hub.add("models", "me/closed", {}, private=True)
    hub.fail("PUT .*/settings", 403)
    config = TrainConfig(push_to_hub=True, hub_model_id="me/closed", hub_private_repo=False)
    listener = Listener()
    uploads = Uploads(config, workspace, tmp_path, "closed", listener)
    manifest = Manifest("model", "plain", "", counts={"num_train_steps": 2})
    uploads.finish(Artifact(workspace.folder("model") / "plain", manifest))
    assert repository.messages[-1] == "Push the best checkpoint"
    (warning,) = listener.warnings
    assert "is not public" in warning
