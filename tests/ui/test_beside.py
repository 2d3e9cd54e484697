"""An earlier version's runs: checkpoints and two models in the Playground, the log, the samples."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.artifacts.locating import find_checkpoint
from core.errors import ConfigError
from core.records.events import read_by_step
from core.records.folder import RunFolder
from core.workspace.workspace import Workspace
from tests.ui.browser import Visitor, find_chromium, running_app, visiting

ARCHIVE = Path(__file__).parents[1] / "data" / "earlier_workspace.tar.xz"
STOPPED = "train-20261125-072839-ee88"
SECONDS = 90


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("beside")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return Workspace(folder / "workspace")


@pytest.fixture(scope="module")
def url(workspace: Workspace) -> Iterator[str]:
    find_chromium()
    with running_app(workspace.root) as url:
        yield url


def test_checkpoint_is_found_by_its_reference(workspace: Workspace) -> None:
    best = find_checkpoint(f"{STOPPED}@best", workspace)
    newest = find_checkpoint(f"{STOPPED}@newest", workspace)
    assert best and newest and newest.name == "step-00000038"
    assert find_checkpoint(STOPPED, workspace) == newest
    for reference in ("a@b", "../x@best", "a", "", "owner/name@main"):
        assert find_checkpoint(reference, workspace) is None
    with pytest.raises(ConfigError):
        find_checkpoint(f"{STOPPED}@7", workspace)


def test_samples_of_steps_that_a_resumed_run_repeats_are_replaced(tmp_path: Path) -> None:
    events = [
        {"n": n, "t": float(n), "kind": "samples", "step": step, "samples": [{"text": str(n)}]}
        for n, step in [(1, 10), (2, 20), (3, 30), (4, 20)]
    ]
    lines = [json.dumps(event, separators=(",", ":")) for event in events]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    found = read_by_step(tmp_path / "events.jsonl", "samples")
    assert [(one["step"], one["samples"][0]["text"]) for one in found] == [(10, "1"), (20, "4")]


@pytest.mark.slow(30)
@pytest.mark.long
def test_best_checkpoint_answers_beside_another_model(url: str, workspace: Workspace) -> None:
    model = workspace.list("model")[0].name
    with visiting(url, width=390, height=844) as visit:
        visitor: Visitor = visit(f"/#runs/{STOPPED}")
        page = visitor.page
        page.locator(".ps-log summary").click()
        page.locator(".ps-log-tools input").fill("STEP")
        count = page.locator(".ps-log-tools [role=status]")
        visitor.wait_for(lambda: "line" in count.inner_text(), SECONDS, "the log is searched")
        log = page.locator(".ps-log pre")

        def only_steps() -> bool:
            shown = log.inner_text().splitlines()
            return bool(shown) and all("step" in line.casefold() for line in shown)

        visitor.wait_for(only_steps, SECONDS, "only lines with the word")
        with page.expect_download() as download:
            page.locator(".ps-log-tools").get_by_role("button", name="Download").click()
        written = RunFolder.of(workspace, STOPPED).log.read_text()
        assert Path(download.value.path()).read_text() == written
        page.get_by_role("link", name="Try best checkpoint").click()
        chosen = visitor.field("playground-model")
        wanted = f"{STOPPED}@best"
        visitor.wait_for(lambda: chosen.input_value() == wanted, SECONDS, "it is chosen")
        visitor.choose("playground-second", model)
        example = page.locator("#playground-examples button").first
        example.wait_for()
        example.click()
        answers = page.locator(".ps-beside-answers section")
        visitor.wait_for(lambda: answers.count() == 2, SECONDS, "both answer")
        titles = page.locator(".ps-beside-answers h4").all_inner_texts()
        assert titles == [wanted, model]
        bars = page.locator(".ps-beside-answers .ps-predictions li")
        visitor.wait_for(lambda: bars.count() == 10, SECONDS, "five predictions each")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert visitor.errors == []
