"""A finished sweep, without running it."""

from __future__ import annotations

import time

from core.sweeps.client import create_sweep, parse_sweep
from core.sweeps.folder import SweepFolder, SweepState, Trial
from core.workspace.workspace import Workspace

_TOML = """
name = "rates"
max_runs = 12
pruner = "none"
[base]
shards = "rows"
size = "tiny"
[options.learning_rate]
min = 1e-4
max = 0.1
log = true
[options.optimizer]
values = ["adamw", "muon"]
[options.num_hidden_layers]
min = 1
max = 4
"""


def make_sweep(workspace: Workspace, name: str = "rates") -> SweepFolder:
    """Writes a sweep with done, pruned, stopped and failed trials; trial 4 is the best."""
    folder = create_sweep(workspace, parse_sweep(_TOML.replace("rates", name)))
    for number in range(10):
        state = {3: "pruned", 6: "pruned", 7: "failed", 8: "stopped"}.get(number, "done")
        value = None if state == "failed" else 3.0 + abs(number - 4) / 4
        settings = {
            "learning_rate": 1e-4 * 2**number,
            "optimizer": "muon" if number % 2 else "adamw",
            "num_hidden_layers": 1 + number % 4,
        }
        error = {"problem": "The loss is NaN", "fix": "lower learning_rate"}
        folder.write_trial(
            Trial(
                number, settings, f"{name}-{number:03d}", f"train-{number}", state,
                reason="validation 3" if state == "pruned" else "",
                value=value,
                figures={"eval_loss": value} if value else {},
                hours=0.25,
                error=error if state == "failed" else None,
            )
        )  # fmt: skip
    folder.write_state(SweepState("done", "max_runs", None, time.time()))
    return folder
