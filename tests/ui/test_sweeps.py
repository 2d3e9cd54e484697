"""The Sweeps tab: its functions, and the page in a browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.config.train import TrainConfig
from core.stages.registry import load_further_stages
from core.store import Store
from core.sweeps.client import create_sweep, parse_sweep
from core.sweeps.folder import SweepState, Trial
from core.targets import saved
from core.targets.saved import check_target, save_machine
from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker
from tests.core.sweeps.support import make_sweep
from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from ui import sweeps
from ui.parts import sweep_form
from ui.parts.stage import Forecast


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


def test_a_sweep_is_sent_once_until_it_changes(workspace: Workspace) -> None:
    folder = make_sweep(workspace)
    show = sweeps._show_function(workspace, Store.open(workspace))
    answer = show({"sweep": "rates"})
    assert answer["shown"]["best"] == 4 and answer["shown"]["tab"] == "train"
    assert answer["shown"]["titles"]["num_hidden_layers"] == "Layers"
    assert show({"sweep": "rates", "seen": answer["seen"]}) == {}
    trial = folder.read_trials()[0]
    trial.value = 1.0
    folder.write_trial(trial)
    assert show({"sweep": "rates", "seen": answer["seen"]})["shown"]["best"] == 0


@pytest.mark.parametrize("name", ["nothing", "../runs", "a/b", ""])
def test_an_unknown_sweep_is_a_problem(workspace: Workspace, name: str) -> None:
    show = sweeps._show_function(workspace, Store.open(workspace))
    assert show({"sweep": name})["problem"]["problem"]
    assert sweeps._action_function(workspace)({"sweep": name, "action": "stop"})["problem"]


@pytest.mark.parametrize(
    "text",
    [
        'base.shards = "rows"\nbase.model_config_path = "/etc/passwd"\noptions.seed = [1, 2]',
        'base.shards = "rows"\noptions.model_config_path = ["/etc/passwd", "/etc"]',
        'base.shards = "rows"\noptions.checkpoint.values = ["/etc", "/root"]',
        'base.shards = "/etc"\noptions.seed = [1, 2]',
        'base.shards = "/etc"\nbase.mixture_temperature = 2.0\noptions.mixture = ["a b", "a"]',
        'base.mixture_temperature = 2.0\noptions.mixture = ["a b", "a /etc"]',
        'base.mixture = ["a", "/etc"]\noptions.mixture_temperature = [1.5, 2.0]',
        'base.mixture = {a = 1, "/etc" = 2}\noptions.seed = [1, 2]',
        'stage = "tokenizer"\nmetric = "tokens"\ndirection = "minimize"\n'
        'base.corpus = {source = "files", path = "/etc/passwd"}\noptions.vocab_size = [300, 400]',
        'stage = "tokenizer"\nmetric = "tokens"\ndirection = "minimize"\n'
        'base.corpus = {source = "several", sources = [{name = "a", path = "/etc/passwd"}]}\n'
        "options.vocab_size = [300, 400]",
    ],
)
def test_a_visitor_names_no_path_outside_the_workspace(workspace: Workspace, text: str) -> None:
    answer = sweeps._start_function(workspace)({"text": text})
    assert "/etc" in answer["problem"]["received"] or "/etc" in answer["problem"]["problem"]
    assert not workspace.sweeps.exists()


@pytest.mark.parametrize(
    "text",
    [
        'base.mixture_temperature = 2.0\noptions.mixture = ["one two", "one three"]',
        'base.shards = "rows"\nbase.max_cost = 2.0\noptions.target = ["hf://t4-small"]',
        'stage = "finetune"\nmetric = "accuracy"\nbase.model = "one"\nbase.train_path = "{own}"\n'
        "options.learning_rates = [1e-4, 3e-4]",
    ],
)
def test_base_that_is_valid_with_options_only_is_accepted(
    workspace: Workspace, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "start_sweep", lambda *_: None)
    own = str(workspace.uploads / "a.tsv")
    save_machine(workspace, "hf://t4-small")
    monkeypatch.setattr(saved, "_ask", lambda *_: "one GPU")
    check_target(workspace, "hf://t4-small")
    answer = sweeps._start_function(workspace)({"text": text.replace("{own}", own)})
    assert answer == {"sweep": "sweep"}


def test_a_machine_without_a_passed_check_starts_no_sweep(workspace: Workspace) -> None:
    text = 'base.shards = "rows"\nbase.target = "ssh://box"\noptions.seed = [1, 2]'
    start = sweeps._start_function(workspace)
    save_machine(workspace, "ssh://box", "gpu-box")
    named = text.replace("ssh://box", "gpu-box")
    for one in (text, named):
        assert "gpu-box has not passed a check" in start({"text": one})["problem"]["problem"]
    assert not workspace.sweeps.exists()


def test_a_base_may_name_a_saved_machine_beside_the_form(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_machine(workspace, "ssh://box", "gpu-box")
    monkeypatch.setattr(saved, "_ask", lambda *_: "one GPU")
    check_target(workspace, "ssh://box")
    question = {
        "base": {"shards": "rows", "target": "gpu-box", "size": "tiny"},
        "vary": {"seed": {"values": "1, 2"}},
    }
    targets = []

    def foresee(config: TrainConfig) -> Forecast:
        targets.append(config.target)
        return Forecast("Start")

    form = SimpleNamespace(components={}, check=lambda config: targets.append(config.target))
    answer = sweep_form.compose(question, form, foresee, workspace)  # type: ignore[arg-type]
    assert "problem" not in answer, answer
    assert targets == ["ssh://box", "ssh://box"]


def test_a_wrong_text_is_a_problem_with_its_key(workspace: Workspace) -> None:
    start = sweeps._start_function(workspace)
    assert "isn't TOML" in start({"text": "a ="})["problem"]["problem"]
    answer = start({"text": 'base.shards = "rows"\noptions.seed = {min = 3, max = 1}'})
    assert "options.seed.max" in answer["problem"]["problem"]


def test_limits_that_leave_nothing_to_do_are_a_problem(workspace: Workspace) -> None:
    folder = make_sweep(workspace)
    act = sweeps._action_function(workspace)
    for limits, words in (
        ({"max_runs": 10}, "has used up max_runs"),
        ({"max_runs": 0}, "max_runs has an invalid value"),
        ({"max_runs": 20, "max_hours": 2, "seed": 3}, "has used up Hours at most"),
        ({"max_runs": None}, "max_runs has an invalid value"),
        ({"max_runs": 20, "max_cost": 3.0}, "on this machine"),
    ):
        problem = act({"sweep": "rates", "action": "resume", "limits": limits})["problem"]
        assert words in problem["problem"]
    assert folder.read_record().config.max_runs == 12
    assert folder.read_state().state == "done" and not folder.is_driven()


TOY = """
name = "toy"
stage = "toy_training"
max_runs = 1
metric = "eval_loss"
direction = "maximize"
[base]
steps = 1
[options]
learning_rate = [0.1, 0.01, 0.001]
"""


@pytest.fixture(scope="module")
def toy_address(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serves two sweeps of the toy stage that ended at their limit of runs."""
    find_chromium()
    workspace = Workspace(tmp_path_factory.mktemp("toy") / "workspace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_STAGES", "tests.core.sweeps.toy_training")
        load_further_stages()
        for name in ("mouse", "keys"):
            folder = create_sweep(workspace, parse_sweep(TOY.replace("toy", name, 1)))
            figures = {"eval_loss": 3.0}
            folder.write_trial(
                Trial(0, {"learning_rate": 0.1}, "", f"toy-{name}", "done", value=3.0,
                      figures=figures, hours=0.5)
            )  # fmt: skip
            folder.write_state(SweepState("done", "max_runs", None, time.time()))
        with running_app(workspace.root) as url:
            yield url
        stop_worker(workspace)


