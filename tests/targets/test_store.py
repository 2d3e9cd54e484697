"""Tests of the stores below a mirror: a folder, a machine over ssh, and a bucket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError
from core.targets.errors import MirrorError, TargetError, UnavailableError
from core.targets.opening import open_store
from core.targets.ssh import Host, Ssh
from core.targets.store import ObjectStore
from tests.core.shards.bucket import BUCKET, BucketServer
from tests.targets.hub_client import hub_process, open_there
from tests.targets.hub_jobs_server import JobServer
from tests.targets.s3_server import BUCKET as S3_BUCKET
from tests.targets.s3_server import s3_server, use_s3
from tests.targets.ssh_server import SshServer, running_ssh_server


@pytest.fixture(scope="module")
def ssh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with running_ssh_server(tmp_path_factory.mktemp("ssh")) as server:
        yield server


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[JobServer, Any]]:
    """A server and a client process that is signed in as ada."""
    with JobServer() as server:
        server.add_user("ada", "hf_of_ada")
        with hub_process(server, tmp_path_factory.mktemp("hf"), "hf_of_ada") as process:
            yield server, process
        assert server.unknown_requests == []


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    for package in ("moto", "s3fs"):
        pytest.importorskip(package, reason="pip install -r requirements-dev.txt")
    with s3_server() as url:
        yield url


@pytest.fixture(params=["folder", "ssh", "gs", "s3", "hub"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    if request.param == "folder":
        yield open_store(f"file://{tmp_path}/mirror")
    elif request.param == "ssh":
        server = request.getfixturevalue("ssh_server")
        monkeypatch.setenv("STUDIO_SSH_COMMAND", server.command)
        yield open_store(f"{server.address}{tmp_path}/a folder's mirror")
    elif request.param == "hub":
        server, process = request.getfixturevalue("hub")
        server.buckets.clear()
        yield open_there(process, "hf://buckets/ada/runs/a folder")
    elif request.param == "s3":
        use_s3(request.getfixturevalue("s3_url"), monkeypatch)
        yield open_store(f"s3://{S3_BUCKET}/{tmp_path.name}/a folder")
    else:
        pytest.importorskip("gcsfs")
        server = BucketServer()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        yield open_store(f"gs://{BUCKET}/mirror")
        assert not server.unknown_requests
        server.close()


def test_objects_are_written_read_listed_and_removed(store: ObjectStore, tmp_path: Path) -> None:
    assert store.list_objects() == {}
    assert store.list_objects("runs/none") == {}
    assert store.read("runs/a/run.json", 100) is None
    store.write("runs/a/run.json", b"one")
    store.write("runs/a/run.json", b"three")
    assert store.read("runs/a/run.json", 100) == b"three"
    (tmp_path / "large").write_bytes(bytes(range(256)) * 5000)
    store.upload(tmp_path / "large", "runs/b/large.bin")
    found = store.list_objects()
    assert {name: one.bytes for name, one in found.items()} == {
        "runs/a/run.json": 5,
        "runs/b/large.bin": 1_280_000,
    }
    assert list(store.list_objects("runs/b")) == ["runs/b/large.bin"]
    store.download("runs/b/large.bin", tmp_path / "back", 1_280_000)
    assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()
    store.remove(["runs/b/large.bin", "runs/b/missing"])
    assert list(store.list_objects()) == ["runs/a/run.json"]


def test_replaced_object_has_another_version(store: ObjectStore) -> None:
    store.write("a/one", b"12345")
    first = store.list_objects()["a/one"]
    store.write("a/one", b"54321")
    assert store.list_objects()["a/one"] != first


def test_object_is_created_by_one_of_several_writers(store: ObjectStore) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        if store.create("claims/000001.json", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("claims/000001.json", 10) == str(won[0]).encode()
    assert list(store.list_objects()) == ["claims/000001.json"]


def test_too_large_or_missing_objects_are_refused(store: ObjectStore, tmp_path: Path) -> None:
    store.write("a/one", b"x" * 101)
    with pytest.raises(MirrorError, match="too large"):
        store.read("a/one", 100)
    with pytest.raises(MirrorError, match="too large"):
        store.download("a/one", tmp_path / "back", 100)
    with pytest.raises(MirrorError, match="missing"):
        store.download("a/two", tmp_path / "other", 100)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", ".hidden", "a//b", "a\nb"])
def test_names_that_leave_the_folder_are_refused(store: ObjectStore, name: str) -> None:
    for action in (
        lambda: store.write(name, b""),
        lambda: store.create(name, b""),
        lambda: store.read(name, 10),
        lambda: store.remove([name]),
    ):
        with pytest.raises(MirrorError, match="not accepted"):
            action()


@pytest.mark.parametrize(
    "address",
    ["ftp://host/x", "nonsense", "ssh://-oProxyCommand=id/x", "ssh://u:secret@host/x", "ssh:///x"],
)
def test_invalid_addresses_are_refused_without_showing_a_password(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(address)
    assert "secret" not in str(caught.value)


def test_unknown_host_key_is_refused(
    ssh_server: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(ssh_server.config.read_text().replace("known_hosts", "known_none", 1))
    # A configuration that accepts any key is overruled.
    config.write_text(config.read_text() + "  StrictHostKeyChecking no\n  ControlPath none\n")
    monkeypatch.setenv("STUDIO_SSH_COMMAND", f"ssh -F {config} -o ControlPath=none")
    with pytest.raises(UnavailableError, match="accept its key"):
        open_store(f"{ssh_server.address}{tmp_path}/mirror").read("a", 10)


def test_unreachable_host_is_reported_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/usr/bin/ssh").exists():
        pytest.skip("OpenSSH's client isn't installed")
    monkeypatch.setenv("STUDIO_SSH_COMMAND", "ssh -F /dev/null")
    with pytest.raises(UnavailableError, match=r"can't be reached with ssh.*the machine is on"):
        open_store("ssh://127.0.0.1:9/mirror").read("a", 10)


@pytest.mark.parametrize(
    ("script", "kind"),
    [("kill -9 $$", UnavailableError), ("sh -c 'kill $$'; exit $?", UnavailableError),
     ("exit 3", TargetError)],
)  # fmt: skip
def test_command_that_the_host_kills_may_be_tried_again(
    ssh_server: SshServer, monkeypatch: pytest.MonkeyPatch, script: str, kind: type[Exception]
) -> None:
    monkeypatch.setenv("STUDIO_SSH_COMMAND", ssh_server.command)
    ssh = Ssh(Host.parse(ssh_server.address))
    with pytest.raises(kind) as raised:
        ssh.run(script)
    assert type(raised.value) is kind
