"""The Runs tab in a real browser: selected run, stable layout, durations and settings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from core.config.train import TrainConfig
from core.records.events import FolderReporter, read_stop
from core.records.folder import RunFolder, RunRecord
from core.records.process import ProcessIdentity
from core.runs.client import ensure_worker
from core.store import RunRow, Store
from core.workspace.workspace import Workspace
from tests.texts import write_sentences
from tests.ui.browser import Visitor, find_chromium, running_app, visiting

pytestmark = [pytest.mark.slow(9), pytest.mark.long, pytest.mark.usefixtures("browser")]
A_PAGE_SECONDS = 60


class Studio:
    """One app and its workspace, for all tests of this file."""

    def __init__(self, workspace: Workspace, url: str) -> None:
        self.workspace, self.url = workspace, url
        self.store = Store.open(workspace)

    def add_run(self, run: str, **values: Any) -> None:
        """Adds a run that has ended."""
        common: dict[str, Any] = {
            "after": [], "created": time.time(), "warnings": [], "results": {}, "config": {},
            "position": len(self.store.list_runs()) + 1,
        }  # fmt: skip
        self.store.add_run(RunRow(id=run, **{**common, **values}))

    def write_events(self, run: str, *events: tuple[float, str, dict[str, Any]]) -> None:
        """Writes a run's event log."""
        folder = RunFolder.of(self.workspace, run)
        folder.path.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps({"n": number, "t": at, "kind": kind, **fields}, separators=(",", ":"))
            for number, (at, kind, fields) in enumerate(events, start=1)
        ]
        folder.events.write_text("\n".join(lines) + "\n")

    def begin(self, run: str, config: TrainConfig) -> tuple[RunFolder, FolderReporter]:
        """Starts a run whose process is the test's own."""
        folder = RunFolder.of(self.workspace, run)
        folder.write_record(RunRecord(id=run, stage="train", config=config.model_dump(mode="json")))
        here = ProcessIdentity.of_this()
        folder.write_processes(run=here)
        reporter = FolderReporter(folder.path, echo=False)
        reporter.event("started", stage="train", process=here.to_json())
        self.store.add_request("register", {"run": run})
        ensure_worker(self.workspace)
        return folder, reporter

    def end(self, folder: RunFolder, reporter: FolderReporter, **fields: Any) -> None:
        reporter.event("finished", **fields)
        reporter.close()
        folder.write_exit(0, None)
        folder.write_processes()


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    find_chromium()
    folder = tmp_path_factory.mktemp("runs")
    workspace = Workspace(folder / "workspace")
    with running_app(workspace.root, "--allow", str(folder)) as url:
        studio = Studio(workspace, url)
        yield studio
        studio.store.close()


@pytest.fixture(scope="module")
def visitor(studio: Studio) -> Iterator[Visitor]:
    """One page for the tests that need no new one."""
    with visiting(studio.url) as visit:
        yield visit()


def shown_run(visitor: Visitor) -> str:
    return str(visitor.page.locator(".ps-detail-head").inner_text())


def wait_for_state(visitor: Visitor, state: str) -> None:
    badge = visitor.page.locator(".ps-detail-head .ps-badge").first
    visitor.wait_for(lambda: badge.inner_text().startswith(state), A_PAGE_SECONDS, state)


def control_under(visitor: Visitor, x: float, y: float) -> str:
    """Returns the text of the enabled control at a position; empty if there is none."""
    return str(
        visitor.page.evaluate(
            """([x, y]) => {
                const found = document.elementFromPoint(x, y)
                    ?.closest("button, a, summary, input, select, label");
                return !found || found.disabled ? "" : found.innerText || found.tagName;
            }""",
            [x, y],
        )
    )


def middle(locator: Any) -> tuple[float, float]:
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def row_of(visitor: Visitor, run: str) -> Any:
    return visitor.page.locator(".ps-run-table tbody tr", has_text=run)


def test_started_run_is_shown_unless_another_was_chosen_since(
    studio: Studio,
    visitor: Visitor,
) -> None:
    text = write_sentences(studio.workspace.root.parent / "sentences.txt", 200)
    studio.add_run("tokenizer-old", stage="tokenizer", name="old", state="done")
    visitor.go("runs")
    row_of(visitor, "tokenizer-old").get_by_role("button").click()
    visitor.wait_for(lambda: "tokenizer-old" in shown_run(visitor), A_PAGE_SECONDS, "chosen")
    visitor.open("Corpus")
    visitor.pick("corpus-source", "My files")
    visitor.show_all_settings("corpus")
    visitor.type("corpus-path", str(text))
    visitor.open("Tokenizer")
    visitor.type("tokenizer-vocab_size", "150")
    run = visitor.start("tokenizer")
    visitor.open("Runs")
    visitor.wait_for(lambda: run in shown_run(visitor), A_PAGE_SECONDS, "the one just started")
    row_of(visitor, "tokenizer-old").get_by_role("button").click()
    visitor.wait_for(lambda: "tokenizer-old" in shown_run(visitor), A_PAGE_SECONDS, "chosen")
    visitor.open("Tokenizer")
    visitor.open("Runs")
    visitor.page.wait_for_timeout(2500)
    assert "tokenizer-old" in shown_run(visitor)
    assert visitor.errors == []


