"""The web app in a real browser: complete workflows, and runs that outlive the browser."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from core.config.base import StageConfig
from core.config.push import PushConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.records.events import FolderReporter
from core.records.folder import RunFolder, RunRecord
from core.records.process import ProcessIdentity
from core.runs.client import ensure_worker
from core.runs.slots import get_slots
from core.store import RunRow, Store
from core.workspace.workspace import Workspace
from tests.core.runs.support import metrics_in_events, metrics_in_table
from tests.texts import write_sentences
from tests.ui.browser import Visitor, find_chromium, running_app, visiting

pytestmark = [pytest.mark.slow(15), pytest.mark.long, pytest.mark.usefixtures("browser")]

TABS = (
    "Home",
    "Corpus",
    "Tokenizer",
    "Shards",
    "Train",
    "Runs",
    "Playground",
    "Publish",
    "Workspace",
)
A_STAGE_SECONDS = 240
# The web app is slow if two cores run the browser, the app and a training run.
A_PAGE_SECONDS = 60
TRAINING = TrainConfig(name="speaker", shards="rows")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    find_chromium()
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def store(workspace: Workspace) -> Iterator[Store]:
    store = Store.open(workspace)
    yield store
    store.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("studio") / "workspace")


@pytest.fixture(scope="module")
def shared(home: Workspace) -> Iterator[Store]:
    """The database of one app, for the tests that start no stage."""
    store = Store.open(home)
    yield store
    store.close()


@pytest.fixture(scope="module")
def address(home: Workspace) -> Iterator[str]:
    find_chromium()
    with running_app(home.root) as url:
        yield url


@pytest.fixture(scope="module")
def visitor(address: str) -> Iterator[Visitor]:
    """One page for the tests that need no new one."""
    with visiting(address) as visit:
        yield visit()


def add_run(store: Store, **values: Any) -> None:
    """Adds a run that has ended to the database."""
    common: dict[str, Any] = {"after": [], "created": 1.0, "warnings": [], "results": {}}
    store.add_run(RunRow(**{**common, **values}))


def wait_for_run(visitor: Visitor, store: Store, run: str, *states: str) -> RunRow:
    def reached() -> RunRow | None:
        row = store.get_run(run)
        if row and row.state in ("failed", "lost"):
            raise AssertionError(f"{run} {row.state}: {row.error}")
        return row if row and row.state in states else None

    return visitor.wait_for(reached, A_STAGE_SECONDS, f"{run} is {' or '.join(states)}")


def make_tokenizer(visitor: Visitor, store: Store, text: Path) -> None:
    visitor.open("Corpus")
    visitor.pick("corpus-source", "My files")
    visitor.show_all_settings("corpus")
    visitor.page.locator("#corpus-upload input[type=file]").set_input_files(str(text))
    path = visitor.field("corpus-path")
    visitor.wait_for(
        lambda: path.input_value().endswith(text.name), A_PAGE_SECONDS, "the upload is named"
    )
    visitor.page.locator("#corpus-look").click()
    visitor.page.locator("#corpus-preview .ps-documents li").first.wait_for()
    visitor.open("Tokenizer")
    visitor.type("tokenizer-name", "words")
    visitor.type("tokenizer-vocab_size", "150")
    run = visitor.start("tokenizer")
    name = visitor.field("tokenizer-name")
    visitor.wait_for(lambda: not name.input_value(), A_PAGE_SECONDS, "the used name is gone")
    wait_for_run(visitor, store, run, "done")
    assert not visitor.page.locator("#tokenizer .ps-problem").count()


def make_shards(visitor: Visitor, store: Store) -> None:
    visitor.open("Shards")
    chosen = visitor.field("shards-tokenizer")
    visitor.wait_for(
        lambda: chosen.input_value() == "words", A_PAGE_SECONDS, "the tokenizer is suggested"
    )
    visitor.type("shards-name", "rows")
    visitor.type("shards-max_seq_length", "16")
    wait_for_run(visitor, store, visitor.start("shards"), "done")


def fill_in_training(visitor: Visitor, steps: int) -> None:
    visitor.open("Train")
    chosen = visitor.field("train-shards")
    visitor.wait_for(
        lambda: chosen.input_value() == "rows", A_PAGE_SECONDS, "the shards are suggested"
    )
    visitor.choose("train-size", "tiny")
    visitor.show_all_settings("train")
    for name, value in {
        "name": "speaker", "num_hidden_layers": "1", "hidden_size": "32",
        "num_attention_heads": "2",
        "per_replica_batch_size": "8", "num_train_steps": str(steps), "learning_rate": "0.003",
    }.items():  # fmt: skip
        visitor.type(f"train-{name}", value)


def test_workflow_from_corpus_to_filled_mask_works_through_the_tabs(
    workspace: Workspace, store: Store, tmp_path: Path
) -> None:
    text = write_sentences(tmp_path / "sentences.txt", 600)
    with running_app(workspace.root) as url, visiting(url) as visit:
        visitor = visit()
        make_tokenizer(visitor, store, text)
        see_tokens(visitor)
        make_shards(visitor, store)
        see_a_row(visitor)
        turn_the_dial(visitor)
        fill_in_training(visitor, steps=30)
        button = visitor.page.locator("#train-start")
        visitor.wait_for(
            lambda: "30 steps" in button.inner_text(), A_PAGE_SECONDS, "the button names it"
        )
        run = visitor.start("train")
        wait_for_run(visitor, store, run, "done")
        see_curves(visitor, run)
        fill_a_mask(visitor)
        assert visitor.outside == []
        assert visitor.errors == []


def see_tokens(visitor: Visitor) -> None:
    visitor.page.locator("#tokenizer-list").get_by_text("words", exact=True).wait_for()
    visitor.type("tokenizer-sentence", "The old teacher walks. <script>alert(1)</script>")
    tokens = visitor.page.locator("#tokenizer-tokens .ps-tokens span")
    visitor.wait_for(lambda: tokens.count() > 5, A_PAGE_SECONDS, "the sentence is cut")


def see_a_row(visitor: Visitor) -> None:
    masked = visitor.page.locator("#shards-row .masked")
    visitor.wait_for(lambda: masked.count() > 0, A_PAGE_SECONDS, "a row with masks")


def turn_the_dial(visitor: Visitor) -> None:
    visitor.open("Train")
    visitor.expand("dial-section")
    visitor.pick("dial-unit", "Tokens")
    visitor.type("dial-amount", "20,000")
    visitor.page.locator("#dial-suggest").click()
    suggested = visitor.page.locator("#dial-answer td:text-is('Steps') + td").inner_text()
    visitor.page.locator("#dial-use").click()
    visitor.wait_for(
        lambda: f"for {suggested} steps" in visitor.page.locator("#train-start").inner_text(),
        A_PAGE_SECONDS,
        "what was suggested is in the form",
    )


def see_curves(visitor: Visitor, run: str) -> None:
    visitor.open("Runs")
    visitor.page.get_by_role("button", name=run).click()
    loss = visitor.page.get_by_role("img", name="Loss")
    visitor.wait_for(
        lambda: "Validation" in (loss.get_attribute("aria-label") or ""),
        A_PAGE_SECONDS,
        "the loss is drawn",
    )
    assert "Unigram baseline" in loss.get_attribute("aria-label")


def fill_a_mask(visitor: Visitor) -> None:
    visitor.open("Playground")
    chosen = visitor.field("playground-model")
    visitor.wait_for(
        lambda: chosen.input_value() == "speaker", A_PAGE_SECONDS, "the model is suggested"
    )
    example = visitor.page.locator("#playground-examples button").first
    mask = "[MASK]"
    visitor.wait_for(
        lambda: mask in example.inner_text(), A_PAGE_SECONDS, "the examples have the mask token"
    )
    visitor.type("playground-text", f"The old {mask} walks.")
    visitor.page.locator("#playground-ask").click()
    bars = visitor.page.locator("#playground-answer .ps-predictions li")
    visitor.wait_for(lambda: bars.count() == 5, 120, "five predictions")
    visitor.type("playground-text", f"The {mask} teacher {mask}.")
    visitor.page.locator("#playground-ask").click()
    visitor.wait_for(lambda: bars.count() == 10, 60, "five predictions for each mask")
    visitor.type("playground-text", "There is no mask.")
    visitor.page.locator("#playground-ask").click()
    visitor.page.get_by_text("What to do:").filter(visible=True).first.wait_for()


@pytest.mark.thorough
def test_run_continues_after_its_browser_is_closed(
    workspace: Workspace, store: Store, tmp_path: Path
) -> None:
    text = write_sentences(tmp_path / "sentences.txt", 600)
    with running_app(workspace.root) as url:
        with visiting(url) as visit:
            visitor = visit()
            make_tokenizer(visitor, store, text)
            make_shards(visitor, store)
            fill_in_training(visitor, steps=200_000)
            run = visitor.start("train")
            wait_for_run(visitor, store, run, "running")
            visitor.wait_for(lambda: steps_of(store, run) > 0, A_STAGE_SECONDS, "a first step")
        seen = steps_of(store, run)
        with visiting(url) as visit:
            visitor = visit()
            visitor.wait_for(lambda: steps_of(store, run) > seen, 60, "more steps")
            see_it_run(visitor, run)
            visitor.page.get_by_role("button", name="Stop and save").click()
            row = wait_for_run(visitor, store, run, "stopped")
            visitor.page.locator(".ps-detail").get_by_text("stopped").first.wait_for()
    assert row.done > seen
    assert metrics_in_table(workspace, run) == metrics_in_events(workspace, run) != []


def steps_of(store: Store, run: str) -> float:
    row = store.get_run(run)
    return row.done if row and row.unit == "steps" else 0.0


def see_it_run(visitor: Visitor, run: str) -> None:
    """Checks that a new visitor sees the active run and that its curve grows."""
    visitor.page.locator(".ps-detail-head").get_by_text(run).wait_for()
    loss = visitor.page.get_by_role("img", name="Loss")
    visitor.wait_for(loss.is_visible, 60, "the curve")
    before = loss.get_attribute("aria-label")
    visitor.wait_for(lambda: loss.get_attribute("aria-label") != before, 60, "a grown curve")


@pytest.mark.thorough
def test_runs_are_queued_together_then_extended_cloned_exported_and_deleted(
    workspace: Workspace, store: Store, tmp_path: Path
) -> None:
    text = write_sentences(tmp_path / "sentences.txt", 600)
    with (
        running_app(workspace.root, "--allow", str(tmp_path)) as url,
        visiting(url) as visit,
    ):
        visitor = visit()
        runs = queue_all_in_one_go(visitor, text)
        for run, awaited in pairwise(reversed(runs)):
            assert store.find_run(run).after == [awaited]
        wait_for_run(visitor, store, runs[-1], "done")
        extend(visitor, store, runs[-1], steps=15)
        clone(visitor, runs[0])
        hand_over(visitor, runs[0], tmp_path)
        clear_up(visitor, workspace, "files-words-16")
        assert visitor.errors == []


def queue_all_in_one_go(visitor: Visitor, text: Path) -> list[str]:
    """Queues tokenizer, shards and training with one button; returns the ids of the runs."""
    visitor.open("Corpus")
    visitor.pick("corpus-source", "My files")
    visitor.show_all_settings("corpus")
    visitor.type("corpus-path", str(text))
    visitor.open("Tokenizer")
    visitor.type("tokenizer-name", "words")
    visitor.type("tokenizer-vocab_size", "3")
    visitor.open("Shards")
    visitor.type("shards-max_seq_length", "16")
    visitor.open("Train")
    visitor.page.locator("#tab-train").get_by_text("In the Tokenizer tab").wait_for()
    visitor.open("Tokenizer")
    visitor.type("tokenizer-vocab_size", "150")
    visitor.open("Train")
    visitor.choose("train-size", "tiny")
    visitor.type("train-num_train_steps", "10")
    visitor.page.locator("#tab-train .ps-plan").get_by_text("tokenizer of 150 tokens").wait_for()
    button = visitor.page.locator("#train-start")
    visitor.wait_for(
        lambda: "tokenizer and the shards" in button.inner_text(), A_PAGE_SECONDS, "it says so"
    )
    visitor.start("train")
    codes: list[str] = visitor.page.locator("#tab-train .ps-started code").all_inner_texts()
    assert [code.split("-")[0] for code in codes] == ["tokenizer", "shards", "train"]
    return codes


def extend(visitor: Visitor, store: Store, run: str, steps: int) -> None:
    visitor.open("Runs")
    detail = visitor.page.locator(".ps-detail")
    visitor.page.get_by_role("button", name=run).click()
    detail.get_by_role("button", name="Extend").click()
    field = detail.get_by_label("Total steps")
    assert field.input_value() == "10"
    confirm = detail.locator(".ps-extend").get_by_role("button", name="Extend")
    confirm.click()
    detail.get_by_text("extended, but not shortened").wait_for()
    field.fill(str(steps))
    confirm.click()
    visitor.wait_for(lambda: steps_of(store, run) == steps, A_STAGE_SECONDS, "more steps")
    wait_for_run(visitor, store, run, "done")


def clone(visitor: Visitor, run: str) -> None:
    visitor.open("Tokenizer")
    visitor.type("tokenizer-vocab_size", "999")
    visitor.open("Runs")
    visitor.page.get_by_role("button", name=run).click()
    visitor.page.locator(".ps-detail").get_by_role("button", name="Clone").click()
    size = visitor.field("tokenizer-vocab_size")
    visitor.wait_for(
        lambda: size.input_value() == "150", A_PAGE_SECONDS, "the run's settings in the form"
    )
    assert size.is_visible()
    assert visitor.field("tokenizer-name").input_value() == ""


def hand_over(visitor: Visitor, run: str, folder: Path) -> None:
    """Downloads a run's report and settings, and imports the settings into their form."""
    visitor.open("Runs")
    visitor.page.get_by_role("button", name=run).click()
    detail = visitor.page.locator(".ps-detail")
    with visitor.page.expect_download() as report:
        detail.get_by_role("button", name="Report").click()
    report.value.save_as(folder / "report.html")
    assert run in (folder / "report.html").read_text("utf-8")
    detail.get_by_text("Settings", exact=True).click()
    with visitor.page.expect_download() as settings:
        detail.get_by_role("button", name="Export as JSON").click()
    text = Path(settings.value.path()).read_text("utf-8").replace("150", "152")
    (folder / "settings.json").write_text(text)
    visitor.open("Workspace")
    visitor.page.locator(".ps-import input").set_input_files(str(folder / "settings.json"))
    size = visitor.field("tokenizer-vocab_size")
    visitor.wait_for(
        lambda: size.input_value() == "152", A_PAGE_SECONDS, "the file's settings in the form"
    )
    assert size.is_visible()


