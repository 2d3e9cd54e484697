"""Formats an evaluation's figures for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.evaluation.baselines import PHENOMENA

_NAME_WIDTH = 52


def summarize(figures: dict[str, Any]) -> str:
    """Returns a table of an evaluation's figures."""
    lines = _pairs_lines(figures) if figures["task"] == "minimal_pairs" else _text_lines(figures)
    return "\n".join(lines)


def _pairs_lines(figures: Mapping[str, Any]) -> list[str]:
    lines = [_line(name, tally) for name, tally in figures["by_paradigm"].items()]
    if figures["by_phenomenon"]:
        lines += ["", *(_line(name, tally) for name, tally in figures["by_phenomenon"].items())]
    lines += ["", _line("all pairs", figures)]
    lines.append(_share("official accuracy (a tie is right)", figures["official_accuracy"]))
    lines.append(_share("mean over paradigms", figures["mean_over_paradigms"]))
    if figures["by_phenomenon"]:
        lines.append(_share("mean over phenomena", figures["mean_over_phenomena"]))
    if figures["baselines"]:
        few = len(figures["by_phenomenon"]) < len(PHENOMENA)
        lines += ["", "Published, means over these phenomena:" if few else "Published:"]
        lines += [
            _share(baseline["name"], baseline["accuracy"]) for baseline in figures["baselines"]
        ]
        lines += sorted({f"  {baseline['source']}" for baseline in figures["baselines"]})
    return lines


def _text_lines(figures: Mapping[str, Any]) -> list[str]:
    rows = [*figures["by_source"].items(), ("all text", figures)]
    head = f"{'':{_NAME_WIDTH}} {'loss':>8} {'perplexity':>11} {'bits/byte':>10} {'tokens':>11}"
    return [head, *(_text_line(name, tally) for name, tally in rows)]


def _text_line(name: str, tally: Mapping[str, Any]) -> str:
    figures = f"{tally['loss']:8.4f} {tally['perplexity']:11.2f} {tally['bits_per_byte']:10.4f}"
    return f"{name[-_NAME_WIDTH:]:{_NAME_WIDTH}} {figures} {tally['tokens']:11,}"


def _line(name: str, tally: Mapping[str, Any]) -> str:
    low, high = (f"{100 * bound:.1f}" for bound in tally["interval"])
    noun = "pair" if tally["pairs"] == 1 else "pairs"
    return f"{_share(name, tally['accuracy'])}  ({low} to {high}), {tally['pairs']:,} {noun}"


def _share(name: str, share: float) -> str:
    return f"{name:{_NAME_WIDTH}} {100 * share:5.1f} %"
