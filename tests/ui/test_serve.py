"""Starting the app: ports, passwords, Spaces and allowed folders."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.workspace.workspace import Workspace
from ui.serve import _owners, serve

ROOT = Path(__file__).parent.parent.parent


def start_app(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "app.py", "--workspace", str(tmp_path / "workspace"), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_busy_port_is_reported_in_one_sentence_with_exit_code_1(tmp_path: Path) -> None:
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


def test_workspace_that_cannot_be_created_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "workspace").touch()
    ended = start_app(tmp_path, "--port", "0")
    assert ended.returncode == 1
    [line] = ended.stderr.strip().splitlines()
    assert str(tmp_path / "workspace") in line


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_app_without_a_password_serves_only_this_machine(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="STUDIO_AUTH"):
        serve(Workspace(tmp_path), host=host, port=0)


@pytest.mark.parametrize("auth", ["name", "name:", ":open-sesame", "ann:open-sesame,ben"])
def test_incomplete_login_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: str
) -> None:
    monkeypatch.setenv("STUDIO_AUTH", auth)
    with pytest.raises(ConfigError, match="name:password") as error:
        serve(Workspace(tmp_path), host="127.0.0.1", port=0)
    assert "open-sesame" not in str(error.value)


def test_environment_cannot_bypass_the_password(tmp_path: Path) -> None:
    environment = {**os.environ, "GRADIO_SERVER_NAME": "0.0.0.0"}
    command = [sys.executable, "app.py", "--workspace", str(tmp_path / "workspace")]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert "STUDIO_AUTH" in ended.stderr


@pytest.mark.parametrize("system", ["", "spaces"])
def test_web_app_on_a_space_needs_access_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setenv("SPACE_ID", "owner/name")
    monkeypatch.setenv("SYSTEM", system)
    monkeypatch.setenv("STUDIO_ON_SPACE", "1")
    with pytest.raises(ConfigError, match="anyone could train"):
        serve(Workspace(tmp_path), host="127.0.0.1", port=0)


def test_owner_sign_in_works_only_on_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "owner/name")
    monkeypatch.setenv("OAUTH_CLIENT_ID", "id")
    monkeypatch.setenv("SPACE_AUTHOR_NAME", "owner")
    assert _owners() == [], "Gradio would imitate the sign-in and let anybody in"
    monkeypatch.setenv("SYSTEM", "spaces")
    assert _owners() == ["owner"]
    monkeypatch.setenv("STUDIO_OWNERS", "ann, ben")
    assert _owners() == ["ann", "ben"]
    monkeypatch.delenv("OAUTH_CLIENT_ID")
    assert _owners() == []


def test_allowed_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--allow"):
        serve(Workspace(tmp_path), host="127.0.0.1", port=0, allow=[tmp_path / "missing"])
    assert "STUDIO_ALLOWED_PATHS" not in os.environ


def test_invalid_port_is_refused(tmp_path: Path) -> None:
    ended = start_app(tmp_path, "--port", "70000")
    assert ended.returncode == 1
    assert "free port" in ended.stderr
