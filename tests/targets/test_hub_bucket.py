"""Tests of the store in a Hub bucket that only it can fail."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from core.config.train import TrainConfig
from core.errors import ConfigError
from core.targets import hub
from core.targets.errors import MirrorError, TargetError, UnavailableError
from core.targets.hub_bucket import HubBucketStore
from core.targets.opening import open_store
from core.targets.store import ObjectStore
from tests.targets.hub_client import hub_process, open_there
from tests.targets.hub_jobs_server import Bucket, BucketFile, JobServer

pytestmark = pytest.mark.long

TOKEN = "hf_of_ada"
ADDRESS = "hf://buckets/ada/runs/studio"


class RecordingFiles(dict[str, BucketFile]):
    """A bucket's files that remembers what each was set to."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[str, str]] = []

    def __setitem__(self, path: str, file: BucketFile) -> None:
        self.history.append((path, file.xet_hash))
        super().__setitem__(path, file)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[JobServer, Any]]:
    with JobServer() as server:
        server.add_user("ada", TOKEN)
        server.add_user("ada", "hf_read", role="read")
        server.add_user("other", "hf_of_other")
        with hub_process(server, tmp_path_factory.mktemp("hf"), TOKEN) as process:
            yield server, process
        assert server.unknown_requests == []


@pytest.fixture
def server(running: tuple[JobServer, Any], monkeypatch: pytest.MonkeyPatch) -> JobServer:
    """The server; clients in this process are signed in too, and may not upload."""
    server = running[0]
    server.buckets.clear()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return server


@pytest.fixture
def store(running: tuple[JobServer, Any], server: JobServer) -> ObjectStore:
    """A store in a process that can upload."""
    return open_there(running[1], ADDRESS)


def test_missing_bucket_is_empty_and_made_private_by_the_first_write(
    server: JobServer, store: ObjectStore
) -> None:
    assert store.list_objects() == {}
    assert store.read("a", 10) is None
    store.remove(["a"])
    assert server.buckets == {}
    store.write("runs/a/run.json", b"{}")
    assert server.buckets["ada/runs"].private
    assert server.files("ada/runs") == {"studio/runs/a/run.json": b"{}"}


