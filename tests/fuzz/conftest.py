"""Shared by all campaigns of a session: one reader process and one set of valid files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.harness import Worker
from tests.fuzz.valid import Artifacts


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """The process that reads the inputs."""
    pytest.importorskip("hypothesis")
    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def artifacts() -> Artifacts:
    """Valid tokenizers and shards."""
    return Artifacts()


@pytest.fixture(
    params=[
        pytest.param(0.015, id="briefly"),
        pytest.param(1.0, id="long", marks=[pytest.mark.thorough, pytest.mark.slow(20)]),
    ]
)
def share(request: pytest.FixtureRequest) -> float:
    """The fraction of a campaign's budget to spend."""
    return float(request.param)
