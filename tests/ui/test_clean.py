"""The Clean tab, the analysis, and the text that later stages read."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.config.options import field_extra
from core.config.shards import ShardConfig
from core.corpus.cleaning.preview import CleanedDocument, CleaningPreview, clean_sample
from core.corpus.cleaning.rules import RULES
from core.corpus.cleaning.session import CleaningSession, SessionPool, shorten_document
from core.corpus.cleaning.stage import REPORT_FILE, clean
from core.corpus.statistics import analyse_corpus
from core.errors import ConfigError, CorpusError
from core.store import Store
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from tests.core.corpus.cleaning.support import pages, write_documents
from tests.ui.browser import Visitor, running_app, visiting
from ui.forms import Form
from ui.parts.analysis import render_analysis
from ui.parts.cleaning import (
    describe_report,
    mark_differences,
    read_report,
    render_preview,
    render_report,
)
from ui.parts.text_choice import TextForm

PAGES = pages(30)
NAMES = ("web", "books", "notes")
# Weights of the sources.
MIXTURE = {"web": 2, "books": 1, "notes": 1}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("clean") / "workspace")


@pytest.fixture(scope="module")
def cleaned(workspace: Workspace) -> Artifact:
    """A cleaned corpus of three sources."""
    folder = workspace.root.parent
    sources = []
    for place, name in enumerate(NAMES):
        texts = [*PAGES[10 * place : 10 * place + 10], PAGES[0], "schÃ¶n und grÃ¼n", "short"]
        path = write_documents(folder / f"{name}.jsonl", texts)
        sources.append({"name": name, "path": str(path)})
    corpus = {"source": "several", "sources": sources}
    config = CleanConfig.parse({"name": "all", "corpus": corpus, "workers": 1, "gopher": True,
                                "gopher_min_stop_words": None})  # fmt: skip
    return clean(config, workspace)


def text_form(workspace: Workspace) -> tuple[TextForm, Form[Any]]:
    """Returns the form of a later stage's text, and the stage's form."""
    with gr.Blocks():
        text = Form(CorpusConfig, "corpus", workspace)
        text.render()
        chosen = TextForm(text, "shards", workspace)
        chosen.render_choice()
        form = Form(ShardConfig, "shards", workspace, nested={"corpus": chosen})
        form.render()
    return chosen, form


def test_later_stage_reads_the_chosen_cleaned_corpus(
    workspace: Workspace, cleaned: Artifact
) -> None:
    chosen, form = text_form(workspace)
    assert [value for _, value in chosen.menu.choices] == [
        "", "all", *(f"all/{name}" for name in NAMES)
    ]  # fmt: skip
    raw: list[Any] = [{"tokenizer": "words"}, {}, {"source": "hub", "dataset_name": "a/b"}]
    assert form.parse(*raw).corpus.dataset_name == "a/b"
    raw[1] = {"cleaned": "all"}
    assert form.parse(*raw).corpus == CorpusConfig(corpus_name="all")
    raw[1] = {"cleaned": "all/web"}
    assert form.parse(*raw).corpus == CorpusConfig(corpus_name="all", only="web")
    form.check_nested(form.parse(*raw))


def test_missing_or_forbidden_corpus_is_named_beside_the_choice(
    workspace: Workspace, cleaned: Artifact
) -> None:
    _, form = text_form(workspace)
    with pytest.raises(ConfigError) as caught:
        form.check_nested(form.parse({}, {"cleaned": "gone"}, {}))
    assert form.count_problems(caught.value) == (1, "shards")
    with pytest.raises(ConfigError, match="has no access to"):
        form.parse({}, {"cleaned": ".."}, {})


def test_error_of_the_corpus_tab_is_shown_there(workspace: Workspace) -> None:
    _, form = text_form(workspace)
    error = ConfigError("The path is wrong", field="path")
    assert form.count_problems(error) == (1, "corpus")
    assert len(form.problem_outputs) == 3


def test_settings_of_a_run_are_shown_in_the_choice_or_the_corpus_tab(
    workspace: Workspace, cleaned: Artifact
) -> None:
    chosen, form = text_form(workspace)
    of_corpus = ShardConfig(corpus=CorpusConfig(corpus_name="all", only="books"))
    assert form.updates(of_corpus)[chosen.menu] == "all/books"
    of_docs = form.updates(ShardConfig(corpus=CorpusConfig(source="docs")))
    assert of_docs[chosen.menu] == ""
    assert of_docs[chosen.text.components["source"]]["value"] == "docs"
    gone = form.updates(ShardConfig(corpus=CorpusConfig(corpus_name="gone")))
    assert gone[chosen.menu] == ""
    assert gone[chosen.text.components["corpus_name"]]["value"] == "gone"


def test_thresholds_have_sliders_and_are_hidden_without_their_switch(workspace: Workspace) -> None:
    with gr.Blocks():
        form = Form(CleanConfig, "clean", workspace)
        form.render()
    found = form._help()
    assert found["clean-gopher_min_words"]["slider"] == [1, 500, 1]
    assert found["clean-gopher_min_words"]["optional"]
    assert not found["clean-boilerplate_min_documents"]["optional"]
    rule = 'body:not(:has(#clean-gopher input[type="checkbox"]:checked)) .ps-with-clean-gopher'
    assert rule in form._css()
    assert "ps-with-clean-gopher" in form.components["gopher_min_words"].elem_classes
    off = form.parse({"gopher": True, "gopher_min_words": "", "gopher_max_hashes": "0.25"})
    assert (off.gopher_min_words, off.gopher_max_hashes) == (None, 0.25)


def test_every_threshold_of_the_rules_has_a_slider_with_its_default() -> None:

    for rule in RULES:
        field = CleanConfig.model_fields[rule.option]
        if isinstance(field.default, bool):
            continue
        low, high, step = field_extra(field)["slider"]
        assert low <= field.default <= high and step > 0, rule.option


def test_preview_shows_rules_and_marks_differences() -> None:
    texts = [PAGES[0], PAGES[0], "<b>short</b> &amp; sweet", f"{PAGES[1]} Mail bob@site.org now."]
    config = CleanConfig(min_characters=40, replace_emails=True, fix_encoding=False)
    html = render_preview(clean_sample(config, texts))
    assert "2 of 4" in html and "Exact duplicates: Repeats document 1" in html
    assert "Length: 24 characters, fewer than 40" in html
    assert "&lt;b&gt;short&lt;/b&gt; &amp;amp; sweet" in html and "<b>short" not in html
    assert "<ins>name</ins>" in html and "E-mail addresses" in html


def test_differences_are_marked_and_escaped() -> None:
    before, after = mark_differences("one <two> three", "one <2> three")
    assert before == "one &lt;<del>two</del>&gt; three"
    assert after == "one &lt;<ins>2</ins>&gt; three"
    long = "a < b " * 5000
    assert mark_differences(long, "x")[0].count("&lt;") == 5000


def test_documents_are_cut_around_the_first_change() -> None:
    text = "word " * 2000
    one = CleanedDocument(text + "old", text + "new", "", "", "", ["c4"])
    short = shorten_document(one)
    assert len(short.before) < 2000 and short.before.endswith("old")
    assert short.before.startswith("…") and short.after.endswith("new")


@pytest.mark.slow(5)
def test_session_reads_its_sample_once(tmp_path: Path, workspace: Workspace) -> None:
    path = write_documents(tmp_path / "a.jsonl", PAGES)
    pool = SessionPool(workspace)
    corpus = CorpusConfig(path=str(path))
    key = pool.open(corpus, 20)
    assert key == pool.key_of(corpus) != pool.key_of(CorpusConfig())
    path.unlink()
    seen = pool.preview(key, CleanConfig(corpus=corpus))
    assert isinstance(seen, CleaningPreview) and 15 < len(seen.documents) <= 20
    assert {one.before[:1000] for one in seen.documents} <= {text[:1000] for text in PAGES}
    longer = CleanConfig(corpus=corpus, gopher=True, gopher_min_words=10_000)
    assert pool.preview(key, longer).summary["documents"] == 0
    with pytest.raises(ConfigError, match="'xx' can't be identified"):
        pool.preview(key, CleanConfig(corpus=corpus, languages="xx"))
    with pytest.raises(CorpusError, match="is gone"):
        pool.preview("other", longer)
    pool.close()
    assert pool.preview(key, longer).summary["documents"] == 0
    pool.close()


def test_slow_session_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    session = CleaningSession(PAGES)
    with pytest.raises(CorpusError, match="took too long"):
        session.preview(CleanConfig(), timeout_seconds=0.01)
    assert session._process is None
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(CorpusError, match="failed"):
        session.preview(CleanConfig())


def test_report_of_a_cleaned_corpus_is_shown(cleaned: Artifact) -> None:
    html = render_report(cleaned)
    assert "– Minimum words" in html and "Repair encoding" in html and "books" in html
    assert "<ins>" in html and "Examples" in html
    described = describe_report(cleaned)
    assert ["– Minimum words (50)", "2", ""] in described["rows"]
    assert described["skipped"] == "" and ["books", "13", *described["sources"][1][2:]] in (
        described["sources"]
    )  # fmt: skip
    assert any(reason.startswith("Gopher quality rules") for reason, _, _ in described["examples"])
    json.dumps(described)


def test_report_names_parts_that_were_skipped(cleaned: Artifact) -> None:
    counts = {**cleaned.manifest.counts, "parts_skipped": 2, "files_skipped": 1}
    skipped = replace(cleaned, manifest=replace(cleaned.manifest, counts=counts))
    warning = "Incomplete: 2 parts and 1 files could not be read."
    assert warning in render_report(skipped)
    assert describe_report(skipped)["skipped"] == warning


@pytest.mark.parametrize(
    "text",
    ["[", "[1]", '{"steps": []}', '{"steps": {"gopher": 1}}', '{"read": {"documents": "x"}}',
     '{"examples": {"gopher": [1]}}', '{"sources": {"a": {}}}'],
)  # fmt: skip
def test_damaged_report_gives_way_to_the_manifest(cleaned: Artifact, text: str) -> None:
    path = cleaned.path / REPORT_FILE
    whole = path.read_bytes()
    try:
        path.write_text(text, "utf-8")
        assert read_report(cleaned)["steps"]["gopher"]["removed_documents"] == 2
        assert "Repair encoding" in render_report(cleaned)
    finally:
        path.write_bytes(whole)


def test_analysis_is_rendered_and_escaped(tmp_path: Path, workspace: Workspace) -> None:
    texts = [*PAGES, "<script>alert(1)</script>", "<script>alert(1)</script>", "schÃ¶ne <b>MÃ¼hle"]
    path = write_documents(tmp_path / "a.jsonl", texts)
    html = render_analysis(analyse_corpus(CorpusConfig(path=str(path)), workspace))
    assert "<script>" not in html and "&lt;script&gt;alert(1)" in html
    for title in ("Sources", "Document lengths", "Duplicates", "Languages", "Scripts"):
        assert f">{title}</h3>" in html
    assert 'style="width:100.00%"' in html and "Wrongly decoded text" in html


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files with duplicates, short documents and personal data."""
    folder = tmp_path_factory.mktemp("texts")
    for place, name in enumerate(NAMES):
        own = [f"{text}\nShare this page" for text in pages(40, seed=place)]
        more = [own[0], own[1], "Too short.", f"{own[2]} Write to bob@site.org today."]
        write_documents(folder / f"{name}.jsonl", [*own, *more])
    return folder


