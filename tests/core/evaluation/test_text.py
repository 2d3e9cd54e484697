"""Loss, perplexity and bits per byte of held-out text, compared with transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from core.config.evaluate import EvaluateConfig
from core.errors import StudioError
from core.evaluation.text import evaluate_text, windows
from core.inference.likelihood import TokenScorer
from core.workspace.workspace import Workspace
from tests.core.evaluation.models import LENGTH, Reference, write_models
from tests.engines import OFTEN, run_on
from tests.texts import sentences

pytestmark = pytest.mark.long

DOCUMENTS = ["", *sentences(6, seed=2), "  ", "Ünïcode 한국어", "The golden " * 40]
EVALUATE = """
import json, sys
from pathlib import Path
from core.config import EvaluateConfig
from core.evaluation.text import evaluate_text
from core.inference.likelihood import TokenScorer
found = {}
for folder, task in json.loads(sys.argv[1]):
    config = EvaluateConfig(model=folder, task="text", path=sys.argv[2], context_tokens=task)
    found[folder] = evaluate_text(config, TokenScorer(Path(folder), on_backend=True))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    write_models(workspace, ("roberta", "gpt2", "t5"))
    return workspace


def config_of(path: Path, **values: object) -> EvaluateConfig:
    return EvaluateConfig(model="m", task="text", path=str(path), **values)


@pytest.mark.slow(30)
@pytest.mark.parametrize("engine", OFTEN)
def test_figures_of_short_documents_match_transformers(
    engine: str, workspace: Workspace, tmp_path: Path
) -> None:
    kept = DOCUMENTS[:-1]
    (tmp_path / "a.txt").write_text("\n".join(kept), "utf-8")
    folders = {name: workspace.folder("model") / name for name in ("gpt2", "roberta", "t5")}
    asked = json.dumps([[str(folder), None] for folder in folders.values()])
    found = run_on(engine, EVALUATE, asked, tmp_path / "a.txt")
    for folder in folders.values():
        reference, figures = Reference(folder), found[str(folder)]
        scores = [one for text in kept if text.strip() for one in reference.score(text)]
        size = sum(len(text.encode()) for text in kept if text.strip())
        assert (figures["tokens"], figures["bytes"]) == (len(scores), size)
        assert figures["documents"] == 7
        assert figures["loss"] == pytest.approx(-sum(scores) / len(scores), abs=1e-4)
        assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
        expected = -sum(scores) / math.log(2) / size
        assert figures["bits_per_byte"] == pytest.approx(expected, abs=1e-4)
        assert figures["by_source"]["a.txt"]["loss"] == figures["loss"]


@pytest.mark.parametrize("family", ["roberta", "gpt2"])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 10, 23, 24, 25, 100])
@pytest.mark.parametrize("context", [2, 3, 8])
def test_windows_score_each_token_once(
    family: str, length: int, context: int, workspace: Workspace
) -> None:
    scorer = TokenScorer(workspace.folder("model") / family)
    usual = np.setdiff1d(np.arange(scorer.tokenizer.vocab_size), scorer.tokenizer.special_ids)
    ids = np.resize(usual, length).astype(np.int32)
    found = list(windows(scorer, ids, context, looks_ahead=family != "gpt2"))
    scored = [window.ids[window.scored] for window in found]
    assert np.concatenate(scored).tolist() == ids.tolist()
    assert all(len(window.ids) <= context + 2 for window in found)
    inner = [window.scored for window in found[1:]]
    # A decoder sees half a window before a scored token.
    assert all(places[0] - 1 >= context // 4 for places in inner)


def test_long_document_is_scored_with_its_context(workspace: Workspace, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install torch==2.13.0")
    folder = workspace.folder("model") / "roberta"
    scorer, reference = TokenScorer(folder), Reference(folder)
    text = "The golden garden never sleeps behind the river. " * 6
    (tmp_path / "a.txt").write_text(text)
    figures = evaluate_text(config_of(tmp_path / "a.txt", context_tokens=16), scorer)
    (ids,) = scorer.encode([text])
    assert len(ids) > LENGTH and figures["tokens"] == len(ids)
    total = 0.0
    with torch.no_grad():
        for window in windows(scorer, ids, 16, looks_ahead=True):
            for place in window.scored:
                total += reference._score_masked(torch.tensor(window.ids).long(), int(place))
    assert figures["loss"] == pytest.approx(-total / len(ids), abs=1e-3)


def test_files_are_reported_one_by_one(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The quiet river runs.\nIt never sleeps.\n")
    (tmp_path / "b.jsonl").write_text('{"text": "A captain reads."}\n')
    scorer = TokenScorer(workspace.folder("model") / "roberta")
    figures = evaluate_text(config_of(tmp_path), scorer)
    first, second = figures["by_source"].values()
    assert [Path(name).name for name in figures["by_source"]] == ["a.txt", "b.jsonl"]
    assert (first["documents"], second["documents"], figures["documents"]) == (2, 1, 3)
    total = first["loss"] * first["tokens"] + second["loss"] * second["tokens"]
    assert figures["loss"] == pytest.approx(total / figures["tokens"])
    limited = evaluate_text(config_of(tmp_path, limit=1), scorer)
    assert limited["documents"] == 2


@pytest.mark.parametrize(
    ("content", "options", "field", "words"),
    [
        ("", {}, "path", "no text to score"),
        (" \n\n", {}, "path", "no text to score"),
        ("text", {"context_tokens": 100}, "context_tokens", "at most 62 tokens"),
    ],
)
def test_unusable_text_is_refused(
    content: str,
    options: dict[str, int],
    field: str,
    words: str,
    workspace: Workspace,
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text(content)
    scorer = TokenScorer(workspace.folder("model") / "roberta")
    with pytest.raises(StudioError, match=words) as caught:
        evaluate_text(config_of(tmp_path / "a.txt", **options), scorer)
    assert caught.value.field == field


def test_text_needs_a_path(workspace: Workspace) -> None:
    scorer = TokenScorer(workspace.folder("model") / "roberta")
    with pytest.raises(StudioError, match="no text to evaluate on"):
        evaluate_text(EvaluateConfig(task="text"), scorer)