def test_six_racers_have_one_winner_although_replies_are_lost(
    server: JobServer, store: ObjectStore
) -> None:
    server.buckets["ada/runs"] = Bucket("ada/runs", True, datetime.now(UTC), RecordingFiles())
    for number in range(3):
        name, won = f"claims/{number:06d}.json", []
        for _ in range(2 * number):
            server.lose_reply("POST /api/buckets/ada/runs/batch$")

        def create(writer: int, name: str = name, won: list[int] = won) -> None:
            if store.create(name, f"{writer}".encode()):
                won.append(writer)

        threads = [threading.Thread(target=create, args=(writer,)) for writer in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert server.files("ada/runs")[f"studio/{name}"] == f"{won[0]}".encode()
        files = server.buckets["ada/runs"].files
        assert isinstance(files, RecordingFiles)
        assert len({content for path, content in files.history if path == f"studio/{name}"}) == 1
    assert list(store.list_objects("claims")) == [f"claims/{i:06d}.json" for i in range(3)]
    assert list(store.list_objects()) == [f"claims/{i:06d}.json" for i in range(3)]


def test_create_takes_few_requests_and_leaves_nothing_behind(
    server: JobServer, store: ObjectStore
) -> None:
    store.write("a", b"")
    before = server.count(" /api/")
    assert store.create("events/000001.jsonl", b"data")
    assert server.count(" /api/") - before <= 8
    assert sorted(server.files("ada/runs")) == ["studio/a", "studio/events/000001.jsonl"]
    assert not store.create("events/000001.jsonl", b"other")
    assert store.read("events/000001.jsonl", 10) == b"data"


def test_names_in_a_listing_are_checked(server: JobServer, store: ObjectStore) -> None:
    store.write("good", b"1")
    files = server.buckets["ada/runs"].files
    for name in ("../x", "studio/../x", "studio//etc/passwd", "studio/.x", "studio/a\nb", "studio"):
        files[name] = files["studio/good"]
    files["studio2/x"] = files["studio/good"]
    assert list(store.list_objects()) == ["good"]


@pytest.mark.parametrize(
    ("token", "address", "words"),
    [
        ("", ADDRESS, "a valid token of the Hub.*401: "),
        ("hf_wrong", ADDRESS, "401: Invalid"),
        ("hf_of_other", ADDRESS, "exists and that your token can read.*404: "),
        (TOKEN, "hf://buckets/other/runs", "exists and that your token can read.*404: "),
    ],
)
def test_refused_access_is_explained(
    server: JobServer, monkeypatch: pytest.MonkeyPatch, token: str, address: str, words: str
) -> None:
    server.buckets["ada/runs"] = Bucket("ada/runs", True, datetime.now(UTC))
    monkeypatch.setenv("HF_TOKEN", token)
    store = HubBucketStore(address)
    for action in (store.list_objects, lambda: store.read("a", 10)):
        with pytest.raises(TargetError, match=words) as caught:
            action()
        assert not isinstance(caught.value, UnavailableError)


def test_token_without_write_access_is_explained(
    running: tuple[JobServer, Any], server: JobServer, tmp_path: Path
) -> None:
    server.buckets["ada/runs"] = Bucket("ada/runs", True, datetime.now(UTC))
    with hub_process(server, tmp_path, "hf_read") as process:
        store = open_there(process, ADDRESS)
        assert store.list_objects() == {}
        with pytest.raises(TargetError, match=r"write access to the bucket's owner.*403") as caught:
            store.write("a", b"")
        assert not isinstance(caught.value, UnavailableError)
        with pytest.raises(TargetError, match="403"):
            open_there(process, "hf://buckets/ada/other").write("a", b"")


def test_reading_is_tried_again_and_then_reported(server: JobServer, store: ObjectStore) -> None:
    store.write("a", b"data")
    server.fail("GET /buckets/", 503, "busy now", times=2)
    assert store.read("a", 10) == b"data"
    server.fail("GET /buckets/", 429, "too many requests", times=3)
    with pytest.raises(UnavailableError, match="429: too many requests"):
        store.read("a", 10)


@pytest.mark.slow(60)
def test_busy_or_closed_server_is_unavailable(server: JobServer, store: ObjectStore) -> None:
    store.write("a", b"data")
    server.fail("GET /api/buckets/ada/runs/tree", 503, "busy now", times=6)
    with pytest.raises(UnavailableError, match=r"503: .*busy now.*tried again"):
        store.list_objects()
    with JobServer() as other:
        url = other.url
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", url)
        with pytest.raises(UnavailableError, match="Connection refused"):
            HubBucketStore(ADDRESS).read("a", 10)


class RawServer:
    """Answers each request with the same bytes, and keeps the connection open."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(connection)
            connection.recv(65536)
            connection.sendall(self._answer)

    def close(self) -> None:
        for one in (self._socket, *self._open):
            one.close()


def test_size_is_checked_before_the_body_is_read(
    server: JobServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n"
    with closing(RawServer(answer)) as raw:
        monkeypatch.setenv("HF_ENDPOINT", raw.url)
        store = HubBucketStore(ADDRESS)
        with pytest.raises(MirrorError, match="too large"):
            store.read("a", 100)
        with pytest.raises(MirrorError, match="too large"):
            store.download("a", tmp_path / "a", 100)


def test_body_that_is_longer_than_stated_is_given_up(
    server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"4\r\nabcd\r\n" * 100
    with closing(RawServer(answer)) as raw:
        monkeypatch.setenv("HF_ENDPOINT", raw.url)
        with pytest.raises(MirrorError, match="too large"):
            HubBucketStore(ADDRESS).read("a", 100)


def test_silent_server_is_given_up(server: JobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_SECONDS_PER_REQUEST", 0.2)
    with closing(RawServer(b"")) as raw:
        monkeypatch.setenv("HF_ENDPOINT", raw.url)
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="timed out"):
            HubBucketStore(ADDRESS).read("a", 100)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "address",
    [
        "hf://buckets/ada",
        "hf://buckets/ada/runs/../x",
        "hf://buckets/ada/runs/.hidden",
        "hf://buckets/ada/runs?token=x",
        "hf://buckets/-x/runs",
        "hf://datasets/ada/runs",
        "hf://ada/runs",
    ],
)
def test_invalid_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        open_store(address)


def test_bucket_is_a_mirror_in_the_config() -> None:
    assert TrainConfig(shards="x", mirror="hf://buckets/ada/runs").mirror
    with pytest.raises(ConfigError, match="hf://buckets/owner/name"):
        TrainConfig(shards="x", mirror="hf://datasets/ada/runs")
