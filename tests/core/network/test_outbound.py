"""Outgoing connections to addresses that others name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import fsspec
import pytest

from core.errors import ConfigError, ShardError, StudioError
from core.network.hub import guard_hub
from core.network.outbound import (
    ALLOWED_HOSTS_VARIABLE,
    TYPED_HOSTS_VARIABLE,
    OutboundError,
    allow_typed_hosts,
    check_reachable,
    check_redirect,
    configured_hosts,
    guard_fsspec,
    is_public,
    resolve,
)
from core.records.events import Reporter
from core.records.folder import carried_environment
from core.runs.start import child_environment
from core.storage.files import RemoteFolder, fetch_shards
from core.workspace.manifests import Manifest, manifest_text
from core.workspace.workspace import Workspace
from tests.web_server import Server, send, serving


def _redirect(handler: BaseHTTPRequestHandler, location: str) -> None:
    handler.send_response(302)
    handler.send_header("Location", location)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


@pytest.fixture
def inner() -> Iterator[Server]:
    """A service that only this machine may reach."""
    with serving(lambda handler: send(handler, b"secret", "text/plain")) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_HOSTS_VARIABLE, "")
    monkeypatch.setenv(TYPED_HOSTS_VARIABLE, "")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "::", "::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "fc00::1", "ff02::1",
        "64:ff9b::7f00:1", "2002:7f00:1::", "192.0.0.1", "198.18.0.1", "no address",
    ],
)  # fmt: skip
def test_non_public_address_is_recognised(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_internet_address_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/x", "https://[::1]/x", "https://localhost/x", "https://2130706433/x",
        "https://0x7f.1/x", "https://[::ffff:127.0.0.1]/x", "http://1.1.1.1/x", "ftp://1.1.1.1/x",
        "https://user@127.0.0.1/x", "https://127.0.0.1:99999/x", "https://[x/",
    ],
)  # fmt: skip
def test_local_address_is_refused_in_every_notation(url: str) -> None:
    with pytest.raises(StudioError):
        check_reachable(url)


def test_hosts_of_the_users_configuration_are_known() -> None:
    environment = {
        "HF_ENDPOINT": "http://hub.internal:8080",
        "STORAGE_EMULATOR_HOST": "localhost:9000",
        "STUDIO_ALLOWED_HOSTS": "one, two:81,[::1]:82,fd00::5",
    }
    wanted = {
        ("hub.internal", 8080), ("localhost", 9000), ("one", None), ("two", 81), ("::1", 82),
        ("fd00::5", None),
    }  # fmt: skip
    assert wanted <= configured_hosts(environment)


def test_redirect_to_the_local_machine_is_not_followed(tmp_path: Path, inner: Server) -> None:
    """Attack: a shards URL redirects to a service of this machine."""
    with serving(lambda handler: _redirect(handler, f"{inner.url}{handler.path}")) as outer:
        allow_typed_hosts([outer.url])
        with pytest.raises(OutboundError, match="are not allowed"):
            fetch_shards(f"{outer.url}/shards", Workspace(tmp_path), Reporter())
    assert outer.asked and not inner.asked


def test_file_that_redirects_to_the_local_machine_is_not_fetched(
    tmp_path: Path, inner: Server
) -> None:
    name = "train/dataset-0-1.tfrecord"
    files = {name: {"bytes": 6, "sha256": "0" * 64}}
    manifest = manifest_text(Manifest("shards", "x", "0" * 16, files=files)).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.endswith("manifest.json"):
            send(handler, manifest, "application/json")
        elif handler.path.endswith(".tfrecord"):
            _redirect(handler, f"{inner.url}/secret")
        else:
            send(handler, b'<a href="manifest.json">')

    with serving(answer) as outer:
        allow_typed_hosts([outer.url])
        with pytest.raises(StudioError):
            fetch_shards(f"{outer.url}/shards", Workspace(tmp_path), Reporter())
    assert not inner.asked


def test_only_hosts_that_the_user_typed_may_be_local(tmp_path: Path, inner: Server) -> None:
    with pytest.raises(OutboundError):
        RemoteFolder(inner.url).files()
    assert not inner.asked
    allow_typed_hosts([inner.url])
    RemoteFolder(inner.url).files()
    assert inner.asked


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_every_http_file_system_of_fsspec_is_guarded(inner: Server, host: str) -> None:
    """The datasets library opens the URLs of a dataset card through fsspec."""
    guard_fsspec()
    url = inner.url.replace("127.0.0.1", host)
    with pytest.raises(OutboundError):
        fsspec.filesystem("http").cat_file(url)
    with pytest.raises((OutboundError, FileNotFoundError)), fsspec.open(url) as file:
        file.read()
    assert not inner.asked


def test_dns_rebinding_to_a_local_address_is_refused(
    inner: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check and the connection must use the same DNS answer."""
    real, answers = socket.getaddrinfo, iter(["93.184.216.34"])

    def rebinding(host: object, port: object, *arguments: object, **named: object) -> object:
        if host != "rebinding.example":
            return real(host, port, *arguments, **named)  # type: ignore[arg-type]
        address = next(answers, "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    port = int(inner.url.rpartition(":")[2])
    assert resolve("rebinding.example", port) == ["93.184.216.34"]
    guard_fsspec()
    with pytest.raises(OutboundError, match=r"127\.0\.0\.1"):
        fsspec.filesystem("http").cat_file(f"http://rebinding.example:{port}/x")
    assert not inner.asked


def test_redirect_from_a_public_to_a_configured_address_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ALLOWED_HOSTS_VARIABLE, "127.0.0.1:9000")
    with pytest.raises(OutboundError):
        check_redirect("https://example.org/x", "https://127.0.0.1:9000/x", "93.184.216.34")
    check_redirect("http://127.0.0.1:9000/x", "/y", "127.0.0.1")