@pytest.mark.parametrize("width", [1280, 390])
def test_second_click_on_stop_or_delete_hits_no_other_button(
    studio: Studio, visitor: Visitor, width: int
) -> None:
    run = f"train-stopped-{width}"
    folder, reporter = studio.begin(run, TrainConfig(shards="rows", name=run))
    reporter.progress(3, 10, "steps", "training")
    visitor.go(f"runs/{run}", width=width)
    wait_for_state(visitor, "running")
    stop = visitor.page.get_by_role("button", name="Stop and save")
    stop.scroll_into_view_if_needed()
    # What has just appeared ignores clicks for a moment, and may still move.
    visitor.wait_for(
        lambda: control_under(visitor, *middle(stop)) == "Stop and save", A_PAGE_SECONDS, "usable"
    )
    x, y = middle(stop)
    visitor.page.mouse.move(x, y)
    for _ in range(2):
        visitor.page.mouse.down()
        visitor.page.mouse.up()
    visitor.wait_for(lambda: read_stop(folder.stop_file), A_PAGE_SECONDS, "it is asked to stop")
    assert control_under(visitor, x, y) in ("", "Stop and save")
    studio.end(folder, reporter, state="stopped", reason="saved")
    wait_for_state(visitor, "stopped")
    for _ in range(8):
        assert control_under(visitor, x, y) == ""
        visitor.page.mouse.down()
        visitor.page.mouse.up()
        visitor.page.wait_for_timeout(150)
    assert studio.store.find_run(run).state == "stopped"
    assert visitor.page.locator(".ps-question *").count() == 0
    delete = visitor.page.locator(".ps-tools").get_by_role("button", name="Delete")
    delete.scroll_into_view_if_needed()
    x, y = middle(delete)
    visitor.page.mouse.dblclick(x, y)
    visitor.page.keyboard.press("Enter")  # Cancels.
    visitor.page.wait_for_timeout(500)
    assert studio.store.get_run(run) and not visitor.page.locator(".ps-question *").count()
    delete.click()
    sure = visitor.page.locator(".ps-question").get_by_role("button", name="Delete")
    x, y = middle(sure)
    sure.click()
    visitor.page.mouse.click(x, y)
    visitor.wait_for(lambda: not studio.store.get_run(run), A_PAGE_SECONDS, "deleted")
    visitor.page.wait_for_timeout(300)
    assert visitor.page.locator(".ps-question *").count() == 0
    assert visitor.errors == []


@pytest.mark.parametrize("by", ["touch", "mouse", "keyboard"])
def test_phone_shows_a_run_and_returns_to_the_list(studio: Studio, by: str) -> None:
    wanted = f"shards-{by}-3"
    for number in range(30):
        name = f"{by}-{number}"
        studio.add_run(f"shards-{name}", stage="shards", name=name, state="done")
    with visiting(studio.url, width=390, height=844, touch=by == "touch") as visit:
        visitor = visit("/#corpus")
        visitor.open("Runs")
        page = visitor.page
        row = row_of(visitor, wanted).get_by_role("button")
        runs, back = page.locator(".ps-run-list"), page.locator(".ps-back")

        def press(control: Any) -> None:
            if by == "keyboard":
                control.press("Enter")
            else:
                control.tap() if by == "touch" else control.click()

        def open_run() -> None:
            row.wait_for()
            press(row)
            back.wait_for()
            visitor.wait_for(lambda: wanted in shown_run(visitor), A_PAGE_SECONDS, "the run")
            assert runs.is_hidden()
            assert page.evaluate("location.hash") == f"#runs/{wanted}"
            assert 0 <= back.bounding_box()["y"] < 844
            assert is_focused(back)

        def check_list() -> None:
            row.wait_for()
            assert page.locator(".ps-detail").is_hidden()
            assert page.evaluate("location.hash") == "#runs"
            # The user continues at the run that was shown.
            assert is_focused(row) and 0 <= row.bounding_box()["y"] < 844
            assert page.evaluate("document.documentElement.scrollWidth") <= 390

        open_run()
        press(back)
        check_list()
        open_run()
        page.go_back()
        check_list()
        page.go_forward()
        back.wait_for()
        visitor.wait_for(lambda: wanted in shown_run(visitor), A_PAGE_SECONDS, "the run")
        assert runs.is_hidden()
        assert visitor.errors == []


