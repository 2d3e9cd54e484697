"""Tests of pushes to a local Hub server: uploaded files, cards, and errors."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client
from huggingface_hub import ModelCard, constants

from core.__main__ import main
from core.artifacts.finding import find_model, with_family
from core.config.corpus import CorpusConfig
from core.config.evaluate import EvaluateConfig
from core.config.export import ExportConfig
from core.config.push import PushConfig
from core.config.tokenizer import TokenizerConfig
from core.errors import CheckpointError, ConfigError, HubError, StudioError
from core.evaluation import stage as evaluation
from core.exporting.stage import run as export
from core.families.gpt2 import Gpt2Architecture
from core.hub.client import parse_hub_id, without_secrets
from core.models import hf
from core.publishing.card_notes import CardNotes
from core.publishing.cards import model_card, shards_card, tokenizer_card
from core.publishing.facts import gather_facts
from core.publishing.push import check, preview, run
from core.publishing.space import _is_sent
from core.records.events import RunStopped
from core.runs import execute
from core.serving.demo import find_checkpoint
from core.shards.read import open_shards
from core.store import RunRow, Store
from core.targets.blobs import Inputs
from core.tokenizer.loading import load
from core.workspace.manifests import Manifest
from core.workspace.workspace import Workspace
from tests.checkpoints import write_checkpoint
from tests.core.publishing.conftest import READ_TOKEN, TOKEN, Listener
from tests.core.runs.support import stop_worker
from tests.hub_server import HubServer
from tests.ui.browser import running_app


def push(workspace: Workspace, **values: Any) -> dict[str, Any]:
    return run(PushConfig(**values), workspace).manifest.counts


def files_of(hub: HubServer, kind: str, name: str) -> dict[str, bytes]:
    repository = hub.find(kind, name)
    assert repository
    return repository.files


def test_model_without_a_training_record_is_pushed_with_a_shorter_card(
    workspace: Workspace, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = push(workspace, model="plain", license="mit", language="en, de", description="Words.")
    repository = hub.find("models", "me/plain")
    assert repository
    assert repository.private
    assert set(repository.files) == {
        *(".gitattributes", "README.md", "config.json", "model.safetensors"),
        *("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"),
    }
    assert counts["commit"] == repository.sha and counts["url"] == f"{hub.url}/me/plain"
    (tmp_path / "README.md").write_bytes(repository.files["README.md"])
    card = ModelCard.load(tmp_path / "README.md")
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    card.validate()
    assert card.data.to_dict() == {
        "language": ["en", "de"],
        "license": "mit",
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["roberta", "pretrain-studio"],
        "parameters": card.data.to_dict()["parameters"],
    }
    assert "Words." in card.text and "trained from scratch" not in card.text


@pytest.mark.parametrize(
    ("checkpoint", "begins", "base"),
    [
        ("", "trained from scratch", None),
        (
            "they/words@v2",
            "trained further from [they/words](https://hf.co/they/words)",
            "they/words",
        ),
        ("/exports/mini", "trained further from another checkpoint", None),
    ],
)
def test_model_card_names_the_initial_checkpoint(
    workspace: Workspace, checkpoint: str, begins: str, base: str | None
) -> None:
    facts = gather_facts(workspace.folder("model") / "plain", workspace)
    card = ModelCard(
        model_card(replace(facts, config={"checkpoint": checkpoint}), CardNotes("me/m"))
    )
    assert begins in card.text and card.data.to_dict().get("base_model") == base
    assert ("has learned only from that text" in card.text) is not bool(checkpoint)
    assert ("has also learned from the checkpoint's training text" in card.text) is bool(checkpoint)


@pytest.mark.parametrize(
    ("dataset", "configuration"),
    [("Salesforce/wikitext", "| Configuration | `wikitext-103-raw-v1` |"), ("me/words", "")],
)
def test_card_names_the_dataset_configuration(dataset: str, configuration: str) -> None:
    config = TokenizerConfig(corpus=CorpusConfig(dataset_name=dataset)).model_dump(mode="json")
    card = tokenizer_card(Manifest("tokenizer", "words", "0", config=config), CardNotes("me/words"))
    assert f"hf.co/datasets/{dataset}" in card
    assert ("Configuration" in card) is bool(configuration) and configuration in card


def test_dry_run_lists_all_files_and_sends_no_request(workspace: Workspace, hub: HubServer) -> None:
    receipt = preview(PushConfig(model="plain", space=True), workspace).receipt
    sizes = {file["path"]: file["bytes"] for file in receipt.files}
    weights = workspace.folder("model") / "plain" / "model.safetensors"
    assert sizes["model.safetensors"] == weights.stat().st_size
    assert sizes["README.md"] == len(receipt.card.encode())
    assert not {"training_state.safetensors", "notes.txt"} & set(sizes)
    assert {"app.py", "core/publishing/push.py", "ui/layout.py"} <= {
        f["path"] for f in receipt.space_files
    }
    assert hub.requests == []


def test_exports_are_pushed_beside_their_model(workspace: Workspace, hub: HubServer) -> None:
    with pytest.raises(ConfigError, match="no exports") as caught:
        push(workspace, model="plain", exports=True)
    assert caught.value.field == "exports"
    for form in ("onnx", "openvino"):
        export(ExportConfig(model="plain", format=form, quantization="f32"), workspace)
    push(workspace, model="plain", exports=True)
    files = files_of(hub, "models", "me/plain")
    assert {"onnx/model.onnx", "openvino/model.xml", "openvino/model.bin"} <= files.keys()
    assert "transformers.js_config" in json.loads(files["config.json"])


def test_space_gets_the_model_id_and_the_program(workspace: Workspace, hub: HubServer) -> None:
    push(workspace, model="plain", repo_id="me/shown", space=True, private=False)
    space = hub.find("spaces", "me/shown")
    assert space
    assert space.settings["sdk"] == "gradio"
    assert space.variables == {"STUDIO_MODEL": "me/shown"}
    assert b"sdk: gradio" in space.files["README.md"]
    assert {"app.py", "requirements.txt", "ui/assets/problems.js"} <= set(space.files)
    assert not [path for path in space.files if "__pycache__" in path]


def test_space_shows_the_pushed_branch(workspace: Workspace, hub: HubServer) -> None:
    push(workspace, model="plain", repo_id="me/tried", revision="v2", space=True)
    space = hub.find("spaces", "me/tried")
    assert space
    shown = space.variables["STUDIO_MODEL"]
    assert (find_checkpoint(shown) / "model.safetensors").is_file()
    assert shown == "me/tried@v2"
    card = space.files["README.md"].decode()
    assert "title: tried\n" in card and "- me/tried\n" in card
    assert "https://hf.co/me/tried/tree/v2)" in card


@pytest.mark.slow(25)
@pytest.mark.long
def test_pushed_space_starts_and_fills_masks(
    workspace: Workspace, hub: HubServer, tmp_path: Path
) -> None:
    push(workspace, model="plain", repo_id="me/shown", space=True, private=False)
    space = hub.find("spaces", "me/shown")
    assert space
    root = tmp_path / "space"
    for name, content in space.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    environment = {
        **space.variables,
        "SPACE_ID": "me/shown",
        "SYSTEM": "spaces",
        "GRADIO_SERVER_NAME": "0.0.0.0",
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "",
        "PYTHONPATH": "",
        "STUDIO_AUTH": "",
    }
    (tmp_path / "elsewhere").mkdir()
    with running_app(tmp_path / "elsewhere" / "workspace", root=root, **environment) as url:
        found = Client(url, verbose=False).predict(
            "The small [MASK] runs.", 3, api_name="/fill_mask"
        )
    assert len(found) == 3
    assert not (tmp_path / "elsewhere" / "workspace").exists()


def test_temporary_failures_are_retried(workspace: Workspace, hub: HubServer) -> None:
    hub.fail("POST /api/repos/create", 503)
    hub.fail("POST /api/validate-yaml", 429, headers={"Retry-After": "0"})
    hub.fail("POST .*/commit/", 0)
    hub.fail("PUT /lfs-storage", 500)
    push(workspace, model="plain", repo_id="me/again")
    assert "model.safetensors" in files_of(hub, "models", "me/again")
    assert hub.count("POST /api/repos/create") == 2
    assert hub.count("PUT /lfs-storage") == 2


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, ["401", "hf auth login"]),
        (403, ["403", "a token with write access"]),
        (404, ["404", "check the spelling"]),
        (409, ["409", "try again"]),
    ],
)
def test_refusal_is_explained_and_not_retried(
    workspace: Workspace, hub: HubServer, status: int, words: list[str]
) -> None:
    hub.fail("POST .*/commit/", status, times=9)
    with pytest.raises(HubError) as caught:
        push(workspace, model="plain", repo_id="me/refused")
    for word in words:
        assert word in str(caught.value)
    assert caught.value.field == "repo_id"
    assert TOKEN not in str(caught.value)
    assert hub.count("POST .*/commit/") == 1


def test_missing_write_access_is_reported_before_the_upload(
    workspace: Workspace, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HubError, match='rights to create under "somebody"'):
        push(workspace, model="plain", repo_id="somebody/else")
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    with pytest.raises(HubError, match="has no write access"):
        push(workspace, model="plain")
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    with pytest.raises(HubError, match="Invalid user token"):
        push(workspace, model="plain")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="You are not signed in"):
        push(workspace, model="plain")
    assert not hub.count("PUT|preupload")


def test_private_push_to_a_public_repository_is_refused(
    workspace: Workspace, hub: HubServer
) -> None:
    hub.add("models", "me/public", {})
    with pytest.raises(HubError, match="already exists and is public") as caught:
        push(workspace, model="plain", repo_id="me/public")
    assert caught.value.field == "private"
    assert files_of(hub, "models", "me/public") == {}
    push(workspace, model="plain", repo_id="me/public", private=False)
    assert "README.md" in files_of(hub, "models", "me/public")


def test_public_push_makes_a_private_repository_public(
    workspace: Workspace, hub: HubServer
) -> None:
    push(workspace, tokenizer="unigram", repo_id="me/opened")
    repository = hub.find("models", "me/opened")
    assert repository and repository.private
    hub.fail("PUT .*/settings", 503)
    counts = push(workspace, tokenizer="unigram", repo_id="me/opened", private=False)
    assert not repository.private and not counts["private"]
    assert hub.count("PUT .*/settings") == 2


def test_push_that_cannot_make_a_repository_public_is_reported(
    workspace: Workspace, hub: HubServer
) -> None:
    hub.add("models", "me/closed", {}, private=True)
    hub.fail("PUT .*/settings", 403)
    with pytest.raises(HubError, match="could not be made public") as caught:
        push(workspace, tokenizer="unigram", repo_id="me/closed", private=False)
    assert caught.value.field == "private"


@pytest.mark.parametrize("is_private", [True, False])
def test_space_of_a_private_model_warns_about_its_token(
    workspace: Workspace, hub: HubServer, is_private: bool
) -> None:
    hub.add("models", "me/there", {}, private=is_private)
    space = hub.add("spaces", "me/shows", {}, private=True)
    config = PushConfig(model="me/there", repo_id="me/shows", space=True, private=False)
    listener = Listener()
    run(config, workspace, listener)
    assert not space.private
    assert ["HF_TOKEN" in one for one in listener.warnings] == ([True] if is_private else [])


def test_branch_is_created_and_can_be_fetched(workspace: Workspace, hub: HubServer) -> None:
    push(workspace, model="plain", repo_id="me/branched", revision="trial")
    repository = hub.find("models", "me/branched")
    assert repository
    assert set(repository.files) == {".gitattributes"}
    folder = find_model("me/branched@trial", workspace)
    assert (folder / "model.safetensors").is_file()
    # The card's example code names the pushed branch.
    card = (folder / "README.md").read_text()
    assert 'pipeline("fill-mask", "me/branched", revision="trial")' in card
    assert "core fill-mask me/branched@trial " in card
    with pytest.raises(HubError, match="branch, tag or commit"):
        find_model("me/branched@nowhere", workspace)


def test_config_of_an_initial_checkpoint_is_fetched_without_weights(
    workspace: Workspace, hub: HubServer, tmp_path: Path
) -> None:
    hf.write_config(tmp_path, Gpt2Architecture(64, 16, 1, 2, 32, 18, 1))
    files = {"config.json": (tmp_path / "config.json").read_bytes(), "model.safetensors": b"large"}
    hub.add("models", "they/write", files)
    values = {"checkpoint": "they/write"}
    assert with_family(values, workspace) == {**values, "family": "gpt2"}
    assert not hub.count("model.safetensors")
    with pytest.raises(HubError, match="they/nowhere could not be downloaded"):
        with_family({"checkpoint": "they/nowhere"}, workspace)


def test_pushed_tokenizer_is_fetched_with_the_same_fingerprint(
    workspace: Workspace, hub: HubServer
) -> None:
    push(workspace, tokenizer="unigram", repo_id="me/pieces")
    found = files_of(hub, "models", "me/pieces")
    assert b"Tokens per word" in found["README.md"] and "manifest.json" not in found
    assert str(workspace.root).encode() not in b"".join(found.values())
    elsewhere = Workspace(workspace.root / "elsewhere")
    assert load("me/pieces", elsewhere).fingerprint == load("unigram", workspace).fingerprint


def test_shards_are_pushed_as_a_dataset_and_fetched_unchanged(
    workspace: Workspace, hub: HubServer
) -> None:
    push(workspace, shards="rows", repo_id="me/rows")
    found = files_of(hub, "datasets", "me/rows")
    assert str(workspace.root).encode() not in b"".join(found.values())
    assert json.loads(found["manifest.json"])["config"]["corpus"]["path"] == "text.txt"
    elsewhere = Workspace(workspace.root / "elsewhere")
    fetched, made = open_shards("me/rows", elsewhere), open_shards("rows", workspace)
    assert fetched.fingerprint == made.fingerprint
    assert (fetched.train.take([0, 1]) == made.train.take([0, 1])).all()
    assert fetched.tokenizer_fingerprint == made.tokenizer_fingerprint


def test_pickles_are_not_fetched(workspace: Workspace, hub: HubServer) -> None:
    hub.add("models", "they/pickled", {"config.json": b"{}", "pytorch_model.bin": b"\x80"})
    with pytest.raises(StudioError, match="pickle files are never loaded"):
        find_model("they/pickled", workspace)
    assert not hub.count("pytorch_model.bin")


def test_fetched_model_is_available_offline(
    workspace: Workspace, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core.hub import pull

    push(workspace, model="plain", repo_id="me/kept")
    folder = find_model("me/kept", workspace)
    pull._fetched.clear()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert find_model("me/kept", workspace) == folder
    with pytest.raises(HubError, match="that this machine is online"):
        find_model("me/other", workspace)


def test_push_of_a_missing_or_unsupported_artifact_is_refused(workspace: Workspace) -> None:
    for values, field in (
        ({}, "model"),
        ({"model": "nowhere"}, "model"),
        ({"tokenizer": "nowhere"}, "tokenizer"),
        ({"shards": "rows", "space": True}, "space"),
    ):
        with pytest.raises(ConfigError) as caught:
            preview(PushConfig(**values), workspace)
        assert caught.value.field == field
    with pytest.raises(ConfigError, match="repo_id"):
        PushConfig(model="plain", repo_id="../up")


def test_repository_ids_are_distinguished_from_paths() -> None:
    assert parse_hub_id("me/words") == ("me/words", "main")
    assert parse_hub_id("me/words@v1.0") == ("me/words", "v1.0")
    for path in ("words", "/me/words", "me/words/more", "./words", "me/words@", "../words", ""):
        assert parse_hub_id(path) is None


def test_messages_contain_no_token_or_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-token-of-another-kind")
    text = without_secrets("a-token-of-another-kind at https://s3/x?X-Amz-Signature=abc yes")
    assert text == "[hidden] at https://s3/x yes"
    # However long the address is.
    assert without_secrets(f"at https://s3/{'x' * 5000}?Signature=abc yes").endswith("x yes")


def test_second_push_of_shards_removes_the_earlier_shards(
    workspace: Workspace, hub: HubServer
) -> None:
    push(workspace, shards="rows", repo_id="me/changing")
    repository = hub.find("datasets", "me/changing")
    assert repository
    old, own = "train/dataset-9-7.tfrecord", "train/notes.txt"
    repository.commit("main", {old: b"rows", own: b"mine"}, [], "Earlier rows")
    push(workspace, shards="rows", repo_id="me/changing")
    found = files_of(hub, "datasets", "me/changing")
    assert old not in found
    assert found[own] == b"mine"
    assert "manifest.json" in found


def test_push_removes_earlier_weights_in_another_layout(
    workspace: Workspace, hub: HubServer
) -> None:
    push(workspace, model="plain", repo_id="me/again")
    repository = hub.find("models", "me/again")
    assert repository
    old = ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "eval_results.json",
           "pytorch_model.bin", "curves.png")  # fmt: skip
    own = ("onnx/model.onnx", "generation_config.json", "notes.txt")
    repository.commit("main", dict.fromkeys((*old, *own), b"{}"), [], "What was there")
    push(workspace, tokenizer="unigram", repo_id="me/again")
    assert {*old, *own} <= set(files_of(hub, "models", "me/again"))
    push(workspace, model="plain", repo_id="me/again")
    found = set(files_of(hub, "models", "me/again"))
    assert not {*old} & found
    assert {*own, "model.safetensors"} <= found


@pytest.mark.parametrize("weights", ["", "pytorch_model.bin", "model.safetensors.index.json"])
def test_model_without_readable_weights_is_not_pushed(
    workspace: Workspace, hub: HubServer, tmp_path: Path, weights: str
) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(workspace.folder("model") / "plain", folder)
    (folder / "model.safetensors").unlink()
    if weights:
        index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
        (folder / weights).write_text(json.dumps(index))
    config = PushConfig(model=str(folder), repo_id="me/bare")
    for refused in (check, preview, run):
        with pytest.raises(CheckpointError):
            refused(config, workspace)
    assert hub.find("models", "me/bare") is None


def test_card_marks_metrics_of_unknown_origin(workspace: Workspace) -> None:
    facts = gather_facts(workspace.folder("model") / "plain", workspace)
    facts = replace(facts, config={}, figures={"eval_loss": 1.5, "eval_accuracy": 0.5})
    card = ModelCard(model_card(facts, CardNotes("me/m")))
    assert "**1.5000** nats" in card.text and "method of measurement is unknown" in card.text
    assert "with fixed masks" not in card.text and card.data.eval_results is None


FOREIGN = (
    "<a href=https://evil.example><img src=https://evil.example/p.png></a>",
    "`<b>x</b>`", "x\n\n# A heading\n\n[Download](https://evil.example)", "a | b", "[x](y)",
    "http://evil.example", "www.evil.example", "me@evil.example", "<!-- x", "![x](y)", "\u202etxt",
)  # fmt: skip


def test_card_writes_foreign_values_as_text(workspace: Workspace) -> None:
    facts = gather_facts(workspace.folder("model") / "plain", workspace)
    shards = open_shards("rows", workspace).manifest
    usual = model_card(facts, CardNotes("me/m"))
    for value in FOREIGN:
        corpus = {"source": "several", "sources": [{"source": "hub", "dataset_name": value},
                                                   {"source": "files", "name": value}]}  # fmt: skip
        values = {"optimizer": value, "objective": value, "checkpoint": value, "corpus": corpus}
        counts = {**shards.counts, "sources": {value: {"train_documents": 3}}}
        manifest = replace(
            shards, config={**shards.config, **values}, counts=counts, inputs={value: value},
            versions={value: value},
        )  # fmt: skip
        strange = replace(
            facts, config=values, figures={"eval_loss": 1.0}, versions={value: value},
            fingerprints={value: value}, device=value, shards=manifest, sources={value: manifest},
        )  # fmt: skip
        for card in (model_card(strange, CardNotes("me/m")), shards_card(manifest, CardNotes("a"))):
            body = card.partition("\n---\n")[2]
            # Code is no link.
            assert "evil.example" not in re.sub(r"`[^`\n]*`", "", body), value
            assert not {"<a", "<b", "<img", "<!--", "\u202e", "[x]", "# A heading"} & set(
                re.findall(r"<\w+|<!--|\u202e|(?<!\\)\[x\]|^# A heading", body, re.MULTILINE)
            ), value
            rows = [line for line in body.splitlines() if line.startswith("|")]
            assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} <= {3, 5}, value
    assert usual == model_card(facts, CardNotes("me/m"))


def test_files_linked_from_outside_are_not_pushed(workspace: Workspace, tmp_path: Path) -> None:
    secret = tmp_path / "id_ed25519"
    secret.write_text("secret")
    outer = tmp_path / "models--me--m"
    snapshot = outer / "snapshots" / "abc"
    shutil.copytree(workspace.folder("model") / "plain", snapshot)
    (outer / "blobs").mkdir()
    (snapshot / "config.json").rename(outer / "blobs" / "1f")
    (snapshot / "config.json").symlink_to("../../blobs/1f")
    assert preview(PushConfig(model=str(snapshot), repo_id="me/m"), workspace)
    for name in ("merges.txt", "vocab.json", "generation_config.json"):
        (snapshot / name).symlink_to(secret)
        with pytest.raises(CheckpointError, match="link to a file outside"):
            preview(PushConfig(model=str(snapshot), repo_id="me/m"), workspace)
        (snapshot / name).unlink()
    (snapshot / "special_tokens_map.json").unlink()
    (snapshot / "special_tokens_map.json").symlink_to(secret)
    with pytest.raises(StudioError, match="link to a file outside"):
        load(str(snapshot), workspace).copy_to(tmp_path / "copy")
    inputs = Inputs()
    with pytest.raises(CheckpointError, match="link to a file outside"):
        inputs.add_folder("checkpoint", "model", snapshot)


def test_damaged_shards_are_not_pushed(workspace: Workspace, hub: HubServer) -> None:
    folder = open_shards("rows", workspace).path
    record = next(folder.glob("train/*.tfrecord"))
    whole = record.read_bytes()
    record.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    try:
        with pytest.raises(StudioError, match="damaged"):
            push(workspace, shards="rows", repo_id="me/damaged")
    finally:
        record.write_bytes(whole)
    repository = hub.find("datasets", "me/damaged")
    assert repository is None or not set(repository.files) - {".gitattributes"}


def shell_push(workspace: Workspace, *more: str) -> int:
    place = ["--workspace", str(workspace.root), "--json"]
    return main(["push", "--model", "plain", "--repo-id", "me/after", *more, *place])


@pytest.mark.slow(5)
def test_push_on_the_command_line_waits_for_its_dependency(
    workspace: Workspace, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(workspace)
    for run_id, state in (("train-bad", "failed"), ("train-good", "done")):
        row = RunRow(
            id=run_id, stage="train", name="", state=state, config={}, after=[],
            created=1.0, warnings=[], results={},
        )  # fmt: skip
        store.add_run(row)
    store.close()
    try:
        assert shell_push(workspace, "--after", "train-bad") == 1
        assert json.loads(capsys.readouterr().out)["error"]["field"] == "after"
        assert hub.find("models", "me/after") is None
        assert shell_push(workspace, "--after", "train-good") == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["state"] == "done"
        assert "uploaded to me/after: 100%" in said.err
        assert hub.find("models", "me/after")
    finally:
        stop_worker(workspace)


@pytest.mark.slow(5)
def test_stopped_push_is_reported_as_stopped(
    workspace: Workspace,
    hub: HubServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stage(*_: object) -> None:
        raise RunStopped("abort")

    monkeypatch.setattr(execute, "stage_function", lambda _: stage)
    try:
        assert shell_push(workspace) == 1
    finally:
        stop_worker(workspace)
    assert json.loads(capsys.readouterr().out)["state"] == "stopped"


def test_space_gets_source_files_without_hidden_or_compiled_files() -> None:
    assert all(_is_sent(Path(name)) for name in ("core/store.py", "ui/assets/page.css"))
    hidden = ("core/.notes", "core/.old/store.py", "core/__pycache__/a.py", "core/store.pyc")
    assert not any(_is_sent(Path(name)) for name in hidden)


def test_card_carries_the_evaluations_of_its_weights(
    workspace: Workspace, tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Workspace(tmp_path / "workspace")
    shutil.copytree(workspace.folder("model") / "plain", mine.folder("model") / "plain")

    def evaluate(**values: Any) -> dict[str, Any]:
        config = EvaluateConfig(model=values.pop("model", "plain"), **values)
        return evaluation.run(config, mine).manifest.counts

    private = tmp_path / "private"
    private.mkdir()
    pair = {"sentence_good": "The ship runs.", "sentence_bad": "The ship run.", "UID": "order"}
    (private / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    (private / "text.txt").write_text("The small house sleeps.\n")
    evaluate(path=str(private / "pairs.jsonl"), name="earlier")
    pairs = evaluate(path=str(private / "pairs.jsonl"))
    evaluate(path=str(private / "pairs.jsonl"), limit=1)
    text = evaluate(path=str(private / "text.txt"), task="text")
    other = write_checkpoint(tmp_path / "other", load("unigram", workspace), seed=1)
    evaluate(path=str(private / "text.txt"), task="text", model=str(other), name="of-another")

    facts = gather_facts(mine.folder("model") / "plain", mine)
    card = ModelCard(model_card(facts, CardNotes("me/plain")))
    found = {
        (one.dataset_type, one.metric_name): one.metric_value
        for one in card.data.eval_results
        if "first 1" not in one.dataset_name
    }
    assert "| pairs.jsonl (first 1 of each paradigm) |" in card.text
    assert found == {
        ("pairs", "Accuracy (a tie counts half)"): pairs["accuracy"],
        ("pairs", "Official accuracy (a tie counts as right)"): pairs["official_accuracy"],
        ("text", "Loss (nats per token)"): round(text["loss"], 6),
        ("text", "Perplexity"): round(text["perplexity"], 6),
        ("text", "Bits per byte"): round(text["bits_per_byte"], 6),
    }
    assert "model-index" in card.data.to_dict()
    assert "| pairs.jsonl |" in card.text and str(private) not in str(card)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    card.validate()
