"""The harness detects forbidden behaviour of readers, and counts inputs."""

from __future__ import annotations

import pytest

from tests.fuzz.counting import LEAST_INPUTS, FuzzCounts
from tests.fuzz.harness import BUDGET, Input, Worker

MISBEHAVIOUR = {
    "crash": "the process died: SIGSEGV",
    "exit": "the process died: exit code 3",
    "memory": "MemoryError",
    "peak": "a peak of more than",
    "open": "it opened files outside of the input: secret.txt",
    "tell": "the result holds what lies outside",
    "write": "it changed files outside of the input: a/b/c/d/left.txt",
    "connect": "it connected to an address",
    "raise": "ValueError in targets.py:misbehave",
    "say nothing": "an error that doesn't say",
}


@pytest.mark.slow(4)
@pytest.mark.parametrize("how", MISBEHAVIOUR)
def test_misbehaving_reader_is_reported_and_the_next_input_is_read(
    worker: Worker, how: str
) -> None:
    outcome = worker.read("misbehaviour", Input({}, {"how": how, "trap": worker.trap}))
    assert outcome.verdict == "failed"
    assert outcome.kind.startswith(MISBEHAVIOUR[how])
    assert worker.read("misbehaviour", Input({}, {"how": ""})).verdict == "read"


@pytest.mark.slow(20)
@pytest.mark.long
@pytest.mark.parametrize("how", ["wait", "compute"])
def test_endless_reader_is_reported(worker: Worker, how: str) -> None:
    outcome = worker.read("misbehaviour", Input({}, {"how": how}))
    assert outcome.verdict == "failed"
    assert outcome.kind.startswith(("no answer", "more than"))


def test_full_run_with_too_few_inputs_fails() -> None:
    assert sum(BUDGET.values()) >= LEAST_INPUTS
    enough = {"counts": dict(BUDGET), "done": list(BUDGET), "campaigns": list(BUDGET)}
    for counts, done, fails in (
        (BUDGET, list(BUDGET), False),
        ({"h5": 5}, list(BUDGET), True),
        ({"h5": 5}, ["h5"], False),
    ):
        found = FuzzCounts()
        # The counts of two processes.
        found._add({**enough, "counts": {}, "done": done[:1]})
        found._add({**enough, "counts": dict(counts), "done": done[1:]})
        assert found._is_too_few() is fails