def test_hub_client_does_not_follow_a_redirect_to_the_local_machine(
    inner: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils import get_session

    with serving(lambda handler: _redirect(handler, inner.url)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        guard_hub()
        with pytest.raises(OutboundError):
            get_session().get(f"{hub.url}/api/models")
        with pytest.raises(OutboundError):
            get_session().get(inner.url.replace("127.0.0.1", "localhost"))
        assert hub.asked and not inner.asked


def test_download_larger_than_its_manifest_is_aborted(tmp_path: Path) -> None:
    name = "train/dataset-0-1.tfrecord"
    files = {name: {"bytes": 6, "sha256": "0" * 64}}
    manifest = manifest_text(Manifest("shards", "x", "0" * 16, files=files)).encode()
    sent = []

    def endless(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.endswith("manifest.json"):
            return send(handler, manifest, "application/json")
        if not handler.path.endswith(".tfrecord"):
            return send(handler, b'<a href="manifest.json">')
        handler.send_response(200)
        handler.end_headers()
        try:
            while len(sent) < 100:
                handler.wfile.write(b"x" * (1 << 20))
                sent.append(1)
        except OSError:
            pass
        return None

    with serving(endless) as outer:
        allow_typed_hosts([outer.url])
        with pytest.raises(ShardError, match="larger than expected"):
            fetch_shards(f"{outer.url}/shards", Workspace(tmp_path), Reporter())
    assert len(sent) < 50


def test_endless_chain_of_redirects_ends(tmp_path: Path) -> None:
    def on(handler: BaseHTTPRequestHandler) -> None:
        _redirect(handler, handler.path + "x")

    with serving(on) as outer:
        allow_typed_hosts([outer.url])
        with pytest.raises(StudioError):
            fetch_shards(f"{outer.url}/shards", Workspace(tmp_path), Reporter())
    assert len(outer.asked) < 40


def test_typed_hosts_are_trusted_only_in_their_own_run() -> None:
    allow_typed_hosts(["http://127.0.0.1:81/x", "no address", 7])
    assert carried_environment(os.environ)[TYPED_HOSTS_VARIABLE] == "127.0.0.1:81"
    assert TYPED_HOSTS_VARIABLE not in child_environment()


def test_web_app_refuses_a_shards_url_on_the_local_machine(tmp_path: Path) -> None:
    for address in ("https://127.0.0.1/x", "https://localhost/x", "https://169.254.169.254/x"):
        with pytest.raises(ConfigError, match="has no access to"):
            Workspace(tmp_path).confine(address, field="shards")


def test_submitted_run_does_not_trust_the_url_in_its_config(tmp_path: Path, inner: Server) -> None:
    """The web app's runs execute in a process without typed URLs."""
    code = (
        "import sys; from core.network.outbound import distrust_callers; distrust_callers()\n"
        "from core.shards.read import open_shards; from core.workspace import Workspace\n"
        "open_shards(sys.argv[1], Workspace(sys.argv[2]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, inner.url, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "OutboundError" in ended.stderr
    assert not inner.asked