def add_source(visitor: Visitor, name: str, path: Path) -> None:
    visitor.type("corpus-path", str(path))
    visitor.type("corpus-sources", name)
    visitor.page.locator("#corpus-add").click()
    listed = visitor.page.locator("#corpus-listed b", has_text=name)
    visitor.wait_for(listed.count, 60, f"{name} is listed")


def clean_all(visitor: Visitor) -> None:
    """Previews and cleans the corpus, and chooses it for later stages."""
    page = visitor.page
    visitor.open("Clean")
    page.locator("#clean-look").click()
    preview = page.locator("#clean-preview .ps-cleaning")
    visitor.wait_for(preview.count, 90, "the preview is there")
    visitor.field("clean-boilerplate_lines").check()
    visitor.field("clean-replace_emails").check()
    visitor.wait_for(lambda: "Boilerplate lines" in preview.inner_text(), 60, "it follows")
    visitor.field("clean-gopher").check()
    visitor.wait_for(lambda: "Minimum words" in preview.inner_text(), 60, "a rule removes some")
    slider = page.locator("#clean-gopher_min_words input[type=range]")
    slider.focus()
    slider.press("Home")
    gone = "– Minimum words"
    visitor.wait_for(lambda: gone not in preview.inner_text(), 60, "it follows the slider")
    assert visitor.field("clean-gopher_min_words").input_value() == "1"
    page.locator("#clean-gopher_min_words .ps-switch").click()
    assert visitor.field("clean-gopher_min_words").input_value() == ""
    page.locator("#clean-gopher_min_words .ps-switch").click()
    visitor.type("clean-gopher_min_words", "50")
    visitor.wait_for(lambda: gone in preview.inner_text(), 60, "it follows the field")
    # The list of stop words is English, which this text is not.
    page.locator("#clean-gopher_min_stop_words .ps-switch").click()
    visitor.type("clean-name", "all-clean")
    visitor.shoot("clean")
    visitor.start("clean")
    report = page.locator("#clean-report .ps-cleaning")
    visitor.wait_for(report.count, 120, "the corpus is cleaned")
    visitor.see(report, "Minimum words", "books")
    visitor.shoot("clean-report")
    page.locator("#clean-use").click()
    for tab in ("Tokenizer", "Shards"):
        visitor.open(tab)
        line = page.locator(f"#tab-{tab.lower()} .ps-corpus-line")
        visitor.wait_for(lambda line=line: "all-clean" in line.inner_text(), 30, tab)


