"""The stage `finetune`: command line, artifact, baselines, pipelines of transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from core import classify, tag
from core.__main__ import main
from core.config.finetune import FinetuneConfig
from core.config.push import PushConfig
from core.errors import ConfigError, CorpusError
from core.finetuning.data import read_splits
from core.finetuning.stage import derive_name
from core.finetuning.summary import summarize
from core.publishing.push import preview
from core.workspace.manifests import read_manifest
from core.workspace.workspace import Workspace
from tests.core.evaluation.models import write_models
from tests.core.finetuning.reference import Reference
from tests.core.runs.support import stop_worker

NOUNS = ("ship", "horse", "cat", "house")
VERBS = ("runs", "reads", "sails", "sees")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    write_models(workspace, ("bert", "gpt2"))
    yield workspace
    stop_worker(workspace)


def write_texts(path: Path, count: int, seed: int) -> str:
    """Writes texts whose class is told by one word."""
    generator = np.random.default_rng(seed)
    rows = ["text\tlabel"]
    for _ in range(count):
        label = int(generator.integers(2))
        words = generator.choice(NOUNS, 3).tolist()
        words.insert(int(generator.integers(4)), ("good", "bad")[label])
        rows.append(f"the {' '.join(words)}\t{('positive', 'negative')[label]}")
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def write_tagged(path: Path, count: int, seed: int) -> str:
    """Writes sentences with tags in CoNLL-U; some are longer than the model reads."""
    generator = np.random.default_rng(seed)
    blocks = []
    for number in range(count):
        words = [*generator.choice(NOUNS, 2), *generator.choice(VERBS, 2), "."]
        words = words * 8 if number % 10 == 0 else words
        lines = [
            f"{place}\t{word}\t_\t{_tag(word)}" + "\t_" * 6 for place, word in enumerate(words, 1)
        ]
        blocks.append("\n".join(["# text = x", *lines]) + "\n\n")
    path.write_text("".join(blocks))
    return str(path)


def _tag(word: str) -> str:
    return "PUNCT" if word == "." else "NOUN" if word in NOUNS else "VERB"


def run(workspace: Workspace, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Runs `finetune` on the command line; returns its JSON."""
    command = ["finetune", "--workspace", str(workspace.root), "--json", "--max-seq-length", "32"]
    assert main([*command, *words]) == 0, capsys.readouterr().out
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


