"""The list of named sources in the form of the corpus, without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from core.config.corpus import CorpusConfig
from core.config.named_source import NamedSource
from core.errors import ConfigError
from core.publishing.cards import CardNotes, tokenizer_card
from core.workspace.manifests import Manifest
from core.workspace.workspace import Workspace
from ui.parts.sources import CorpusForm


@pytest.fixture
def form(tmp_path: Path) -> CorpusForm:
    (tmp_path / "workspace").mkdir()
    with gr.Blocks():
        form = CorpusForm(CorpusConfig, "corpus", Workspace(tmp_path / "workspace"))
        form.render()
    return form


def listed(*sources: dict[str, Any]) -> str:
    return json.dumps(sources)


def test_listed_sources_take_precedence_over_the_fields_of_one(form: CorpusForm) -> None:
    text = listed({"name": "python", "source": "docs"}, {"name": "wiki", "dataset_name": "a/b"})
    config = form.parse({"source": "hub", "dataset_name": "c/d", "sources": text})
    assert config.source == "several"
    assert [one.name for one in config.sources] == ["python", "wiki"]
    assert form.single({"source": "hub", "dataset_name": "c/d", "sources": text}).source == "hub"
    assert form.parse({"source": "hub", "dataset_name": "c/d", "sources": ""}).source == "hub"


def test_form_shows_the_sources_of_a_config_again(form: CorpusForm) -> None:
    config = CorpusConfig(sources=(NamedSource(name="a", source="docs", limit=3),))
    shown = {component: update["value"] for component, update in form.updates(config).items()}
    text = shown[form.components["sources"]]
    assert form.parse({"sources": text}) == config
    # Choices without the list itself.
    assert form.components["source"].choices == [
        ("Installed Python docs", "docs"), ("My files", "files"),
        ("Hugging Face dataset", "hub"), ("Cleaned corpus", "corpus"),
    ]  # fmt: skip


def test_source_in_the_fields_is_added_or_replaces_the_edited_one(form: CorpusForm) -> None:
    text = listed({"name": "a", "source": "docs"}, {"name": "b", "source": "docs"})
    raw = [{"source": "hub", "dataset_name": "c/d", "path": "left over", "sources": text}]
    raw[0]["path"] = ""
    added = form.with_source(raw, "c", "")
    assert [one.name for one in added] == ["a", "b", "c"]
    assert added[-1].address == "c=hub:c/d"
    edited = form.with_source(raw, "z", "a")
    assert [(one.name, one.source) for one in edited] == [("z", "hub"), ("b", "docs")]
    with pytest.raises(ConfigError, match="Two sources are named b"):
        form.with_source(raw, "B", "")
    with pytest.raises(ConfigError, match="The source has no valid name"):
        form.with_source(raw, "no name", "")


@pytest.mark.parametrize(
    "source",
    [
        {"name": "a", "path": "/etc/passwd"},
        {"name": "a", "path": "https://127.0.0.1/x.txt"},
        {"name": "a", "source": "docs", "validation_path": "/etc/passwd"},
        {"name": "a", "corpus_name": "/etc"},
    ],
)
def test_listed_sources_are_confined_like_the_fields(
    source: dict[str, Any], form: CorpusForm
) -> None:
    with pytest.raises(ConfigError, match="has no access to"):
        form.parse({"sources": listed(source)})


@pytest.mark.parametrize("text", ["[", "{}", "[1]", '["web=/etc/passwd"]', "[" * 100_000])
def test_malformed_list_is_refused(text: str, form: CorpusForm) -> None:
    with pytest.raises(ConfigError):
        form.parse({"sources": text})


def test_card_names_all_sources_and_no_local_path() -> None:
    sources = (NamedSource(name="wiki", dataset_name="a/b"), NamedSource(name="own", path="/me/x"))
    config = {"corpus": CorpusConfig(sources=sources).model_dump(mode="json")}
    counts = {"sources": {"wiki": {"train_documents": 1234}, "own": {"train_documents": 5}}}
    manifest = Manifest(kind="tokenizer", name="words", fingerprint="f", config=config,
                        inputs={}, counts=counts, files={}, versions={}, created=0.0)  # fmt: skip
    card = tokenizer_card(manifest, CardNotes("me/words"))
    assert "datasets:\n- a/b" in card
    assert "2 sources: [a/b](https://hf.co/datasets/a/b) (wiki); text files" in card
    assert "| Training documents of wiki | 1,234 |" in card
    assert "/me/x" not in card
