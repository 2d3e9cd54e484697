"""Times the queries of the Runs tab with a million metrics in the database.

`python -m benchmarks.runs_page [ROWS]` fills a database with three runs and times, in
milliseconds, the median of 20 rounds of: the list of runs, all curves of a run, the
metrics since the last query, the newest metrics.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

from sqlalchemy import insert

from core.store import MetricRow, RunRow, Store
from core.workspace.workspace import Workspace
from ui.charts import points_since

NAMES = ("loss", "learning_rate", "tokens_per_second", "data_wait_percent", "epoch")
RUNS = (0.65, 0.30, 0.05)
ROUNDS = 20
_AT_ONCE = 5000


def fill(store: Store, rows: int) -> None:
    """Writes so many figures, shared out among three runs."""
    for number, share in enumerate(RUNS):
        run_id, points = f"train-{number}", int(rows * share / len(NAMES))
        run = RunRow(id=run_id, stage="train", state="done", config={}, after=[], created=1.0)
        store.add_run(run)
        for start in range(0, points, _AT_ONCE):
            with store.session.begin() as session:
                session.execute(insert(MetricRow), list(_figures(run_id, start, points)))
        store.update_run(run_id, metric_counts=dict.fromkeys(NAMES, points))


def _figures(run_id: str, start: int, points: int):
    for point in range(start, min(points, start + _AT_ONCE)):
        for name in NAMES:
            yield {
                "run_id": run_id,
                "number": point + 1,
                "point": point,
                "step": 10 * point,
                "name": name,
                "value": 1.0 / (point + 1),
                "time": 0.0,
            }


def median_milliseconds(ask: Callable[[], object]) -> float:
    """Returns the median time of a question."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        ask()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=int, nargs="?", default=1_000_000, help="figures in all")
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Workspace(folder))
        fill(store, rows)
        first = points_since(store, "train-0", 0)
        points = sum(len(series) for series in first["series"].values())
        newest = int(first["after"])
        questions = {
            "list of runs": lambda: store.list_runs(limit=100),
            "first look at a run": lambda: points_since(store, "train-0", 0),
            "rows since": lambda: points_since(store, "train-0", newest - 10),
            "newest figures": lambda: store.latest_metrics("train-0"),
        }
        print(f"{rows:,} figures; a first look draws {points:,} points")
        for name, ask in questions.items():
            print(f"{name:22} {median_milliseconds(ask):7.1f} ms")
        store.close()


if __name__ == "__main__":
    main()
