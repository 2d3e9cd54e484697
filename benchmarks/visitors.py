"""Many visitors at once on a demo: errors, waiting times, throughput, and memory.

    python -m benchmarks.visitors [--visitors 50] [--seconds 60] [--model FOLDER]

Each visitor joins the queue, reads the answer from a stream of events, and asks again at once.
Without --model it is a mini with random weights. The clock starts when the model is warm.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from core.families.roberta import RobertaArchitecture
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_model_of

WARM_SECONDS = 45
ROOT = Path(__file__).parent.parent
WORDS = "the small old captain reads never a golden letter in winter and runs slowly".split()


@dataclass
class Tally:
    """Results of one visitor."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    errors: list[str] = field(default_factory=list)


def main() -> None:
    """Starts a demo, lets the visitors in and prints what came of it, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visitors", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = options.model or make_mini(Path(place))
        port = free_port()
        environment = {**os.environ, "STUDIO_MODEL": str(folder)}
        with (Path(place) / "log").open("wb") as log:
            app = subprocess.Popen(
                [sys.executable, "app.py", "--port", str(port)],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )
            try:
                wait_for_answer(port)
                report = visit(app.pid, port, options.visitors, options.seconds)
            finally:
                app.terminate()
                app.wait()
        said = (Path(place) / "log").read_text("utf-8", "replace")
    report["traceback"] = "Traceback" in said
    print(json.dumps(report, indent=2))


def make_mini(place: Path) -> Path:
    """Writes a RoBERTa of four layers of 256."""
    tokenizer = make_tokenizer(Workspace(place), "byte_level_bpe")
    pad = tokenizer.pad_id or 0
    architecture = RobertaArchitecture(
        vocab_size=10_000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=128 + pad + 1,
        pad_token_id=pad,
        bos_token_id=tokenizer.cls_id,
        eos_token_id=tokenizer.sep_id,
    )
    return write_model_of(place / "mini", tokenizer, architecture, 0)


def visit(pid: int, port: int, visitors: int, seconds: float) -> dict[str, object]:
    """Lets visitors ask until the time is over; memory is read at start, middle and end."""
    tallies = [Tally() for _ in range(visitors)]
    end = time.monotonic() + seconds
    threads = [
        threading.Thread(target=keep_asking, args=(port, number, end, tally))
        for number, tally in enumerate(tallies)
    ]
    load = [os.getloadavg()[0]]
    memory = [megabytes(pid)]
    for thread in threads:
        thread.start()
    for moment in (0.25, 0.5, 0.75, 1.0):
        time.sleep(max(0, end - seconds * (1 - moment) - time.monotonic()))
        memory.append(megabytes(pid))
    for thread in threads:
        thread.join()
    load.append(os.getloadavg()[0])
    waited = sorted(second for tally in tallies for second in tally.seconds)
    errors = [error for tally in tallies for error in tally.errors]
    quantiles = statistics.quantiles(waited, n=100) if len(waited) > 1 else [0.0] * 99
    return {
        "visitors": visitors,
        "seconds": seconds,
        "answers": len(waited),
        "answers_per_second": round(len(waited) / seconds, 1),
        "p50_seconds": round(quantiles[49], 3),
        "p95_seconds": round(quantiles[94], 3),
        "longest_seconds": round(waited[-1], 3) if waited else None,
        "refused_because_full": sum(tally.refused for tally in tallies),
        "errors": len(errors),
        "first_errors": errors[:3],
        "memory_mb_at_quarters": memory,
        "load_average": [round(value, 1) for value in load],
        "cpus": os.cpu_count(),
    }


def keep_asking(port: int, number: int, end: float, tally: Tally) -> None:
    """Asks again and again, as one browser would, with sentences of its own."""
    generator = random.Random(number)
    while time.monotonic() < end:
        words = generator.choices(WORDS, k=generator.randint(4, 12))
        words[generator.randrange(len(words))] = "<mask>"
        started = time.monotonic()
        try:
            if ask(port, " ".join(words)):
                tally.seconds.append(time.monotonic() - started)
            else:
                tally.refused += 1
        except (OSError, http.client.HTTPException, ValueError) as error:
            tally.errors.append(f"{type(error).__name__}: {error}")


def ask(port: int, text: str) -> bool:
    """Asks for one text; tells whether it was answered and not turned away at a full queue."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        body = json.dumps({"data": [text, 5]})
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/gradio_api/call/fill_mask", body, kind)
        response = connection.getresponse()
        said = response.read()
        if response.status == 503:
            return False
        event = json.loads(said)["event_id"]
        connection.request("GET", f"/gradio_api/call/fill_mask/{event}")
        answer = connection.getresponse().read().decode()
    finally:
        connection.close()
    found = [line[6:] for line in answer.splitlines() if line.startswith("data: [")]
    if not found or len(json.loads(found[-1])[0]) != 5:
        raise ValueError(answer[-200:])
    return True


def wait_for_answer(port: int) -> None:
    """Waits until the demo has answered, and then lets some in until it is warm."""
    deadline = time.monotonic() + 180
    while True:
        try:
            ask(port, "the <mask>")
            break
        except (OSError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    crowd = [Tally() for _ in range(40)]
    end = time.monotonic() + WARM_SECONDS
    threads = [
        threading.Thread(target=keep_asking, args=(port, number, end, tally))
        for number, tally in enumerate(crowd)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def megabytes(pid: int) -> dict[str, float]:
    """Returns the resident memory of the app and of its model's process."""
    app = psutil.Process(pid)
    found = {"app": app.memory_info().rss}
    for child in app.children(recursive=True):
        found["model"] = found.get("model", 0) + child.memory_info().rss
    return {name: round(size / 1e6, 1) for name, size in found.items()}


def free_port() -> int:
    """Returns a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
