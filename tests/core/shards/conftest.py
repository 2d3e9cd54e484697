"""Fixtures: a workspace with a text file and one small tokenizer per algorithm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.training import train
from core.workspace.workspace import Workspace
from tests.texts import write_sentences

UNIGRAM, BPE, WORDPIECE, T5 = "unigram", "bpe", "wordpiece", "t5"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the text and the workspace, shared by the session."""
    root = tmp_path_factory.mktemp("trained")
    text = write_sentences(root / "text.txt", 600)
    corpus = CorpusConfig(source="files", path=str(text))
    workspace = Workspace(root / "workspace")
    common = {"corpus": corpus, "preset": "custom"}
    train(TokenizerConfig(name=UNIGRAM, algorithm="unigram", vocab_size=90, **common), workspace)
    train(
        TokenizerConfig(name=BPE, algorithm="byte_level_bpe", vocab_size=320, **common), workspace
    )
    train(
        TokenizerConfig(name=WORDPIECE, algorithm="wordpiece", vocab_size=120, **common), workspace
    )
    train(
        TokenizerConfig(name=T5, algorithm="sentencepiece_unigram", vocab_size=190, **common),
        workspace,
    )
    return root


def write_damaged(folder: Path) -> Path:
    """Writes two files, of which the second isn't UTF-8 in the middle."""
    folder.mkdir()
    write_sentences(folder / "a.txt", 1000)
    data = bytearray(write_sentences(folder / "b.txt", 700).read_bytes())
    data[len(data) // 2] = 0xFF
    (folder / "b.txt").write_bytes(data)
    return folder


@pytest.fixture
def workspace(trained: Path, tmp_path: Path) -> Workspace:
    """A private copy of the workspace with the tokenizers."""
    shutil.copytree(trained / "workspace", tmp_path / "workspace")
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def text(trained: Path) -> Path:
    """A file of 600 sentences, one per line."""
    return trained / "text.txt"


@pytest.fixture(params=[UNIGRAM, BPE, WORDPIECE, T5])
def tokenizer(request: pytest.FixtureRequest, trained: Path) -> StudioTokenizer:
    """Each tokenizer in turn."""
    return load(str(trained / "workspace" / "tokenizers" / request.param))


@pytest.fixture
def config(text: Path) -> ShardConfig:
    """A config for sequences of 16 tokens, 50 per file."""
    return ShardConfig(
        name="small",
        preset="custom",
        corpus=CorpusConfig(source="files", path=str(text), validation_percent=20),
        tokenizer=UNIGRAM,
        max_seq_length=16,
        shard_size=50,
    )
