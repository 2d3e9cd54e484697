"""Keyboard navigation, browser history and help texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from core.config.corpus import CorpusConfig
from core.stages.registry import STAGES
from core.workspace.workspace import Workspace
from tests.ui.browser import Visitor, find_chromium, running_app, visiting

pytestmark = [pytest.mark.slow(8), pytest.mark.long, pytest.mark.usefixtures("browser")]

FOCUSED = "document.activeElement.id || document.activeElement.value"
RING = """
() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
}
"""
HELPS = """
(form) => Object.fromEntries([...document.querySelectorAll(`[id^="${form}-"].ps-field .info-text`)]
  .map((node) => [node.closest("[id]").id, node.textContent + node.querySelectorAll("*").length]))
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    find_chromium()
    workspace = Workspace(tmp_path_factory.mktemp("keyboard") / "workspace")
    with running_app(workspace.root) as url:
        yield url


@pytest.fixture(scope="module")
def visitor(address: str) -> Iterator[Visitor]:
    """One page for the tests that need no new one."""
    with visiting(address) as visit:
        yield visit()


def press(page: Any, *keys: str) -> Any:
    for key in keys:
        page.keyboard.press(key)
        page.wait_for_timeout(30)
    return page.evaluate(FOCUSED)


def test_a_menu_closes_when_focus_leaves_it(visitor: Visitor) -> None:
    visitor.open("Train")
    menu, listed = (
        visitor.field("train-family"),
        visitor.page.locator("#train-family [role=option]"),
    )
    for leave in ("Tab", "Shift+Tab"):
        menu.focus()
        listed.first.wait_for()
        press(visitor.page, "ArrowDown", "ArrowDown", leave)
        visitor.wait_for(lambda: not listed.count(), 20, f"the menu closes after {leave}")
        assert menu.get_attribute("aria-expanded") == "false"
    for _ in range(2):
        menu.click()
        listed.first.wait_for()
        press(visitor.page, "Escape")
        visitor.wait_for(lambda: not listed.count(), 20, "the menu closes after Escape")
    menu.click()
    listed.first.wait_for()
    visitor.page.locator(".ps-top").click()
    visitor.wait_for(lambda: not listed.count(), 20, "the menu closes after a click")
    assert visitor.errors == []


def test_help_texts_are_shown_as_they_are_written(visitor: Visitor) -> None:
    models = {"corpus": CorpusConfig} | {name: stage.config for name, stage in STAGES.items()}
    for tab, form, stage in (
        ("Corpus", "corpus", "corpus"),
        ("Tokenizer", "tokenizer", "tokenizer"),
        ("Train", "train", "train"),
        ("Publish", "publish", "push"),
    ):
        visitor.open(tab)
        visitor.page.locator(f"#{form}-view").wait_for()
        shown = visitor.page.evaluate(HELPS, form)
        fields = models[stage].model_fields
        expected = {
            f"{form}-{name}": f"{field.description}0"
            for name, field in fields.items()
            if f"{form}-{name}" in shown
        }
        assert len(shown) > 5
        assert shown == expected
    assert "data/*.txt" in visitor.page.locator("#corpus-path").text_content()


def test_more_help_opens_by_mouse_touch_and_keyboard(address: str, visitor: Visitor) -> None:
    with visiting(address, touch=True) as visit:
        for visited, by_touch in ((visitor, False), (visit("/#train"), True)):
            page = visited.page
            visited.open("Train")
            button = page.get_by_role("button", name="More about Size")
            more = page.locator("#train-size-more")
            assert button.get_attribute("aria-expanded") == "false" and not more.is_visible()
            button.tap() if by_touch else button.click()
            assert button.get_attribute("aria-expanded") == "true"
            visited.see(more, "24x1024")
            button.focus()
            page.keyboard.press("Enter")
            assert not more.is_visible()
            page.keyboard.press("Space")
            assert more.is_visible()
            assert visited.errors == []


