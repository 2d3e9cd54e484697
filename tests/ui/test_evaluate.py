"""The Evaluate and Fine-tune tabs, and fine-tuned models in the Playground and the demo."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from core.architecture.architecture import Architecture
from core.artifacts.checkpoint import Checkpoints
from core.config.evaluate import EvaluateConfig
from core.config.finetune import FinetuneConfig
from core.errors import ConfigError, CorpusError
from core.evaluation.previewing import preview_evaluation
from core.families import find_family
from core.finetuning.heads import body_mappings, find_head, head_mappings
from core.finetuning.previewing import preview_examples_apart
from core.finetuning.saving import ClassifierConfig, write_classifier, write_tokenizer
from core.serving.demo import MOST_CHARACTERS, Demo
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint
from tests.texts import sentences
from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from ui import evaluate, finetune
from ui.demo import OFFERED, ROUTES, build_demo
from ui.parts import answers
from ui.parts.examples import comparable, fills, head_of, writes
from ui.parts.subjects import SubjectForm, list_checkpoints


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a pretrained encoder, two fine-tuned ones, and a run's checkpoints."""
    workspace = Workspace(tmp_path_factory.mktemp("evaluate") / "workspace")
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    with workspace.new_artifact("model", "reader") as draft:
        write_checkpoint(draft.folder, tokenizer)
    for name in ("sequence", "token", "sequence-rival", "token-rival"):
        with workspace.new_artifact("model", name) as draft:
            write_classifier_of(draft.folder, tokenizer, name.partition("-")[0])
            draft.counts = {"task": "classification", "accuracy": 0.5, "per_seed": []}
    checkpoints = Checkpoints(workspace.runs / "train-one" / "checkpoints")
    for words in (1000, 2000):
        checkpoints.write_words(
            words, {"step": words // 100}, {}, lambda folder: write_checkpoint(folder, tokenizer)
        )
    write_checkpoint(checkpoints.path(12), tokenizer)
    (workspace.runs / "train-one" / "run.json").write_text("{}")
    return workspace


def write_classifier_of(folder: Path, tokenizer: Any, kind: Any) -> None:
    """Writes a tiny classifier with random weights."""
    import numpy as np

    architecture: Architecture = find_family("roberta").architecture(
        vocab_size=tokenizer.vocab_size, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=66,
        pad_token_id=tokenizer.pad_id, bos_token_id=tokenizer.cls_id,
        eos_token_id=tokenizer.sep_id,
    )  # fmt: skip
    config = ClassifierConfig(architecture, kind, ("no<b>", "yes"))
    head = find_head(architecture, kind)
    mappings = [*body_mappings(architecture, head), *head_mappings(architecture, head, 2)]
    draw = np.random.default_rng(0).normal
    weights = {one.path: draw(0, 0.5, one.shape).astype(np.float32) for one in mappings}
    write_classifier(folder, weights, config)
    write_tokenizer(folder, tokenizer, segments=False)


def rendered(form: SubjectForm[Any]) -> SubjectForm[Any]:
    with gr.Blocks():
        form.render()
    return form


def test_models_and_checkpoints_of_runs_are_offered(workspace: Workspace) -> None:
    form = rendered(SubjectForm(EvaluateConfig, "evaluate", workspace))
    offered = [value for _, value in form.components["model"].choices]
    assert offered[0] == "reader" and "sequence" not in offered
    assert offered[1:] == list_checkpoints(workspace)
    assert offered[1:] == [f"train-one@{one}" for one in ("newest", "words-2000", "words-1000")]
    for name in ("train-one@words-1000", "train-one@newest", "train-one@12", "reader"):
        evaluate._check(EvaluateConfig(model=name), workspace)
    tuning = rendered(finetune._TuningForm(FinetuneConfig, "finetune", workspace))
    names = [value for _, value in tuning.components["model"].choices]
    assert names[: len(offered)] == offered and "sequence" in names[len(offered) :]


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("", "No model is chosen"),
        ("sequence", "is a fine-tuned model"),
        ("train-one@words-7", "has no checkpoint"),
        ("nobody", "was not found"),
    ],
)
def test_unsuitable_model_is_refused(workspace: Workspace, model: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        evaluate._check(EvaluateConfig(model=model), workspace)


@pytest.mark.parametrize("task", ["classification", "token_classification"])
@pytest.mark.parametrize("model", ["sequence", "token"])
def test_fine_tuned_model_can_be_fine_tuned_again(
    workspace: Workspace, tmp_path: Path, model: str, task: Any
) -> None:
    path = tmp_path / "a.jsonl"
    row = {"text": "a ship", "label": "b", "tokens": ["a"], "tags": ["b"]}
    path.write_text(json.dumps(row) + "\n")
    finetune._check(FinetuneConfig(model=model, task=task, train_path=str(path)), workspace)


def test_files_are_checked_before_a_run_is_queued(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"good": "a", "sentence_bad": "b"}\n')
    config = EvaluateConfig(model="reader", path=str(tmp_path / "pairs.jsonl"))
    with pytest.raises(ConfigError, match="no field 'sentence_good'"):
        evaluate._check(config, workspace)
    (tmp_path / "train.tsv").write_text("words\tclass\na\tb\n")
    tuning = FinetuneConfig(model="reader", train_path=str(tmp_path / "train.tsv"))
    with pytest.raises(ConfigError, match="column"):
        finetune._check(tuning, workspace)
    with pytest.raises(ConfigError, match="no training examples"):
        finetune._check(FinetuneConfig(model="reader"), workspace)
    finetune._check(FinetuneConfig(model="reader", glue="cola"), workspace)


def test_data_are_previewed_with_columns_rows_and_classes(tmp_path: Path) -> None:
    write_data(tmp_path)
    tuning = FinetuneConfig(train_path=str(tmp_path / "train.tsv"))
    seen = preview_examples_apart(tuning, "train")
    assert (seen.columns, seen.count, seen.complete) == (["text", "label"], 80, True)
    assert len(seen.rows) == 5 and seen.groups == {"long": 50, "short": 30}
    regression = tuning.model_copy(update={"task": "regression"})
    with pytest.raises(CorpusError, match="no number"):
        preview_examples_apart(regression, "train")
    pairs = preview_evaluation(EvaluateConfig(path=str(tmp_path / "pairs.jsonl")))
    assert pairs.groups == {"order_0": 15, "order_1": 15} and pairs.columns[-1] == "UID"
    text = preview_evaluation(EvaluateConfig(task="text", path=str(tmp_path / "train.tsv")))
    assert text.count == 80 and text.rows[0][1] == seen.rows[0][0]


def test_a_menu_without_a_choice_means_none(workspace: Workspace) -> None:
    form = rendered(SubjectForm(FinetuneConfig, "finetune", workspace))
    assert form.parse({"model": "reader", "glue": ""}).glue == ""
    assert form.parse({"model": "reader", "glue": "cola"}).glue == "cola"


def test_models_are_compared_with_those_that_answer_the_same_question(
    workspace: Workspace,
) -> None:
    names = [one.name for one in workspace.list("model")]
    assert comparable("token", names, workspace) == ["token-rival"]
    assert comparable("train-one@newest", names, workspace) == ["reader"]


def test_fine_tuned_models_neither_fill_nor_write(workspace: Workspace) -> None:
    assert head_of("sequence", workspace) == "sequence" and head_of("token", workspace) == "token"
    assert not fills("sequence", workspace) and not writes("token", workspace)
    assert fills("reader", workspace) and head_of("reader", workspace) is None
    assert fills("train-one@words-1000", workspace)


def test_classes_and_tags_are_escaped() -> None:
    classes = answers.classes([{"label": "<b>x", "score": 0.75}, {"label": "y", "score": 0.25}])
    assert "&lt;b&gt;x" in classes and "75 %" in classes
    assert "3.25" in answers.classes([{"label": "LABEL_0", "score": 3.25}])
    several = [{"label": f"class {number}", "score": 0.9} for number in range(60)]
    assert "class 59" in answers.classes(several), "a text may have several classes"
    assert "less probable" in answers.classes([{**one, "score": 1 / 60} for one in several])
    numbers = answers.classes([{"label": "<length>", "score": 7.5}, {"label": "y", "score": 0.5}])
    assert "7.5" in numbers and "&lt;length&gt;" in numbers and "%" not in numbers
    tags = answers.tags([{"word": "<i>", "tag": "<NOUN>", "score": 0.5}])
    assert "&lt;i&gt;" in tags and "&lt;NOUN&gt;" in tags and "50 %" in tags


def test_demo_of_a_fine_tuned_model_offers_its_function_within_limits(workspace: Workspace) -> None:
    for kind, name in (("sequence", "classify"), ("token", "tag")):
        demo = Demo(str(workspace.folder("model") / kind))
        try:
            assert demo.head == kind and not demo.fills and not demo.writes
            offered = build_demo(demo, "http://demo").get_api_info()["named_endpoints"]
            assert set(offered) == {f"/{name}"}
            assert set(OFFERED[name]) == {
                one["parameter_name"] for one in offered[f"/{name}"]["parameters"]
            }
            assert ROUTES.fullmatch(f"POST /gradio_api/call/{name}")
            with pytest.raises(ConfigError, match="too long"):
                getattr(demo, name)("", "a" * (MOST_CHARACTERS + 1))
            with pytest.raises(ConfigError, match="not a string"):
                getattr(demo, name)("", ["a"])
        finally:
            demo.close()


def write_data(folder: Path) -> None:
    """Writes minimal pairs, held-out text, and labelled texts."""
    some = [" ".join(one.split()[:4]) for one in sentences(80, seed=4)]
    swapped = [" ".join(reversed(one.split())) for one in some]
    rows = [
        {"sentence_good": good, "sentence_bad": bad, "UID": f"order_{n % 2}",
         "linguistics_term": "word_order"}
        for n, (good, bad) in enumerate(zip(some, swapped, strict=True))
    ]  # fmt: skip
    (folder / "pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows[:30]))
    lines = [f"{one}\t{('short', 'long')[len(one) > 22]}" for one in some]
    (folder / "train.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")


def upload(visitor: Visitor, field: str, path: Path) -> None:
    """Drops a file; the workspace keeps it."""
    visitor.page.locator(f"#{field}-upload input[type=file]").set_input_files(str(path))
    box = visitor.field(field)
    visitor.wait_for(lambda: box.input_value().endswith(f"/{path.name}"), 60, "the path")


@pytest.fixture(scope="module")
def visitor(workspace: Workspace) -> Iterator[Visitor]:
    """A page on a phone."""
    find_chromium()
    with running_app(workspace.root) as url, visiting(url, width=390, height=844) as visit:
        yield visit()


@pytest.mark.slow(30)
@pytest.mark.long
def test_two_fine_tuned_models_answer_side_by_side(visitor: Visitor) -> None:
    asked = (
        ("sequence", "classified", "classify", "#playground-classes", ".ps-predictions li", 4),
        ("token", "tagged", "tag", "#playground-tags", ".ps-tags li", 6),
    )
    visitor.open("Playground")
    page = visitor.page
    for kind, text, button, place, item, count in asked:
        visitor.choose("playground-model", kind)
        page.locator(f"#playground-{text} textarea").fill("The ship runs")
        visitor.choose("playground-second", f"{kind}-rival")
        page.locator(f"#playground-{button}").click()
        items = page.locator(f"{place} .ps-beside-answers {item}")
        visitor.wait_for(lambda items=items, count=count: items.count() == count, 60, kind)
        titles = page.locator(f"{place} .ps-beside-answers h4").all_inner_texts()
        assert titles == [kind, f"{kind}-rival"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # A model that can't answer the same question is not offered.
    visitor.field("playground-second").click()
    page.get_by_role("option", name="token-rival", exact=True).wait_for()
    assert page.get_by_role("option", name="reader", exact=True).count() == 0
    page.keyboard.press("Escape")
    visitor.see(page.locator("#playground-about"), "RoBERTa")
    assert visitor.errors == []


@pytest.mark.slow(60)
@pytest.mark.long
def test_a_model_is_evaluated_fine_tuned_and_tried_in_the_web_app(
    workspace: Workspace, visitor: Visitor
) -> None:
    folder = workspace.uploads
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder)
    page = visitor.page
    visitor.open("Evaluate")
    visitor.choose("evaluate-model", "reader")
    page.get_by_role("button", name="Evaluate reader on nyu-mll/blimp").wait_for()
    visitor.pick("evaluate-task", "Held-out text")
    page.get_by_text("There is no text to evaluate on").first.wait_for()
    visitor.type("evaluate-dataset_name", "me/texts")
    page.get_by_role("button", name="Evaluate reader on me/texts").wait_for()
    visitor.pick("evaluate-task", "Minimal pairs")
    visitor.type("evaluate-dataset_name", "")
    upload(visitor, "evaluate-path", folder / "pairs.jsonl")
    chosen = page.locator("#evaluate-data")
    visitor.see(chosen, "30 examples", "2 paradigms", "order_1", "sentence_bad")
    page.get_by_role("button", name="Evaluate reader on pairs.jsonl").wait_for()
    visitor.start("evaluate")
    table = page.get_by_role("table", name="Accuracy by phenomenon")
    table.wait_for(timeout=120_000)
    visitor.see(table, "word order")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_text("Watch it in Runs").click()
    page.locator(".ps-detail-report .ps-results").wait_for()

    visitor.open("Fine-tune")
    visitor.choose("finetune-model", "reader")
    upload(visitor, "finetune-train_path", folder / "train.tsv")
    chosen = page.locator("#finetune-data")
    visitor.see(chosen, "Training file: train.tsv", "80 examples", "2 classes", "text, label")
    assert chosen.locator("tbody tr").count() == 5
    assert chosen.locator(".ps-data-groups li").count() == 2
    visitor.type("finetune-learning_rates", "1e-3")
    visitor.type("finetune-num_train_epochs", "1")
    page.get_by_role("button", name="Fine-tune reader on train.tsv").wait_for()
    time = page.locator("#tab-finetune .ps-facts .ps-tiles > div", has_text="time, roughly")
    visitor.wait_for(lambda: re.match(r"\d", time.inner_text()), 60, "the expected time")
    visitor.start("finetune")
    metrics = page.get_by_role("table", name="Metrics beside the baselines")
    link = page.locator("[data-go='playground/reader-train']", has_text="Open in Playground")
    link.wait_for(timeout=180_000)
    visitor.see(metrics, "Accuracy")
    link.click()

    page.locator("#playground-classified textarea").fill("The old ship sleeps.")
    page.locator("#playground-classify").click()
    page.locator("#playground-classes .ps-predictions").wait_for()
    visitor.see(page.locator("#playground-classes"), "short", "long")
    assert not page.locator("#playground-text").is_visible()
    assert visitor.errors == []
