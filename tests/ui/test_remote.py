"""Runs on other machines in the Runs tab: phases, cost, limits and machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config.train import TrainConfig
from core.errors import ConfigError
from core.records.events import FolderReporter
from core.records.folder import RunFolder, RunRecord
from core.records.process import ProcessIdentity
from core.runs.client import ensure_worker
from core.store import RunRow, Store
from core.targets.ssh_target import SshTarget
from core.targets.target import Job
from core.workspace.workspace import Workspace
from tests.targets.ssh_server import SshServer, running_ssh_server
from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from ui.parts import remote
from ui.parts.run_rows import progress_of, summarize

pytestmark = pytest.mark.long

TPU = "tpu://v5e-8?zone=us-west4-a&spot=1"
USED = {"hours": 1.25, "price_per_hour": 9.6, "cost": 12.0}
# An interpreter that runs the bootstrap script and never gets its code.
SLOW_PYTHON = """#!/bin/sh
exec {python} -c '
import runpy, shutil, sys, time
shutil.copyfile = lambda *_: time.sleep(600)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
' "$@"
"""
A_PAGE_SECONDS = 60


def row(state: str = "running", reason: str = "", **fields: Any) -> RunRow:
    remote = {"target": TPU, "incarnation": 2, "launch": 3, "since": 10.0, **USED}
    values: dict[str, Any] = {
        "id": "train-1", "position": 1, "stage": "train", "name": "far", "state": state,
        "reason": reason, "config": {}, "after": [], "artifact": "", "created": 1.0, "done": 0.0,
        "note": "", "unit": "", "attempt": 1, "warnings": [], "results": {},
    }  # fmt: skip
    known = {**remote, **fields.pop("remote", {})}
    return RunRow(**{**values, **fields, "remote": known})


def test_run_of_this_machine_has_no_place(tmp_path: Path) -> None:
    assert remote.describe_remote(row(remote={})) is not None
    here = row()
    here.remote = {}
    assert remote.describe_remote(here) is None
    assert summarize(here, Workspace(tmp_path))["remote"] is None


@pytest.mark.parametrize(
    ("target", "place"),
    [
        (TPU, "Cloud TPU v5e-8"),
        ("ssh://me@box:2222?python=/a", "SSH machine box:2222"),
        ("hf://l4x1", "Hugging Face Jobs l4x1"),
        ("", "another machine"),
    ],
)
def test_place_names_kind_and_machine(target: str, place: str) -> None:
    assert remote.place_of(row(remote={"target": target, "mirror": "gs://a/b"})) == place


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, "1.25 h · $12.00"),
        ({"max_hours": 4.0}, "1.25 of 4 h · $12.00"),
        ({"max_hours": 4.0, "max_cost": 40.0}, "1.25 of 4 h · $12.00 of $40.00"),
    ],
)
def test_hours_and_cost_are_shown_with_their_limits(limits: dict[str, float], words: str) -> None:
    assert remote.spent_of(row(config=limits)) == words


def test_uploaded_bytes_are_no_progress_of_the_training(tmp_path: Path) -> None:
    sent = {"done": 120e6, "total": 510e6, "unit": "bytes"}
    uploading = row(**sent, note="uploading", remote={"phase": "uploading"})
    assert progress_of(uploading) == "120 MB of 510 MB · uploading"
    assert summarize(uploading, Workspace(tmp_path))["total"] == 510e6
    waiting = row(**sent, note="waiting for capacity", remote={"phase": "waiting for capacity"})
    assert progress_of(waiting) == "waiting for capacity"
    assert summarize(waiting, Workspace(tmp_path))["total"] is None


def test_phase_is_shown_only_while_the_run_is_active() -> None:
    known = {"phase": "training"}
    assert remote.describe_remote(row(remote=known))["phase"] == "training"
    assert remote.describe_remote(row("stopped", "saved", remote=known))["phase"] == ""
    assert not remote.describe_remote(row("stopped", "saved"))["at_limit"]
    assert remote.describe_remote(row("stopped", "limit"))["at_limit"]


def test_last_error_is_that_of_the_current_phase() -> None:
    warnings = [{"time": 20.0, "message": "refused", "alert": "unreachable", "number": 1}]
    known = {"phase": "checking", "since": 10.0}
    shown = remote.describe_remote(row(remote=known, warnings=warnings))
    assert shown and shown["error"] == {"message": "refused", "time": 20.0}
    assert shown["limit"] == 300.0
    for later in ({"since": 30.0}, {"phase": "training"}):
        shown = remote.describe_remote(row(remote={**known, **later}, warnings=warnings))
        assert shown and shown["error"] is None


def test_phases_are_listed_once_each_with_their_times(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    phases = [
        ("checking", 0, 1.0),
        ("training", 1, 2.0),
        ("training", 1, 2.0),
        ("training", 2, 9.0),
    ]
    events = [
        {"n": 1, "t": since, "kind": "remote", "phase": phase, "incarnation": number,
         "since": since, "launch": 1}
        for phase, number, since in phases
    ]  # fmt: skip
    broken = [{"n": 9, "t": 1.0, "kind": "remote", "phase": 5}, {"n": 9, "t": 1, "kind": "note"}]
    lines = [json.dumps(one, separators=(",", ":")) for one in (*events, *broken)]
    path.write_text("\n".join(lines) + "\n")
    found = remote.list_phases(path)
    assert [(one["phase"], one["incarnation"], one["since"]) for one in found] == [
        ("checking", 0, 1.0), ("training", 1, 2.0), ("training", 2, 9.0),
    ]  # fmt: skip
    assert remote.list_phases(tmp_path / "none.jsonl") == []


def test_new_limit_must_be_a_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="isn't a number"):
        remote.resume(Workspace(tmp_path), "train-1", {"max_cost": "more"})


# In a browser.


class Studio:
    """An app with runs whose processes are the test's own."""

    def __init__(self, workspace: Workspace, url: str, ssh: SshServer) -> None:
        self.workspace, self.url, self.ssh = workspace, url, ssh
        self.store = Store.open(workspace)

    def begin(self, run: str, target: str, **options: Any) -> FolderReporter:
        config = TrainConfig(shards="rows", name=run, target=target, **options)
        folder = RunFolder.of(self.workspace, run)
        folder.write_record(RunRecord(id=run, stage="train", config=config.model_dump(mode="json")))
        here = ProcessIdentity.of_this()
        folder.write_processes(run=here)
        reporter = FolderReporter(folder.path, echo=False)
        reporter.event("started", stage="train", process=here.to_json())
        self.store.add_request("register", {"run": run})
        ensure_worker(self.workspace)
        return reporter

    def end(self, run: str, reporter: FolderReporter, **fields: Any) -> None:
        folder = RunFolder.of(self.workspace, run)
        reporter.event("finished", **fields)
        reporter.close()
        folder.write_exit(0, None)
        folder.write_processes()


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    find_chromium()
    folder = tmp_path_factory.mktemp("remote")
    workspace = Workspace(folder / "workspace")
    with (
        running_ssh_server(folder / "ssh") as server,
        running_app(workspace.root, STUDIO_SSH_COMMAND=server.command) as url,
    ):
        studio = Studio(workspace, url, server)
        yield studio
        studio.store.close()


