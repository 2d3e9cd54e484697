"""Formats the results of fine-tuning for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.finetuning.names import METRICS, RANDOM_INIT

_WIDTH = 24


def summarize(results: Mapping[str, Any]) -> str:
    """Returns a table of the metrics and the baselines."""
    constant = "mean" if results["task"] == "regression" else "majority"
    lines = [f"{'':{_WIDTH}} {'model':>18} {'random weights':>18} {constant:>10}"]
    for name, title in METRICS.items():
        if name in results:
            cells = (_cell(results, name), _cell(results, f"{RANDOM_INIT}{name}"))
            majority = results[f"majority_{name}"]
            lines.append(f"{title:{_WIDTH}} {cells[0]:>18} {cells[1]:>18} {majority:>10.4f}")
    seeds, tested = len(results["per_seed"]), results["test_examples"]
    lines.append(
        f"on {tested:,} {'example' if tested == 1 else 'examples'} ({results['test_name']}), "
        "learning rate "
        f"{results['learning_rate']:g}, {seeds} {'seed' if seeds == 1 else 'seeds'}"
    )
    return "\n".join(lines)


def _cell(results: Mapping[str, Any], name: str) -> str:
    spread = results.get(f"{name}_std")
    return f"{results[name]:.4f}" + (f" ± {spread:.4f}" if spread is not None else "")
