"""Prints the number of inputs, and fails a full run with too few of them.

With xdist, each worker process counts its own inputs and the controller adds them up.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

# The minimum for a run of all campaigns at full length.
LEAST_INPUTS = 20_000


class FuzzCounts:
    """A pytest plugin that adds up the counts of all processes."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.done: set[str] = set()
        self.campaigns: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._add(_own_counts())
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["fuzz"] = _own_counts()
        elif self._is_too_few():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._add(getattr(node, "workeroutput", {}).get("fuzz", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = sum(self.counts.values())
        if not total:
            return
        terminalreporter.section("fuzzing")
        for name, count in sorted(self.counts.items()):
            terminalreporter.line(f"{count:7,}  {name}")
        verdicts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.verdicts.items()))
        terminalreporter.line(f"{total:7,}  inputs in all: {verdicts}")
        if self._is_too_few():
            terminalreporter.line(f"ERROR: fewer than {LEAST_INPUTS:,} inputs", red=True)

    def _is_too_few(self) -> bool:
        is_full = bool(self.campaigns) and self.done == self.campaigns
        return is_full and sum(self.counts.values()) < LEAST_INPUTS

    def _add(self, found: dict[str, Any]) -> None:
        self.counts.update(found.get("counts", {}))
        self.verdicts.update(found.get("verdicts", {}))
        self.done.update(found.get("done", ()))
        self.campaigns.update(found.get("campaigns", ()))


def _own_counts() -> dict[str, Any]:
    """Returns the counts of this process; empty if no campaign was imported."""
    harness = sys.modules.get("tests.fuzz.harness")
    if harness is None:
        return {}
    return {
        "counts": dict(harness.COUNTS),
        "verdicts": dict(harness.VERDICTS),
        "done": sorted(harness.DONE),
        "campaigns": sorted(harness.BUDGET),
    }