def enter(reporter: FolderReporter, phase: str, incarnation: int, launch: int) -> None:
    reporter.event(
        "remote", phase=phase, incarnation=incarnation, launch=launch, since=time.time(), **USED
    )


@pytest.mark.slow(40)
def test_phases_of_a_run_and_a_larger_limit_when_it_is_reached(studio: Studio) -> None:
    run = "train-far"
    reporter = studio.begin(run, studio.ssh.address, max_hours=2.0)
    enter(reporter, "checking", 0, 0)
    reporter.event("warning", message="the host refused", alert="unreachable")
    with visiting(studio.url, width=390) as visit:
        visitor: Visitor = visit(f"/#runs/{run}")
        place = visitor.page.locator(".ps-remote")
        visitor.see(place, "Checking", "5 min 0 s at most", "Last error", "the host refused")
        visitor.open("Home")
        visitor.see(visitor.page.locator(".ps-home-steps"), "at most", "the host refused")
        visitor.page.goto(f"{studio.url}/#runs/{run}")
        enter(reporter, "uploading", 0, 0)
        visitor.wait_for(lambda: "Uploading" in place.inner_text(), A_PAGE_SECONDS, "uploading")
        visitor.page.locator(".ps-phases-box > summary").click()
        enter(reporter, "training", 1, 1)
        enter(reporter, "preempted", 1, 1)
        visitor.wait_for(lambda: "Preempted" in place.inner_text(), A_PAGE_SECONDS, "preempted")
        visitor.see(place, "incarnation 1 · launch 1 · 1.25 of 2 h · $12.00")
        names = visitor.page.locator(".ps-phases b")
        wanted = ["Checking", "Uploading", "Training", "Preempted"]
        visitor.wait_for(lambda: names.all_inner_texts() == wanted, A_PAGE_SECONDS, "all phases")
        studio.end(run, reporter, state="stopped", reason="limit")
        resume = visitor.page.get_by_role("button", name="Resume")
        resume.first.click()
        hours = visitor.page.get_by_label("Hours at most", exact=True).filter(visible=True)
        assert hours.input_value() == "2"
        hours.fill("2,5 h")
        visitor.page.locator(".ps-question").get_by_role("button", name="Resume").click()
        visitor.page.get_by_text("The new limit isn't a number").wait_for()
        hours.fill("3")
        visitor.page.wait_for_timeout(800)
        visitor.page.locator(".ps-question").get_by_role("button", name="Resume").click()
        visitor.wait_for(
            lambda: studio.store.find_run(run).config["max_hours"] == 3.0, A_PAGE_SECONDS, "3 h"
        )
        assert visitor.errors == []


@pytest.mark.slow(40)
def test_machine_that_still_exists_is_listed_and_deleted(studio: Studio) -> None:
    run, python = "train-left", studio.workspace.root.parent / "slow-python"
    python.write_text(SLOW_PYTHON.format(python=sys.executable))
    python.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_SSH_COMMAND", studio.ssh.command)
        target = SshTarget(f"{studio.ssh.address}?python={python}")
        machine = target.launch(Job(run, 1, f"file://{studio.workspace.root}", "0" * 64))
        studio.begin(run, target.address)
        # The same host with other options.
        studio.begin("train-elsewhere", studio.ssh.address)
        with visiting(studio.url) as visit:
            visitor: Visitor = visit(f"/#runs/{run}")
            visitor.page.get_by_role("button", name="Machines", exact=True).click()
            listed = visitor.page.locator(".ps-machines li", has_text=machine.id)
            listed.get_by_role("button", name=f"Delete {machine.id}").click()
            sure = listed.get_by_role("button", name="Delete, and end its run")
            sure.click()
            visitor.page.locator(".ps-machines-list", has_text="No machine exists").wait_for()
            visitor.page.keyboard.press("Escape")
            assert not visitor.page.locator(".ps-machines").is_visible()
            assert visitor.errors == []
        assert target.state(machine).state == "ended"