def clear_up(visitor: Visitor, workspace: Workspace, name: str) -> None:
    visitor.open("Workspace")
    disk = visitor.page.get_by_role("region", name="Disk usage")
    disk.get_by_text("are free").wait_for()
    disk.get_by_role("button", name=f"Delete: Shards {name}").click()
    assert workspace.list("shards")
    disk.get_by_role("button", name=f"Delete it: Shards {name}").click()
    visitor.wait_for(lambda: not workspace.list("shards"), A_PAGE_SECONDS, "the shards are gone")
    disk.get_by_text(name, exact=True).wait_for(state="detached")


def test_alert_is_shown_once_on_any_tab(home: Workspace, shared: Store, visitor: Visitor) -> None:
    folder, reporter = begin_run(home, shared, "train-by-hand")
    ensure_worker(home)
    visitor.go("corpus", width=390, height=844)
    toast = visitor.page.locator(".ps-toast")
    reporter.warn("The loss jumped to 9.9", alert="loss_spike", step=3)
    toast.get_by_text("The loss jumped").wait_for()
    # Nothing lies below it: it has a place of its own in the page.
    panel = visitor.page.locator(".ps-toasts")
    assert panel.evaluate("one => getComputedStyle(one).position") == "static"
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
    toast.get_by_role("button", name="Close").click()
    visitor.reload()
    visitor.page.wait_for_selector(".ps-strip b")
    visitor.page.wait_for_timeout(1500)
    assert toast.count() == 0
    # As Gradio shows each call that fails.
    visitor.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', `<div class='toast-body error'>"
        "<p data-testid='toast-text'>Connection errored out. </p></div>`.repeat(3))"
    )
    toast.get_by_text("too busy to answer").wait_for()
    assert toast.count() == 1
    toast.get_by_role("button", name="Close").click()
    folder.log.write_text("Traceback\nlast words of the run\n")
    folder.write_exit(3, None)
    reporter.close()
    folder.write_processes()
    toast.get_by_text("failed").wait_for()
    toast.get_by_text("See the run").click()
    toast.wait_for(state="detached")
    row = visitor.page.locator(".ps-run-table .state")
    visitor.see(row, "loss spike")
    detail = visitor.page.locator(".ps-detail")
    for words in ("The loss jumped to 9.9", "exit code 3", "last words of the run"):
        detail.get_by_text(words).first.wait_for()
    assert visitor.errors == []


