"""Several sources in the Data tab, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.workspace.workspace import Workspace
from tests.texts import write_sentences
from tests.ui.browser import Visitor, running_app, visiting

pytestmark = [pytest.mark.slow(20), pytest.mark.long]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("studio") / "workspace")


@pytest.fixture(scope="module")
def url(browser: None, workspace: Workspace) -> Iterator[str]:
    with running_app(workspace.root) as found:
        yield found


@pytest.fixture(scope="module")
def visitor(url: str) -> Iterator[Visitor]:
    """One page for the tests that need no new one."""
    with visiting(url) as visit:
        yield visit()


def listed(visitor: Visitor) -> list[str]:
    return [str(text) for text in visitor.page.locator("#corpus-listed li").all_inner_texts()]


def wait_for_sources(visitor: Visitor, *names: str) -> None:
    def same() -> bool:
        rows = listed(visitor)
        return len(rows) == len(names) and all(
            row.startswith(name) for row, name in zip(rows, names, strict=True)
        )

    visitor.wait_for(same, 30, f"the sources {names}")


def add(visitor: Visitor, name: str) -> None:
    visitor.type("corpus-sources", name)
    visitor.page.locator("#corpus-add").click()


def upload(visitor: Visitor, path: Path) -> None:
    visitor.page.locator("#corpus-upload input[type=file]").first.set_input_files(str(path))
    visitor.wait_for(lambda: path.name in visitor.field("corpus-path").input_value(), 30, "a path")
    visitor.page.wait_for_timeout(500)  # The form reads the value after it is shown.


def test_cleaned_corpus_hides_the_percentage_for_validation(visitor: Visitor) -> None:
    visitor.go("corpus")
    percent = visitor.page.locator("#corpus-validation_percent")
    percent.wait_for(state="visible")
    visitor.pick("corpus-source", "Cleaned corpus")
    percent.wait_for(state="hidden")


def test_sources_are_added_edited_removed_and_previewed(
    visitor: Visitor, workspace: Workspace, tmp_path: Path
) -> None:
    first = write_sentences(tmp_path / "first.txt", 30)
    second = write_sentences(tmp_path / "second.txt", 20, seed=1)
    visitor.go("corpus")
    visitor.pick("corpus-source", "My files")
    upload(visitor, first)
    add(visitor, "web")
    wait_for_sources(visitor, "web")
    visitor.wait_for(lambda: not visitor.field("corpus-path").input_value(), 30, "no path")
    upload(visitor, second)
    add(visitor, "web")
    visitor.page.get_by_text("Two sources are named web").first.wait_for()
    visitor.type("corpus-sources", "")
    visitor.type("corpus-sources", "code")
    visitor.field("corpus-sources").press("Enter")
    wait_for_sources(visitor, "web", "code")
    # The uploads of both sources are still there.
    assert len(list(workspace.uploads.iterdir())) == 2
    visitor.pick("corpus-source", "Installed Python docs")
    add(visitor, "python")
    wait_for_sources(visitor, "web", "code", "python")

    visitor.page.get_by_role("button", name="Edit the source code").click()
    visitor.wait_for(
        lambda: "second.txt" in visitor.field("corpus-path").input_value(), 30, "its path"
    )
    visitor.type("corpus-limit", "7")
    visitor.type("corpus-sources", "books")
    visitor.page.get_by_role("button", name="Save the source").click()
    wait_for_sources(visitor, "web", "books", "python")
    remove = visitor.page.get_by_role("button", name="Remove the source python")
    remove.focus()
    remove.press("Enter")
    wait_for_sources(visitor, "web", "books")

    visitor.page.locator("#corpus-look").click()
    shown = visitor.page.locator("#corpus-preview .ps-documents")
    shown.wait_for()
    preview = visitor.page.locator("#corpus-preview")
    visitor.see(preview, "37 documents")
    origins = preview.locator(".ps-origin")
    wanted = ["web"] * 3 + ["books"] * 3
    visitor.wait_for(lambda: origins.all_inner_texts() == wanted, 30, "three texts of each")
    visitor.shoot("sources")
    visitor.open("Tokenizer")
    visitor.page.get_by_text("2 sources: web, books").first.wait_for()
    visitor.page.locator("#tab-tokenizer .ps-command button").first.click()
    visitor.see(visitor.page.locator("#tab-tokenizer .ps-command"), "--add", "web=")
    visitor.reload()
    visitor.open("Corpus")
    wait_for_sources(visitor, "web", "books")
    assert not visitor.errors


def test_sources_fit_a_phone(url: str, tmp_path: Path) -> None:
    with visiting(url, width=375, height=800, touch=True) as open_tab:
        visitor: Visitor = open_tab("/#corpus")
        for name in ("python", "more", "a-name-that-is-longer-than-others-0123456789-0123456789"):
            visitor.pick("corpus-source", "Installed Python docs")
            add(visitor, name)
            visitor.page.get_by_role("button", name=f"Edit the source {name}").wait_for()
        width = visitor.page.evaluate("document.scrollingElement.scrollWidth")
        assert width <= 375
        for button in visitor.page.locator("#corpus-listed button").all():
            box: Any = button.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 375 and box["height"] >= 24
        visitor.shoot("sources-phone")
