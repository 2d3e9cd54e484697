"""Scores of minimal pairs, compared with transformers on PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.evaluation.minimal_pairs import ScoredPair, score_pairs, summarize_pairs
from core.evaluation.pairs import Pair
from core.evaluation.summary import summarize
from core.inference.likelihood import TokenScorer
from core.workspace.workspace import Workspace
from tests.core.evaluation.models import (
    ENCODERS,
    FAMILIES,
    MOST_DIFFERENCE,
    Reference,
    write_models,
)
from tests.engines import OFTEN, run_on
from tests.texts import sentences
from tests.thorough import THOROUGH

pytestmark = pytest.mark.long

SENTENCES = sentences(12 if THOROUGH else 4, seed=5)
PAIRS = [
    ("The small house sleeps.", "The small house sleep."),
    ("The old ship never reads a golden letter.", "The old ship never a reads golden letter."),
    ("a", "an old captain loses the quiet horse behind the bridge"),
    ("Ünïcode 한국어 here", "Ünïcode here 한국어"),
    *zip(SENTENCES[::2], SENTENCES[1::2], strict=True),
]
SCORE = """
import json, sys
from pathlib import Path
from core.evaluation.minimal_pairs import score_pairs
from core.evaluation.pairs import Pair
from core.inference.likelihood import TokenScorer
pairs = [Pair(good, bad, "p", "", "here") for good, bad in json.loads(sys.argv[2])]
found = {}
for folder in json.loads(sys.argv[1]):
    scorer = TokenScorer(Path(folder), on_backend=True)
    found[folder] = [[one.good, one.bad] for one in score_pairs(scorer, pairs)]
print(json.dumps(found))
"""
IMPORTED = """
import json, sys
from core.config import EvaluateConfig
from core.evaluation.stage import run
from core.workspace import Workspace
config = EvaluateConfig(model="roberta", path=sys.argv[2])
run(config, Workspace(sys.argv[1]))
print(json.dumps([name for name in ("tensorflow", "jax", "keras", "torch") if name in sys.modules]))
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    write_models(workspace)
    return workspace


@pytest.fixture(scope="module")
def references(workspace: Workspace) -> dict[str, list[list[float]]]:
    """PyTorch's scores of both sentences of each pair, by family."""
    found = {}
    for family in FAMILIES:
        reference = Reference(workspace.folder("model") / family)
        found[family] = [[sum(reference.score(one)) for one in pair] for pair in PAIRS]
    return found


def as_pairs(texts: list[tuple[str, str]]) -> list[Pair]:
    return [Pair(good, bad, "p", "", "Line 1 of a.jsonl") for good, bad in texts]


def assert_close(found: list[list[float]], expected: list[list[float]]) -> None:
    for (good, bad), (good_there, bad_there) in zip(found, expected, strict=True):
        assert good == pytest.approx(good_there, abs=MOST_DIFFERENCE)
        assert bad == pytest.approx(bad_there, abs=MOST_DIFFERENCE)
        assert good - bad == pytest.approx(good_there - bad_there, abs=MOST_DIFFERENCE)


@pytest.mark.slow(60)
@pytest.mark.parametrize("engine", OFTEN)
def test_pair_scores_match_transformers(
    engine: str, workspace: Workspace, references: dict[str, list[list[float]]]
) -> None:
    folders = {family: str(workspace.folder("model") / family) for family in FAMILIES}
    found = run_on(engine, SCORE, json.dumps(list(folders.values())), json.dumps(PAIRS))
    for family, folder in folders.items():
        assert_close(found[folder], references[family])


@pytest.mark.parametrize("family", [*ENCODERS, "t5", "bart"])
def test_pair_scores_on_openvino_match_transformers(
    family: str, workspace: Workspace, references: dict[str, list[list[float]]]
) -> None:
    pytest.importorskip("openvino", reason="pip install openvino")
    scorer = TokenScorer(workspace.folder("model") / family)
    scored = score_pairs(scorer, as_pairs(PAIRS))
    assert_close([[one.good, one.bad] for one in scored], references[family])


def test_equal_sentences_tie(workspace: Workspace) -> None:
    scorer = TokenScorer(workspace.folder("model") / "roberta")
    (scored,) = score_pairs(scorer, as_pairs([("The old ship.", "The old ship.")]))
    assert scored.difference == 0
    figures = summarize_pairs([scored])
    assert (figures["accuracy"], figures["official_accuracy"], figures["ties"]) == (0.5, 1.0, 1)


@pytest.mark.slow
def test_encoder_is_evaluated_without_a_training_backend(
    workspace: Workspace, tmp_path: Path
) -> None:
    pytest.importorskip("openvino", reason="pip install openvino")
    (tmp_path / "a.jsonl").write_text('{"sentence_good": "a b", "sentence_bad": "b a"}\n')
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, str(workspace.root), str(tmp_path / "a.jsonl")],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_accuracies_are_counted_by_paradigm_and_phenomenon() -> None:
    def scored(difference: float, paradigm: str, phenomenon: str) -> ScoredPair:
        return ScoredPair(Pair("a", "b", paradigm, phenomenon, ""), difference, 0.0)

    figures = summarize_pairs(
        [
            *[scored(1, "one", "binding")] * 3,
            scored(-1, "one", "binding"),
            scored(0, "two", "binding"),
            scored(2, "three", ""),
        ]
    )
    assert (figures["pairs"], figures["ties"]) == (6, 1)
    assert figures["accuracy"] == pytest.approx(4.5 / 6)
    assert figures["official_accuracy"] == pytest.approx(5 / 6)
    assert figures["mean_over_paradigms"] == pytest.approx((0.75 + 0.5 + 1) / 3)
    assert {name: one["accuracy"] for name, one in figures["by_paradigm"].items()} == {
        "one": 0.75, "two": 0.5, "three": 1.0,
    }  # fmt: skip
    assert figures["by_phenomenon"]["binding"]["accuracy"] == pytest.approx(3.5 / 5)
    assert figures["by_paradigm"]["two"]["phenomenon"] == "binding"
    assert figures["baselines"][0]["name"].startswith("GPT-2")


@pytest.mark.parametrize(
    ("family", "sentence", "words"),
    [
        ("roberta", "the " * 70, "at most 62 tokens"),
        ("gpt2", "the " * 70, "at most 63 tokens"),
        ("roberta", "the <mask> sleeps", "Received: <mask>"),
        ("t5", "the <extra_id_0> sleeps", "Received: <extra_id_0>"),
    ],
)
def test_unsuitable_sentence_is_refused_with_its_line(
    family: str, sentence: str, words: str, workspace: Workspace
) -> None:
    scorer = TokenScorer(workspace.folder("model") / family)
    with pytest.raises(ConfigError, match=words) as caught:
        score_pairs(scorer, as_pairs([("the house", sentence)]))
    assert "Line 1 of a.jsonl" in str(caught.value)


def test_table_counts_a_single_pair_in_the_singular() -> None:
    scored = ScoredPair(Pair("a", "b", "order", "", "Line 1"), -1.0, -2.0)
    table = summarize({"task": "minimal_pairs", **summarize_pairs([scored])})
    assert "100.0 %  (20.7 to 100.0), 1 pair\n" in table
