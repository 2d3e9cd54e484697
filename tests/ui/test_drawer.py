"""The settings of a form in a browser: groups, search, marks, and starts that aren't possible."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer
from tests.core.runs.support import stop_worker
from tests.ui.browser import START_SECONDS, Visitor, find_chromium, running_app, visiting

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("drawer") / "workspace")


@pytest.fixture(scope="module")
def address(browser: None, workspace: Workspace) -> Iterator[str]:
    find_chromium()
    with running_app(workspace.root) as url:
        yield url
    stop_worker(workspace)


@pytest.fixture(scope="module")
def visitor(address: str) -> Iterator[Visitor]:
    """One page for the tests that need no new one."""
    with visiting(address) as visit:
        yield visit()


@pytest.mark.slow(8)
def test_changed_values_are_marked_found_and_reset(visitor: Visitor) -> None:
    visitor.go("train")
    page = visitor.page
    height = "document.documentElement.scrollHeight"
    assert page.evaluate(height) <= 1600
    visitor.settle(START_SECONDS)
    page.locator("#train-view").get_by_text("Advanced", exact=True).click()
    assert page.evaluate(height) <= 2200
    dropout, seed = visitor.field("train-hidden_dropout_prob"), visitor.field("train-seed")
    assert not dropout.is_visible() and not seed.is_visible()
    page.get_by_role("button", name=re.compile("^Model: [0-9]+ more settings$")).click()
    dropout.fill("0.25")
    form = page.locator("#train")
    search = form.get_by_role("searchbox", name="Search settings")
    search.fill("INITIAL weights")  # A setting of a closed group, by its help.
    assert seed.is_visible() and not dropout.is_visible()
    form.get_by_text("1 setting", exact=True).wait_for()
    search.fill("no such setting")
    form.get_by_text("No setting matches.").wait_for()
    search.fill("")
    form.get_by_label("Only changed (1)").check()
    assert dropout.is_visible() and not visitor.field("train-size").is_visible()
    page.get_by_role("button", name="Reset Dropout to").click()
    visitor.wait_for(lambda: dropout.input_value() != "0.25", 20, "the preset's value")
    form.get_by_text("Only changed (0)").wait_for()
    # Another preset has other values; its own are no changes.
    form.get_by_label("Only changed (0)").uncheck()
    visitor.pick("train-preset", "Flax")
    batch = visitor.field("train-per_replica_batch_size")
    visitor.wait_for(lambda: batch.input_value() == "128", 20, "the preset's batch size")
    form.get_by_text("Only changed (0)").wait_for()
    visitor.pick("train-preset", "Custom")
    visitor.wait_for(lambda: batch.input_value() != "128", 20, "the default batch size")
    assert visitor.errors == []


@pytest.mark.slow(8)
def test_values_can_be_reset_in_a_tab_that_opens_late(address: str) -> None:
    with visiting(address) as visit:
        visitor: Visitor = visit()
        visitor.settle(START_SECONDS)  # Answers for forms that aren't open yet have come.
        visitor.go("train")
        visitor.page.locator("#train-view").get_by_text("Advanced", exact=True).click()
        steps = visitor.field("train-num_train_steps")
        steps.fill("50")
        visitor.page.get_by_role("button", name="Reset Steps to").click()
        visitor.wait_for(lambda: steps.input_value() == "", 20, "the preset's value")
        box = visitor.page.get_by_label("Only changed (0)")
        box.check()
        ticked = "(one) => getComputedStyle(one).backgroundImage !== 'none'"
        assert box.evaluate(ticked)
        assert visitor.errors == []


@pytest.mark.slow(8)
def test_fix_leads_to_the_setting_in_another_tab(visitor: Visitor) -> None:
    visitor.go("corpus")
    page = visitor.page
    visitor.settle(START_SECONDS)
    visitor.pick("corpus-source", "My files")
    path = visitor.field("corpus-path")
    visitor.see(page.locator("#corpus-path .ps-problem"), "No text files were given")
    # An answer about the same form, of a check that looks for something else.
    page.evaluate("studio.paint('corpus', {}, false, '', 'another check')")
    path.fill("texts/none.txt")
    page.evaluate("location.hash = 'tokenizer'")
    start = page.locator("#tokenizer-start")
    visitor.see(start, "Fix 1 setting in Data")
    start.click()
    visitor.wait_for(
        lambda: path.evaluate("(one) => one === document.activeElement"), 20, "it is there"
    )
    problem = page.locator("#corpus-path .ps-problem")
    visitor.see(problem, "workspace/texts/none.txt")
    assert visitor.errors == []


@pytest.mark.slow(8)
def test_new_artifact_is_offered_and_never_chosen_by_itself(
    address: str, workspace: Workspace
) -> None:
    make_tokenizer(workspace, "unigram")
    with visiting(address) as visit:
        visitor: Visitor = visit("/#shards")
        chosen = visitor.field("shards-tokenizer")
        visitor.wait_for(lambda: chosen.input_value() == "unigram", 30, "the only one is chosen")
        make_tokenizer(workspace, "byte_level_bpe")
        offer = visitor.page.locator("#shards-tokenizer .ps-offer")
        visitor.see(offer, "New:", "byte_level_bpe", "Use it")
        assert chosen.input_value() == "unigram"
        offer.get_by_role("button", name="Use it").click()
        visitor.wait_for(lambda: chosen.input_value() == "byte_level_bpe", 20, "it is chosen")
        offer.wait_for(state="detached")
        assert visitor.errors == []


@pytest.mark.slow(15)
def test_problem_goes_away_with_the_value_that_caused_it(visitor: Visitor) -> None:
    visitor.reload()
    visitor.go("train")
    minutes = visitor.field("train-minutes")
    problem = visitor.page.locator("#train-minutes .ps-problem")
    for wrong, right in (("0", "3"), ("-1", "5")):
        minutes.fill(wrong)
        minutes.press("Tab")
        problem.wait_for()
        # The start button asks again while it is blocked.
        visitor.page.wait_for_timeout(2500)
        minutes.fill(right)
        minutes.press("Tab")
        problem.wait_for(state="detached")
