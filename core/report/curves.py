"""Plots training curves for model cards and reports."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_INCHES = (8.0, 3.6)
_DOTS_PER_INCH = 144
_COLORS = ("#4f46e5", "#8b95a7", "#15803d", "#7c3aed", "#b91c1c", "#0e7490")
_BASELINE_COLOR = "#b45309"
_TEXT_COLOR = "#334155"
_GRID_COLOR = "#e2e8f0"


@dataclass(frozen=True)
class Curve:
    """One line of a plot; `steps` ascend."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    faint: bool = False


def draw_curves(
    curves: Sequence[Curve],
    *,
    baseline: float | None = None,
    form: Literal["png", "svg"] = "png",
    x_label: str = "step",
    y_label: str = "loss (nats)",
    share: bool = False,
) -> bytes:
    """Plots curves; returns an image file.

    Args:
        baseline: Unigram baseline in nats.
        share: The values are fractions; the axis shows percent.
        form: png, 1,152 x 518 pixels, or transparent svg.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colors = iter(_COLORS)
    for curve in filter(_has_points, curves):
        steps, values = _finite(curve)
        color = _COLORS[1] if curve.faint else next(colors)
        mark = "o" if len(steps) < 2 else None
        axes.plot(
            steps,
            values,
            label=curve.name,
            color=color,
            marker=mark,
            linewidth=1.0 if curve.faint else 2.0,
            alpha=0.6 if curve.faint else 1.0,
            zorder=1 if curve.faint else 2,
        )
    if baseline is not None:
        axes.axhline(baseline, color=_BASELINE_COLOR, linestyle="--", label="unigram baseline")
    _dress(axes, x_label, y_label, share)
    picture = io.BytesIO()
    # Dates and random ids would change the bytes.
    metadata = {"Date": None} if form == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "curves"}):
        figure.savefig(picture, format=form, transparent=form == "svg", metadata=metadata)
    return picture.getvalue()


def _dress(axes: object, x_label: str, y_label: str, share: bool) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    assert isinstance(axes, Axes)
    axes.set_xlabel(x_label, color=_TEXT_COLOR)
    axes.set_ylabel(y_label, color=_TEXT_COLOR)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.tick_params(colors=_TEXT_COLOR)
    axes.grid(axis="y", color=_GRID_COLOR)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GRID_COLOR)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, labelcolor=_TEXT_COLOR)


def _has_points(curve: Curve) -> bool:
    return bool(_finite(curve)[0])


def _finite(curve: Curve) -> tuple[list[float], list[float]]:
    points = [
        (float(step), float(value))
        for step, value in zip(curve.steps, curve.values, strict=True)
        if math.isfinite(value)
    ]
    return [step for step, _ in points], [value for _, value in points]
