"""Accessibility: axe-core finds nothing serious, and nothing moves while a tab loads."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.config.train import TrainConfig
from core.store import RunRow, Store
from core.targets.saved import save_machine
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.core.sweeps.support import make_sweep
from tests.ports import free_port
from tests.ui.browser import ROOT, Visitor, find_chromium, panel_of, running_app, visiting

pytestmark = pytest.mark.long

TABS = (
    "Home", "Corpus", "Clean", "Tokenizer", "Shards", "Train", "Runs", "Sweeps", "Evaluate",
    "Fine-tune", "Playground", "Publish", "Workspace",
)  # fmt: skip
# The tabs with the most content.
OFTEN = ("Home", "Clean", "Train", "Runs")
# Buttons to press in a tab, after a choice if there is one; one of them can be missing.
MORE = {
    "Clean": (("Gopher quality rules", ""),),
    "Train": (
        ("Add a machine", "Test and save"),
        ("Cloud TPU", "Test and save"),
        ("gpu-box", "Test"),
    ),
    "Runs": (("", "Machines"),),
}
# Lighthouse calls a layout shift below this good.
MOST_SHIFT = 0.1
SHIFTS = """
() => new Promise((resolve) => new PerformanceObserver((list) =>
  resolve(list.getEntries().filter((one) => !one.hadRecentInput).map((one) => one.value))
).observe({ type: "layout-shift", buffered: true }) || setTimeout(() => resolve([]), 500))
"""
FINDINGS = """
async (place) => (await axe.run(place, { resultTypes: ["violations"] })).violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200))])
"""


def find_axe() -> str:
    """Returns the source of axe-core; skips the test with instructions if it is missing."""
    installed = ROOT / ".venv" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
    path = Path(os.environ.get("STUDIO_TEST_AXE") or installed)
    if not path.is_file():
        pytest.skip(
            "needs axe-core: `npm install --prefix .venv/axe axe-core`, or the path of "
            "axe.min.js in STUDIO_TEST_AXE"
        )
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def address(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An app with a tokenizer, a model and a run."""
    find_chromium()
    workspace = Workspace(tmp_path_factory.mktemp("access") / "workspace")
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    with workspace.new_artifact("model", "reader") as draft:
        write_checkpoint(draft.folder, tokenizer)
    store = Store.open(workspace)
    config = TrainConfig(name="reader", shards="rows").model_dump(mode="json")
    store.add_run(
        RunRow(
            id="train-reader", stage="train", name="reader", state="done", config=config,
            after=[], created=1.0, warnings=[], results={},
        )
    )  # fmt: skip
    store.close()
    make_sweep(workspace)
    save_machine(workspace, f"ssh://127.0.0.1:{free_port()}", "gpu-box", 0.0)
    with running_app(workspace.root) as url:
        yield url


@pytest.mark.slow(60)
@pytest.mark.parametrize(
    ("width", "height", "dark"),
    [
        pytest.param(1280, 900, False, id="desktop-light"),
        pytest.param(390, 844, True, id="phone-dark", marks=pytest.mark.thorough),
        pytest.param(1280, 900, True, id="desktop-dark", marks=pytest.mark.thorough),
        pytest.param(390, 844, False, id="phone-light", marks=pytest.mark.thorough),
    ],
)
def test_axe_finds_nothing_serious(address: str, width: int, height: int, dark: bool) -> None:
    axe = find_axe()
    with visiting(address, width=width, height=height, dark=dark) as visit:
        visitor: Visitor = visit()
        visitor.page.evaluate(axe)
        assert visitor.page.evaluate(FINDINGS, "body") == []
        for tab in TABS:
            visitor.open(tab)
            visitor.page.wait_for_timeout(1500)
            panel = f"#{panel_of(tab)}"
            assert visitor.page.evaluate(FINDINGS, panel) == [], tab
            for title, button in MORE.get(tab, ()):
                if title:
                    visitor.page.get_by_label(title, exact=True).check()
                if button:
                    visitor.page.get_by_role("button", name=button, exact=True).click()
                visitor.page.wait_for_timeout(1500)
                assert visitor.page.evaluate(FINDINGS, panel) == [], (tab, title)
                visitor.page.keyboard.press("Escape")


@pytest.fixture(scope="module")
def visit(address: str) -> Iterator[Any]:
    with visiting(address) as visit:
        yield visit


@pytest.mark.slow(8)
@pytest.mark.parametrize(
    ("tab", "width"),
    [
        *(one if one[0] in OFTEN else pytest.param(*one, marks=pytest.mark.thorough)
          for one in itertools.product(TABS, [1280])),
        *(one if one[0] == "Train" else pytest.param(*one, marks=pytest.mark.thorough)
          for one in itertools.product(TABS, [390])),
    ],
)  # fmt: skip
def test_nothing_moves_while_a_tab_loads(visit: Any, tab: str, width: int) -> None:
    def shift() -> float:
        visitor: Visitor = visit(f"/#{panel_of(tab).removeprefix('tab-')}")
        if width != visitor.page.viewport_size["width"]:
            visitor.page.set_viewport_size({"width": width, "height": 844})
            visitor.reload()
        visitor.page.locator(f"#{panel_of(tab)}").wait_for()
        visitor.page.wait_for_timeout(1500)
        shifts = visitor.page.evaluate(SHIFTS)
        visitor.page.close()
        return float(sum(shifts))

    # A busy machine may paint half a page first; a shift of the web app's own recurs.
    assert shift() < MOST_SHIFT or shift() < MOST_SHIFT


@pytest.mark.slow
def test_the_offline_notice_is_seen_on_a_scrolled_page(visit: Any) -> None:
    visitor: Visitor = visit("/#train")
    page = visitor.page
    page.locator("#train-start").wait_for()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.context.set_offline(True)
    offline = "document.body.classList.contains('ps-offline')"
    visitor.wait_for(lambda: page.evaluate(offline), 60, "nobody answers")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    box = page.locator(".ps-strip").bounding_box()
    assert page.evaluate("scrollY") > 0
    assert 0 <= box["y"] < page.viewport_size["height"] - box["height"]
    page.context.set_offline(False)
    page.close()


@pytest.mark.slow(8)
def test_nothing_is_called_missing_before_the_server_has_answered(visit: Any) -> None:
    visitor: Visitor = visit()
    page = visitor.page
    page.route("**/queue/join**", lambda one: None)
    page.reload()
    for tab, listed in (("Tokenizer", "#tokenizer-list"), ("Evaluate", "#evaluate-list")):
        visitor.open(tab)
        page.locator(f"{listed} .ps-skeleton").wait_for()
        assert not page.locator(f"{listed} .ps-empty").count()
    # Lets those that are held go on.
    page.unroute("**/queue/join**")
    page.locator("#evaluate-list .ps-empty").wait_for()
    visitor.open("Tokenizer")
    page.locator("#tokenizer-list table").wait_for()
    page.close()
