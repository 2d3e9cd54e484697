"""Sources at an address: a web server and a bucket on this machine."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import fsspec
import pytest

from core import CorpusConfig, Workspace
from core.corpus.previewing import preview_apart
from core.corpus.reading import open_corpus
from core.errors import ConfigError, CorpusError, StudioError
from core.network.outbound import ALLOWED_HOSTS_VARIABLE, OutboundError
from tests.texts import sentences
from tests.web_server import Server, send, serving

LINES = sentences(40)
PACKED = gzip.compress("".join(json.dumps({"text": line}) + "\n" for line in LINES).encode())


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


def answer(handler: BaseHTTPRequestHandler) -> None:
    if handler.path == "/lines.jsonl.gz":
        send(handler, PACKED, "application/octet-stream")
    elif handler.path == "/away.jsonl":
        handler.send_response(302)
        handler.send_header("Location", "http://169.254.169.254/latest.jsonl")
        handler.end_headers()
    else:
        handler.send_error(404)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(answer) as found:
        monkeypatch.setenv(ALLOWED_HOSTS_VARIABLE, found.host)
        yield found


@pytest.fixture
def bucket() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    for number in range(3):
        files.pipe_file(f"/words/part-{number}.txt", f"{LINES[number]}\n".encode())
    files.pipe_file("/words/deep/part-9.txt", f"{LINES[9]}\n".encode())
    files.pipe_file("/words/picture.png", b"PNG")
    yield files
    files.rm("/words", recursive=True)


def read(path: str, workspace: Workspace) -> list[str]:
    return list(open_corpus(CorpusConfig(path=path), workspace).documents("train"))


def test_file_of_a_web_server_is_downloaded_once(server: Server, workspace: Workspace) -> None:
    config = CorpusConfig(sources=[f"web={server.url}/lines.jsonl.gz"])
    corpus = open_corpus(config, workspace)
    assert sorted(text for _, text in corpus.labelled_documents()) == sorted(LINES)
    asked = len(server.asked)
    assert open_corpus(config, workspace).fingerprint == corpus.fingerprint
    # Only the state of the file is asked for again.
    assert len(server.asked) - asked <= 2
    assert len(list(workspace.cache.rglob("lines.jsonl.gz"))) == 1


def test_preview_of_an_address_shows_its_documents(server: Server, workspace: Workspace) -> None:
    seen = preview_apart(CorpusConfig(path=f"{server.url}/lines.jsonl.gz"), workspace)
    assert seen.samples == LINES[:5]
    assert not seen.complete


def test_redirect_to_an_inner_address_is_refused(server: Server, workspace: Workspace) -> None:
    with pytest.raises(OutboundError):
        read(f"{server.url}/away.jsonl", workspace)


def test_inner_address_that_is_not_allowed_is_refused(
    server: Server, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOWED_HOSTS_VARIABLE)
    with pytest.raises(StudioError, match="not allowed"):
        read(f"{server.url}/lines.jsonl.gz", workspace)
    assert not server.asked


def test_missing_file_names_source_and_address(server: Server, workspace: Workspace) -> None:
    config = CorpusConfig(sources=[f"web={server.url}/nothing.jsonl"])
    with pytest.raises(ConfigError, match=r"^Source web: There is no text at .*nothing\.jsonl"):
        open_corpus(config, workspace)


@pytest.mark.parametrize(
    ("address", "numbers"),
    [
        ("memory://words/part-1.txt", [1]),
        ("memory://words/part-*.txt", [0, 1, 2]),
        ("memory://words/**/part-*.txt", [0, 1, 2, 9]),
        ("memory://words", [0, 1, 2, 9]),
    ],
)
def test_files_folders_and_patterns_of_a_store_are_read(
    address: str, numbers: list[int], bucket: object, workspace: Workspace
) -> None:
    config = CorpusConfig(path=address, validation_percent=1e-9)
    corpus = open_corpus(config, workspace)
    splits = ("train", "validation") if corpus.holds_out else ("train",)
    texts = [text for split in splits for text in corpus.documents(split)]  # type: ignore[arg-type]
    assert sorted(texts) == sorted(LINES[number] for number in numbers)


def test_changed_file_of_a_store_is_downloaded_again(
    bucket: fsspec.AbstractFileSystem, workspace: Workspace
) -> None:
    before = open_corpus(CorpusConfig(path="memory://words/part-0.txt"), workspace)
    bucket.pipe_file("/words/part-0.txt", b"Something else is written here.\n")
    after = open_corpus(CorpusConfig(path="memory://words/part-0.txt"), workspace)
    assert list(after.documents("train")) == ["Something else is written here."]
    assert before.fingerprint != after.fingerprint


def test_name_that_leads_outside_the_cache_is_refused(
    bucket: fsspec.AbstractFileSystem, workspace: Workspace
) -> None:
    bucket.pipe_file("/words/.hidden.txt", b"x\n")
    assert len(read("memory://words", workspace)) < 5
    bucket.store["/words/a/../../../outside.txt"] = bucket.store["/words/part-0.txt"]
    with pytest.raises((StudioError, CorpusError), match="not accepted"):
        read("memory://words", workspace)
    del bucket.store["/words/a/../../../outside.txt"]
