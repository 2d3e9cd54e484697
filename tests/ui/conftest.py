"""Shared by the tests in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ui.browser import running_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[None]:
    """One browser for all tests of a file; no asyncio can run in their thread."""
    with running_browser():
        yield