def build_shards_of_each_source(visitor: Visitor) -> None:
    visitor.open("Tokenizer")
    visitor.pick("tokenizer-algorithm", "Byte-level BPE")
    visitor.type("tokenizer-vocab_size", "400")
    visitor.type("tokenizer-name", "words")
    visitor.start("tokenizer")
    trained = visitor.page.locator("#tokenizer-list td", has_text="words")
    visitor.wait_for(trained.count, 120, "the tokenizer is trained")
    visitor.open("Shards")
    visitor.type("shards-max_seq_length", "64")
    for name in NAMES:
        visitor.choose("shards-text-cleaned", f"Cleaned corpus all-clean, only {name}")
        visitor.type("shards-name", f"{name}-rows")
        visitor.start("shards")
        built = visitor.page.locator("#shards-list td", has_text=f"{name}-rows")
        visitor.wait_for(built.count, 120, f"the shards of {name} are built")


def train_on_the_mixture(visitor: Visitor, workspace: Workspace) -> None:
    page = visitor.page
    visitor.open("Train")
    visitor.show_all_settings("train")
    visitor.choose("train-size", "tiny")
    visitor.type("train-mixture", " ".join(f"{one}-rows={w}" for one, w in MIXTURE.items()))
    for name, value in {
        "name": "mixed", "num_hidden_layers": "1", "hidden_size": "32", "num_attention_heads": "2",
        "per_replica_batch_size": "8", "num_train_steps": "20", "learning_rate": "0.003",
    }.items():  # fmt: skip
        visitor.type(f"train-{name}", value)
    facts = page.locator("#tab-train .ps-facts").first
    visitor.wait_for(lambda: "50.0% of the mixture" in facts.inner_text(), 60, "the shares")
    assert facts.inner_text().count("epochs") >= len(NAMES)
    visitor.shoot("train-mixture")
    run = visitor.start("train")
    visitor.open("Runs")
    page.get_by_role("button", name=run).click()
    store = Store.open(workspace)
    visitor.wait_for(lambda: store.find_run(run).has_ended, 240, "the run has ended")
    row = store.find_run(run)
    assert row.state == "done", row.error
    loss = page.get_by_role("img", name="Validation loss by source")
    for name in NAMES:
        visitor.wait_for(
            lambda name=name: f"{name}-rows" in (loss.get_attribute("aria-label") or ""),
            60,
            f"the curve of {name}",
        )
    visitor.shoot("run-mixture")
    model = workspace.find("model", "mixed").manifest
    for name in NAMES:
        shards = workspace.find("shards", f"{name}-rows").manifest
        assert model.inputs[f"shards/{name}-rows"] == shards.fingerprint
    assert model.counts["share/web-rows"] == pytest.approx(0.5)


