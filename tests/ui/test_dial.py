"""The planner: suggested settings as a table and in the form, and the budget field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from core.config.train import TrainConfig
from core.errors import ConfigError, StudioError
from core.workspace.workspace import Workspace
from tests.core.training.test_trainer import make_inputs
from ui.forms import Form
from ui.parts import planner


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_inputs(tmp_path_factory.mktemp("dial"))


def suggest_of(form: Form[TrainConfig], workspace: Workspace) -> tuple[Any, dict[str, Any]]:
    """Returns the button's handler, and the planner's components by id."""
    with gr.Blocks() as page:
        form.render()
        planner.render(form, workspace)
    [handler] = [fn.fn for fn in page.fns.values() if getattr(fn.fn, "__name__", "") == "suggest"]
    return handler, {block.elem_id: block for block in page.blocks.values() if block.elem_id}


def test_suggested_settings_are_shown_and_put_into_the_form(workspace: Workspace) -> None:
    form = Form(TrainConfig, "train", workspace)
    suggest, parts = suggest_of(form, workspace)
    updates = suggest({"shards": "rows", "family": "bert"}, "tokens", "200,000")
    table = updates[parts["dial-answer"]]
    assert '<td data-label="Value">tiny</td>' in table and "It trains on 200,000 tokens" in table
    [values] = [value for key, value in updates.items() if isinstance(key, gr.JSON)]
    shown = {one.elem_id: update["value"] for one, update in form.updates_of(values).items()}
    assert shown["train-size"] == "tiny"
    assert int(shown["train-num_train_steps"]) == values["num_train_steps"] > 0
    assert updates[parts["dial-use"]]["visible"]


def test_planner_error_is_shown_and_marked(workspace: Workspace) -> None:
    form = Form(TrainConfig, "train", workspace)
    suggest, parts = suggest_of(form, workspace)
    updates = suggest({"shards": "missing"}, "tokens", "2e5")
    assert "missing" in updates[parts["dial-answer"]]
    assert "ps-error" in updates[parts["dial-answer"]]
    assert not updates[parts["dial-use"]]["visible"]
    wrong = suggest({"learning_rate": "fast"}, "tokens", "2e5")
    assert "learning_rate" in wrong[form.problems]["problems"]


@pytest.mark.parametrize(
    ("typed", "number"),
    [("2", 2), ("0.5", 0.5), ("5e8", 5e8), ("500,000 000", 5e8), (" 1,500.5 ", 1500.5)],
)
def test_budget_is_read_in_common_notations(typed: str, number: float) -> None:
    assert planner._number(typed) == number


def test_dots_group_digits_only_in_token_counts() -> None:
    assert planner._number("500.000", whole=True) == 500_000
    assert planner._number("1.500") == 1.5


@pytest.mark.parametrize("typed", ["0.4", "1.5", "2e-1"])
def test_fractional_number_of_tokens_is_refused(typed: str) -> None:
    with pytest.raises(ConfigError, match="a whole number from 1 on"):
        planner._number(typed, whole=True)


DECIMAL_COMMAS = ["0,5", "0,500", "1,5", "1000,500", "10 100,500", "1.000,5"]


@pytest.mark.parametrize(
    "typed", ["", "many", "0", "-1", "nan", "inf", None, ["2"], *DECIMAL_COMMAS]
)
def test_invalid_budget_is_refused(typed: Any) -> None:
    with pytest.raises(ConfigError, match="hours or tokens can't be used"):
        planner._number(typed)


def test_planner_command_without_an_answer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StudioError, match="gave no answer") as error:
        planner._ask(TrainConfig(), "hours", -1.0, Workspace(tmp_path))
    assert "a number above 0" in error.value.received