def test_stop_confirmation_names_the_work_that_would_be_lost(
    home: Workspace, shared: Store, visitor: Visitor
) -> None:
    words = TokenizerConfig(name="words")
    begun = [
        begin_run(home, shared, "train-here"),
        begin_run(home, shared, "tokenizer-here", "tokenizer", words),
        begin_run(home, shared, "push-here", "push", PushConfig(model="m", repo_id="me/m")),
    ]
    ensure_worker(home)
    visitor.go("runs/train-here")
    detail = visitor.page.locator(".ps-detail")
    detail.get_by_role("button", name="Stop without saving").click()
    detail.get_by_text("The steps since the last save are lost.").wait_for()
    detail.get_by_role("button", name="Keep running", exact=True).click()
    detail.get_by_role("button", name="Stop and save").wait_for()
    visitor.page.get_by_role("button", name="tokenizer-here").click()
    detail.get_by_role("button", name="Stop", exact=True).click()
    detail.get_by_text("Resume goes on after its finished parts").wait_for()
    detail.get_by_role("button", name="Keep running", exact=True).click()
    visitor.page.get_by_role("button", name="push-here").click()
    detail.get_by_role("button", name="Stop", exact=True).click()
    detail.get_by_text("It saves nothing before its end").wait_for()
    detail.get_by_role("button", name="Keep running", exact=True).click()
    detail.get_by_role("button", name="Stop", exact=True).wait_for()
    assert visitor.errors == []
    for folder, reporter in begun:
        reporter.close()
        folder.write_exit(0, None)
        folder.write_processes()


