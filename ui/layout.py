"""Lays out the tabs of the web app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr

from core.store import Store
from core.workspace.workspace import Workspace
from ui import (
    clean,
    corpus,
    evaluate,
    finetune,
    further,
    home,
    playground,
    publish,
    runs,
    shards,
    status_bar,
    sweeps,
    tokenizer,
    train,
)
from ui import workspace as workspace_tab
from ui.parts import navigation
from ui.parts.events import separate_events
from ui.parts.markup import heading
from ui.parts.text_choice import TextForm, link_choices, offer
from ui.parts.where import machines_function

_TITLE = "Pretrain Studio"
# Gradio's copies of uploads: seconds between checks, seconds kept.
_UPLOADS_KEPT = (3600, 24 * 3600)


def build_page(workspace: Workspace) -> gr.Blocks:
    """Builds the web app of a workspace. Imports no backend, starts nothing."""
    store = Store.open(workspace)
    with gr.Blocks(title=_TITLE, analytics_enabled=False, delete_cache=_UPLOADS_KEPT) as page:
        gr.HTML(navigation.render_header(workspace, _TITLE), elem_classes=["ps-header"])
        line = status_bar.render(workspace, store)
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap"):
            with _tab("home"):
                home.render(workspace, store)
            with _tab("corpus", "The text to train on. The tokenizer and the shards read it."):
                text = corpus.render(workspace, line)
            with _tab(
                "clean", "Removes duplicates and unwanted text before a tokenizer is trained."
            ):
                corpus.render_line(text)
                cleaner, use, cleaned = clean.render(workspace, text, line)
            with _tab("tokenizer", "Learns a subword vocabulary from your text."):
                for_tokens = TextForm(text, "tokenizer", workspace)
                corpus.render_choice(for_tokens, line)
                pieces = tokenizer.render(workspace, for_tokens, line)
            with _tab("shards", "Packs your text into token sequences, in TFRecord files."):
                for_rows = TextForm(text, "shards", workspace)
                corpus.render_choice(for_rows, line)
                rows = shards.render(workspace, for_rows, pieces, line)
            with _tab("train", "Trains a model from scratch on your shards."):
                recipe, check = train.render(workspace, store, rows, line)
            with _tab("sweeps", "Trials of a stage with varied settings, and the best of them."):
                trials = sweeps.render(workspace, store, recipe)
            with _tab("runs", "Queued, running and finished runs."):
                board = runs.render(workspace, store)
            with _tab("evaluate", "Measures a model on minimal pairs or on held-out text."):
                measure = evaluate.render(workspace, line)
            with _tab("finetune", "Trains a model further on labelled examples."):
                tune = finetune.render(workspace, line)
            with _tab("playground", "Fill masked tokens, continue a text, classify or tag it."):
                playground.render(workspace, line)
            with _tab(
                "publish", "Publishes models, tokenizers and shards on the Hugging Face Hub."
            ) as tab:
                hub, exporter = publish.render(workspace, line, tab)
            with _tab("workspace", "Disk usage of runs and artifacts, and import of settings."):
                importer = workspace_tab.render(workspace, store)
            launchers = [cleaner, pieces, rows, recipe, check, measure, tune, hub, exporter]
            for stage in navigation.further_stages():
                with _tab(stage.tab, stage.help):
                    launchers.append(further.render(stage, workspace, line))
        link_choices([for_tokens, for_rows])
        offer(use, cleaned, [for_tokens, for_rows])
        runs.connect(board, importer, store, launchers)
        sweeps.connect(trials, workspace, [pieces, rows, recipe])
        for form in (text, *(launcher.form for launcher in launchers)):
            form.remember(page)
        separate_events(page)
    return page


@contextmanager
def _tab(name: str, text: str = "") -> Iterator[gr.Tab]:
    title = navigation.titles()[name]
    with gr.Tab(title, id=name, elem_id=f"tab-{name}") as tab:
        if text:
            gr.HTML(heading(title, text) + navigation.render_within(name))
        yield tab


def first_view(workspace: Workspace) -> Callable[[], dict[str, Any]]:
    """Returns a function that reads the data for the first paint of the page."""
    store = Store.open(workspace)
    status = status_bar.status_function(workspace, store)
    state = home.state_function(workspace, store)
    machines = machines_function(workspace)
    return lambda: {"status": status({}), "home": state({}), "where": machines({})}
