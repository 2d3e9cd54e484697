"""Fixtures: a local Hub server for this process, and a workspace with artifacts to push."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.records.events import Reporter
from core.shards.build import build
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.hub_server import HubServer

TOKEN = "hf_thisIsTheTokenOfTheTests"
READ_TOKEN = "hf_thisOneMayOnlyRead"


class Listener(Reporter):
    """Records warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str, **fields: Any) -> None:
        self.warnings.append(message)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a tokenizer, shards, and a model without a training record."""
    workspace = Workspace(tmp_path_factory.mktemp("push"))
    tokenizer = make_tokenizer(workspace, "unigram")
    folder = write_checkpoint(workspace.folder("model") / "plain", tokenizer)
    (folder / "training_state.safetensors").write_text("slots")
    (folder / "notes.txt").write_text("nobody's business")
    corpus = CorpusConfig(source="files", path=str(workspace.root / "text.txt"))
    build(
        ShardConfig(name="rows", corpus=corpus, tokenizer="unigram", max_seq_length=16), workspace
    )
    return workspace


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer()
    server.add_user("me", TOKEN)
    server.add_user("reader", READ_TOKEN, role="read")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.close()
    assert server.unknown_requests == []
