"""Child processes get the variables that they need, and no other secrets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.processes import environment
from core.runs.client import ensure_worker
from core.runs.start import child_environment
from core.serving.playground import PlaygroundClient
from core.workspace.workspace import Workspace
from tests.core.runs.support import wait_for

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "x1", "AWS_SESSION_TOKEN": "x2", "HF_TOKEN": "x3",
    "GOOGLE_APPLICATION_CREDENTIALS": "/x4.json", "OAUTH_CLIENT_SECRET": "x5",
    "STUDIO_AUTH": "a:x6", "SSH_AUTH_SOCK": "/x7",
    "STUDIO_DATABASE_URL": "sqlite:///x8", "OAUTH_CLIENT_ID": "x9",
    "A_VARIABLE_THAT_NOBODY_KNOWS": "y1", "JAX_SECRET_OF_SOMEBODY": "y2", "LC_TOKEN": "y3",
    "HTTPS_PROXY": "http://me:y4@proxy.example", "PYTHON_KEYRING_PASSWORD": "y5",
    "SKYPILOT_API_SERVER_ENDPOINT": "https://me:y6@sky.example",
}  # fmt: skip
SETTINGS = {"OMP_NUM_THREADS": "2", "LANG": "C.UTF-8", "JAX_PLATFORMS": "cpu", "PATH": "/bin"}


def environment_of(pid: int) -> dict[str, str]:
    path = Path(f"/proc/{pid}/environ")
    wait_for(path.read_bytes, 10)  # Empty while the process begins.
    entries = path.read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def test_process_for_anonymous_users_gets_only_allowed_variables() -> None:
    assert environment.for_anonymous_users({**SETTINGS, **SECRETS}) == SETTINGS


def test_variable_with_a_password_in_a_url_is_withheld() -> None:
    given = {"HF_HOME": "/hf", "XLA_FLAGS": "--dump=s3://me:secret@bucket"}
    assert environment.for_anonymous_users(given) == {"HF_HOME": "/hf"}


def test_no_child_process_gets_the_apps_secrets() -> None:
    given = {**SETTINGS, **SECRETS, "STUDIO_PASS_ENVIRONMENT": "*"}
    for selected in (environment.for_models(given), environment.for_runs(given)):
        assert not {"STUDIO_AUTH", "OAUTH_CLIENT_SECRET"} & selected.keys()


def test_runs_get_the_credentials_for_their_data() -> None:
    given = {**SETTINGS, **SECRETS}
    needed = {
        "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "HF_TOKEN",
        "HTTPS_PROXY", "STUDIO_DATABASE_URL", "SKYPILOT_API_SERVER_ENDPOINT",
    }  # fmt: skip
    selected = environment.for_runs(given)
    assert needed <= selected.keys()
    assert (
        not {"SSH_AUTH_SOCK", "OAUTH_CLIENT_ID", "A_VARIABLE_THAT_NOBODY_KNOWS"} & selected.keys()
    )
    models = environment.for_models(given)
    assert {"HF_TOKEN", "HTTPS_PROXY"} <= models.keys()
    withheld = {"AWS_SECRET_ACCESS_KEY", "STUDIO_DATABASE_URL", "SKYPILOT_API_SERVER_ENDPOINT"}
    assert not withheld & models.keys()


def test_workers_get_credentials_only_for_a_bucket_or_the_hub() -> None:
    given = {"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s", "HF_TOKEN": "t", "OTHER": "o"}
    assert environment.for_parts(given, has_credentials=False) == {"PATH": "/bin"}
    assert environment.for_parts(given, has_credentials=True).keys() == given.keys() - {"OTHER"}


def test_user_can_pass_more_variables_to_runs_but_not_to_a_demo() -> None:
    given = {"MINE": "1", "MY_A": "2", "MY_B": "3", "OTHER": "4"}
    given["STUDIO_PASS_ENVIRONMENT"] = "MINE, MY_*"
    passed = {name: value for name, value in given.items() if name != "OTHER"}
    assert environment.for_runs(given) == passed
    assert environment.for_models(given) == passed
    assert environment.for_anonymous_users(given) == {}


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        if name != "STUDIO_DATABASE_URL":
            monkeypatch.setenv(name, value)


@pytest.fixture
def demo(tmp_path: Path, secrets: None) -> Iterator[PlaygroundClient]:
    client = PlaygroundClient(Workspace(tmp_path / "w"), only=tmp_path)
    yield client
    client.close()


@pytest.mark.slow(4)
def test_model_process_of_a_demo_has_no_secret(demo: PlaygroundClient) -> None:
    with pytest.raises(Exception, match="serves only one model"):
        demo.fill_mask("another", "a text")
    assert demo.pid is not None
    found = environment_of(demo.pid)
    assert not SECRETS.keys() & found.keys()
    assert found["PATH"] == os.environ["PATH"]


def test_worker_has_neither_the_apps_secrets_nor_unknown_ones(
    tmp_path: Path, secrets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDIO_PASS_ENVIRONMENT", "A_VARIABLE_THAT_NOBODY_KNOWS")
    worker = ensure_worker(Workspace(tmp_path))
    assert worker is not None
    try:
        found = environment_of(worker.pid)
    finally:
        worker.kill()
        worker.wait()
    assert found["A_VARIABLE_THAT_NOBODY_KNOWS"] == "y1"
    assert found["AWS_SECRET_ACCESS_KEY"] == "x1"
    assert not {"STUDIO_AUTH", "OAUTH_CLIENT_SECRET", "SSH_AUTH_SOCK"} & found.keys()
    assert child_environment().keys() >= {"HF_TOKEN", "PYTHONPATH"}


_IMPORT_AND_WAIT = """
import time
import core
import onnxruntime
time.sleep(10)
"""


@pytest.mark.slow(11)
@pytest.mark.long
def test_no_library_reports_its_use_to_its_maker() -> None:
    """It would within seconds, through the proxy that the environment names."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        proxy = f"http://127.0.0.1:{server.getsockname()[1]}"
        names = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")
        environment = {**os.environ, **dict.fromkeys(names, proxy)}
        environment.pop("ORT_DISABLE_TELEMETRY", None)
        subprocess.run([sys.executable, "-c", _IMPORT_AND_WAIT], env=environment, check=True)
        with pytest.raises(TimeoutError):
            server.accept()
