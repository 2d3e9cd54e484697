"""Expected validation loss of a run, from finished runs on the same shards.

The loss is assumed proportional to the law of Hoffmann et al.; the interval follows from the pairs
of runs in benchmarks/trials.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from core.workspace.workspace import Workspace

# By how much the loss may be below or above, and how much more for each tenfold compute.
_BELOW, _BELOW_PER_DECADE = 0.04, 0.04
_ABOVE, _ABOVE_PER_DECADE = 0.06, 0.25
# https://arxiv.org/abs/2305.16264, section 3.
_HALF_WORTH_EPOCHS = 15.4


@dataclass(frozen=True)
class FinishedRun:
    """A run's size, and its losses in nats.

    Attributes:
        tokens: Repetitions included.
        baseline: The unigram baseline.
    """

    name: str
    parameters: int
    tokens: int
    loss: float
    baseline: float

    @property
    def compute(self) -> float:
        return float(self.parameters) * self.tokens


@dataclass(frozen=True)
class Forecast:
    """An expected loss in nats, with its interval.

    Attributes:
        gain_of_half: Share of the gain over the unigram baseline that the last doubling of the
            budget brings.
        runs: Names of the runs that it rests on.
    """

    loss: float
    low: float
    high: float
    gain_of_half: float
    runs: list[str]


def read_finished_runs(
    workspace: Workspace, family: str, fingerprints: Mapping[str, str]
) -> list[FinishedRun]:
    """Reads the models of a family that were trained on the same shards from random weights.

    Args:
        fingerprints: Fingerprints of the inputs, by kind.
    """
    runs = []
    for artifact in workspace.list("model"):
        manifest = artifact.manifest
        counts, config = manifest.counts, manifest.config
        is_like = manifest.inputs == fingerprints and config.get("family") == family
        if not is_like or config.get("checkpoint"):
            continue
        names = ("parameters", "tokens", "eval_loss", "frequency_baseline_loss")
        figures = [counts[name] for name in names if _is_positive(counts.get(name))]
        if len(figures) == len(names):
            parameters, tokens, loss, baseline = figures
            runs.append(FinishedRun(artifact.name, int(parameters), int(tokens), loss, baseline))
    return runs


def forecast(
    runs: Sequence[FinishedRun], *, parameters: int, tokens: int, half: tuple[int, int], corpus: int
) -> Forecast | None:
    """Forecasts a loss from the nearest runs by compute; None without any.

    Args:
        tokens: Repetitions included.
        half: Parameters and tokens with half of the budget.
        corpus: Different tokens.
    """
    if not runs:
        return None

    def distance(run: FinishedRun) -> float:
        return abs(math.log10(parameters * tokens / run.compute))

    nearest = min(map(distance, runs))
    used = [run for run in runs if distance(run) <= nearest + 0.1]
    scale = median(run.loss / law(run.parameters, run.tokens, corpus) for run in used)
    loss, before = (scale * law(*size, corpus) for size in ((parameters, tokens), half))
    baseline = median(run.baseline for run in used)
    return Forecast(
        loss=loss,
        low=loss * (1 - _BELOW - _BELOW_PER_DECADE * nearest),
        high=loss * (1 + _ABOVE + _ABOVE_PER_DECADE * nearest),
        gain_of_half=max(0.0, before - loss) / max(baseline - loss, before - loss, 1e-9),
        runs=[run.name for run in used],
    )


def law(parameters: int, tokens: int, corpus: int) -> float:
    """Returns a loss that is right up to a factor of the text, the tokenizer and the objective.

    Source: https://arxiv.org/abs/2203.15556, equation 10, with repeated tokens by
    https://arxiv.org/abs/2305.16264, equation 5.
    """
    repetitions = max(0.0, tokens / corpus - 1)
    worth = corpus * _HALF_WORTH_EPOCHS * (1 - math.exp(-repetitions / _HALF_WORTH_EPOCHS))
    seen = min(tokens, corpus) + worth
    return 1.69 + 406.4 / parameters**0.34 + 410.7 / seen**0.28


def _is_positive(figure: object) -> bool:
    return (
        isinstance(figure, (int, float)) and not isinstance(figure, bool) and 0 < figure < math.inf
    )
