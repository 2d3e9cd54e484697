"""The Home tab in a real browser: from a text to an answered sentence."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config.shards import ShardConfig
from core.config.train import TrainConfig
from core.store import RunRow, Store
from core.sweeps.view import describe_sweep
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.core.runs.support import processes_with, stop_worker
from tests.core.sweeps.support import make_sweep
from tests.texts import write_sentences
from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from ui import home

pytestmark = [pytest.mark.slow(20), pytest.mark.long]

FIGURES = {"eval_loss": 2.0, "frequency_baseline_loss": 5.0}


def add_run(store: Store, id: str, stage: str, state: str, **values: Any) -> None:
    config = TrainConfig(shards="rows") if stage == "train" else ShardConfig()
    defaults = {
        "name": "reader", "after": [], "created": 1.0, "warnings": [], "results": {},
        "config": config.model_dump(mode="json"),
    }  # fmt: skip
    row = {**defaults, "id": id, "stage": stage, "state": state, **values}
    store.add_run(RunRow(**row))


def state_of(workspace: Workspace, store: Store) -> dict[str, Any]:
    return dict(home.state_function(workspace, store)({}))


def test_home_follows_the_newest_training_and_what_it_waits_for(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    store = Store.open(workspace)
    assert state_of(workspace, store)["is_empty"]
    add_run(store, "train-old", "train", "done", artifact="x", results=FIGURES)
    add_run(store, "shards-new", "shards", "running")
    add_run(store, "train-new", "train", "queued", after=["shards-new"])
    add_run(store, "train-other", "train", "stopped")
    add_run(store, "push-other", "push", "running", config={})
    state = state_of(workspace, store)
    assert [step["id"] for step in state["newest"]["steps"]] == ["shards-new", "train-new"]
    assert state["newest"]["is_active"]
    assert [one["id"] for one in state["others"]] == ["push-other"]
    assert [one["verdict"]["level"] for one in state["models"]] == ["learned"]
    store.update_run("shards-new", state="failed", error={"problem": "No text", "fix": "add some"})
    store.update_run("train-new", state="failed", reason="dependency")
    add_run(store, "train-newest", "train", "failed", after=["shards-new"])
    newest = state_of(workspace, store)["newest"]
    assert newest["shows"] == "shards-new", "the step that failed first"
    assert "No text" in newest["verdict"]["sentence"] and newest["error"]["fix"] == "add some"
    store.close()


def test_home_shows_the_best_model_of_a_sweep(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    store = Store.open(workspace)
    folder = make_sweep(workspace)
    runs = [trial.run for trial in folder.read_trials()]
    best = describe_sweep(workspace, store, folder.name)["best_run"]
    add_run(store, "train-before", "train", "done", artifact="x", results=FIGURES)
    for run in runs:
        add_run(store, run, "train", "done", artifact="x", results=FIGURES)
    state = state_of(workspace, store)
    assert state["newest"]["run"] == best
    assert [model["run"] for model in state["models"]] == ["train-before"]
    store.update_run(next(run for run in runs if run != best), state="running")
    assert state_of(workspace, store)["newest"]["is_active"]
    store.close()


def test_paths_outside_of_the_uploads_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    secret = write_sentences(tmp_path / "secret.txt")
    look = home._look_function(Workspace(tmp_path / "workspace"))
    for paths in ([str(secret)], [f"{tmp_path}/uploads/../secret.txt"], [], None, "x"):
        assert "upload" in look({"uploads": paths})["problem"]["problem"]
    assert "problem" in look({"path": str(secret)})


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    find_chromium()
    return Workspace(tmp_path_factory.mktemp("home") / "workspace")


@pytest.fixture(scope="module")
def address(browser: None, workspace: Workspace) -> Iterator[str]:
    with running_app(workspace.root) as url:
        yield url
    stop_worker(workspace)
    # The training would go on for minutes.
    for identity in processes_with(str(workspace.root).encode()):
        os.kill(identity.pid, signal.SIGKILL)


def test_a_text_is_trained_on_after_two_clicks_and_a_reload_shows_it(
    address: str, workspace: Workspace, tmp_path: Path
) -> None:
    text = write_sentences(tmp_path / "my-text.log", count=3000)
    text.write_bytes(
        text.read_bytes() + "Le garçon a été très élégant, naïf et déjà là.\n".encode("cp1252") * 50
    )
    with visiting(address) as visit:
        visitor: Visitor = visit("/")
        page = visitor.page
        visitor.open("Workspace")
        visitor.see(page.locator(".ps-disk-empty"), "Nothing is stored yet")
        page.get_by_role("link", name="Train a model").click()
        page.get_by_text("Drop your text here").wait_for()
        page.get_by_label("Choose files of text").set_input_files(str(text))
        visitor.see(page.locator(".ps-home-main"), "my-text.log", "read as CP1252", "Good for a")
        visitor.reload()
        visitor.see(page.locator(".ps-home-main"), "my-text.log", "read as CP1252", "Good for a")
        page.get_by_role("button", name="Train my first model").click()
        visitor.see(page.locator(".ps-home-steps"), "Tokenizer", "Shards", "Training")
        visitor.reload()
        visitor.see(page.locator(".ps-home-steps"), "Tokenizer", "Shards", "Training")
        assert visitor.errors == []
    store = Store.open(workspace)
    assert {row.stage for row in store.list_runs()} >= {"tokenizer", "shards", "train"}
    store.close()


def test_a_trained_model_answers_a_sentence_by_keyboard_on_a_phone(
    address: str, workspace: Workspace
) -> None:
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    with workspace.new_artifact("model", "reader") as draft:
        write_checkpoint(draft.folder, tokenizer)
    store = Store.open(workspace)
    for row in store.list_runs():
        store.update_run(row.id, state="stopped")
    artifact = str(workspace.find_own("model", "reader").path)
    add_run(store, "train-done", "train", "done", artifact=artifact, results=FIGURES)
    store.close()
    with visiting(address, width=390, height=844, touch=True) as visit:
        visitor: Visitor = visit("/")
        page = visitor.page
        visitor.see(page.locator(".ps-home-head"), "reader", "learned")
        assert "<mask>" in page.locator(".ps-home-try textarea").input_value()
        page.locator(".ps-home-try textarea").focus()
        page.keyboard.press("Enter")
        page.locator(".ps-home-answer .ps-predictions li").first.wait_for()
        # A finger finds every link of the bar.
        boxes = [one.bounding_box() for one in page.locator(".ps-bottom > *").all()]
        assert len(boxes) == 5
        assert all(box and box["width"] >= 44 and box["height"] >= 44 for box in boxes)
        assert visitor.errors == []


@pytest.mark.slow(30)
@pytest.mark.long
def test_hub_card_dropped_folder_and_foreign_file(browser: None, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "inner").mkdir(parents=True)
    for name in ("a.txt", "inner/b.txt"):
        write_sentences(folder / name, count=400, seed=len(name))
    (folder / ".hidden").write_text("no")
    (tmp_path / "paper.pdf").write_bytes(b"%PDF-1.4\n" + bytes(range(256)) * 40)
    workspace = Workspace(tmp_path / "workspace")
    with running_app(workspace.root) as url, visiting(url) as visit:
        visitor: Visitor = visit("/")
        page = visitor.page
        page.get_by_role("button", name="Dataset from the Hub").click()
        visitor.field("corpus-dataset_name").wait_for()
        visitor.open("Home")
        page.get_by_label("Choose files of text").set_input_files(str(tmp_path / "paper.pdf"))
        visitor.see(page.locator(".ps-home-main"), "paper.pdf", "save its text as .txt")
        assert str(workspace.root) not in page.locator(".ps-home-main").inner_text()
        box = page.locator(".ps-drop").bounding_box()
        place = {"x": box["x"] + 20, "y": box["y"] + 20}
        data = {"items": [], "files": [str(folder)], "dragOperationsMask": 1}
        session = page.context.new_cdp_session(page)
        for kind in ("dragEnter", "dragOver", "drop"):
            session.send("Input.dispatchDragEvent", {"type": kind, **place, "data": data})
        visitor.see(page.locator(".ps-home-main"), "Your files", "800\ndocuments", "Good for a")