def test_only_the_chosen_option_is_explained(visitor: Visitor) -> None:
    visitor.open("Shards")
    explained = visitor.page.locator("#shards-preset .ps-option-help")
    fitted = "Fitted: a sequence length that follows from the text."
    assert explained.inner_text() == fitted
    visitor.pick("shards-preset", "Custom")
    visitor.wait_for(
        lambda: explained.inner_text() == "Custom: default values.", 20, "the choice's own"
    )
    visitor.open("Train")
    family = visitor.page.locator("#train-family .ps-option-help")
    visitor.choose("train-family", "T5")
    visitor.wait_for(lambda: family.inner_text().startswith("T5: "), 20, "the family's own")
    assert visitor.errors == []


def test_a_group_of_radio_buttons_is_one_stop_with_arrow_keys_inside(visitor: Visitor) -> None:
    visitor.open("Shards")
    page = visitor.page
    page.locator("#shards-preset input[value=classic]").focus()
    assert press(page, "ArrowRight") == "flax"
    length = visitor.field("shards-max_seq_length")
    visitor.wait_for(lambda: length.input_value() == "128", 20, "the preset is filled in")
    assert press(page, "ArrowRight", "ArrowRight") == "fitted", "from the last to the first"
    assert press(page, "ArrowLeft") == "custom"
    press(page, "Tab")
    assert not page.evaluate("document.activeElement.closest('#shards-preset')")
    # Shift+Tab enters the group at the chosen button.
    assert press(page, "Shift+Tab") == "custom"
    assert page.get_by_role("radiogroup", name="Preset").first.is_visible()
    assert visitor.errors == []


@pytest.mark.parametrize("kind", ["radio", "checkbox"])
@pytest.mark.thorough
def test_focused_control_has_a_ring(address: str, kind: str) -> None:
    with visiting(address) as visit:
        visitor: Visitor = visit("/#publish")
        for _ in range(60):
            press(visitor.page, "Tab")
            if visitor.page.evaluate("document.activeElement.type") == kind:
                break
        assert visitor.page.evaluate("document.activeElement.type") == kind
        assert visitor.page.evaluate(RING)


def test_content_and_menu_are_reached_with_the_keyboard(address: str) -> None:
    with visiting(address) as visit:
        visitor: Visitor = visit("/#shards")
        page = visitor.page
        page.locator("#shards-start").wait_for()
        press(page, "Tab", "Enter")
        assert page.evaluate("document.activeElement.id") == "tab-shards", "the way past the links"
        page.locator(".ps-menu > summary:visible").focus()
        press(page, "Enter", "Tab")
        assert page.evaluate("document.activeElement.dataset.go") == "workspace"
        press(page, "Escape")
        assert not page.locator(".ps-menu[open]").count()
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        press(page, "Enter", "Tab", "Enter")
        page.get_by_text("Import settings").first.wait_for()
        assert not page.locator(".ps-menu[open]").count()
        assert visitor.errors == []


def test_back_and_forward_go_through_the_visited_tabs(address: str) -> None:
    with visiting(address) as visit:
        visitor: Visitor = visit("/")
        page = visitor.page
        visitor.open("Tokenizer")
        visitor.open("Train")
        page.locator("[data-go=corpus]:visible").first.click()
        page.locator("#tab-corpus").wait_for()
        for go, tab in (
            *((page.go_back, tab) for tab in ("train", "tokenizer", "home")),
            *((page.go_forward, tab) for tab in ("tokenizer", "train", "corpus")),
        ):
            go()
            page.locator(f"#tab-{tab}").wait_for()
            assert page.locator(".ps-nav [aria-current]").get_attribute("data-go") == tab
        assert visitor.errors == []


def test_a_menu_in_focus_has_one_ring(visitor: Visitor) -> None:
    visitor.open("Train")
    menu = visitor.field("train-family")
    menu.focus()
    visitor.page.keyboard.press("Escape")
    visitor.wait_for(
        lambda: (
            menu.evaluate("node => getComputedStyle(node.closest('.wrap')).boxShadow") != "none"
        ),
        20,
        "the frame shows the focus",
    )
    assert not visitor.page.evaluate(RING)