@pytest.mark.slow(90)
@pytest.mark.long
def test_three_sources_are_cleaned_and_become_a_mixture(tmp_path: Path, texts: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    with running_app(workspace.root, "--allow", str(texts)) as url, visiting(url) as visit:
        visitor: Visitor = visit("/#corpus")
        page = visitor.page
        visitor.pick("corpus-source", "My files")
        visitor.show_all_settings("corpus")
        for name in NAMES:
            add_source(visitor, name, texts / f"{name}.jsonl")
        page.get_by_role("button", name="Analysis of the text").click()
        page.locator("#analyse-start").click()
        analysis = page.locator("#analyse-result .ps-analysis")
        visitor.wait_for(analysis.count, 90, "the corpus is analysed")
        visitor.see(analysis, "132", "Share this page")
        visitor.shoot("analysis")
        clean_all(visitor)
        build_shards_of_each_source(visitor)
        corpus = workspace.find("corpus", "all-clean").manifest
        for name in NAMES:
            shards = workspace.find("shards", f"{name}-rows").manifest
            assert shards.config["corpus"]["corpus_name"] == "all-clean"
            assert shards.config["corpus"]["only"] == name
            assert shards.inputs["corpus"] == corpus.fingerprint
        assert corpus.counts["sources"].keys() == set(NAMES)
        assert corpus.counts["steps"]["exact_duplicates"]["removed_documents"] == 8
        assert corpus.counts["steps"]["replace_emails"]["changed_documents"] > 0
        train_on_the_mixture(visitor, workspace)

        page.locator(".ps-run-name", has_text="all-clean").click()
        card = page.locator("#tab-runs .ps-cleaning")
        visitor.wait_for(card.count, 60, "the run shows the report")
        visitor.see(card, "Minimum words")
        visitor.shoot("run-clean")
        assert visitor.errors == []
