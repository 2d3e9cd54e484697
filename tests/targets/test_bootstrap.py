"""Tests of the script that prepares a machine: it ends at its limit, and its launch is whole."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.errors import StudioError
from core.targets.code import bootstrap_source
from core.targets.errors import MirrorError, TargetError, UnavailableError
from core.targets.ssh import SshStore
from core.targets.ssh_target import SshTarget
from core.targets.target import Job, Machine
from tests.targets.ssh_server import running_ssh_server

pytestmark = pytest.mark.long

RUN = "train-20260101-000000-abcd"


def test_installation_that_hangs_ends_at_the_limit(tmp_path: Path) -> None:
    home = tmp_path / "home"
    code = "a" * 64
    (home / "code" / code).mkdir(parents=True)
    for name in ("requirements.txt", "constraints.txt"):
        (home / "code" / code / name).write_text("")
    uv = home / "tools/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.write_text("#!/bin/sh\nexec sleep 60\n")
    uv.chmod(0o755)
    (home / "launch").mkdir()
    arguments = ["--mirror", "file:///nowhere", "--run", RUN, "--launch", "1", "--code", code]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", bootstrap_source(), *arguments, "--seconds", "1"]
        + ["--folder", str(home / "launch")],
        env={"STUDIO_MACHINE_HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert time.monotonic() - started < 40
    assert done.returncode == 1, done.stderr
    assert "limit of time" in done.stderr
    assert (home / "launch/exit").read_text() == "1"


def machine(target: SshTarget) -> Machine:
    return Machine(target.address, f"{RUN}-1", RUN, 1)


@pytest.mark.parametrize("sent", [0, 1000, -5])
def test_launch_whose_connection_broke_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    with running_ssh_server(tmp_path / "ssh") as server:
        monkeypatch.setenv("STUDIO_SSH_COMMAND", server.command)
        target = SshTarget(f"{server.address}?python={sys.executable}")
        run = target._ssh.run

        def cut(script: str, *, stdin: bytes = b"", **named: object) -> object:
            run(script, stdin=stdin[:sent], codes=(0, 1))
            raise UnavailableError("the connection is lost")

        monkeypatch.setattr(target._ssh, "run", cut)
        job = Job(RUN, 1, "file:///nowhere", "0" * 64, secrets={"HF_TOKEN": "hf_0123456789"})
        with pytest.raises(UnavailableError):
            target.launch(job)
        monkeypatch.setattr(target._ssh, "run", run)
        assert target.find(RUN, 1) is None
        assert target.list_machines() == []


def test_launch_without_a_process_is_lost_after_two_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_ssh_server(tmp_path / "ssh") as server:
        monkeypatch.setenv("STUDIO_SSH_COMMAND", server.command)
        target = SshTarget(server.address)
        folder = tmp_path / "ssh/home/.pretrain-studio/launches" / f"{RUN}-1"
        folder.mkdir(parents=True)
        assert target.state(machine(target)).state == "starting"
        hour_ago = time.time() - 3600
        os.utime(folder, (hour_ago, hour_ago))
        assert target.state(machine(target)).state == "ended"
        assert target.list_machines() == []


@pytest.mark.parametrize("run_id", ["a;touch x", "$(touch x)", "a'b", 'a"b', "a b", "`x`", "-rf"])
def test_run_ids_are_no_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str) -> None:
    with running_ssh_server(tmp_path / "ssh") as server:
        monkeypatch.setenv("STUDIO_SSH_COMMAND", server.command)
        target = SshTarget(server.address)
        found = Machine(target.address, f"{run_id}-1", run_id, 1)
        assert target.find(run_id, 1) is None
        assert target.state(found).state == "ended"
        assert target.log(found) == ""
        target.cancel(found)
        assert not list(tmp_path.rglob("x"))


def test_names_that_leave_the_folder_of_launches_are_refused() -> None:
    target = SshTarget("ssh://nowhere")
    for run_id in ("../x", "a/b", "..", "", "a\nb"):
        with pytest.raises(StudioError, match="can't be a launch"):
            target.state(Machine(target.address, "x", run_id, 1))


def test_hostile_list_of_launches_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    target = SshTarget("ssh://nowhere")
    rows = [f"{RUN}-{'9' * 5000}\t1\trunning", "../../x-1\t1\trunning", "\x00", f"{RUN}-2\tx\t\x1b"]
    output = "\n".join(rows).encode() + b"\xff"
    monkeypatch.setattr(target._ssh, "run", lambda *_, **__: (0, output))
    assert [one.launch for one in target.list_machines()] == [2]


@pytest.mark.parametrize("answer", ["yes", "cat /dev/zero"])
def test_answer_without_end_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\nexec {answer}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("STUDIO_SSH_COMMAND", str(ssh))
    store = SshStore("ssh://nowhere/folder")
    with pytest.raises(MirrorError, match="too large"):
        store.read("one", 1000)
    with pytest.raises(MirrorError, match="too large"):
        store.download("one", tmp_path / "copy", 1000)
    assert (tmp_path / "copy").stat().st_size <= 1 << 20
    with pytest.raises(MirrorError, match="too large"):
        store._ssh.run("true", most_bytes=1 << 20)


def test_machine_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 60\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("STUDIO_SSH_COMMAND", str(ssh))
    started = time.monotonic()
    with pytest.raises(UnavailableError, match="can't be reached"):
        SshStore("ssh://nowhere/folder")._ssh.run("true", stdin=b"x" * (1 << 20), seconds=0.5)
    assert time.monotonic() - started < 30


def test_machine_without_the_named_interpreter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_ssh_server(tmp_path / "ssh") as server:
        monkeypatch.setenv("STUDIO_SSH_COMMAND", server.command)
        with pytest.raises(TargetError, match="no /missing/python on"):
            SshTarget(f"{server.address}?python=/missing/python").check()
        assert "GB of disk free" in SshTarget(f"{server.address}?python={sys.executable}").check()
