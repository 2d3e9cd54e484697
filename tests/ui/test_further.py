"""A stage of one file has a tab: its form, its start, and what it has made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ui.browser import running_app, visiting


@pytest.mark.slow(40)
def test_further_stage_is_started_in_its_own_tab(tmp_path: Path) -> None:
    with (
        running_app(tmp_path / "workspace", STUDIO_STAGES="tests.core.toy_stage") as url,
        visiting(url) as visit,
    ):
        visitor = visit("/#count")
        page = visitor.page
        assert page.locator(".ps-nav [data-tab=count]").inner_text() == "Word count"
        page.locator("#count-list").get_by_text("Nothing yet").wait_for()
        visitor.type("count-text", "one two three")
        visitor.type("count-smallest_length", "4")
        visitor.start("count")
        row = page.locator("#count-list tbody tr").first
        row.wait_for(timeout=60_000)
        assert row.locator("td").nth(1).inner_text() == "1"
        # What the stage refuses stands at its field.
        visitor.type("count-smallest_length", "100")
        page.locator("#tab-count").get_by_text("No word is so long").wait_for()
        assert not visitor.errors
