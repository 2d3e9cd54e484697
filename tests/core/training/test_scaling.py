"""Expected losses, from finished runs."""

from __future__ import annotations

import pytest

from core.training.scaling import FinishedRun, forecast, law

CORPUS = 8_500_000
# benchmarks/results.md: RoBERTa `mini`, the documentation, one machine.
DOCS = [
    FinishedRun(f"run-{steps}", 5_800_000, steps * 4096, loss, 6.926)
    for steps, loss in ((41, 6.232), (77, 5.519), (188, 4.384), (404, 3.744))
]
# https://github.com/marin-community/marin, adamw_llama_scaling; bits per byte of C4.
MARIN = [
    FinishedRun(str(parameters), parameters, tokens, loss, 3.0)
    for parameters, tokens, loss in (
        (154_147_328, 2_599_944_192, 1.1862),
        (299_649_792, 5_999_951_872, 1.0691),
        (602_457_088, 10_399_776_768, 0.9990),
        (1_431_373_824, 23_999_807_488, 0.9442),
    )
]


@pytest.mark.parametrize("runs", [DOCS, MARIN])
def test_interval_holds_each_larger_measured_run(runs: list[FinishedRun]) -> None:
    corpus = CORPUS if runs is DOCS else 10**10
    for index, run in enumerate(runs[1:], 1):
        for smaller in runs[:index]:
            expected = forecast(
                [smaller], parameters=run.parameters, tokens=run.tokens,
                half=(run.parameters, run.tokens // 2), corpus=corpus,
            )  # fmt: skip
            assert expected is not None
            assert expected.low < run.loss < expected.high
            assert expected.runs == [smaller.name]


def test_nearest_run_counts_and_an_equal_one_gives_its_loss() -> None:
    expected = forecast(
        DOCS, parameters=5_800_000, tokens=404 * 4096, half=(5_800_000, 202 * 4096), corpus=CORPUS
    )
    assert expected is not None
    assert expected.runs == ["run-404"]
    assert expected.loss == pytest.approx(3.744)
    assert 0 < expected.gain_of_half < 1


def test_without_a_run_there_is_no_forecast() -> None:
    assert forecast([], parameters=1, tokens=1, half=(1, 1), corpus=1) is None


def test_repeated_text_is_worth_less_than_new_text() -> None:
    parameters, tokens = 10**7, 10**9
    assert law(parameters, tokens, tokens) < law(parameters, tokens, tokens // 10)
    assert law(parameters, tokens, tokens // 10) < law(parameters, tokens // 10, tokens // 10)
