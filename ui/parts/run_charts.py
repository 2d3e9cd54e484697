"""Arranges the metrics of a run in charts, which `ui/assets/runs.js` builds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from core.config.metrics import is_share
from core.config.mixture import distinct_names, parse_mixture
from core.errors import ConfigError
from core.evaluation.baselines import FIELDS
from core.finetuning.names import METRICS, RANDOM_INIT
from core.report.titles import accuracy_title, in_order, metric_title
from core.store import RunRow

# Metrics that are shown as figures.
FIGURES = ("eval_perplexity", "data_wait_percent", "epoch", "evaluation_percent")
# More curves in one chart can't be told apart.
MOST_PARTS = 6
# A mixture has no more curves than there are colours.
MOST_SOURCES = 10
_PHENOMENON = "pairs_accuracy/"
_OF_TEXT = {
    "text_bits_per_byte": "Bits per byte",
    "text_loss": "Loss",
    "text_perplexity": "Perplexity",
}


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        name: The metric's name.
        color: A variable of the style sheet.
        dots: Marks each value; such curves aren't smoothed.
        level: A single value, drawn across the whole chart.
    """

    name: str
    label: str = ""
    color: str = "--ps-accent"
    dots: bool = False
    dashed: bool = False
    faint: bool = False
    level: bool = False
    smooth: bool = True


@dataclass(frozen=True)
class Chart:
    """Curves that share a chart.

    Attributes:
        share: Whether the values are fractions, which are shown as percentages.
        floor: Least value that the y axis shows.
        tall: Whether it is higher than others.
        group: Heading of the section that it is in.
        is_folded: Whether that section is closed at first.
    """

    title: str
    lines: tuple[Line, ...]
    unit: str = ""
    share: bool = False
    floor: float | None = None
    tall: bool = False
    group: str = ""
    is_folded: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "key": f"{self.group}/{self.title}"}


def charts_of(row: RunRow) -> list[Chart]:
    """Returns the charts of the metrics that a run has so far."""
    has = {name for name, count in row.metric_counts.items() if count}
    arranged = [*_of_training(row), *_of_tuning(row), *_of_machine(row), *_of_evaluation(row)]
    charts = (_with_random_weights(chart, has) for chart in arranged)
    shown = (replace(c, lines=tuple(x for x in c.lines if x.name in has)) for c in charts)
    return [
        replace(chart, share=is_share(chart.lines[0].name))
        for chart in shown
        if any(not line.level for line in chart.lines)
    ]


def mixed_sources(row: RunRow) -> list[str]:
    """Returns the sources of a run's mixture that the page draws."""
    try:
        wanted = parse_mixture(str(row.config.get("mixture") or ""))
    except ConfigError:
        return []  # Its own start reports the error.
    return distinct_names(wanted)[:MOST_SOURCES]


def _of_training(row: RunRow) -> Iterator[Chart]:
    yield Chart(
        "Loss",
        (
            Line("frequency_baseline_loss", "Unigram baseline", "--ps-baseline", dashed=True,
                 level=True),
            Line("loss", "Training", "--ps-train", faint=True),
            Line("eval_loss", _held_out(row), dots=True),
        ),
        # Regression has a squared error.
        unit="" if row.config.get("task") == "regression" else "nats",
        tall=True,
    )  # fmt: skip
    yield _by_source(row, "eval_loss", "Validation loss by source", dots=True)
    yield Chart(
        "Learning rate", (Line("learning_rate", color="--ps-violet", smooth=False),), floor=0
    )
    if row.stage != "finetune":
        accuracy = accuracy_title(row.config)
        yield Chart(accuracy, (Line("eval_accuracy", dots=True),), floor=0)
    yield _by_source(row, "epoch", "Epochs by source", dots=False)


def _held_out(row: RunRow) -> str:
    return "Development set" if row.stage == "finetune" else "Validation"


def _by_source(row: RunRow, name: str, title: str, *, dots: bool) -> Chart:
    lines = _colored([(f"{name}/{source}", source) for source in mixed_sources(row)], dots=dots)
    return Chart(title, lines, **({"unit": "nats"} if dots else {"floor": 0}))


def _of_tuning(row: RunRow) -> Iterator[Chart]:
    """Yields a chart for each metric of the development set, the most telling first."""
    if row.stage != "finetune":
        return
    names = (name.removeprefix(RANDOM_INIT) for name in row.metric_counts)
    metrics = {name.removeprefix("eval_") for name in names if name.startswith("eval_")} - {"loss"}
    known = [name for name in METRICS if name in metrics]
    for name in [*known, *in_order(metrics - set(known))]:
        title = METRICS.get(name) or metric_title(name)
        floor = 0 if name == "mse" else None
        yield Chart(f"{title}, development set", (Line(f"eval_{name}", dots=True),), floor=floor)