@pytest.mark.long
@pytest.mark.slow(15)
@pytest.mark.parametrize(("name", "width"), [("mouse", 1280), ("keys", 390)])
def test_sweep_that_ended_at_its_limit_is_resumed_with_a_larger_one(
    toy_address: str, name: str, width: int
) -> None:
    with visiting(toy_address, width=width, height=844) as visit:
        visitor: Visitor = visit(f"/#sweeps/{name}")
        page = visitor.page
        board = page.get_by_role("region", name="The selected sweep")
        page.get_by_role("heading", name=name).wait_for()
        visitor.see(board, "limit of runs", "highest validation loss")
        form = page.get_by_role("form", name="Resume with these limits")
        runs, hours = form.get_by_label("Runs at most"), form.get_by_label("Hours at most")
        assert (runs.input_value(), hours.input_value()) == ("1", "")
        assert form.get_by_label("Dollars at most").count() == 0  # It has no target.
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        resume = form.get_by_role("button", name="Resume")
        hours.fill("0.25")
        press(visitor, resume, name)
        visitor.see(board, "has used up Hours at most", "more than 0.5")
        assert hours.input_value() == "0.25"
        hours.fill("")
        runs.fill("2")
        if name == "keys":
            runs.press("Enter")
        else:
            resume.click()
        table = page.get_by_role("table", name="Trials, the best first")
        visitor.wait_for(lambda: table.get_by_role("row").count() == 3, 60, "a second trial")
        visitor.wait_for(lambda: runs.count() == 1, 120, "the sweep has ended again")
        assert runs.input_value() == "2"
        visitor.see(board, "2 of 2", "2 finished")
        assert visitor.errors == []


