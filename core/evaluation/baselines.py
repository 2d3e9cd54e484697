"""Published accuracies on BLiMP, as plain data with their sources.

The paper's models are in raw_results/summary/models_summary.jsonl of the BLiMP repository, BabyLM's
baselines in the README of the evaluation pipeline; the latter used BLiMP's pairs whose words occur
in the training text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

PHENOMENA = (
    "anaphor_agreement", "argument_structure", "binding", "control_raising",
    "determiner_noun_agreement", "ellipsis", "filler_gap_dependency", "irregular_forms",
    "island_effects", "npi_licensing", "quantifiers", "subject_verb_agreement",
)  # fmt: skip
# Fields of linguistics, as the data's column `field` groups the phenomena.
FIELDS = {
    "Morphology": ("anaphor_agreement", "determiner_noun_agreement", "irregular_forms",
                   "subject_verb_agreement"),
    "Syntax": ("argument_structure", "s-selection", "ellipsis", "filler_gap_dependency",
               "island_effects"),
    "Semantics": ("npi_licensing", "quantifiers"),
    "Syntax and semantics": ("binding", "control_raising"),
}  # fmt: skip
# Other data sets use the other names, too.
_OWN = {"npi_licensing", "island_effects", "binding"}
# The data set names two paradigms so, which the paper counts among the others.
_SAME = {"s-selection": "argument_structure"}
_PAPER = "https://github.com/alexwarstadt/blimp (Warstadt et al. 2020, arXiv:1912.00582)"
_BABYLM = "https://github.com/babylm/evaluation-pipeline-2023 (Warstadt et al. 2023)"
_BABYLM_2026 = "https://github.com/babylm-org/babylm-eval (2026)"


@dataclass(frozen=True)
class Baseline:
    """A published result.

    Attributes:
        accuracy: Mean over paradigms, or over phenomena for BabyLM 2023.
        by_phenomenon: Accuracies in the order of `PHENOMENA`; may be empty.
    """

    name: str
    accuracy: float
    source: str
    by_phenomenon: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        named = dict(zip(PHENOMENA, self.by_phenomenon, strict=False))
        return {**asdict(self), "by_phenomenon": named}


def _babylm(name: str, *percents: float) -> Baseline:
    shares = tuple(round(percent / 100, 4) for percent in percents)
    return Baseline(name, round(sum(shares) / len(shares), 4), _BABYLM, shares)


BASELINES = (
    Baseline(
        "5-gram (Gigaword)", 0.612, _PAPER,
        (0.479, 0.719, 0.644, 0.685, 0.701, 0.369, 0.602, 0.795, 0.572, 0.455, 0.535, 0.603),
    ),
    Baseline(
        "LSTM (83 million tokens)", 0.698, _PAPER,
        (0.917, 0.732, 0.735, 0.670, 0.854, 0.676, 0.739, 0.891, 0.466, 0.517, 0.645, 0.801),
    ),
    Baseline(
        "Transformer-XL (103 million tokens)", 0.696, _PAPER,
        (0.941, 0.722, 0.747, 0.715, 0.830, 0.772, 0.666, 0.782, 0.483, 0.552, 0.693, 0.760),
    ),
    Baseline(
        "GPT-2 large (WebText)", 0.830, _PAPER,
        (0.993, 0.818, 0.809, 0.819, 0.958, 0.894, 0.813, 0.919, 0.727, 0.768, 0.790, 0.864),
    ),
    _babylm(
        "BabyLM 2023, 10 million words, RoBERTa-base",
        81.5, 67.1, 67.3, 67.9, 90.8, 76.4, 63.5, 87.4, 39.9, 55.9, 70.5, 65.4,
    ),
    _babylm(
        "BabyLM 2023, 10 million words, OPT-125m",
        63.8, 70.6, 67.1, 66.5, 78.5, 62.0, 63.8, 67.5, 48.6, 46.7, 59.6, 56.9,
    ),
    _babylm(
        "BabyLM 2023, 10 million words, T5-base",
        68.9, 63.8, 60.4, 60.9, 72.2, 34.4, 48.2, 77.6, 45.6, 47.8, 61.2, 65.0,
    ),
    _babylm(
        "BabyLM 2023, 100 million words, RoBERTa-base",
        89.5, 71.3, 71.0, 67.1, 93.1, 83.8, 68.0, 89.6, 54.5, 66.3, 70.3, 76.2,
    ),
    _babylm(
        "BabyLM 2023, 100 million words, OPT-125m",
        94.9, 73.8, 73.8, 72.2, 93.1, 80.5, 73.6, 80.8, 57.8, 51.6, 74.5, 77.3,
    ),
    _babylm(
        "BabyLM 2023, 100 million words, T5-base",
        66.7, 61.2, 59.4, 59.8, 53.8, 49.1, 70.0, 75.5, 43.6, 45.6, 34.2, 53.2,
    ),
    Baseline("BabyLM 2026, 10 million words, GPT-2", 0.6439, _BABYLM_2026),
    Baseline("BabyLM 2026, 100 million words, GPT-2", 0.7343, _BABYLM_2026),
)  # fmt: skip


def baselines_for(phenomena: Collection[str]) -> list[dict[str, Any]]:
    """Returns the baselines on BLiMP's phenomena, most accurate first; none if there are others.

    Of some phenomena, the accuracy is the mean over these.
    """
    wanted = {_SAME.get(phenomenon, phenomenon) for phenomenon in phenomena}
    if not wanted & _OWN or not wanted <= set(PHENOMENA):
        return []
    baselines: Sequence[Baseline] = BASELINES
    if len(wanted) < len(PHENOMENA):
        baselines = [_on(baseline, wanted) for baseline in BASELINES if baseline.by_phenomenon]
    return [
        baseline.to_json()
        for baseline in sorted(baselines, key=lambda baseline: -baseline.accuracy)
    ]


def _on(baseline: Baseline, wanted: Collection[str]) -> Baseline:
    named = zip(PHENOMENA, baseline.by_phenomenon, strict=True)
    shares = [share for name, share in named if name in wanted]
    return replace(baseline, accuracy=round(fmean(shares), 4))