def begin_run(
    workspace: Workspace,
    store: Store,
    run: str,
    stage: str = "train",
    config: StageConfig = TRAINING,
) -> tuple[RunFolder, FolderReporter]:
    """Starts a run whose process is the test's own."""
    folder = RunFolder.of(workspace, run)
    folder.write_record(RunRecord(id=run, stage=stage, config=config.model_dump(mode="json")))
    here = ProcessIdentity.of_this()
    folder.write_processes(run=here)
    reporter = FolderReporter(folder.path, echo=False)
    reporter.event("started", stage=stage, process=here.to_json())
    store.add_request("register", {"run": run})
    return folder, reporter


def test_number_of_concurrent_runs_is_set_in_the_web_app(shared: Store, visitor: Visitor) -> None:
    config = TrainConfig(shards="rows").model_dump(mode="json")
    add_run(shared, id="run", stage="train", name="speaker", state="done", config=config)
    visitor.go("runs")
    slots = visitor.page.get_by_label("Runs at a time")
    visitor.wait_for(
        lambda: slots.input_value() == "1", A_PAGE_SECONDS, "one, as long as nobody chose"
    )
    slots.select_option("3")
    visitor.wait_for(lambda: get_slots(shared) == 3, A_PAGE_SECONDS, "three")
    visitor.reload()
    visitor.wait_for(lambda: slots.input_value() == "3", A_PAGE_SECONDS, "three, still")