def press(visitor: Visitor, button: Any, way: str) -> None:
    """Presses a button with the mouse, or reaches it with the keyboard."""
    if way == "mouse":
        button.click()
        return
    for _ in range(4):
        if button.evaluate("(one) => one === document.activeElement"):
            break
        visitor.page.keyboard.press("Tab")
    visitor.page.keyboard.press("Enter")


@pytest.fixture(scope="module")
def address(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    find_chromium()
    workspace = Workspace(tmp_path_factory.mktemp("sweeps") / "workspace")
    make_sweep(workspace, "older")
    make_sweep(workspace)
    with running_app(workspace.root) as url:
        yield url
    stop_worker(workspace)


@pytest.fixture(scope="module")
def visitor(address: str) -> Iterator[Visitor]:
    """One page for the tests that need no new one."""
    with visiting(address) as visit:
        yield visit()


@pytest.mark.long
@pytest.mark.slow(8)
def test_sweep_is_composed_beside_the_train_form_and_as_text(visitor: Visitor) -> None:
    visitor.go("sweeps")
    page = visitor.page
    page.get_by_text("New sweep", exact=True).click()
    page.get_by_role("switch", name="Vary Learning rate").click()
    values = page.get_by_label("Values of Learning rate")
    values.fill("0.01, many")
    row = page.locator("[data-vary=learning_rate]")
    visitor.see(row, "a number, such as 0.1")
    values.fill("0.01, 0.02, 0.04")
    page.get_by_role("switch", name="Vary Optimizer").click()
    page.get_by_label("AdamW").check()
    # The Train form has no shards yet: the button leads there.
    visitor.see(page.locator(".ps-sweep-problem"), "hards")
    page.get_by_text("Edit as text").click()
    text = page.get_by_label("Settings in TOML")
    assert "values = [0.01, 0.02, 0.04]" in text.input_value()
    text.fill('base.shards = "rows"\noptions.learnin_rate = [1]')
    visitor.see(page.locator(".ps-sweep-problem"), '"learning_rate"')
    text.fill('base.shards = "rows"\noptions.seed = {min = 1, max = 9}')
    visitor.wait_for(
        lambda: page.get_by_label("Seed to").input_value() == "9", 20, "the row follows"
    )
    assert visitor.errors == []


@pytest.mark.long
@pytest.mark.slow(8)
def test_trials_are_listed_and_the_best_fills_in_the_form(visitor: Visitor) -> None:
    visitor.go("sweeps")
    page = visitor.page
    table = page.get_by_role("table", name="Trials, the best first")
    first = table.get_by_role("row").nth(1)
    first.wait_for()
    assert first.inner_text().split()[:2] == ["Trial", "4"]
    assert table.get_by_role("row").count() == 11
    plot = page.get_by_role("img", name="Parallel coordinates of 10 trials")
    assert plot.locator("polyline").count() == 10
    first.get_by_role("link").focus()
    assert page.locator(".ps-line.marked").get_attribute("data-trial") == "4"
    page.get_by_role("combobox", name="Sweep").select_option("older")
    page.get_by_role("heading", name="older").wait_for()
    page.get_by_role("button", name="Use the best settings in Training").click()
    visitor.wait_for(
        lambda: visitor.field("train-learning_rate").input_value() == "0.0016", 60, "filled in"
    )
    assert visitor.field("train-num_hidden_layers").input_value() == "1"
    assert visitor.errors == []


@pytest.mark.long
@pytest.mark.slow(8)
def test_a_phone_shows_the_sweep_without_overflow(address: str) -> None:
    with visiting(address, width=390, height=844, touch=True) as visit:
        page: Any = visit("/#sweeps").page
        page.get_by_role("img", name="Parallel coordinates of 10 trials").wait_for()
        page.get_by_text("New sweep", exact=True).tap()
        page.get_by_text("Edit as text").tap()
        page.get_by_label("Settings in TOML").fill("method = 1")
        page.get_by_text("method has an invalid value").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for name in ("Fix 1 setting", "Use the best settings in Training"):
            assert page.get_by_role("button", name=name).bounding_box()["height"] >= 44
