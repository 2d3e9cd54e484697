"""The Publish tab: previewing the files, publishing and signing in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from core.config.push import PushConfig
from core.errors import HubError
from core.store import Store
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint, write_writer
from tests.hub_server import HubServer
from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from ui import publish

TOKEN = "hf_theTokenOfWhoeverRunsTheApp"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer()
    server.add_user("me", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    yield server
    server.close()
    assert server.unknown_requests == []


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    find_chromium()
    workspace = Workspace(tmp_path / "workspace")
    tokenizer = make_tokenizer(workspace, "unigram")
    with workspace.new_artifact("model", "words") as draft:
        write_checkpoint(draft.folder, tokenizer)
    return workspace


def shown_files(visitor: Visitor) -> list[str]:
    return visitor.page.locator("#publish-preview .ps-files li").all_inner_texts()


@pytest.mark.slow
@pytest.mark.long
def test_model_is_previewed_then_published(
    workspace: Workspace, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with running_app(workspace.root) as url, visiting(url, width=390, height=844) as visit:
        visitor = visit("/#publish/words")
        page = visitor.page
        page.locator("#publish-account", has_text="Signed in as me").wait_for()
        visitor.wait_for(lambda: visitor.field("publish-model").input_value(), 20, "a model")
        visitor.type("publish-description", "Made of sentences.")
        page.locator("#publish-show").click()
        page.locator("#publish-card", has_text="Made of sentences.").wait_for()
        assert any("model.safetensors" in line for line in shown_files(visitor))
        assert not hub.count("create|preupload|commit")

        visitor.type("publish-repo_id", "shown")
        visitor.wait_for(lambda: not shown_files(visitor), 20, "what is old is taken away")
        page.locator("#push-start", has_text="Publish words (private)").click()
        page.locator("#tab-publish .ps-started a").click()
        page.locator("#tab-runs .ps-published a").wait_for()
        visitor.see(page.locator("#tab-runs .ps-published a"), "/me/shown")

        visitor.open("Playground")
        visitor.type("playground-model", "me/shown@main")
        visitor.field("playground-model").press("Enter")
        page.locator("#playground-fetched", has_text="Fetched me/shown@main").wait_for()
        page.locator("#playground-examples button", has_text="[MASK]").first.wait_for()
        wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
        assert not wide and visitor.errors == [] and visitor.outside == []
    repository = hub.find("models", "me/shown")
    assert repository and repository.private
    assert b"Made of sentences." in repository.files["README.md"]
    store = Store.open(workspace)
    assert [(row.stage, row.state) for row in store.list_runs()] == [("push", "done")]
    store.close()


@pytest.mark.slow(20)
@pytest.mark.long
def test_model_is_exported_and_its_commands_are_shown(tmp_path: Path) -> None:
    find_chromium()
    workspace = Workspace(tmp_path / "workspace")
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    with workspace.new_artifact("model", "reader") as draft:
        write_checkpoint(draft.folder, tokenizer)
    with workspace.new_artifact("model", "writer") as draft:
        write_writer(draft.folder, tokenizer, "gpt2")
    with running_app(workspace.root) as url, visiting(url) as visit:
        visitor = visit("/#publish")
        page = visitor.page
        page.get_by_text("Export for other programs").click()
        visitor.wait_for(lambda: visitor.field("export-model").input_value(), 20, "a model")
        bfloat16 = page.locator("#export-quantization input[value=bf16]")
        visitor.pick("export-format", "ONNX")
        visitor.wait_for(lambda: not bfloat16.count(), 20, "ONNX's number formats")
        page.locator("#export-start", has_text="Export writer as ONNX").wait_for()
        visitor.pick("export-format", "GGUF")
        bfloat16.wait_for()
        page.locator("#export-start", has_text="Export writer as GGUF").click()
        page.locator("#tab-publish .ps-started a").click()
        shown = page.locator("#tab-runs .ps-results .ps-code", has_text="ollama create writer-f16")
        shown.wait_for()
        visitor.open("Publish")
        visitor.choose("export-model", "reader")
        visitor.see(page.locator("#export-format"), "llama.cpp can't run RoBERTa")
        page.locator("#export-start", has_text="Fix 1 setting").wait_for()
        assert visitor.errors == []
    assert (workspace.folder("export") / "writer-f16" / "writer-f16.gguf").is_file()


def test_signed_out_user_is_told_how_to_sign_in(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "Signed in as <b>me</b>" in publish._who()
    hub.fail("whoami", 503)
    assert "try again later" in publish._who()
    monkeypatch.delenv("HF_TOKEN")
    assert "hf auth login" in publish._who()
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(HubError, match="Sign in to publish"):
        publish._check(PushConfig(model=str(tmp_path)), Workspace(tmp_path))
    assert hub.count("whoami") == 2
