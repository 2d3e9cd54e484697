"""Chooses every option of every form with the keyboard; a file of its own, to run in parallel."""

from __future__ import annotations

import pytest

from core.workspace import Workspace
from tests.ui.test_every_option import FORMS, address, try_every_option, workspace

__all__ = ["address", "workspace"]


@pytest.mark.parametrize("tab", FORMS)
@pytest.mark.slow(150)
@pytest.mark.long
def test_no_option_breaks_a_form_by_keyboard(workspace: Workspace, address: str, tab: str) -> None:
    try_every_option(workspace, address, tab, "Advanced", "keyboard")
