"""Fixtures of tests that run on machines; a module brings its `inputs`, a workspace's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.workspace.workspace import Workspace
from tests.targets.homes import copied_workspace, ssh_machine
from tests.targets.ssh_server import SshServer


@pytest.fixture
def home(inputs: Path, tmp_path: Path) -> Iterator[Workspace]:
    with copied_workspace(inputs, tmp_path / "home") as workspace:
        yield workspace


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    with ssh_machine(tmp_path, monkeypatch) as server:
        yield server
