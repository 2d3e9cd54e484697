"""Tests how Kaggle is asked by its stock client, and what its answers become."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.errors import ConfigError, StudioError
from core.runs.client import submit
from core.targets import kaggle_client, kaggle_session, kaggle_target
from core.targets.code import pack_code
from core.targets.errors import MirrorError, TargetError, UnavailableError
from core.targets.kaggle_target import KaggleTarget
from core.targets.machines import _lister_of
from core.targets.mirror import RunMirror
from core.targets.opening import open_store
from core.targets.schema import Input, InputFile, RunSpec
from core.targets.target import Job, Machine, open_target
from core.workspace.workspace import Workspace
from tests.core.runs.support import wait_for
from tests.targets.kaggle_server import KaggleServer
from tests.targets.test_launching import config

pytest.importorskip("kaggle", reason="pip install -c constraints.txt -r requirements-kaggle.txt")
KEY = "0123456789abcdef" * 2
TPU = "kaggle://TpuV5E8"
RUN = "train-20260101-000000-abcd"
HOSTILE = 'x"""\nimport os; os._exit(9) #\\'


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KaggleServer]:
    with KaggleServer("ada", KEY, {"STUDIO_MACHINE_PYTHON": sys.executable}) as server:
        environment = {**server.client_environment(), "HOME": str(tmp_path / "user")}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("KAGGLE_USERNAME", "ada")
        monkeypatch.setenv("KAGGLE_KEY", KEY)
        yield server
        assert server.unknown_requests == []


def described(blob: bytes, **values: Any) -> tuple[Job, str]:
    """Writes a run with one input into the mirror; returns its job and the input's hash."""
    target = open_target(TPU)
    root = target.mirror_root("")
    store = open_store(root.here)
    sha256 = kaggle_session.hashlib.sha256(blob).hexdigest()
    code = pack_code()
    store.write(f"blobs/{sha256}", blob)
    store.write(f"blobs/{code.sha256}", code.data)
    file = InputFile(name="a.txt", bytes=len(blob), sha256=sha256)
    needed = Input(field="model_config_path", name="file.json", files=(file,))
    spec = RunSpec(id=RUN, stage="train", config=values, created=time.time(), inputs=(needed,))
    digest = RunMirror(store, RUN).write_spec(spec)
    return Job(RUN, 1, root.there, code.sha256, digest), sha256


@pytest.mark.parametrize(
    "address",
    [
        "kaggle://",
        "kaggle://TpuV38",
        "kaggle://TpuV5E8?hours=10",
        "kaggle://TpuV5E8?hours=nan",
        "kaggle://TpuV5E8?image=x",
        "kaggle://TpuV5E8/x",
    ],
)
def test_address_that_is_no_session_is_refused_before_it_is_queued(
    address: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        submit(Workspace(tmp_path), "train", config(address, "model"))
    assert raised.value.field == "target" and "NvidiaTeslaT4" in raised.value.expected


def test_missing_client_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "kaggle" else find(name, *a)
    )
    with pytest.raises(ConfigError, match=r"requirements-kaggle\.txt"):
        open_target(TPU)


def test_a_mirror_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave it empty"):
        open_target(TPU).mirror_root("hf://buckets/ada/studio")


@pytest.mark.slow(20)
def test_check_shows_the_quota_and_refuses_without_one(server: KaggleServer) -> None:
    server.hours["tpuQuota"] = [6.5, 20.0]
    assert open_target(TPU).check() == "TpuV5E8 on Kaggle as ada, 13.5 hours of TPU left this week"
    server.hours["tpuQuota"] = [19.8, 20.0]
    with pytest.raises(TargetError, match=r"0\.2 of 20\.0 hours left.*resume the run when") as used:
        open_target(TPU).check()
    assert not isinstance(used.value, UnavailableError)
    assert open_target("kaggle://cpu").check() == "cpu on Kaggle as ada"