def is_focused(locator: Any) -> bool:
    return bool(locator.evaluate("(element) => element === document.activeElement"))


def test_ended_run_of_unknown_length_has_no_progress_bar(studio: Studio, visitor: Visitor) -> None:
    for state in ("failed", "stopped", "lost"):
        values = {
            "stage": "shards",
            "name": state,
            "state": state,
            "done": 5.0,
            "unit": "documents",
        }
        studio.add_run(f"shards-{state}", **values)
    visitor.go("runs/shards-failed")
    for state in ("failed", "stopped", "lost"):
        row = row_of(visitor, f"shards-{state}")
        visitor.see(row, "5 documents")
        assert row.locator(".ps-bar").count() == 0
    assert visitor.errors == []


def test_resumed_run_shows_its_total_time_and_resolved_settings(
    studio: Studio, visitor: Visitor
) -> None:
    used = {
        "learning_rate": 0.012000000000000002, "warmup_steps": 60, "dtype_policy": "mixed_bfloat16",
        "num_train_steps": 1000, "num_train_epochs": 0.25, "per_replica_batch_size": 64,
    }  # fmt: skip
    studio.write_events(
        "train-twice",
        (10.0, "started", {}),
        (11.0, "resolved", {"settings": {**used, "learning_rate": 0.5}}),
        (70.0, "progress", {}),
        (500_000.0, "started", {}),
        (500_001.0, "resolved", {"settings": used}),
    )
    config = TrainConfig(shards="rows", per_replica_batch_size=32, num_train_steps=1000)
    studio.add_run(
        "train-twice", stage="train", name="twice", state="stopped",
        config=config.model_dump(mode="json"),
        started=500_000.0, ended=500_012.0, attempt=2,
    )  # fmt: skip
    visitor.go("runs/train-twice")
    row = row_of(visitor, "train-twice")
    visitor.wait_for(
        lambda: "took 1 min 12 s, in 2 attempts" in row.inner_text(),
        A_PAGE_SECONDS,
        "both parts",
    )
    visitor.page.locator(".ps-detail-facts summary", has_text="Settings").click()
    values = visitor.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".ps-settings dt")]
            .map((name) => [name.innerText, name.nextElementSibling.innerText]))"""
    )
    assert values["Learning rate"] == "0.012 (auto)"
    assert values["Warm-up steps"] == "60 (auto)"
    assert values["Precision"] == "mixed_bfloat16 (auto)"
    assert values["Batch size per device"] == "64 (set: 32)"
    assert values["Steps"] == "1000" and values["Epochs"] == "0.25"
    assert visitor.errors == []


def test_chart_is_named_after_the_objective_and_keeps_its_layout_when_touched(
    studio: Studio,
) -> None:
    titles = {
        "gpt2": "Next-token accuracy on validation text",
        "bert": "Accuracy on validation masks",
        "t5": "Accuracy on validation spans",
    }
    begun = {
        family: studio.begin(f"train-{family}", TrainConfig(shards="rows", family=family))
        for family in titles
    }
    for _, reporter in begun.values():
        for step in range(1, 12_001, 400):
            values = {"loss": 5.0 / step, "learning_rate": 0.012 / step, "tokens_per_second": 9e3}
            reporter.metrics(step, {**values, "eval_loss": 3.0, "frequency_baseline_loss": 4.0})
            reporter.metrics(step, {"eval_accuracy": 0.1 + step / 1e5, "eval_perplexity": 20.0})
    with visiting(studio.url, width=390, height=844, touch=True) as visit:
        visitor = visit("/#runs/train-gpt2")
        for family, title in titles.items():
            visitor.page.evaluate(f"location.hash = 'runs/train-{family}'")
            chart = visitor.page.locator(".ps-chart", has_text=title)
            visitor.see(chart, "21.6 %")
        visitor.page.locator(".ps-chart-group > summary", has_text="Speed and machine").click()
        canvases = visitor.page.locator(".ps-chart-host:not([hidden]) .ps-canvas")
        assert canvases.count() == 4
        for canvas in canvases.all():
            canvas.scroll_into_view_if_needed()
            visitor.page.wait_for_timeout(300)
            layout = """() => JSON.stringify(
                [...document.querySelectorAll(".ps-canvas")].map((one) => one.offsetTop))"""
            before = visitor.page.evaluate(layout)
            box = canvas.bounding_box()
            for share in (0.5, 0.98):
                place = (box["x"] + box["width"] * share, box["y"] + 60)
                # While the finger is down, the legend shows the values below it.
                canvas.dispatch_event(
                    "pointerdown",
                    {"clientX": place[0], "clientY": place[1], "pointerType": "touch"},
                )
                visitor.page.wait_for_timeout(100)
                visitor.see(canvas.locator("xpath=.."), "at step")
                assert visitor.page.evaluate(layout) == before
            visitor.page.touchscreen.tap(*place)
            assert visitor.page.evaluate(layout) == before
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert visitor.errors == []
    for folder, reporter in begun.values():
        studio.end(folder, reporter, state="stopped", reason="saved")


def titles_of_charts(visitor: Visitor, within: str = ".ps-detail") -> list[str]:
    """Returns the titles of the visible charts."""
    return list(
        visitor.page.evaluate(
            """(within) => [...document.querySelectorAll(`${within} .ps-chart-title`)]
                .filter((one) => one.checkVisibility()).map((one) => one.innerText)""",
            within,
        )
    )


@pytest.mark.parametrize("state", ["done", "failed"])
def test_page_of_an_ended_run_is_short_and_says_a_problem_once(
    studio: Studio, visitor: Visitor, state: str
) -> None:
    run, problem = f"train-{state}-long", "The text ended too early"
    metrics = {
        "loss": 3.0, "eval_loss": 3.0, "frequency_baseline_loss": 4.0, "learning_rate": 0.01,
        "eval_accuracy": 0.25, "eval_perplexity": 20.0, "tokens_per_second": 9000.0,
        "cpu_percent": 50.0, "memory_gib": 1.0, "epoch": 2.0, "data_wait_percent": 1.0,
    }  # fmt: skip
    error = {"problem": problem, "expected": "more text", "received": "less", "fix": "add text"}
    config = TrainConfig(shards="rows", name=run).model_dump(mode="json")
    studio.add_run(
        run, stage="train", name=run, state=state, config=config, started=0.0, ended=100.0,
        error=error if state == "failed" else None, results=metrics if state == "done" else {},
    )  # fmt: skip
    rows = [
        {"number": 1, "step": 1, "name": name, "value": value, "time": 1.0}
        for name, value in metrics.items()
    ]
    studio.store.ingest(run, rows, [], {})
    visitor.go(f"runs/{run}")
    page, detail = visitor.page, visitor.page.locator(".ps-detail")
    visitor.see(detail.locator("h3"), run)
    visitor.see(detail.locator(".ps-chart", has_text="Accuracy on validation masks"), "25.0 %")
    assert detail.get_by_text(problem).count() == (state == "failed")
    alerts = "(document.querySelector('.ps-toasts')?.offsetHeight ?? 0)"
    assert page.evaluate(f"document.documentElement.scrollHeight - {alerts}") <= 1600
    assert visitor.errors == []


@pytest.mark.slow(8)
def test_notes_being_written_stay_when_their_run_ends(studio: Studio, visitor: Visitor) -> None:
    folder, reporter = studio.begin("train-noted", TrainConfig(name="noted"))
    visitor.go("runs/train-noted")
    wait_for_state(visitor, "running")
    page = visitor.page
    page.get_by_role("button", name="Edit").click()
    notes = page.get_by_label("Notes")
    notes.fill("half a sen")
    studio.end(folder, reporter, state="stopped", reason="saved")
    wait_for_state(visitor, "stopped")
    assert notes.input_value() == "half a sen"
    notes.fill("a whole sentence")
    page.get_by_role("button", name="Save").click()
    visitor.see(page.locator(".ps-detail-title"), "a whole sentence")
    focused = "document.activeElement.textContent"
    visitor.wait_for(lambda: page.evaluate(focused) == "Edit", 20, "the focus is where it was")
    assert visitor.errors == []


@pytest.mark.parametrize("width", [1280, 390])
def test_evaluations_become_curves_while_a_run_goes_on(
    studio: Studio, visitor: Visitor, width: int
) -> None:
    run = f"train-evaluated-{width}"
    folder, reporter = studio.begin(run, TrainConfig(shards="rows", name=run))
    reporter.event("resolved", tokens_per_step=256, settings={})
    reporter.metrics(5, {"loss": 3.0})
    phenomena = ("irregular_forms", "ellipsis", "quantifiers", "binding")
    values = {
        **dict.fromkeys(("pairs_accuracy", "pairs_official_accuracy"), 0.5),
        **dict.fromkeys(("pairs_mean_over_paradigms", "pairs_mean_over_phenomena"), 0.5),
        **{f"pairs_accuracy/{name}": 0.25 for name in phenomena},
        **{f"text_{name}": 2.0 for name in ("loss", "perplexity", "bits_per_byte")},
        **{f"text_loss/{number}.txt": 2.5 for number in range(30)},
    }
    visitor.go(f"runs/{run}", width=width, height=844)
    visitor.wait_for(lambda: titles_of_charts(visitor) == ["Loss"], A_PAGE_SECONDS, "the loss")
    loss = visitor.page.locator(".ps-canvas").first
    loss.focus()
    for step in (10, 20):
        seen = {"tokens_seen": step * 256, "words_seen": step * 200}
        reporter.metrics(step, {**values, **seen, "pairs_accuracy/binding": step / 100})
    group = ".ps-chart-group[open]"
    fields = ["Morphology", "Syntax", "Semantics", "Syntax and semantics"]
    visitor.wait_for(
        lambda: titles_of_charts(visitor, group) == fields, A_PAGE_SECONDS, "phenomena"
    )
    assert titles_of_charts(visitor, ".ps-detail > div > .ps-charts") == [
        "Loss", "Accuracy on minimal pairs", "Bits per byte of held-out text",
        "Loss of held-out text", "Perplexity of held-out text",
    ]  # fmt: skip
    # Many sources are folded, in charts of a few curves each.
    folded = visitor.page.locator(".ps-chart-group", has_text="Held-out text by source")
    assert not folded.locator(".ps-chart").first.is_visible()
    folded.locator("> summary").press("Enter")
    visitor.see(folded, "Loss by source, 5 of 5")
    folded.locator(".uplot").nth(4).wait_for()
    visitor.see(visitor.page.locator(group).first, "binding 20.0 %")
    assert loss.evaluate("(one) => one.isConnected")
    visitor.page.locator(".ps-detail").get_by_label("X axis").select_option("words")
    pairs = visitor.page.locator(".ps-chart", has_text="Accuracy on minimal pairs")
    pairs.locator(".ps-canvas").press("Home")
    visitor.see(pairs, "at 2k words")
    visitor.page.locator(".ps-detail").get_by_label("X axis").select_option("step")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width
    visitor.shoot(f"evaluated-{width}")
    assert visitor.errors == []
    studio.end(folder, reporter, state="stopped", reason="saved")


def test_fine_tuning_and_random_weights_have_curves_and_evaluations_are_drawn_by_time(
    studio: Studio,
    visitor: Visitor,
) -> None:
    curves = {
        "finetune-one": ("loss", "eval_loss", "eval_accuracy", "eval_f1", "eval_matthews"),
        "evaluate-one": ("cpu_percent", "memory_gib"),
    }
    for run, names in curves.items():
        rivals = [f"random_init_{name}" for name in names if run.startswith("finetune")]
        studio.add_run(run, stage=run.partition("-")[0], name=run, state="done", started=0.0)
        rows = [
            {"number": n, "step": n, "name": name, "value": n / 9, "time": float(n)}
            for n in range(1, 9)
            for name in (*names, *rivals)
        ]
        studio.store.ingest(run, rows, [], {})
    visitor.go("runs/finetune-one")
    wanted = [f"{one}, development set" for one in ("Accuracy", "F1", "Matthews correlation")]
    visitor.wait_for(
        lambda: titles_of_charts(visitor) == ["Loss", *wanted], A_PAGE_SECONDS, "metrics"
    )
    chart = visitor.page.locator(".ps-chart", has_text="F1, development set")
    assert chart.locator(".ps-legend em").all_inner_texts() == ["This model", "Random weights"]
    assert chart.locator(".ps-legend i.dashed").count() == 1
    shares = visitor.page.locator(".ps-chart", has_text="Accuracy, development set")
    shares.locator("summary").click()
    visitor.see(shares.locator("tbody"), "11.1 %", "88.9 %")
    visitor.page.evaluate("location.hash = 'runs/evaluate-one'")
    visitor.wait_for(
        lambda: titles_of_charts(visitor) == ["Utilisation", "Memory"], A_PAGE_SECONDS, "both"
    )
    axis = visitor.page.locator(".ps-detail").get_by_label("X axis")
    assert axis.locator("option").all_inner_texts() == ["Time"]
    visitor.page.evaluate("location.hash = 'runs/finetune-one'")
    visitor.wait_for(lambda: len(titles_of_charts(visitor)) == 4, A_PAGE_SECONDS, "again")
    # Time was not the user's choice.
    assert axis.input_value() == "step"
    assert visitor.errors == []
