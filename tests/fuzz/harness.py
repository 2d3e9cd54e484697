"""Runs inputs that Hypothesis generates in a process of their own, and counts them.

A campaign is one test: so many inputs for one reader. Each input ends in success or a
`StudioError`, within the limits of `tests.fuzz.worker`; everything else is collected, one example a
kind, the smallest, and reported at the end. `STUDIO_FUZZ_INPUTS` multiplies the inputs of every
campaign, `STUDIO_FUZZ_SEED` replaces the fixed order by a random one, and the files of failing
examples are kept in `STUDIO_FUZZ_KEEP` (else below the temporary folder).
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.fuzz.sandbox import SECRET, Files, Sandbox

ROOT = Path(__file__).parent.parent.parent
# Read at once, for the tests' fixtures remove the settings of whoever runs them.
TIMES = float(os.environ.get("STUDIO_FUZZ_INPUTS", "1"))
SEED = os.environ.get("STUDIO_FUZZ_SEED", "")
# Of a campaign, however small its share is.
_LEAST = 5
_MOST_LATE = int(os.environ.get("STUDIO_FUZZ_LATE", "5"))
_KEEP = os.environ.get("STUDIO_FUZZ_KEEP", "")
# How many inputs each campaign reads at its full length.
BUDGET = {
    "corpus text": 800,
    "corpus jsonl": 1000,
    "corpus json": 800,
    "corpus csv": 1000,
    "corpus tsv": 600,
    "corpus parquet": 1500,
    "corpus compressed": 1500,
    "corpus folder": 600,
    "artifact manifest": 1200,
    "remote manifest": 1200,
    "shards with manifest": 800,
    "shards without manifest": 1600,
    "token counts": 500,
    "tokenizer.json": 2800,
    "tokenizer roles": 900,
    "config.json": 2200,
    "safetensors": 1200,
    "safetensors index": 700,
    "h5": 400,
    "msgpack": 1500,
    "settings": 800,
    "config flag": 600,
    "checkpoint": 800,
    "checkpoint state": 900,
    "run folder": 1200,
    "run taken in": 300,
    "demo": 1200,
    "hub": 500,
}
# Inputs so far in this process, by campaign.
COUNTS: Counter[str] = Counter()
# The campaigns that were run at full length.
DONE: set[str] = set()
# What the inputs came to: read, refused or failed.
VERDICTS: Counter[str] = Counter()


@dataclass(frozen=True)
class Input:
    """One input: files by their path in the folder, and what the target is called with."""

    files: Files
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(len(entry) for entry in self.files.values() if isinstance(entry, bytes))


@dataclass(frozen=True)
class Outcome:
    """How an input ended.

    Attributes:
        verdict: read, refused (with a StudioError) or failed.
        kind: Of a failure; else the class of the error.
        detail: A traceback, or the error's text.
        seconds: Processor time.
        peak: Bytes of memory.
    """

    verdict: str
    kind: str
    detail: str
    seconds: float = 0.0
    peak: int = 0


class Worker:
    """The process that reads, and the folders that it reads from.

    Attributes:
        sandbox: The folders.
        trap: An address that nothing may connect to.
    """

    def __init__(self) -> None:
        self.sandbox = Sandbox(Path(tempfile.mkdtemp(prefix="fuzz-")))
        self.sandbox.create()
        self._errors = (self.sandbox.base.parent / f"{self.sandbox.base.name}.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", str(self.sandbox.base)],
            cwd=ROOT,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.trap = str(self._receive()["trap"])

    def read(self, target: str, one: Input) -> Outcome:
        """Reads one input with a target of `tests.fuzz.targets`."""
        self.sandbox.put(one.files)
        request = {"target": target, "arguments": one.arguments}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return Outcome(**self._receive())

    def close(self) -> None:
        """Ends the process and removes the folders."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._errors.close()
        Path(self._errors.name).unlink()
        shutil.rmtree(self.sandbox.base, ignore_errors=True)

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the worker is gone: {Path(self._errors.name).read_text()[-3000:]}"
        return dict(json.loads(line))

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("STUDIO_", "HF_"))
        }
        return {
            **kept,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(self.sandbox.home),
            "HF_HOME": str(self.sandbox.workspace / "hub"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TMPDIR": str(self.sandbox.tmp),
            "FUZZ_SECRET": SECRET,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "ARROW_NUM_THREADS": "1",
        }


def explore(
    worker: Worker, name: str, target: str, inputs: SearchStrategy[Input], share: float
) -> None:
    """Reads the inputs of a campaign; fails if one ended in neither success nor a StudioError.

    Args:
        worker: The process that reads.
        name: The campaign, of `BUDGET`.
        target: Of `tests.fuzz.targets`.
        inputs: What to read.
        share: The part of the budget to spend.
    """
    campaign(name, inputs, share, lambda one: worker.read(target, one))


def campaign(name: str, inputs: SearchStrategy[Any], share: float, read: Any) -> None:
    """Calls `read` with the inputs, and reports one example of each kind of failure."""
    count = max(_LEAST, round(BUDGET[name] * share * TIMES))
    late: list[Outcome] = []
    failures: dict[str, tuple[Any, Outcome]] = {}

    @settings(
        max_examples=count,
        derandomize=not SEED,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def read_all(one: Any) -> None:
        outcome: Outcome = read(one)
        COUNTS[name] += 1
        VERDICTS[outcome.verdict] += 1
        if outcome.verdict == "failed":
            known = failures.get(outcome.kind)
            if known is None or one.size < known[0].size:
                failures[outcome.kind] = one, outcome
        if outcome.kind.startswith("no answer"):
            late.append(outcome)
            assert len(late) < _MOST_LATE, "too many inputs without an answer"

    if SEED:
        read_all = seed(int(SEED))(read_all)
    try:
        read_all()
    except AssertionError:
        if not late:
            raise
    if share == 1:
        DONE.add(name)
    assert not failures, _report(name, failures)


def _report(name: str, failures: dict[str, tuple[Any, Outcome]]) -> str:
    folder = Path(_KEEP or tempfile.mkdtemp(prefix="fuzz-failures-")) / name
    lines = [f"{len(failures)} kinds of failures; their files are in {folder}"]
    for number, (kind, (one, outcome)) in enumerate(failures.items()):
        place = folder / str(number)
        place.mkdir(parents=True, exist_ok=True)
        (place / "input.json").write_text(json.dumps(_plain(one), indent=1))
        (place / "outcome.txt").write_text(f"{kind}\n{outcome.detail}\n")
        if isinstance(one, Input):
            Sandbox(place).put_input(one.files)
        last = outcome.detail.strip().splitlines()[-1:] or [""]
        lines.append(f"[{number}] {kind}\n    {last[0][:300]}")
    return "\n".join(lines)


def _plain(one: Any) -> Any:
    if not isinstance(one, Input):
        return repr(one)
    files = {
        name: base64.b64encode(entry).decode() if isinstance(entry, bytes) else repr(entry)
        for name, entry in one.files.items()
    }
    return {"arguments": one.arguments, "files": files}