@pytest.mark.slow(20)
@pytest.mark.parametrize("login", ["none", "wrong key", "expired token"])
def test_login_that_does_not_hold_is_explained(
    login: str, server: KaggleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if login != "wrong key":
        monkeypatch.delenv("KAGGLE_KEY")
    monkeypatch.setenv("KAGGLE_USERNAME", "ada")
    if login == "wrong key":
        monkeypatch.setenv("KAGGLE_KEY", "f" * 32)
    if login == "expired token":
        monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_" + "f" * 32)
    with pytest.raises(TargetError, match="KAGGLE_API_TOKEN") as raised:
        open_target(TPU).check()
    assert "f" * 32 not in str(raised.value)


@pytest.mark.slow(20)
def test_token_of_the_new_kind_is_used(
    server: KaggleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tokens.add("KGAT_1815")
    monkeypatch.delenv("KAGGLE_KEY")
    monkeypatch.delenv("KAGGLE_USERNAME")
    monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_1815")
    assert "as ada" in open_target(TPU).check()


@pytest.mark.slow(20)
@pytest.mark.parametrize(
    ("statuses", "kind"), [((429, 503), UnavailableError), ((403,), TargetError)]
)
def test_failures_of_a_launch_are_told_apart_and_leave_nothing_running(
    statuses: tuple[int, ...], kind: type[StudioError], server: KaggleServer
) -> None:
    job, _ = described(b"x")
    is_refused = kind is TargetError
    for status in statuses:
        server.fail("SaveKernel", status)
        with pytest.raises(kind) as raised:
            open_target(TPU).launch(job)
        assert type(raised.value) is kind
        assert ("phone number" in str(raised.value)) == is_refused
        assert server.kernels == {} and open_target(TPU).find(RUN, 1) is None
    # Its datasets are there already, unless Kaggle has refused the session.
    uploads = server.requests.count("CreateDataset") + is_refused
    assert uploads == 2 + is_refused
    target = open_target(TPU)
    machine = target.launch(job)
    assert server.requests.count("CreateDataset") == uploads
    assert target.find(RUN, 1) is not None
    target.cancel(machine)
    target.cancel(machine)
    assert server.kernels == {} and len(server.datasets) == 1


@pytest.mark.slow(20)
def test_taken_name_is_refused(server: KaggleServer) -> None:
    job, _ = described(b"x")
    target = open_target(TPU)
    machine = target.launch(job)
    with pytest.raises(TargetError, match="already in use"):
        target.launch(job)
    target.cancel(machine)


@pytest.mark.slow(20)
def test_script_is_the_same_for_each_run_whatever_its_settings_are(server: KaggleServer) -> None:
    job, blob = described(HOSTILE.encode(), name=HOSTILE, checkpoint=HOSTILE)
    target = open_target("kaggle://cpu")
    machine = target.launch(job)
    kernel = server.kernels[machine.id]
    assert kernel.request["text"] == Path(kaggle_session.__file__).read_text("utf-8")
    told = json.dumps({name: value for name, value in kernel.request.items() if name != "text"})
    assert "os._exit(9)" not in told and "dockerImage" not in told
    assert "machineShape" not in told and '"isPrivate": true' in told
    wait_for(lambda: target.state(machine).state == "ended" or kernel.job.ended)
    assert kernel.job.process is not None and kernel.job.process.returncode != 9
    assert (kernel.root / "home" / "blobs" / blob).read_bytes() == HOSTILE.encode()
    assert all(dataset.request["isPrivate"] for dataset in server.datasets.values())
    target.cancel(machine)


@pytest.mark.slow(5)
def test_session_asks_the_program_to_save_before_its_limit_of_time(tmp_path: Path) -> None:
    program = """
import pathlib, signal, sys
events = pathlib.Path(sys.argv[-1].removeprefix("file://"), "runs/r/incarnations/000001/events")
events.mkdir(parents=True)
(events / "000000.jsonl").write_text("{}")
signal.sigwait({signal.SIGTERM})
sys.exit(75)
"""
    session = json.dumps({"arguments": [], "blobs": [], "seconds": 1})
    (tmp_path / "input").mkdir()
    (tmp_path / "working").mkdir()
    with tarfile.open(tmp_path / "input" / "studio-session", "w") as archive:
        for name, text in (("session.json", session), ("bootstrap.py", program)):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, BytesIO(text.encode()))
    home = {"STUDIO_KAGGLE_ROOT": str(tmp_path), "STUDIO_MACHINE_HOME": str(tmp_path / "home")}
    # The program must block the signal from its start on, or it would end by it.
    ended = subprocess.run(
        [sys.executable, "-I", kaggle_session.__file__],
        env={**os.environ, **home},
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    name = "runs/r/incarnations/000001/events/000000.jsonl"
    assert f"{kaggle_session.SHOWN} {name} " in ended.stdout
    with tarfile.open(tmp_path / "working" / "studio-mirror") as archive:
        assert archive.getnames() == [name]


@pytest.mark.slow(20)
def test_inputs_that_were_changed_on_kaggle_are_refused(server: KaggleServer) -> None:
    job, blob = described(b"x")
    target = open_target("kaggle://cpu")
    first = target.launch(job)
    target.cancel(first)
    (inputs,) = server.datasets.values()
    inputs.files[blob] = b"y"
    machine = target.launch(job)
    wait_for(lambda: server.kernels[machine.id].job.ended)
    assert f"has another content of {blob}" in server.kernels[machine.id].job.text
    target.cancel(machine)


def state_after_tries(machine: Machine) -> str:
    """Asks again while the output can't be read, as a launcher does."""
    target = KaggleTarget("kaggle://cpu")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="output can't be fetched"):
            target.state(machine)
    return target.state(machine).state


@pytest.mark.slow(20)
def test_page_of_an_error_is_no_output(server: KaggleServer) -> None:
    job, _ = described(b"x")
    target = open_target("kaggle://cpu")
    machine = target.launch(job)
    wait_for(lambda: server.kernels[machine.id].job.ended)
    server.fail("output", 503)
    with pytest.raises(UnavailableError, match="output can't be fetched"):
        target.state(machine)
    assert target.state(machine).state == "ended"
    target.cancel(machine)


def sparse_archive() -> bytes:
    """An archive with a file of the old sparse format, which claims a terabyte."""
    header = bytearray(tarfile.TarInfo("runs/x/a").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"%011o\0%011o\0" % (0, 0)
    header[483:495] = b"%011o\0" % (8 << 30 >> 3)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


@pytest.mark.parametrize("data", [b"", b"<html>", b"\xff" * 2048, sparse_archive()])
def test_output_that_is_damaged_or_claims_too_much_writes_nothing(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, seconds: float, *, folder: str, **_: Any) -> None:
        Path(folder, "studio-mirror").write_bytes(data)

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(kaggle_target, "_request", fetch)
    with suppress(MirrorError):
        kaggle_target._fetch_output(Machine(TPU, "ada/studio-x-1", "x", 1))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_mirror_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".pretrain-studio" / "kaggle"
    folder.mkdir(parents=True)
    open_target(TPU).mirror_root("")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_lines_of_a_cut_log_keep_their_numbers() -> None:
    assert kaggle_client._cut("one\ntwo\nthree\n", 8) == "\no\nthree\n"
    assert kaggle_client._cut("one\n", 8) == "one\n"


def test_short_reading_of_a_log_repeats_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    target = KaggleTarget(TPU)
    for text in ("one\ntwo\n", "one\n", "one\ntwo\nthree\n"):
        target._read_log(RUN, text)
    assert target._log == ["one", "two", "three"]


def test_only_sessions_of_runs_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["ada/studio-tour", f"ada/studio-{RUN}", f"ada/studio-{RUN}-2", "ada/studio-x-1"]

    def list_active(_: str, *, prefix: str, pattern: str) -> dict[str, str]:
        monkeypatch.setattr(kaggle_client, "_own_kernels", lambda *_: names)
        running = SimpleNamespace(status=SimpleNamespace(name="RUNNING"))
        monkeypatch.setattr(kaggle_client, "_kernel_status", lambda *_: running)
        return kaggle_client._list_active(None, prefix, pattern)

    monkeypatch.setattr(kaggle_target, "_request", list_active)
    assert [(one.run_id, one.launch) for one in open_target(TPU).list_machines()] == [(RUN, 2)]
    assert _lister_of(TPU) == _lister_of("kaggle://cpu?hours=3")


def test_time_of_a_session_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"status": "RUNNING", "message": "", "log": ""}
    monkeypatch.setattr(kaggle_target, "_request", lambda *_, **__: answer)
    machine = Machine("kaggle://cpu?hours=2", "ada/studio-x-1", RUN, 1, time.time() - 86_400)
    assert open_target(machine.target).state(machine).seconds == 7200


@pytest.mark.slow(20)
def test_output_writes_only_into_the_mirror_of_its_run(
    server: KaggleServer, tmp_path: Path
) -> None:
    job, _ = described(b"x")
    target = KaggleTarget("kaggle://cpu")
    machine = target.launch(job)
    kernel = server.kernels[machine.id]
    wait_for(lambda: kernel.job.ended)
    names = [f"runs/{RUN}/incarnations/000001/exit.json", "runs/other/claims/000001.json"]
    with tarfile.open(kernel.output / "studio-mirror", "w") as archive:
        for name in [*names, f"runs/{RUN}/../../escaped"]:
            entry = tarfile.TarInfo(name)
            entry.size = 2
            archive.addfile(entry, BytesIO(b"{}"))
        link = tarfile.TarInfo(f"runs/{RUN}/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert state_after_tries(machine) == "ended"
    mirror = tmp_path / "user" / ".pretrain-studio" / "kaggle"
    written = {path.relative_to(mirror).as_posix() for path in mirror.rglob("*") if path.is_file()}
    assert names[0] in written
    # The session's own objects come with its log.
    assert not {names[1], f"runs/{RUN}/link"} & written
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.slow(20)
def test_deleted_kernel_has_ended_on_purpose(server: KaggleServer) -> None:
    status = open_target(TPU).state(Machine(TPU, "ada/studio-x-1", RUN, 1))
    assert (status.state, status.is_cancelled) == ("ended", True)