def _of_machine(row: RunRow) -> Iterator[Chart]:
    """Yields the charts of speed and load, which stand alone where nothing is trained."""
    cpu, gpu = "--ps-run-4", "--ps-run-1"
    is_trained = row.stage in ("train", "finetune")
    group = "Speed and machine" if is_trained else ""
    speed = (Line("tokens_per_second", color="--ps-green"),)
    used = (Line("cpu_percent", "CPU", cpu), Line("gpu_percent", "GPU", gpu))
    held = (Line("memory_gib", "CPU", cpu), Line("gpu_memory_gib", "GPU", gpu))
    for title, lines, unit in (
        ("Tokens per second", speed, ""), ("Utilisation", used, "%"), ("Memory", held, "GiB"),
    ):  # fmt: skip
        yield Chart(title, lines, unit, floor=0, group=group, is_folded=is_trained)


def _of_evaluation(row: RunRow) -> Iterator[Chart]:
    """Yields the charts of evaluations during training; parts of the data are in groups."""
    yield Chart(
        "Accuracy on minimal pairs",
        (
            Line("pairs_accuracy", "All pairs", dots=True),
            Line("pairs_official_accuracy", "Official: a tie is right", "--ps-run-1", dots=True),
            Line("pairs_mean_over_paradigms", "Mean over paradigms", "--ps-run-2", dots=True),
            Line("pairs_mean_over_phenomena", "Mean over phenomena", "--ps-violet", dots=True),
        ),
    )
    for name, title in _OF_TEXT.items():
        unit = "nats" if name == "text_loss" else ""
        line = Line(name, color="--ps-green", dots=True)
        yield Chart(f"{title} of held-out text", (line,), unit=unit)
    yield from _of_phenomena(row.metric_counts)
    for name, title in _OF_TEXT.items():
        prefix = f"{name}/"
        metrics = [metric for metric in sorted(row.metric_counts) if metric.startswith(prefix)]
        labelled = [(metric, metric.removeprefix(prefix)) for metric in metrics]
        yield from _in_parts(f"{title} by source", labelled, "Held-out text by source")


def _of_phenomena(counts: Mapping[str, int]) -> Iterator[Chart]:
    """Yields BLiMP's phenomena by field of linguistics, then others in alphabetical order."""
    group = "Accuracy by phenomenon"
    metrics = [metric for metric in sorted(counts) if metric.startswith(_PHENOMENON)]
    labelled = {
        name: (metric, name.replace("_", " "))
        for metric, name in ((metric, metric.removeprefix(_PHENOMENON)) for metric in metrics)
    }
    title = "Phenomena"
    for field, phenomena in FIELDS.items():
        if of_field := [labelled.pop(name) for name in phenomena if name in labelled]:
            title = "Other phenomena"
            yield from _in_parts(field, of_field, group)
    yield from _in_parts(title, list(labelled.values()), group)


def _in_parts(title: str, named: Sequence[tuple[str, str]], group: str) -> Iterator[Chart]:
    """Yields charts of few curves each, about equally many."""
    count = math.ceil(len(named) / MOST_PARTS)
    for number in range(count):
        first, last = (len(named) * index // count for index in (number, number + 1))
        place = f", {number + 1} of {count}" if count > 1 else ""
        lines = _colored(named[first:last], dots=True)
        yield Chart(f"{title}{place}", lines, group=group)


def _colored(named: Sequence[tuple[str, str]], *, dots: bool) -> tuple[Line, ...]:
    return tuple(
        Line(name, label, f"--ps-run-{number}", dots=dots)
        for number, (name, label) in enumerate(named)
    )


def _with_random_weights(chart: Chart, has: set[str]) -> Chart:
    """Adds the curves of the same architecture from random weights."""
    rivals = [line for line in chart.lines if f"{RANDOM_INIT}{line.name}" in has]
    if not rivals:
        return chart
    others = [
        replace(
            line,
            name=f"{RANDOM_INIT}{line.name}",
            label=f"{line.label}, random weights".lstrip(", ").capitalize(),
            color="--ps-run-5" if line.faint else "--ps-run-1",
            dashed=True,
        )
        for line in rivals
    ]
    own = [replace(line, label=line.label or "This model") for line in chart.lines]
    return replace(chart, lines=(*own, *others))