def test_run_deleted_elsewhere_disappears_from_the_table(shared: Store, visitor: Visitor) -> None:
    for name in ("kept", "deleted"):
        config = TrainConfig(name=name, shards="rows").model_dump(mode="json")
        add_run(shared, id=f"train-{name}", stage="train", name=name, state="done", config=config)
    visitor.go("runs/train-deleted")
    detail = visitor.page.locator(".ps-detail")
    detail.get_by_role("heading", name="Training deleted").wait_for()
    shared.remove_run("train-deleted")
    detail.get_by_text("The run 'train-deleted' was not found").wait_for()
    detail.get_by_role("heading", name="Training kept").wait_for()
    assert visitor.page.get_by_role("button", name="train-deleted").count() == 0
    assert visitor.errors == []


@pytest.mark.parametrize(
    "dark",
    [pytest.param(False, id="light"), pytest.param(True, id="dark", marks=pytest.mark.thorough)],
)
def test_all_tabs_fit_a_phone_screen(address: str, dark: bool) -> None:
    with visiting(address, width=390, height=844, dark=dark) as visit:
        visitor = visit()
        assert visitor.page.evaluate("document.body.classList.contains('dark')") is dark
        for tab in TABS:
            visitor.open(tab)
            visitor.page.wait_for_timeout(300)
            width = visitor.page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, tab
        assert visitor.outside == []
        assert visitor.errors == []