@pytest.mark.long
def test_classifier_learns_and_works_in_transformers(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_texts(tmp_path / "train.tsv", 400, 0)
    test = write_texts(tmp_path / "test.tsv", 60, 1)
    found = run(
        workspace, capsys, "--model", "bert", "--task", "classification", "--train-path", train,
        "--test-path", test, "--learning-rates", "1e-4 3e-3", "--num-seeds", "2",
        "--num-train-epochs", "4", "--name", "mood", "--engine", "jax",
    )  # fmt: skip
    metrics = found["metrics"]
    assert metrics["accuracy"] > 0.9 > metrics["majority_accuracy"]
    assert {"random_init_accuracy", "accuracy_std", "f1", "matthews"} <= metrics.keys()
    assert metrics["learning_rate"] == 3e-3 and len(metrics["per_seed"]) == 2
    folder = Path(found["artifact"])
    manifest = read_manifest(folder)
    assert (manifest.kind, manifest.name) == ("model", "mood")
    assert manifest.counts["labels"] == ["negative", "positive"]
    assert "random weights" in summarize(metrics)
    check_card(workspace, metrics)

    texts = ["the bad ship horse cat", "the ship good horse cat"]
    ours = [classify("mood", text, workspace=workspace) for text in texts]
    pipeline = _pipeline("text-classification", folder)
    for text, mine in zip(texts, ours, strict=True):
        theirs = pipeline(text, top_k=None)
        assert [one["label"] for one in theirs] == [one["label"] for one in mine]
        assert [one["score"] for one in mine] == pytest.approx(
            [one["score"] for one in theirs], abs=1e-4
        )
    with pytest.raises(ConfigError, match="classifies texts"):
        tag("mood", texts[0], workspace=workspace)


def check_card(workspace: Workspace, metrics: dict[str, Any]) -> None:
    """Checks that the card has the results in `model-index`, and no local path."""
    from huggingface_hub import ModelCard

    config = PushConfig(model="mood", repo_id="me/mood", dry_run=True)
    text = preview(config, workspace).receipt.card
    card = ModelCard(text)
    assert card.data.pipeline_tag == "text-classification"
    found = {one.metric_name: one.metric_value for one in card.data.eval_results or []}
    assert found["Accuracy"] == round(metrics["accuracy"], 6)
    assert found["Accuracy, baseline"] == round(metrics["majority_accuracy"], 6)
    assert str(workspace.root) not in text and "BertForSequenceClassification" in text
    of_space = preview(config.model_copy(update={"space": True}), workspace).receipt.space_files
    assert {"app.py", "README.md"} <= {one["path"] for one in of_space}


@pytest.mark.long
def test_tagger_has_the_word_accuracy_of_transformers(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_tagged(tmp_path / "train.conllu", 120, 0)
    test = write_tagged(tmp_path / "test.conllu", 20, 1)
    found = run(
        workspace, capsys, "--model", "bert", "--task", "token_classification", "--train-path",
        train, "--test-path", test, "--learning-rates", "2e-3", "--num-train-epochs", "8",
        "--name", "tagger", "--engine", "tensorflow",
    )  # fmt: skip
    folder, accuracy = Path(found["artifact"]), found["metrics"]["accuracy"]
    config = FinetuneConfig(
        task="token_classification", train_path=train, test_path=test, model="tagger"
    )
    sentences = [one for one in read_splits(config).test if len(one[0]) <= 10]
    words = [one.words for one in sentences]  # type: ignore[union-attr]
    ours = [[one["tag"] for one in tag("tagger", one, workspace=workspace)] for one in words]
    assert ours == [_tags_of_transformers(folder, one) for one in words]
    assert accuracy > found["metrics"]["majority_accuracy"]
    pipeline = _pipeline("token-classification", folder)
    first = pipeline(" ".join(words[0]))[0]
    mine = tag("tagger", words[0], workspace=workspace)[0]
    assert (first["entity"], float(first["score"])) == (
        mine["tag"], pytest.approx(mine["score"], abs=1e-4),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="tags words"):
        classify("tagger", "a ship", workspace=workspace)


def _tags_of_transformers(folder: Path, words: tuple[str, ...]) -> list[str]:
    """Labels each word at its first token, on PyTorch."""
    reference = Reference(folder)
    inputs = reference.tokenizer(list(words), is_split_into_words=True, return_tensors="pt")
    chosen = reference.model(**inputs).logits[0].argmax(dim=-1)
    of_tokens = inputs.word_ids()
    places = [of_tokens.index(number) for number in range(len(words))]
    return [reference.model.config.id2label[int(chosen[place])] for place in places]


def _pipeline(task: str, folder: Path) -> Any:
    pytest.importorskip("torch", reason="pip install torch==2.13.0")
    import transformers

    return transformers.pipeline(task, str(folder), device="cpu")


def test_stopped_run_leaves_nothing_behind(workspace: Workspace, tmp_path: Path) -> None:
    from core.finetuning.stage import run as finetune
    from core.records.events import Reporter, RunStopped, StopMode

    class Stopped(Reporter):
        def stop_requested(self) -> StopMode | None:
            return "save"

    before = sorted(workspace.folder("model").iterdir())
    config = FinetuneConfig(model="bert", train_path=write_texts(tmp_path / "a.tsv", 40, 0))
    with pytest.raises(RunStopped):
        finetune(config, workspace, Stopped())
    assert sorted(workspace.folder("model").iterdir()) == before


def test_test_set_with_an_unknown_class_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    from core.finetuning.stage import run as finetune

    train = write_texts(tmp_path / "a.tsv", 20, 0)
    other = tmp_path / "b.tsv"
    other.write_text("text\tlabel\nthe ship\tneutral\n")
    config = FinetuneConfig(model="bert", train_path=train, test_path=str(other))
    with pytest.raises(CorpusError, match="labels that the training examples lack"):
        finetune(config, workspace)


@pytest.mark.parametrize("task", ["classification", "token_classification"])
def test_label_that_could_not_be_loaded_is_refused_before_training(
    workspace: Workspace, tmp_path: Path, task: Literal["classification", "token_classification"]
) -> None:
    from core.finetuning.stage import run as finetune

    rows = [{"text": "a ship", "tokens": ["a"], "label": label, "tags": [label]}
            for label in ("x" * 201, "y") * 9]  # fmt: skip
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = FinetuneConfig(model="bert", task=task, train_path=str(path))
    with pytest.raises(CorpusError, match="too long for a class") as caught:
        finetune(config, workspace)
    assert caught.value.field == "label_column"


def write_numbers(path: Path, count: int, seed: int) -> str:
    """Writes texts with numbers far from 0 that count a word."""
    generator = np.random.default_rng(seed)
    rows = ["text\tlabel"]
    for _ in range(count):
        found = int(generator.integers(5))
        words = ["good"] * found + generator.choice(NOUNS, 5 - found).tolist()
        rows.append(f"the {' '.join(generator.permutation(words))}\t{100_000 + 250 * found}")
    path.write_text("\n".join(rows) + "\n")
    return str(path)


@pytest.mark.long
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_regression_learns_numbers_of_any_size(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    train = write_numbers(tmp_path / "train.tsv", 300, 0)
    test = write_numbers(tmp_path / "test.tsv", 60, 1)
    found = run(
        workspace, capsys, "--model", family, "--task", "regression", "--train-path", train,
        "--test-path", test, "--learning-rates", "3e-3", "--num-train-epochs", "8",
        "--patience", "5", "--engine", "jax",
    )  # fmt: skip
    metrics, folder = found["metrics"], Path(found["artifact"])
    assert metrics["pearson"] > 0.7 and metrics["mse"] < 0.5 * metrics["majority_mse"]
    assert metrics["eval_loss"] < 0.5, "the loss is in units of the training numbers' variance"
    texts, numbers = zip(*(line.split("\t") for line in Path(test).read_text().splitlines()[1:]),
                         strict=True)  # fmt: skip
    ours = np.array([classify(folder, text, workspace=workspace)[0]["score"] for text in texts])
    errors = ours - np.array(numbers, float)
    assert (errors**2).mean() == pytest.approx(metrics["mse"], rel=1e-3)
    reference = Reference(folder)
    assert not reference.problems
    theirs = reference.logits([(text,) for text in texts[:8]])[:, 0]
    assert ours[:8] == pytest.approx(theirs, rel=1e-6)


def test_name_is_derived_from_model_and_data() -> None:
    config = FinetuneConfig(model="owner/my-bert", train_path="data/film reviews.tsv")
    assert derive_name(config) == "my-bert-film-reviews"
    assert derive_name(FinetuneConfig(model="ko", glue="cola")) == "ko-cola"
