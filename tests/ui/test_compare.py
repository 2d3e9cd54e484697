"""The comparison of runs in a real browser: curves, zoom, table, CSV and link."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from core.config.train import TrainConfig
from core.store import RunRow, Store
from core.workspace.workspace import Workspace
from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from ui.parts.compare import comparison_function

pytestmark = [pytest.mark.slow(15), pytest.mark.long]
RUNS, POINTS = 10, 100_000
SECONDS = 60
# A loss that falls, with one spike of a single step.
FILL = """
INSERT INTO metrics (run_id, number, point, step, name, value, time)
WITH RECURSIVE n(p) AS (SELECT 0 UNION ALL SELECT p + 1 FROM n WHERE p + 1 < :points)
SELECT :run, p + 1, p, p + 1, 'loss',
  CASE WHEN p = :spike THEN 40.0 ELSE 3.0 + 5000.0 / (p + 1000) + (p * 7919 % 100) / 500.0 END,
  1000.0 + p / 100.0 FROM n
"""
SPIKE = 61_234
MOST_POINTS_BEFORE_THE_PAINT = 2_500
# Metrics of evaluations during the training, with values that smoothing would change.
EVALUATED = ("pairs_accuracy", "text_bits_per_byte", "random_init_eval_accuracy")
EVALUATIONS = 9
FILL_EVALUATED = """
INSERT INTO metrics (run_id, number, point, step, name, value, time)
WITH RECURSIVE n(p) AS (SELECT 0 UNION ALL SELECT p + 1 FROM n WHERE p + 1 < :points)
SELECT :run, 1000 * (p + 1), p, 1000 * (p + 1), :name, 0.5 + (p * 7 % 5) / 10.0, 1000.0 + p FROM n
"""


def run_id(number: int) -> str:
    return f"train-2026-{number:02}"


@pytest.fixture(scope="module")
def url(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    find_chromium()
    workspace = Workspace(tmp_path_factory.mktemp("compare") / "workspace")
    store = Store.open(workspace)
    for number in range(RUNS):
        add_run(store, number)
    store.close()
    with running_app(workspace.root) as url:
        yield url


def add_run(store: Store, number: int) -> None:
    config = TrainConfig(name=f"m{number}", shards="rows", seed=number).model_dump(mode="json")
    store.add_run(
        RunRow(
            id=run_id(number), stage="train", name=f"m{number}", state="done", config=config,
            after=[], created=time.time(), started=1000.0, ended=2000.0, warnings=[],
            results={"eval_loss": 2.0 + number / 10}, event_number=POINTS,
            metric_counts={"loss": POINTS, **dict.fromkeys(EVALUATED, EVALUATIONS)},
            tokens_per_step=100.0,
        )
    )  # fmt: skip
    with store.engine.begin() as connection:
        values = {"run": run_id(number), "points": POINTS, "spike": SPIKE}
        connection.execute(text(FILL), values)
        for name in EVALUATED:
            values = {"run": run_id(number), "points": EVALUATIONS, "name": name}
            connection.execute(text(FILL_EVALUATED), values)


def test_only_curves_of_training_are_smoothed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    store = Store.open(workspace)
    names = {
        "loss": False, "tokens_per_second": False, "learning_rate": False, "tokens_seen": False,
        "eval_loss": True, "eval_loss/books": True, "pairs_accuracy/island": True,
        "text_loss": True, "random_init_eval_f1": True, "random_init_loss": False,
    }  # fmt: skip
    config = TrainConfig(shards="rows").model_dump(mode="json")
    metrics = [{"number": 1, "step": 1, "name": name, "value": 0.5, "time": 1.0} for name in names]
    for run in ("train-a", "train-b"):
        store.add_run(
            RunRow(id=run, stage="train", name="", state="done", config=config, after=[],
                   created=1.0, results={}, warnings=[], remote={}, attempt=1)
        )  # fmt: skip
        store.ingest(run, metrics, [], {})
    answer = comparison_function(workspace, store)({"runs": ["train-a", "train-b"]})
    assert {one["name"]: one["dots"] for one in answer["curves"]} == names
    store.close()


def painted(visitor: Visitor) -> Any:
    """Returns the number of pixels of the first chart that are not transparent."""
    return visitor.page.evaluate("""() => {
        const canvas = document.querySelector(".ps-compare .uplot canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let at = 3; at < data.length; at += 4) count += data[at] > 0;
        return count;
    }""")


def values_of(visitor: Visitor) -> str:
    """Returns the text alternative of the first chart."""
    summary = visitor.page.locator(".ps-compare .ps-chart-data summary").first
    summary.click()
    found = visitor.page.locator(".ps-compare .ps-chart-data table").first.inner_text()
    summary.click()
    return str(found)


def test_ten_long_runs_are_painted_from_few_points_and_show_more_when_zoomed(url: str) -> None:
    runs = ",".join(map(run_id, range(RUNS)))
    with visiting(url) as visit:
        visitor: Visitor = visit(f"/?compare={runs}")
        page = visitor.page
        page.locator(".ps-compare[data-points]").wait_for()
        sent = int(page.locator(".ps-compare").get_attribute("data-points"))
        # No times: they are the machine's.
        assert RUNS < sent <= MOST_POINTS_BEFORE_THE_PAINT
        answers = page.evaluate(ANSWERS_BEFORE_THE_FIRST_PAINT)
        # What the runs are, and the points of the first chart; the state of all runs is small.
        assert len([size for size in answers if size > 2000]) == 2
        assert sum(answers) < 50 * MOST_POINTS_BEFORE_THE_PAINT
        visitor.wait_for(lambda: painted(visitor) > 1000, SECONDS, "curves are painted")
        detail = page.locator(".ps-compare[data-detail='1']")
        detail.wait_for()
        whole = values_of(visitor)
        zoom_to_spike(visitor)
        page.locator(".ps-compare[data-detail='2']").wait_for()
        shown = values_of(visitor)
        assert shown != whole and "61.2k" in shown
        page.get_by_role("button", name="Reset zoom").click()
        assert page.get_by_role("button", name="Reset zoom").is_disabled()
        assert visitor.errors == [] and visitor.outside == []


# The sizes in bytes of the answers between the opening of the comparison and its first paint.
ANSWERS_BEFORE_THE_FIRST_PAINT = """() => {
    const [{ startTime, duration }] = performance.getEntriesByName("ps-compare-first-paint");
    const answers = performance.getEntriesByType("resource").filter((one) =>
        one.name.includes("component_server") && one.startTime >= startTime
        && one.responseEnd <= startTime + duration);
    return answers.map((one) => one.decodedBodySize);
}"""


def zoom_to_spike(visitor: Visitor) -> None:
    box = visitor.page.locator(".ps-compare .u-over").first.bounding_box()
    y, middle = box["y"] + box["height"] / 2, box["x"] + box["width"] * SPIKE / POINTS
    visitor.page.mouse.move(middle - 10, y)
    visitor.page.mouse.down()
    visitor.page.mouse.move(middle + 10, y, steps=3)
    visitor.page.mouse.up()


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.thorough)])
def test_runs_are_selected_compared_by_keyboard_and_exported(url: str, width: int) -> None:
    with visiting(url, width=width, height=844, dark=width == 390) as visit:
        visitor: Visitor = visit("/#runs")
        page = visitor.page
        for number in (1, 4):
            page.get_by_label(f"Compare {run_id(number)}").press("Space")
        page.get_by_role("button", name="Compare 2").press("Enter")
        page.locator(".ps-compare .uplot").first.wait_for()
        assert f"?compare={run_id(1)},{run_id(4)}#runs" in page.url
        table = page.locator(".ps-compare-table")
        visitor.see(table, "Seed 1 4", "Validation loss 2.1 2.4")
        with page.expect_download() as download:
            page.get_by_role("button", name="Export as CSV").click()
        lines = list(csv.reader(io.StringIO(Path(download.value.path()).read_text())))
        assert [line[0] for line in lines] == ["run", run_id(1), run_id(4)]
        chart = page.locator(".ps-compare .ps-canvas").first
        chart.press("End")
        visitor.see(page.locator(".ps-compare .ps-chart").first, "at step 100,000")
        view = page.locator(".ps-compare")
        view.get_by_label("X axis").select_option("tokens")
        chart.press("End")
        visitor.see(page.locator(".ps-compare .ps-chart").first, "at 10M tokens")
        assert view.get_by_label("X axis").locator("option").all_inner_texts() == [
            "Steps", "Tokens", "Time",
        ]  # fmt: skip
        for label in ("Log x", "Log y"):
            view.get_by_label(label).check()
        view.get_by_label("Smoothing").press("ArrowRight")
        chart.press("+")
        assert view.get_by_role("button", name="Reset zoom").is_enabled()
        key = page.locator(".ps-run-key").first
        key.press("Enter")
        assert key.get_attribute("aria-pressed") == "false"
        visitor.wait_for(lambda: painted(visitor) > 500, SECONDS, "the other run is painted")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("link", name="All runs").click()
        page.locator(".ps-run-table").wait_for()
        assert "compare" not in page.url
        page.go_back()
        page.locator(".ps-compare .uplot").first.wait_for()
        assert visitor.errors == []


def test_curves_of_evaluations_have_dots_and_are_not_smoothed(url: str) -> None:
    titles = ["Accuracy on minimal pairs", "Bits per byte", "Accuracy of random weights"]
    with visiting(url) as visit:
        visitor: Visitor = visit(f"/?compare={run_id(0)},{run_id(1)}")
        page = visitor.page
        for title in titles:
            page.locator(".ps-compare .ps-chart", has_text=title).locator(".uplot").wait_for()
        slider = page.locator(".ps-compare").get_by_label("Smoothing")
        sharp = painted_charts(visitor, slider, "0")
        smooth = painted_charts(visitor, slider, "0.95")
        assert sharp.keys() == smooth.keys() and len(sharp) == 4
        changed = {title for title in sharp if sharp[title] != smooth[title]}
        assert changed == {"Training loss"}
        assert visitor.errors == []


def painted_charts(visitor: Visitor, slider: Any, smoothing: str) -> dict[str, str]:
    """Returns the pictures of the charts by title, with a smoothing."""
    slider.fill(smoothing)
    visitor.page.mouse.move(0, 0)
    found: dict[str, str] = visitor.page.evaluate("""async () => {
        await new Promise((done) => setTimeout(done, 300));
        const charts = [...document.querySelectorAll(".ps-compare .ps-chart")];
        return Object.fromEntries(charts.filter((one) => one.querySelector("canvas")).map((one) =>
            [one.querySelector(".ps-chart-title").textContent,
             one.querySelector("canvas").toDataURL()]));
    }""")
    return found


def test_link_to_an_unknown_run_says_so(url: str) -> None:
    with visiting(url) as visit:
        visitor: Visitor = visit(f"/?compare={run_id(1)},nothing-like-this")
        card = visitor.page.locator(".ps-compare .ps-error")
        card.wait_for()
        visitor.see(card, "nothing-like-this")
        visitor.page.get_by_role("link", name="All runs").click()
        visitor.page.locator(".ps-run-table").wait_for()


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.thorough)])
def test_runs_are_filtered_sorted_and_annotated(url: str, width: int) -> None:
    with visiting(url, width=width, height=844, touch=width == 390) as visit:
        visitor: Visitor = visit("/#runs")
        page = visitor.page
        shown = page.locator(".ps-run-table tbody tr:visible .ps-run-name")
        visitor.wait_for(lambda: shown.count() == RUNS, SECONDS, "all runs are listed")
        page.get_by_role("searchbox").fill("seed<4 -m2")
        visitor.wait_for(lambda: shown.count() == 3, SECONDS, "three runs fit")
        page.get_by_label("Sort").select_option("sort:eval_loss")
        visitor.wait_for(lambda: "m0" in shown.first.inner_text(), SECONDS, "the best is first")
        answer = page.locator(".ps-search-problem")
        board = page.locator(".ps-run-table")
        place = board.bounding_box()
        page.get_by_role("searchbox").fill("seed<")
        visitor.see(answer, "Not a whole filter yet")
        assert answer.locator(".ps-error").count() == 0 and board.bounding_box() == place
        page.get_by_role("searchbox").fill("sed=1")
        page.get_by_role("searchbox").press("Enter")
        visitor.see(answer, "named sed")
        for number in (width % 9, width % 9 + 1, ""):
            page.get_by_role("searchbox").fill(f"seed={number}" if number != "" else "")
            fits = "1 run fits." if number != "" else ""
            visitor.wait_for(lambda one=fits: answer.inner_text() == one, SECONDS, f"{number}")
        page.get_by_role("searchbox").fill(f"seed={width % 9}")
        visitor.wait_for(lambda: shown.count() == 1, SECONDS, "one run fits")
        shown.first.press("Enter")
        page.get_by_role("button", name="Edit").click()
        page.get_by_label("Title").fill(f"<i>{width}</i>")
        page.get_by_label("Tags").fill("small, seen")
        page.get_by_label("Notes").fill("Keep it")
        page.get_by_role("button", name="Save").click()
        head = page.locator(".ps-detail-title")
        visitor.wait_for(lambda: f"<i>{width}</i>" in head.inner_text(), SECONDS, "renamed")
        visitor.see(head, "seen", "Keep it")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert visitor.errors == []