def test_start_button_is_reached_with_the_keyboard_alone(address: str) -> None:
    with visiting(address) as visit:
        page = visit().page
        focus_by_keyboard(page, "dataset.go", "tokenizer")
        page.keyboard.press("Enter")
        page.locator("#tokenizer-start").wait_for()
        focus_by_keyboard(page, "id", "tokenizer-start")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"


def focus_by_keyboard(page: Any, name: str, value: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(f"document.activeElement.{name}") == value:
            return
    raise AssertionError(f"{value} can't be reached with the Tab key")


def test_invalid_value_is_marked_beside_its_field(visitor: Visitor) -> None:
    visitor.go("tokenizer")
    visitor.type("tokenizer-vocab_size", "3")
    problem = visitor.page.locator("#tokenizer-vocab_size .ps-problem")
    problem.wait_for()
    visitor.see(problem, "16")
    assert visitor.field("tokenizer-vocab_size").get_attribute("aria-invalid") == "true"
    visitor.type("tokenizer-vocab_size", "300")
    problem.wait_for(state="detached")


def test_typed_values_survive_a_reload(visitor: Visitor) -> None:
    visitor.go("train")
    memory = "JSON.stringify(localStorage)"
    before = visitor.page.evaluate(memory)
    visitor.type("train-learning_rate", "0.0042")
    visitor.wait_for(lambda: visitor.page.evaluate(memory) != before, A_PAGE_SECONDS, "it is kept")
    visitor.page.wait_for_timeout(500)
    visitor.reload()
    visitor.wait_for(
        lambda: visitor.field("train-learning_rate").input_value() == "0.0042",
        A_PAGE_SECONDS,
        "recalled",
    )


def test_names_and_errors_of_a_run_are_shown_as_plain_text(shared: Store, visitor: Visitor) -> None:
    name = "<img src=x onerror=window.hacked=1>"
    config = {"name": name, "corpus": {"source": "files", "path": name}}
    add_run(
        shared, id="named", stage="tokenizer", name=name, state="failed", config=config,
        warnings=[{"time": 1.0, "message": name}],
        error={"problem": name, "expected": name, "received": "", "fix": name},
    )  # fmt: skip
    visitor.go("runs/named")
    page = visitor.page
    page.locator(".ps-detail .ps-error").wait_for()
    page.wait_for_timeout(500)
    assert page.evaluate("window.hacked") is None
    assert page.locator("#tab-runs img").count() == 0


def test_link_opens_a_run_older_than_the_listed_ones(address: str, shared: Store) -> None:
    for name in map(str, range(101)):
        config = TrainConfig(name=name, shards="rows").model_dump(mode="json")
        add_run(shared, id=f"train-{name}", stage="train", name=name, state="done", config=config)
    with visiting(address) as visit:
        visitor = visit("/#runs/train-0")
        detail = visitor.page.locator(".ps-detail")
        detail.get_by_text("train-0", exact=True).wait_for()
        # The linked run and its detail are in view, however long the list is.
        listed = visitor.page.locator(".ps-run-table tr.selected")
        where = listed.evaluate(
            "(row) => [row, row.closest('.ps-scroll')].map((one) => one.getBoundingClientRect())"
            ".map(({ top, bottom }) => [top, bottom])"
        )
        assert where[1][0] <= where[0][0] < where[0][1] <= where[1][1]
        assert visitor.page.evaluate("scrollY") == 0
        assert detail.bounding_box()["y"] < visitor.page.viewport_size["height"]
        visitor.page.evaluate("location.hash = 'runs/train-1000'")
        detail.get_by_text("The run 'train-1000' was not found").wait_for()
        assert visitor.errors == []


@pytest.mark.thorough
def test_tabbing_through_the_family_menu_changes_nothing(address: str) -> None:
    with visiting(address) as visit:
        visitor = visit("/#train")
        visitor.pick("train-preset", "Flax")
        batch = visitor.field("train-per_replica_batch_size")
        visitor.wait_for(lambda: batch.input_value() == "128", A_PAGE_SECONDS, "the preset")
        # T5 has the same batch size.
        visitor.type("train-per_replica_batch_size", "32")
        visitor.field("train-family").focus()
        visitor.page.keyboard.press("Tab")
        visitor.settle(A_PAGE_SECONDS)
        assert batch.input_value() == "32"
        visitor.choose("train-family", "GPT-2")
        visitor.wait_for(lambda: batch.input_value() == "64", A_PAGE_SECONDS, "the family's own")
        assert visitor.errors == []


def test_malformed_address_opens_the_web_app(address: str) -> None:
    with visiting(address) as visit:
        visitor = visit("/#runs/100%")
        visitor.page.wait_for_timeout(2500)
        assert not visitor.page.evaluate("document.body.classList.contains('ps-offline')")
        assert visitor.errors == []


def test_server_errors_are_distinguished_from_an_unreachable_server(visitor: Visitor) -> None:
    asked = "**/component_server/**"
    visitor.go("runs")
    page = visitor.page
    offline = "document.body.classList.contains('ps-offline')"
    problem = page.get_by_text("The studio has a problem; its log says more.")
    page.route(asked, lambda route: route.fulfill(status=500, json={"detail": "a bug"}))
    problem.wait_for()
    assert not page.evaluate(offline)
    page.unroute(asked)
    problem.wait_for(state="detached")
    page.context.set_offline(True)
    visitor.wait_for(lambda: page.evaluate(offline), A_PAGE_SECONDS, "nobody answers")
    assert problem.count() == 0
    page.context.set_offline(False)
    # Gradio may load the page again.
    page.wait_for_function(f"!{offline}", timeout=1000 * A_PAGE_SECONDS)
