"""Confidence intervals and published baselines."""

from __future__ import annotations

import pytest

from core.evaluation.baselines import BASELINES, PHENOMENA, baselines_for
from core.evaluation.statistics import wilson_interval


@pytest.mark.parametrize(
    ("share", "count", "interval"),
    [
        # https://www.itl.nist.gov/div898/handbook/prc/section2/prc241.htm uses 4 of 20.
        (0.2, 20, (0.0807, 0.4160)),
        (0.0, 10, (0.0, 0.2775)),
        (1.0, 10, (0.7225, 1.0)),
        (0.5, 0, (0.0, 1.0)),
    ],
)
def test_wilson_interval(share: float, count: int, interval: tuple[float, float]) -> None:
    assert wilson_interval(share, count) == pytest.approx(interval, abs=5e-5)


def test_mean_of_phenomena_is_near_the_published_accuracy() -> None:
    for one in BASELINES:
        assert one.source.startswith("https://github.com/")
        if one.by_phenomenon:
            assert len(one.by_phenomenon) == len(PHENOMENA)
            # The paper's accuracy is the mean over paradigms.
            mean = sum(one.by_phenomenon) / len(PHENOMENA)
            assert one.accuracy == pytest.approx(mean, abs=0.03)


def test_baselines_accompany_blimp_only() -> None:
    (gpt2,) = (one for one in baselines_for(["npi_licensing", "s-selection"])
               if one["name"].startswith("GPT-2"))  # fmt: skip
    assert gpt2["accuracy"] == pytest.approx((0.768 + 0.818) / 2), "of these phenomena alone"
    assert baselines_for([*PHENOMENA, "s-selection"])[0]["accuracy"] == 0.83
    assert baselines_for(["npi_licensing", "word_order"]) == baselines_for([""]) == []
