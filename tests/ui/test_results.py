"""Results of evaluations and fine-tunings, as HTML."""

from __future__ import annotations

from typing import Any

import pytest

from core.evaluation.minimal_pairs import ScoredPair, summarize_pairs
from core.evaluation.pairs import Pair
from ui.parts.nodes import nodes_of
from ui.parts.results import finetuning_headline, headline, results_of

TEXT = {
    "task": "text", "model": "<i>m", "score": "log_likelihood", "seconds": 3.0,
    "loss": 2.5, "perplexity": 12.18, "bits_per_byte": 1.25, "tokens": 9000, "documents": 7,
    "by_source": {
        "a<b>.txt": {"loss": 2.0, "perplexity": 7.4, "bits_per_byte": 1.0, "tokens": 4000},
        "c.txt": {"loss": 3.0, "perplexity": 20.1, "bits_per_byte": 1.5, "tokens": 5000},
    },
}  # fmt: skip
FINETUNED = {
    "task": "classification", "model": "mini", "accuracy": 0.912, "accuracy_std": 0.01,
    "majority_accuracy": 0.5, "random_init_accuracy": 0.61, "random_init_accuracy_std": 0.02,
    "learning_rate": 3e-4, "learning_rates": {"0.0001": 0.8, "0.0003": 0.9},
    "per_seed": [
        {"seed": 0, "epoch": 2, "test": {"accuracy": 0.9}},
        {"seed": 1, "epoch": 3, "test": {"accuracy": 0.924}},
    ],
    "train_examples": 300, "test_examples": 50, "test_name": "test.tsv",
}  # fmt: skip


def pairs_figures(phenomenon: str = "npi_licensing") -> dict[str, Any]:
    scored = [
        ScoredPair(Pair("good", "bad", f"par_{n % 2}", phenomenon, "here"), float(n % 4), 0.5)
        for n in range(8)
    ]
    return {**summarize_pairs(scored), "task": "minimal_pairs", "model": "mini", "step": 500}


def test_minimal_pairs_are_shown_beside_published_figures() -> None:
    figures = pairs_figures()
    shown = results_of("evaluate", figures)
    assert "75.0 %" in shown and "40.9–92.9 %" in shown
    assert "npi licensing" in shown and "par 1" in shown
    # The model is ranked among the published ones.
    order = [shown.index(name) for name in ("GPT-2 large (WebText)", "(this model)", "5-gram")]
    assert order == sorted(order)
    assert 'href="https://github.com/babylm/evaluation-pipeline-2023"' in shown
    assert "mini, step 500" in shown
    assert headline(figures) == "75.0 % of 8 pairs"


@pytest.mark.parametrize("stage", ["evaluate", "finetune"])
def test_page_of_a_run_builds_the_results_from_nodes(stage: str) -> None:
    for figures in [FINETUNED] if stage == "finetune" else [pairs_figures(), TEXT]:
        shown = results_of(stage, figures)
        (root,) = nodes_of(shown)
        assert root[:2] == ["div", {"class": "ps-results"}] and len(root[2]) > 1


def test_other_data_have_no_published_figures() -> None:
    assert "Published" not in results_of("evaluate", pairs_figures("case_marking"))


def test_text_is_shown_by_source_and_escaped() -> None:
    shown = results_of("evaluate", TEXT)
    assert "a&lt;b&gt;.txt" in shown and "<i>" not in shown
    assert "1.25" in shown and "9,000" in shown
    assert headline(TEXT) == "1.25 bits per byte"


def test_metrics_have_their_spread_and_both_baselines() -> None:
    shown = results_of("finetune", FINETUNED)
    for words in ("91.2 % ± 1.0 %", "61.0 % ± 2.0 %", "Majority class", "2 seeds", "0.0003"):
        assert words in shown
    assert "92.4 %" in shown and "0.924" not in shown
    assert finetuning_headline(FINETUNED) == "Accuracy 91.2 % ± 1.0 %"


@pytest.mark.parametrize(
    "figures",
    [
        {"task": "minimal_pairs"},
        {"task": "minimal_pairs", "accuracy": "<b>", "interval": [1], "by_phenomenon": [3],
         "by_paradigm": {"<script>": {"accuracy": None, "interval": ["a", 2]}, "b": 4}},
        {"task": "text", "by_source": {"<script>": {"loss": "x"}, "b": {}}, "step": "<b>"},
    ],
)  # fmt: skip
def test_malformed_figures_are_shown_as_far_as_they_go(figures: dict[str, Any]) -> None:
    shown = results_of("evaluate", figures)
    assert "ps-results" in shown
    assert "<script>" not in shown and "<b><b>" not in shown


def test_other_stages_have_no_such_results() -> None:
    assert results_of("train", {"eval_loss": 2.0}) == ""
    assert results_of("finetune", {}) == ""
