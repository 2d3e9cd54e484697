"""Two sides of a comparison, each in a process of its own, asked in turn.

Whatever else the machine does then meets both. A side is a function that prepares, and returns what
answers a question: both as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

Answer = Callable[[Any], Any]
Prepare = Callable[[Any], Answer]


class Side:
    """A process that prepares, and then answers questions.

    Args:
        module: The benchmark, which calls `answer_if_asked`.
        name: The side's name.
        setup: Input of its preparation.
    """

    def __init__(self, module: str, name: str, setup: Any) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--side", name, "--setup", json.dumps(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        )

    def ask(self, question: Any = None) -> Any:
        """Returns the answer to a question."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with exit code {self._process.wait()}.")
        return json.loads(line)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def open_sides(module: str, names: Iterable[str], setup: Any) -> Iterator[dict[str, Side]]:
    """Starts sides one after the other, each ready before the next one starts."""
    sides: dict[str, Side] = {}
    try:
        for name in names:
            sides[name] = Side(module, name, setup)
            sides[name].ask("ready")
        yield sides
    finally:
        for side in sides.values():
            side.close()


def ask_in_turn(sides: Mapping[str, Side], question: Any, rounds: int) -> dict[str, list[Any]]:
    """Asks each side the same in every round; who is first changes from round to round."""
    found: dict[str, list[Any]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sides if number % 2 else reversed(list(sides)):
            found[name].append(sides[name].ask(question))
    return found


def medians(sides: Mapping[str, Side], question: Any, rounds: int) -> dict[str, float]:
    """Asks each side for a number in every round, and returns the median of each."""
    return {name: median(all) for name, all in ask_in_turn(sides, question, rounds).items()}


def add_side_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `Side` starts its process with."""
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--setup", type=json.loads, help=argparse.SUPPRESS)


def answer_if_asked(options: argparse.Namespace, sides: Mapping[str, Prepare]) -> bool:
    """Prepares and answers all questions, then returns True, if this process is a side."""
    if not options.side:
        return False
    answer = sides[options.side](options.setup)
    for line in sys.stdin:
        question = json.loads(line)
        found = "ready" if question == "ready" else answer(question)
        print(json.dumps(found), flush=True)
    return True


def describe_machine(device: str = "cpu") -> str:
    """Says what this runs on; the GPU's name comes first where that is what computes."""
    if device == "gpu":
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"]
        name = subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        return f"{name}, {describe_machine()}"
    found = _processor()
    name = found.get("model name") or platform.processor()
    # Makers sell processors of several generations by one name.
    family, model = found.get("cpu family"), found.get("model")
    which = f" (family {family}, model {model})" if family and model else ""
    return f"{os.cpu_count()} cores of {name}{which}"


def _processor() -> dict[str, str]:
    """Returns Linux's description of the first processor; an empty one on other systems."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
