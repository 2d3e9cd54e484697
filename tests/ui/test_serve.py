"""How the app starts, and when it refuses to."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.workspace import Workspace
from ui.serve import serve

ROOT = Path(__file__).parent.parent.parent


def start_app(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "app.py", "--workspace", str(tmp_path / "workspace"), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_busy_port_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = start_app(tmp_path, "--port", str(port))
    assert ended.returncode == 1
    [line] = ended.stderr.strip().splitlines()
    assert str(port) in line
    assert "--port" in line
    assert not (tmp_path / "workspace").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_without_a_password_only_this_machine_may_come_in(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="STUDIO_AUTH"):
        serve(Workspace(tmp_path), host=host, port=0)


@pytest.mark.parametrize("auth", ["name", "name:", ":password"])
def test_a_half_password_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: str
) -> None:
    monkeypatch.setenv("STUDIO_AUTH", auth)
    with pytest.raises(ConfigError, match="name:password") as error:
        serve(Workspace(tmp_path), host="127.0.0.1", port=0)
    assert "password" not in error.value.received


def test_a_folder_to_allow_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--allow"):
        serve(Workspace(tmp_path), host="127.0.0.1", port=0, allow=[tmp_path / "missing"])
    assert "STUDIO_ALLOWED_PATHS" not in os.environ


def test_a_port_that_is_none_is_refused(tmp_path: Path) -> None:
    ended = start_app(tmp_path, "--port", "70000")
    assert ended.returncode == 1
    assert "free port" in ended.stderr
