"""The Playground: predictions, generated and scored text, and the kinds of models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from core.config.export import ExportConfig
from core.exporting.commands import model_commands
from core.exporting.stage import run
from core.tokenizer.loading import load
from core.workspace.confinement import ALLOWED_PATHS_VARIABLE
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer, write_checkpoint, write_writer
from tests.ui.browser import Visitor, find_chromium, running_app, visiting
from ui.parts import answers
from ui.parts.elsewhere import render_elsewhere
from ui.parts.examples import examples, fills, writes
from ui.parts.prompts import render_slider

RESULT = {"text": " <b>runs</b>", "num_new_tokens": 5, "finish_reason": "length"}


def test_generated_text_is_escaped_and_its_tokens_are_counted() -> None:
    shown = answers.written("a <i>", RESULT, 2.0, continues=True)
    assert "a &lt;i&gt;</span> &lt;b&gt;runs&lt;/b&gt;" in shown
    assert "5 tokens · 2 a second · as long as was asked for" in shown
    assert "ps-caret" not in shown


def test_stopped_text_has_no_caret_and_is_marked_as_stopped() -> None:
    growing = answers.writing("a", " b", "writing", continues=True)
    assert "ps-caret" in growing
    assert answers.stopped(growing) == growing.replace(answers._CARET, "").replace(
        "<small>writing</small>", "<small>stopped</small>"
    )


def test_scored_text_is_escaped_and_has_losses_beside_its_colours() -> None:
    tokens = [("<s>", None), ("<b>", 0.5), (" a", 4.0), ("\n", 9.25)]
    found = {
        "perplexity": 98.5, "loss": 4.59, "kind": "pseudo", "num_tokens": 3,
        "tokens": [{"token": 1, "token_str": text, "loss": nats} for text, nats in tokens],
    }  # fmt: skip
    shown = answers.surprise(found)
    assert '<span class="s0" title="0.50 nats">&lt;b&gt;</span>' in shown
    assert '<span class="s2" title="4.00 nats"> a</span>' in shown
    assert '<span class="s4" title="9.25 nats">⏎</span>' in shown
    assert '<span class="special" title="not scored">&lt;s&gt;</span>' in shown
    assert "<b>98.50</b><span>pseudo-perplexity</span>" in shown
    assert "can't be compared" in shown and "<b>>" not in shown
    assert shown.index("⏎</td>") < shown.index("9.25</td>") < shown.index("4.00</td>")
    assert "can't be compared" not in answers.surprise({**found, "kind": "exact"})


@pytest.mark.parametrize(
    "prompt",
    ["The <mask> is <mask>.", "The <extra_id_0> is <extra_id_1>."],
)
def test_generated_spans_are_inserted_into_the_prompt(prompt: str) -> None:
    text = "<extra_id_0> old ship <extra_id_1> far away <extra_id_2>"
    assert answers.fill_spans(prompt, text) == "The old ship is far away."
    assert answers.fill_spans(prompt, "<extra_id_1> here") == "The … is here."
    assert answers.fill_spans(prompt, "no sentinel") == ""


def test_predictions_for_several_masks_show_the_text_without_added_special_tokens() -> None:
    found = [
        [{"score": 0.5, "token": 7, "token_str": "s", "sequence": "[CLS] Thes of[MASK].[SEP]"}]
    ]
    shown = answers.predictions(found * 2, [["Thes of [MASK]."], ["The [MASK] of<b>."]])
    assert "Thes of [MASK]." in shown and "The [MASK] of&lt;b&gt;." in shown
    assert "[CLS]" not in shown and "[CLS]" in answers.predictions(found * 2)


def make_models(workspace: Workspace) -> None:
    tokenizer = make_tokenizer(workspace, "byte_level_bpe")
    with workspace.new_artifact("model", "reader") as draft:
        write_checkpoint(draft.folder, tokenizer)
    with workspace.new_artifact("model", "writer") as draft:
        write_writer(draft.folder, tokenizer, "gpt2", positions=1024, ends=False)


def test_family_decides_if_a_model_fills_masks_or_generates_text(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make_models(workspace)
    tokenizer = load("byte_level_bpe", workspace)
    for family in ("bart", "t5"):
        with workspace.new_artifact("model", family) as draft:
            write_writer(draft.folder, tokenizer, family)
    kinds = {
        name: (fills(name, workspace), writes(name, workspace))
        for name in ("reader", "writer", "bart", "t5")
    }
    assert kinds == {
        "reader": (True, False), "writer": (False, True), "bart": (True, True), "t5": (False, True),
    }  # fmt: skip


def test_examples_suit_the_kind_of_model(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    make_models(workspace)
    assert [writes(name, workspace) for name in ("reader", "writer", "nowhere", None)] == [
        *(False, True, False, False)
    ]
    assert all("<mask>" in text for text in examples("reader", workspace))
    assert all("<mask>" not in text for text in examples("writer", workspace))
    assert len(examples("writer", workspace)) > 1


def test_commands_elsewhere_follow_the_model_and_its_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="pip install torch==2.13.0 (transformers runs on it)")
    workspace = Workspace(tmp_path)
    make_models(workspace)
    reader, writer = (render_elsewhere(name, workspace) for name in ("reader", "writer"))
    assert "vllm" not in reader and "llama.cpp" not in reader and "--format onnx" in reader
    assert "vllm serve" in writer and "export writer --format gguf" in writer
    run(ExportConfig(model="writer"), workspace)
    exported = render_elsewhere("writer", workspace)
    assert "llama-completion -m" in exported and "--format gguf" not in exported
    assert render_elsewhere("nowhere", workspace) == ""
    code = model_commands(str(workspace.find("model", "reader").path), "encoder", "a <mask>")
    exec(code["transformers"], {})
    assert "'token_str'" in capsys.readouterr().out


def test_model_outside_the_allowed_paths_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, elsewhere = Workspace(tmp_path / "workspace"), Workspace(tmp_path / "elsewhere")
    make_models(elsewhere)
    folder = str(elsewhere.find("model", "writer").path)
    for name in (folder, "../../elsewhere/models/writer", "file:///etc"):
        assert not writes(name, workspace) and examples(name, workspace) == []
    monkeypatch.setenv(ALLOWED_PATHS_VARIABLE, str(elsewhere.root))
    assert writes(folder, workspace) and examples(folder, workspace)


@pytest.mark.slow
@pytest.mark.long
def test_generated_text_streams_into_the_browser_until_it_is_stopped(tmp_path: Path) -> None:
    find_chromium()
    workspace = Workspace(tmp_path / "workspace")
    make_models(workspace)
    with running_app(workspace.root) as url, visiting(url) as visit:
        visitor: Visitor = visit()
        visitor.open("Playground")
        chosen = visitor.field("playground-model")
        visitor.wait_for(lambda: chosen.input_value() == "writer", 20, "the newest model")
        visitor.page.locator("#playground-prompt").wait_for()
        # A clipped slider has half a knob.
        sliders = visitor.page.locator("#tab-playground .block:has(input[type=range]):visible")
        overflow = "(all) => all.map((block) => getComputedStyle(block).overflow)"
        assert set(sliders.evaluate_all(overflow)) == {"visible"}
        visitor.type("playground-prompt", "The old house")
        visitor.page.locator("#playground-write").click()
        visitor.page.locator("#playground-stop").click()
        visitor.page.get_by_text("stopped", exact=True).wait_for()
        visitor.field("playground-prompt").press("Enter")
        visitor.page.get_by_text("as long as was asked for").wait_for(timeout=90_000)
        text = visitor.page.locator("#playground-written .ps-written").inner_text()
        assert text.startswith("The old house")
        assert len(text) > len("The old house")
        assert not visitor.page.locator("#playground-stop").is_visible()
        # A new model doesn't replace the chosen one.
        shelf = workspace.folder("model")
        with workspace.new_artifact("model", "writer-newcomer") as draft:
            shutil.copytree(shelf / "reader", draft.folder, dirs_exist_ok=True)
        chosen.click()
        newcomer = visitor.page.get_by_role("option", name="writer-newcomer", exact=True)
        newcomer.wait_for()
        visitor.page.keyboard.press("Tab")
        visitor.page.wait_for_timeout(500)
        assert chosen.input_value() == "writer"
        # A name typed in full means that model, not a newer one whose name contains it.
        chosen.fill("writer")
        chosen.press("Enter")
        visitor.page.wait_for_timeout(500)
        assert chosen.input_value() == "writer"
        assert visitor.page.locator("#playground-written .ps-written").inner_text() == text
        # Choosing another model ends the generation.
        visitor.page.locator("#playground-new-tokens input[type=number]").fill("512")
        visitor.page.locator("#playground-write").click()
        visitor.page.get_by_text("writing", exact=True).wait_for()
        visitor.choose("playground-model", "reader")
        visitor.page.locator("#playground-text").wait_for()
        visitor.page.locator("#playground-prompt").wait_for(state="hidden")
        visitor.choose("playground-model", "writer")
        visitor.page.locator("#playground-write").wait_for()
        assert visitor.page.locator("#playground-stop").is_hidden()
        visitor.page.wait_for_timeout(1000)
        visitor.see(visitor.page.locator("#playground-written"), "No text yet")
        visitor.choose("playground-model", "reader")
        visitor.page.locator("#playground-prompt").wait_for(state="hidden")
        visitor.page.locator("#playground-examples button").first.click()
        bars = visitor.page.locator("#playground-answer .ps-predictions li")
        visitor.wait_for(lambda: bars.count() == 5, 90, "five predictions")
        mask_a_word(visitor)
        ask_with_enter(visitor)
        visitor.type("playground-scored", "The old house <i>sleeps</i>.")
        visitor.field("playground-scored").press("Enter")
        scored = visitor.page.locator("#playground-surprise .ps-tokens.surprise").first
        scored.wait_for(timeout=60_000)
        assert "<i>sleeps</i>" in scored.inner_text().replace("\n", "")
        assert visitor.errors == visitor.outside == []


def mask_a_word(visitor: Visitor) -> None:
    """Checks that a click on a word masks it and asks, and a click on the mask shows it again."""
    box, words = visitor.field("playground-text"), visitor.page.locator("#playground-words")
    visitor.see(words, "or write <mask> in its place")
    box.fill("The old house sleeps.")
    words.get_by_role("button", name="Mask house").click()
    shown = visitor.page.locator("#playground-answer .ps-predictions small")
    visitor.wait_for(lambda: "old house" not in shown.first.inner_text(), 90, "predictions")
    assert box.input_value() == "The old <mask> sleeps."
    words.get_by_role("button", name="Show house").click()
    visitor.wait_for(lambda: box.input_value() == "The old house sleeps.", 20, "the word")


def ask_with_enter(visitor: Visitor) -> None:
    """Checks that Enter fills both masks and Shift+Enter begins a new line."""
    box = visitor.field("playground-text")
    box.fill("The old <mask> of the")
    box.press("Shift+Enter")
    assert box.input_value() == "The old <mask> of the\n"
    box.type("house <mask>.")
    box.press("Enter")
    shown = visitor.page.locator("#playground-answer .ps-predictions small")
    visitor.wait_for(lambda: shown.count() == 10, 90, "five predictions for each mask")
    assert box.input_value() == "The old <mask> of the\nhouse <mask>."
    for number, text in enumerate(shown.all_inner_texts()):
        start, end = ("The old", "<mask>.") if number < 5 else ("The old <mask> of the", ".")
        assert text.startswith(start) and text.endswith(end) and text.count("<mask>") == 1
        assert "<s>" not in text and "</s>" not in text


def test_stopping_a_text_of_unknown_form_only_removes_the_caret() -> None:
    for shown in ("", "no text of ours", answers._CARET, answers._CARET + "<small>" * 9000):
        assert answers.stopped(shown) == shown.replace(answers._CARET, "")


def test_empty_or_out_of_range_slider_value_becomes_a_valid_number() -> None:
    slider = render_slider(1, 20, value=5, step=1)
    assert [slider.preprocess(one) for one in (None, 0, 7, 50)] == [5, 1, 7, 20]
