"""Tests of a run that pushes while it trains, and of the pushed model in other programs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.records.events import read_events
from core.runs.start import child_environment
from core.shards.build import build
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer
from tests.hub_server import HubServer

pytestmark = [pytest.mark.slow, pytest.mark.long]

TOKEN = "hf_aTokenThatIsEasilyRecognised"
TEXT = "The old [MASK] runs slowly."
TRAIN = [
    *(
        "train",
        "--shards",
        "rows",
        "--name",
        "words",
        "--num-train-steps",
        "6",
        "--save-steps",
        "2",
        "--dtype-policy",  # "auto" is measured: another process may decide otherwise.
        "float32",
    ),
    *("--num-hidden-layers", "1", "--hidden-size", "16", "--num-attention-heads", "2"),
    *("--intermediate-size", "32", "--logging-steps", "1", "--per-replica-batch-size", "4"),
    *("--max-eval-examples", "4", "--push-to-hub", "--hub-license", "mit"),
]
# User scripts that need only published libraries and the repository id.
READ_CARD = """
import json, sys
from huggingface_hub import ModelCard, snapshot_download
folder = snapshot_download(sys.argv[1])
card = ModelCard.load(folder + "/README.md")
card.validate()
results = [[one.metric_type, one.metric_name, one.metric_value] for one in card.data.eval_results]
print(json.dumps({"card": card.text, "header": card.data.to_dict(), "results": results}))
"""
FILL_MASK = """
import json, sys
from transformers import pipeline
fill = pipeline("fill-mask", sys.argv[1], device="cpu")
print(json.dumps(fill(sys.argv[2], top_k=3)))
"""


@dataclass
class Scene:
    """A Hub server, the workspace of a run that pushed to it, and the result of that run."""

    hub: HubServer
    workspace: Workspace
    home: Path
    result: subprocess.CompletedProcess[str]

    def core(self, *arguments: str, workspace: Path | None = None, home: Path | None = None) -> Any:
        """Runs a `core` command; returns its last line of output, parsed."""
        place = ["--workspace", str(workspace or self.workspace.root), "--json"]
        result = run(
            [sys.executable, "-m", "core", *arguments, *place], self.hub, home or self.home
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    @property
    def events(self) -> list[dict[str, Any]]:
        (run_folder,) = self.workspace.runs.glob("train-*")
        return read_events(run_folder / "events.jsonl")[0]


def run(command: list[str], hub: HubServer, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **child_environment(),
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    workspace = Workspace(tmp_path_factory.mktemp("training"))
    make_tokenizer(workspace, "unigram")
    corpus = CorpusConfig(source="files", path=str(workspace.root / "text.txt"))
    build(
        ShardConfig(name="rows", corpus=corpus, tokenizer="unigram", max_seq_length=16), workspace
    )
    hub = HubServer()
    hub.add_user("me", TOKEN)
    # The upload of the first save is refused; later uploads succeed.
    hub.fail("POST .*/commit/", 403)
    home = tmp_path_factory.mktemp("home")
    command = [sys.executable, "-m", "core", *TRAIN, "--workspace", str(workspace.root), "--json"]
    try:
        yield Scene(hub, workspace, home, run(command, hub, home))
        assert hub.unknown_requests == []
    finally:
        hub.close()


def test_failed_upload_does_not_stop_the_run(scene: Scene) -> None:
    assert scene.result.returncode == 0, scene.result.stderr
    assert json.loads(scene.result.stdout.splitlines()[-1])["state"] == "done"
    warnings = [event for event in scene.events if event["kind"] == "warning"]
    failed = [one["message"] for one in warnings if one.get("alert") == "upload_failed"]
    assert len(failed) == 1 and "403" in failed[0] and "training continues" in failed[0]


def test_best_checkpoint_is_pushed_at_the_end_of_the_run(scene: Scene) -> None:
    repository = scene.hub.find("models", "me/words")
    assert repository and repository.private
    model = scene.workspace.find("model", "words")
    # If the last step is the best, it may have been pushed already.
    done = ["Push the best checkpoint"]
    if model.manifest.counts["best_step"] == 6:
        done.append("Push step-00000006")
    assert repository.messages[-1] in done
    assert repository.files["model.safetensors"] == (model.path / "model.safetensors").read_bytes()
    assert repository.files["curves.png"].startswith(b"\x89PNG")
    log = [json.loads(line) for line in repository.files["training_log.jsonl"].splitlines()]
    assert [row["step"] for row in log if "loss" in row] == [1, 2, 3, 4, 5, 6]
    assert scene.core("runs", "show", "train")["step"] == 6
    pushed = [event for event in scene.events if event["kind"] == "pushed"]
    assert pushed[-1]["url"] == f"{scene.hub.url}/me/words"
    assert not list(scene.workspace.runs.glob("*/uploading"))


def test_pushed_files_contain_no_token_or_local_path(scene: Scene) -> None:
    repository = scene.hub.find("models", "me/words")
    assert repository
    sent = b"".join(repository.files.values())
    for secret in (TOKEN, str(scene.workspace.root), os.path.expanduser("~/")):
        assert secret.encode() not in sent
    assert not [path for path in repository.files if "state" in path or path == "manifest.json"]


def run_script(script: str, *arguments: str, scene: Scene, home: Path) -> Any:
    result = run([sys.executable, "-c", script, *arguments], scene.hub, home)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_pushed_card_is_valid_and_has_the_metrics(scene: Scene, tmp_path: Path) -> None:
    found = run_script(READ_CARD, "me/words", scene=scene, home=tmp_path / "home")
    figures = scene.workspace.find("model", "words").manifest.counts
    assert found["results"] == [
        ["loss", "Validation loss", round(figures["eval_loss"], 6)],
        ["loss", "Unigram baseline", round(figures["frequency_baseline_loss"], 6)],
        ["perplexity", "Perplexity", round(figures["eval_perplexity"], 6)],
        ["accuracy", "Accuracy", round(figures["eval_accuracy"], 6)],
    ]
    header = found["header"]
    assert (header["pipeline_tag"], header["library_name"]) == ("fill-mask", "transformers")
    assert (header["license"], header["parameters"]) == ("mit", figures["parameters"])
    for words in ("trained from scratch", "Tokens per word", "curves.png", "on 1 CPU", "me/words"):
        assert words in found["card"]


def test_transformers_gives_the_same_predictions_with_the_pushed_model(
    scene: Scene, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install torch==2.13.0")
    answers = run_script(FILL_MASK, "me/words", TEXT, scene=scene, home=tmp_path / "home")
    ours = scene.core("fill-mask", "words", TEXT, "--top-k", "3")
    assert [one["token"] for one in answers] == [one["token"] for one in ours]
    assert [one["score"] for one in answers] == pytest.approx(
        [one["score"] for one in ours], rel=1e-4
    )


def test_pushed_model_gives_the_same_predictions_in_a_new_workspace(
    scene: Scene, tmp_path: Path
) -> None:
    ours = scene.core("fill-mask", "words", TEXT)
    theirs = scene.core(
        *("fill-mask", "me/words@main", TEXT),
        workspace=tmp_path / "workspace",
        home=tmp_path / "home",
    )
    assert theirs == ours


def test_run_can_start_from_a_model_on_the_hub(scene: Scene) -> None:
    result = scene.core(
        *("train", "--shards", "rows", "--evaluate-only", "--checkpoint", "me/words"),
        *("--max-eval-examples", "4", "--per-replica-batch-size", "4"),
        *("--dtype-policy", "float32"),
    )
    model = scene.workspace.find("model", "words")
    assert result["metrics"]["eval_loss"] == pytest.approx(model.manifest.counts["eval_loss"])


def test_push_on_the_command_line_prints_the_url(scene: Scene) -> None:
    result = scene.core("push", "--model", "words", "--repo-id", "me/shell", "--license", "mit")
    assert result["state"] == "done" and result["url"] == f"{scene.hub.url}/me/shell"
    assert {"path": "README.md", "bytes": len(result["card"].encode())} in result["files"]
    assert scene.hub.find("models", "me/shell")


def test_token_is_not_stored_on_disk(scene: Scene) -> None:
    searched = 0
    for folder in (scene.workspace.root, scene.home):
        for path in folder.rglob("*"):
            if path.is_file():
                searched += 1
                assert TOKEN.encode() not in path.read_bytes(), path
    assert searched > 50
