"""The database on a real PostgreSQL server, which the tests start."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import StudioError
from core.store import RunRow, Store
from core.workspace.workspace import Workspace
from tests.ports import free_port

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
pytestmark = pytest.mark.skipif(
    not PROGRAMS and not shutil.which("initdb"),
    reason="PostgreSQL is not installed; get it with: apt-get install postgresql",
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip(
        "psycopg", reason="get the driver with: pip install -r requirements-postgres.txt"
    )
    folder = Path(tempfile.mkdtemp(prefix="studio-postgres-"))
    programs = PROGRAMS[-1] if PROGRAMS else Path(str(shutil.which("initdb"))).parent
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root.
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = ["runuser", "-u", "postgres", "--"]
    port = free_port()
    data = folder / "data"
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    subprocess.run(
        [*as_user, programs / "initdb", "-D", data, "-U", "studio", "-A", "trust"], **quiet
    )
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    subprocess.run(
        [
            *as_user,
            programs / "pg_ctl",
            "-D",
            data,
            "-o",
            options,
            "-l",
            folder / "log",
            "-w",
            "start",
        ],
        **quiet,
    )
    yield f"postgresql+psycopg://studio@127.0.0.1:{port}"
    subprocess.run([*as_user, programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **quiet)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    from sqlalchemy import create_engine, text

    name = f"studio_{os.urandom(4).hex()}"
    admin = create_engine(f"{server}/postgres", isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    monkeypatch.setenv("STUDIO_DATABASE_URL", f"{server}/{name}")
    return f"{server}/{name}"


def test_runs_and_metrics_are_stored_on_a_server(url: str, tmp_path: Path) -> None:
    store = Store.open(Workspace(tmp_path))
    store.add_run(
        RunRow(
            id="train-1", stage="train", state="queued", config={"a": [1]}, after=[], created=1.5
        )
    )
    rows = [
        {"number": number, "step": number, "name": "loss", "value": 1 / number, "time": 1e9}
        for number in range(1, 50)
    ]
    store.ingest("train-1", rows, [], {"event_number": 49, "event_offset": 3_000_000_000})
    again = Store.open(Workspace(tmp_path))
    run = again.find_run("tr")
    assert (run.config, run.event_offset) == ({"a": [1]}, 3_000_000_000)
    assert [row.value for row in again.metrics_since("train-1")] == [1 / n for n in range(1, 50)]
    assert again.latest_metrics("train-1") == {"loss": 1 / 49}
    assert not list(tmp_path.glob("*.db"))


def test_two_workspaces_do_not_share_a_database(url: str, tmp_path: Path) -> None:
    Store.open(Workspace(tmp_path / "one"))
    with pytest.raises(StudioError, match="another workspace"):
        Store.open(Workspace(tmp_path / "two"))


def test_unreachable_server_error_hides_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("STUDIO_DATABASE_URL", "postgresql+psycopg://me:secret@127.0.0.1:1/none")
    with pytest.raises(StudioError, match="database can't be opened") as caught:
        Store.open(Workspace(tmp_path))
    assert "secret" not in str(caught.value)
