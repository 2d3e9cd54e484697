"""A stage's start button: one run, or several if an earlier artifact is missing."""

from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.errors import StudioError
from core.workspace.workspace import Workspace
from tests.core.runs.support import stop_worker
from tests.texts import write_sentences
from ui.forms import Form
from ui.parts.stage import Earlier, Forecast, Launcher

CHOICE = "Train a new tokenizer first"


def summarize(config: Any) -> str:
    return f"Do {type(config).__name__}"


@pytest.fixture
def shards(tmp_path: Path) -> Launcher:
    """A shards launcher that follows a tokenizer launcher, each with its form."""
    workspace = Workspace(tmp_path)
    with gr.Blocks():
        line = gr.HTML(js_on_load="trigger('artifacts')")
        text = Form(CorpusConfig, "corpus", workspace)
        text.render()
        launchers: list[Launcher] = []
        for stage, model in (("tokenizer", TokenizerConfig), ("shards", ShardConfig)):
            form: Form[Any] = Form(model, stage, workspace, nested={"corpus": text})
            earlier = Earlier(launchers[0], "tokenizer", CHOICE) if launchers else None
            one = Launcher(stage, form, workspace, forecast, summarize, earlier)
            form.render()
            one.render_facts()
            one.render_start("Start")
            form.follow_artifacts(line)
            launchers.append(one)
    return launchers[1]


def forecast(config: Any) -> Forecast:
    return Forecast("Alone", "facts")


def values(launcher: Launcher, **changed: Any) -> list[Any]:
    """Returns the inputs of the handlers, with fields changed by id."""
    stages = [launcher, launcher._earlier.launcher] if launcher._earlier else [launcher]
    forms = {form.typed: form for stage in stages for form in stage.form._all()}

    def value_of(component: Any) -> Any:
        if component not in forms:
            return changed.get(component.elem_id.replace("-", "_"), component.value)
        form = forms[component]
        ids = {name: f"{form.id}_{name}" for name in form.components}
        return {name: changed[id] for name, id in ids.items() if id in changed}

    return [value_of(component) for component in launcher.inputs]


def words_of(updates: dict[Any, Any]) -> str:
    return " ".join(str(update) for update in updates.values())


def test_stage_with_all_its_inputs_runs_alone(shards: Launcher) -> None:
    seen = words_of(shards._estimate(*values(shards, shards_tokenizer="words")))
    assert "Alone" in seen
    assert "'visible': True" in seen
    assert "core tokenizer" not in seen


@pytest.mark.parametrize(
    "changed", [{}, {"shards_tokenizer": "words", "shards_anew": True}], ids=["missing", "asked"]
)
def test_missing_or_requested_tokenizer_is_trained_first(
    shards: Launcher, changed: dict[str, Any]
) -> None:
    seen = words_of(shards._estimate(*values(shards, tokenizer_vocab_size="300", **changed)))
    assert "Make the tokenizer, then do ShardConfig" in seen
    assert "python -m core tokenizer --name docs-unigram-300 --vocab-size 300" in seen
    assert "--tokenizer docs-unigram-300" in seen


def test_invalid_setting_in_another_tab_is_reported_with_that_tab(shards: Launcher) -> None:
    raw = values(shards, tokenizer_vocab_size="3")
    with pytest.raises(StudioError, match="In the Tokenizer tab: "):
        shards._stages(raw)
    assert "In the Tokenizer tab" in words_of(shards._estimate(*raw))


def test_showing_a_config_deselects_the_earlier_stage(shards: Launcher) -> None:
    updates = shards.updates(ShardConfig(tokenizer="words", max_seq_length=64))
    assert set(updates) == set(shards.outputs)
    shown = {component.elem_id: update for component, update in updates.items()}
    assert shown["shards-anew"] is False
    assert shown["shards-max_seq_length"]["value"] == "64"


def start_of(launcher: Launcher, **changed: Any) -> dict[str, Any]:
    """Returns the update of the start button for these field values."""
    handler = launcher.form.guarded(
        launcher._estimate, live=True, otherwise=launcher._show_unresolved
    )
    return dict(handler(*values(launcher, **changed))[launcher._start])


def test_start_button_counts_the_settings_to_fix_and_starts_nothing(shards: Launcher) -> None:
    wrong = {"shards_tokenizer": "words", "shards_max_seq_length": "many"}
    assert start_of(shards, **wrong)["value"] == "Fix 1 setting"
    assert start_of(shards, **wrong, shards_shard_size="-1")["value"] == "Fix 2 settings"
    assert start_of(shards, **wrong, shards_shard_size="-1")["variant"] == "secondary"
    right = {"shards_tokenizer": "words", "shards_max_seq_length": "64"}
    assert start_of(shards, **right)["value"] == "Alone"
    elsewhere = start_of(shards, tokenizer_vocab_size="3")
    assert elsewhere["value"] == "Fix 1 setting in Tokenizer"
    # The setting was fixed a moment ago: the button starts only what it names.
    assert shards._submit(*values(shards, **right), "Fix 1 setting") == {}
    assert not list(shards._workspace.root.glob("runs/*"))


def test_pressing_fix_goes_to_the_field_in_its_tab(shards: Launcher) -> None:
    press = shards.form.guarded(shards._submit)
    updates = press(*values(shards, tokenizer_vocab_size="3"), "Fix 1 setting in Tokenizer")
    assert shards._earlier is not None
    shown = updates[shards._earlier.launcher.form.problems]
    assert shown["place"] == "tokenizer" and shown["reveal"]
    assert "greater than or equal to 16" in shown["problems"]["vocab_size"]


def test_a_name_that_is_taken_is_reported_before_the_start(shards: Launcher) -> None:
    with shards._workspace.new_artifact("tokenizer", "words"):
        pass
    with shards._workspace.new_artifact("shards", "rows"):
        pass
    own = start_of(shards, shards_tokenizer="words", shards_name="rows")
    assert own["value"] == "Fix 1 setting"
    made_first = start_of(shards, tokenizer_name="words", tokenizer_vocab_size="300")
    assert made_first["value"] == "Fix 1 setting in Tokenizer"
    assert start_of(shards, shards_tokenizer="words", shards_name="others")["value"] == "Alone"


def test_a_name_is_taken_from_the_form_that_started_a_run_with_it(shards: Launcher) -> None:
    workspace = shards._workspace
    names = {component.elem_id: component for component in shards._names}
    assert set(names) == {"tokenizer-name", "shards-name"}
    text = write_sentences(workspace.uploads / "text.txt", 20)
    values_of = {"corpus_source": "files", "corpus_path": str(text), "shards_name": "rows"}
    raw = values(shards, tokenizer_vocab_size="100", **values_of)
    try:
        updates = shards._submit(*raw, "Alone")
    finally:
        stop_worker(workspace)
    assert [component for component in names.values() if component in updates] == [
        names["shards-name"]
    ]
    assert updates[names["shards-name"]] == ""
    with pytest.raises(StudioError, match="is taken"):
        shards._estimate(*raw)
    renamed = {**values_of, "shards_name": ""}
    assert not start_of(shards, tokenizer_vocab_size="100", **renamed)["value"].startswith("Fix")
