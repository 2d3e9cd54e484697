"""The time beside Start against the time that training takes, on this machine.

Each family and size trains twice by its defaults: the first run is what the forecasts of later ones
come from. The second is forecast and timed from the command to its end; with --busy, a third one
too, beside a program that keeps one core at work.

    python -m benchmarks.forecasts [--families roberta gpt2 llama] [--sizes tiny mini] [--busy]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.corpora import core, prepare_corpus
from benchmarks.sides import describe_machine
from core.config.train import TrainConfig
from core.workspace.workspace import Workspace
from ui.train import forecast_training

# Until the machine's load is what the program makes it.
_SETTLING_SECONDS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("workspace/benchmarks/forecasts"))
    parser.add_argument("--families", nargs="+", default=["roberta", "gpt2", "llama"])
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini", "small"])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--text", help="a document per line; unset: the documentation")
    parser.add_argument("--busy", action="store_true", help="also beside another program")
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    for family in options.families:
        prepare_corpus(options.folder, family, options.text, family=family)
        for size in options.sizes:
            settings = {"shards": family, "family": family, "size": size}
            settings["minutes"] = options.minutes
            train(options.folder, {**settings, "seed": 1})
            report(options.folder, settings, "idle")
            if options.busy:
                with another_program():
                    report(options.folder, {**settings, "seed": 2}, "busy")


def report(folder: Path, settings: dict[str, Any], load: str) -> None:
    """Prints the forecast and the real time of one run."""
    forecast = forecast_training(TrainConfig.parse(settings), Workspace(folder)).seconds
    seconds = train(folder, settings)
    ratio = seconds / forecast if forecast else None
    result = {"load": load, "forecast": forecast, "seconds": seconds, "ratio": ratio}
    print(json.dumps({**settings, **result}), flush=True)


def train(folder: Path, settings: dict[str, Any]) -> float:
    """Returns the seconds from the command to the end of the run."""
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    began = time.monotonic()
    core(folder, "train", *flags)
    return time.monotonic() - began


@contextmanager
def another_program() -> Iterator[None]:
    """Keeps one core at work."""
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(_SETTLING_SECONDS)
    try:
        yield
    finally:
        program.kill()
        program.wait()


if __name__ == "__main__":
    main()
