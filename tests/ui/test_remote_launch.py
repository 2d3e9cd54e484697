"""A run on another machine, from the Train tab to the Playground, in a real browser."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.store import Store
from core.targets.machines import list_machines
from core.workspace.workspace import Workspace
from tests.core.runs.support import metrics_in_events
from tests.core.training.test_trainer import make_inputs
from tests.targets.homes import ssh_machine, stopped_at_the_end
from tests.targets.ssh_server import SshServer
from tests.ui.browser import Visitor, find_chromium, running_app, visiting

pytestmark = [pytest.mark.slow(120), pytest.mark.long]
STEPS = 6000
A_PAGE_SECONDS = 60
A_RUN_SECONDS = 240
FIELDS = {
    "hidden_size": "16", "num_hidden_layers": "1", "num_attention_heads": "2",
    "num_train_steps": str(STEPS), "per_replica_batch_size": "8", "eval_steps": "500",
    "save_steps": "500", "logging_steps": "20", "name": "speaker", "max_hours": "2",
}  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    find_chromium()
    workspace = make_inputs(tmp_path / "workspace")
    # The other tokenizer isn't needed, and would be suggested.
    shutil.rmtree(workspace.folder("tokenizer") / "others")
    with stopped_at_the_end(workspace):
        yield workspace


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    with ssh_machine(tmp_path, monkeypatch) as server:
        yield server


def choose_machine(visitor: Visitor, server: SshServer) -> None:
    """Chooses the machine with clicks and keys, and checks it."""
    page = visitor.page
    page.get_by_label("Add a machine", exact=True).check()
    page.get_by_label("Host", exact=True).press_sequentially(server.address.removeprefix("ssh://"))
    page.get_by_label("Interpreter", exact=True).fill(sys.executable)
    address = f"{server.address}?python={sys.executable}"
    visitor.wait_for(
        lambda: visitor.field("train-target").input_value() == address, 10, "the address"
    )
    page.get_by_label("Name", exact=True).fill("gpu-box")
    page.get_by_role("button", name="Test and save", exact=True).click()
    page.get_by_text("GB of disk free").wait_for()
    visitor.shoot("ssh-checked")


def phase(visitor: Visitor) -> str:
    """Returns the shown phase, and takes a screenshot of it if they are wanted."""
    shown = visitor.page.locator(".ps-remote .ps-phase").inner_text()
    visitor.shoot(f"ssh-{shown.lower()}")
    return str(shown)


def shown_phases(visitor: Visitor) -> list[str]:
    visitor.page.locator(".ps-phases-box > summary").click()
    listed = visitor.page.locator(".ps-phases b")
    visitor.wait_for(listed.count, A_PAGE_SECONDS, "the phases")
    return [str(text) for text in listed.all_inner_texts()]


def test_run_on_another_machine_goes_on_without_browser_and_its_model_is_used(
    workspace: Workspace, server: SshServer, tmp_path: Path
) -> None:
    store = Store.open(workspace)
    with running_app(workspace.root) as url:
        with visiting(url) as visit:
            visitor: Visitor = visit("/#train")
            choose_machine(visitor, server)
            visitor.show_all_settings("train")
            visitor.pick("train-preset", "Custom")
            for name, value in FIELDS.items():
                visitor.type(f"train-{name}", value)
            button = visitor.page.locator("#train-start")
            visitor.wait_for(
                lambda: f"{STEPS:,} steps on gpu-box" in button.inner_text(),
                A_PAGE_SECONDS,
                "the button names steps and machine",
            )
            run = visitor.start("train")
            visitor.open("Runs")
            visitor.wait_for(lambda: "Training" in phase(visitor), A_RUN_SECONDS, "it trains")
            visitor.see(visitor.page.locator(".ps-remote"), "of 2 h")
            assert visitor.errors == []
        assert store.find_run(run).state == "running"

        with visiting(url) as visit:
            visitor = visit(f"/#runs/{run}")
            loss = visitor.page.get_by_role("img", name="Loss")
            visitor.wait_for(
                lambda: "Validation" in (loss.get_attribute("aria-label") or ""),
                A_RUN_SECONDS,
                "the loss is drawn",
            )
            visitor.page.get_by_role("button", name="Machines", exact=True).click()
            visitor.page.locator(".ps-machines li", has_text=f"{run}-1").wait_for()
            visitor.shoot("ssh-machines")
            visitor.page.get_by_role("button", name="Close", exact=True).click()
            visitor.wait_for(
                lambda: store.find_run(run).has_ended, A_RUN_SECONDS, "the run has ended"
            )
            row = store.find_run(run)
            assert (row.state, row.error) == ("done", None)
            seen = shown_phases(visitor)
            for expected in ("Checking", "Uploading", "Training", "Fetching"):
                assert expected in seen, seen
            visitor.shoot("ssh-ended")
            open_model = visitor.page.get_by_role("link", name="Open in Playground")
            open_model.click()
            chosen = visitor.field("playground-model")
            wanted = FIELDS["name"]
            visitor.wait_for(
                lambda: chosen.input_value() == wanted, A_PAGE_SECONDS, "the model is chosen"
            )
            visitor.type("playground-text", "The old [MASK] walks.")
            visitor.page.locator("#playground-ask").click()
            bars = visitor.page.locator("#playground-answer .ps-predictions li")
            visitor.wait_for(lambda: bars.count() == 5, A_RUN_SECONDS, "five predictions")
            visitor.shoot("ssh-playground")
            assert visitor.errors == []
    assert list_machines(workspace) == []
    steps = [step for name, step, _ in metrics_in_events(workspace, run) if name == "loss"]
    assert steps and steps == sorted(set(steps))
    store.close()
