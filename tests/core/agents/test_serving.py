"""The server as clients start it: over standard input and output, and over HTTP."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import ImageContent

from core.__main__ import main
from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker
from tests.ports import free_port
from tests.texts import write_sentences

ROOT = Path(__file__).parents[3]
LOGINS = "ann:open sesame, ben:another:one"
COMMAND = ["-m", "core", "mcp"]


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "workspace")
    yield workspace
    stop_worker(workspace)


async def course(client: Client, texts: Path) -> None:
    """Trains, waits, draws, stops, compares, evaluates and completes, as an agent would."""
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async def ask(tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await client.call_tool(tool, arguments, progress_callback=hear)
        assert not answer.is_error, answer.content
        return dict(answer.structured_content or {})

    async def wait(run: str, steps: int | None = None) -> dict[str, Any]:
        """Waits for a run's end, or until it has done so many steps."""
        with anyio.fail_after(200):
            while True:
                state = await ask("wait_for_run", run=run, seconds=60 if steps is None else 1)
                is_there = steps is not None and (state.get("step") or 0) >= steps
                if is_there or state["state"] not in ("queued", "running", "stopping"):
                    return state

    first = await ask("start_quickstart", num_train_steps=5, limit=300)
    assert len(first["runs"]) == 3 and first["limits"]["runs_left"] == 2
    assert (state := await wait(first["run"]))["state"] == "done", state.get("error")
    assert any(message and "train" in message for _, _, message in heard)

    settings = {"size": "tiny", "num_train_steps": 5_000, "per_replica_batch_size": 8}
    long = await ask("start_training", shards="quickstart", settings=settings)
    data = str(write_sentences(texts / "held-out.txt", 20))
    asked = await ask("evaluate_model", model="quickstart", task="text", data=data)
    assert asked["limits"]["runs_left"] == 0
    refused = await client.call_tool("start_training", {"shards": "quickstart"})
    assert refused.is_error, "the limit of runs holds"

    await wait(long["run"], steps=1)
    stopped = await ask("stop_run", run=long["run"])
    assert stopped["state"] == "stopping"
    assert (state := await wait(long["run"]))["state"] == "stopped", state.get("error")

    compared = await ask("compare_runs", runs=[first["run"], long["run"]])
    assert compared["states"] == ["done", "stopped"]
    assert "per_replica_batch_size" in compared["settings"]
    assert (state := await wait(asked["run"]))["state"] == "done", state.get("error")
    assert state["results"]["loss"] > 0
    filled = await ask("complete_text", model="quickstart", text="Returns the [MASK] of a file.")
    assert len(filled["predictions"]) == 5
    drawn = await client.call_tool("draw_curves", {"runs": [first["run"], long["run"]],
                                                   "metric": "loss"})  # fmt: skip
    [picture] = [part for part in drawn.content if isinstance(part, ImageContent)]
    assert picture.mime_type == "image/png"
    assert base64.b64decode(picture.data).startswith(b"\x89PNG")
    listed = await ask("list_runs", query="stage=train")
    assert [run["run"] for run in listed["runs"]] == [long["run"], first["run"]]


@pytest.mark.slow(80)
def test_client_trains_waits_evaluates_compares_and_stops(
    workspace: Workspace, tmp_path: Path
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    server = StdioServerParameters(
        command=sys.executable,
        args=[*COMMAND, "--workspace", str(workspace.root), "--max-runs", "5"],
        cwd=texts,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    async def run() -> None:
        async with Client(stdio_client(server)) as client:
            await course(client, texts)

    anyio.run(run)


@contextmanager
def serving(folder: Path, **environment: str) -> Iterator[tuple[str, Path]]:
    """Serves over HTTP; yields the address and the file of the server's output."""
    port, output = free_port(), folder / "output.txt"
    command = [sys.executable, *COMMAND, "--http", "--port", str(port), "--workspace"]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, str(folder / "workspace"), "--allow", str(folder)],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=file,
            stderr=file,
        )
    try:
        address = f"http://127.0.0.1:{port}/mcp"
        deadline = time.monotonic() + 60
        while status_of(address) == 0:
            assert process.poll() is None and time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        yield address, output
    finally:
        process.terminate()
        process.wait(20)


def status_of(address: str, **headers: str) -> int:
    """Posts something without a meaning; returns the status, 0 without a connection."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(
        address, b"{}", {"Content-Type": "application/json", "Accept": "application/json", **named}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def list_runs_over(address: str, headers: dict[str, str]) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with (
            create_mcp_http_client(headers) as connection,
            Client(streamable_http_client(address, http_client=connection)) as client,
        ):
            answer = await client.call_tool("list_runs", {})
            return dict(answer.structured_content or {})

    return anyio.run(ask)


@pytest.mark.slow(10)
def test_http_is_behind_the_password_of_the_app(tmp_path: Path) -> None:
    basic = base64.b64encode(b"ann:open sesame").decode()
    wrong = base64.b64encode(b"ann:another:one").decode()
    with serving(tmp_path, STUDIO_AUTH=LOGINS) as (address, output):
        assert status_of(address) == 401
        assert status_of(address, Authorization="Bearer opensesame") == 401
        assert status_of(address, Authorization=f"Basic {wrong}") == 401
        assert status_of(address, Authorization="Basic !!!") == 401
        for header in ("Bearer open sesame", "Bearer another:one", f"Basic {basic}"):
            assert list_runs_over(address, {"Authorization": header})["runs"] == []
        right = {"Authorization": "Bearer open sesame"}
        assert status_of(address, Origin="http://evil.example", **right) == 403
        assert status_of(address, Sec_Fetch_Site="cross-site", **right) == 403
        with ThreadPoolExecutor(9) as pool:
            guesses = pool.map(lambda _: status_of(address, Authorization="Bearer guess"), range(9))
        assert 429 in guesses, "wrong passwords are limited"
    text = output.read_text()
    assert "for agents" in text and "sesame" not in text and basic not in text
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"sesame" not in path.read_bytes(), path


@pytest.mark.slow(5)
def test_http_without_a_password_serves_only_this_machine(tmp_path: Path) -> None:
    with serving(tmp_path, STUDIO_AUTH="") as (address, _):
        assert list_runs_over(address, {})["limits"]["max_cost"] == 0
        assert status_of(address, Host="evil.example") == 403
        assert status_of(address, Origin="http://evil.example") == 403
        assert status_of(address, Origin=address.removesuffix("/mcp")) not in (0, 401, 403)


def test_network_address_without_a_password_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("STUDIO_AUTH", raising=False)
    monkeypatch.setenv("STUDIO_ALLOWED_PATHS", "")
    arguments = ["mcp", "--http", "--host", "0.0.0.0", "--allow", str(tmp_path)]
    assert main([*arguments, "--workspace", str(tmp_path / "workspace")]) == 2
    assert "STUDIO_AUTH" in capsys.readouterr().err


def test_folder_that_holds_the_home_folder_is_not_allowed_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home" / "ann"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, home.parent, Path("/")):
        monkeypatch.chdir(folder)
        assert main(["mcp", "--workspace", str(tmp_path / "workspace")]) == 2
        assert "--allow FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize("amount", ["-1", "nan", "inf", "ten"])
def test_limit_of_money_is_a_number(amount: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["mcp", "--max-cost", amount])
    assert "expected US dollars" in capsys.readouterr().err
