"""Words seen, and the steps at which checkpoints are kept for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.train import TrainConfig
from core.config.word_marks import BABYLM_MARKS, parse_word_marks
from core.errors import ConfigError
from core.shards.build import build
from core.shards.read import open_shards
from core.training.words import WordRate, find_word_rate, mean_word_rate, steps_of_marks
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer
from tests.texts import write_sentences

MILLION = 1_000_000


def test_babylm_keeps_each_million_then_each_ten_then_each_hundred() -> None:
    marks = parse_word_marks("babylm")
    assert marks == BABYLM_MARKS and len(marks) == 28
    assert marks[:3] == (MILLION, 2 * MILLION, 3 * MILLION)
    assert marks[8:11] == (9 * MILLION, 10 * MILLION, 20 * MILLION)
    assert marks[-2:] == (900 * MILLION, 1000 * MILLION)


def test_numbers_of_words_have_units() -> None:
    assert parse_word_marks("2M, 500k 1500000") == (500_000, 1_500_000, 2 * MILLION)
    assert parse_word_marks("0.5m 1G") == (500_000, 1000 * MILLION)
    assert parse_word_marks("") == parse_word_marks("none") == ()


def test_evaluations_during_training_come_with_checkpoints_by_words() -> None:
    evaluated = {"shards": "rows", "evaluate_every": 5, "evaluate_pairs_path": "a.jsonl"}
    assert TrainConfig(**evaluated).word_marks == "babylm"
    assert TrainConfig(**evaluated, checkpoint_words="none").word_marks == "none"
    assert TrainConfig(shards="rows").word_marks == "none"


@pytest.mark.parametrize("text", ["many", "0", "-1M", "1e6", "1M;2M"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="checkpoint_words"):
        TrainConfig(checkpoint_words=text)


def test_checkpoint_is_kept_at_the_first_step_that_reaches_the_words() -> None:
    assert steps_of_marks((10, 25, 30, 31), 10.0) == {1: [10], 3: [25, 30], 4: [31]}
    assert steps_of_marks((1, 5), 1000.0) == {1: [1, 5]}


def test_evaluation_options_change_no_result() -> None:
    with_them = TrainConfig(
        shards="rows", evaluate_every=5, evaluate_pairs_path="a.jsonl", checkpoint_words="babylm"
    )
    assert with_them.fingerprint() == TrainConfig(shards="rows").fingerprint()


def test_words_per_token_are_counted_or_else_estimated(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    workspace = Workspace(tmp_path_factory.mktemp("words") / "workspace")
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    text = write_sentences(workspace.root / "text.txt", 600)
    corpus = CorpusConfig(source="files", path=str(text), validation_percent=10)
    config = ShardConfig(name="rows", tokenizer="byte_level_bpe", corpus=corpus, max_seq_length=32)
    counts = build(config, workspace).manifest.counts
    assert counts["train_words"] + counts["validation_words"] == len(text.read_text().split())

    shards = open_shards("rows", workspace)
    exact = find_word_rate(shards, tokenizer)
    assert exact == WordRate(counts["train_words"] / counts["train_tokens"])
    old = {name: value for name, value in counts.items() if not name.endswith("_words")}
    uncounted = replace(shards, manifest=replace(shards.manifest, counts=old))
    estimate = find_word_rate(uncounted, tokenizer)
    assert estimate.is_estimate
    assert estimate.per_token == pytest.approx(exact.per_token, rel=0.03)
    assert "estimated" in estimate.describe() and "counts" in exact.describe()


def test_words_of_a_mixture_are_weighted_by_its_shares() -> None:
    mixed = mean_word_rate([(3, WordRate(0.5)), (1, WordRate(0.9, is_estimate=True))])
    assert mixed.per_token == pytest.approx(0.6) and mixed.is_estimate
