"""The Clean tab: cleans a corpus, with a preview on a sample and the reports of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.config.options import split_names
from core.corpus.cleaning.language import chosen_languages
from core.corpus.cleaning.report import steps_in_use, title_of_step
from core.corpus.cleaning.session import SessionPool
from core.errors import CorpusError, StudioError
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from ui import present
from ui.assets import script
from ui.forms import Form
from ui.parts import markup
from ui.parts.cleaning import render_preview, render_report
from ui.parts.events import QUIET
from ui.parts.result_list import fill_list
from ui.parts.stage import Forecast, Launcher, main_column, side_column, workbench

_SAMPLE_DOCUMENTS = 200
_NO_PREVIEW = markup.empty_state(
    "No preview yet",
    f"Preview reads {_SAMPLE_DOCUMENTS} documents from all over the corpus and cleans them. Then "
    "it follows each change of the options.",
)
_OTHER_CORPUS = markup.empty_state(
    "The corpus has changed", "Preview again to read documents of the corpus as it is now."
)
_NONE_YET = markup.empty_state(
    "No cleaned corpus yet", "What you clean appears here, with a report of each step."
)


def render(
    workspace: Workspace, text: Form[CorpusConfig], line: gr.HTML
) -> tuple[Launcher, gr.Button, gr.Dropdown]:
    """Renders the tab; returns its launcher, and the button and menu that choose a corpus."""
    form = Form(
        CleanConfig,
        "clean",
        workspace,
        nested={"corpus": text},
        check=lambda config: _check(config, workspace),
    )
    launcher = Launcher("clean", form, workspace, _forecast, _summarize)
    with workbench():
        with main_column(), gr.Column(elem_classes=["ps-card"]):
            form.render()
        with side_column():
            launcher.render_facts()
            launcher.render_start("Clean the corpus")
            _render_preview(form, SessionPool(workspace))
    return launcher, *_render_list(workspace, line)


def _check(config: CleanConfig, workspace: Workspace) -> None:
    chosen_languages(config)
    for name in split_names(config.against):
        workspace.find_own("corpus", name, field="against")


def _forecast(config: CleanConfig) -> Forecast:
    steps = steps_in_use(config)
    names = ", ".join(map(title_of_step, steps)) or "no step"
    facts = f'<p class="ps-note"><b>Steps:</b> {present.escape(names)}.</p>'
    return Forecast(_summarize(config), facts, _count_steps(config))


def _summarize(config: CleanConfig) -> str:
    return f"Clean the corpus in {_count_steps(config)}"


def _count_steps(config: CleanConfig) -> str:
    count = len(steps_in_use(config))
    return "1 step" if count == 1 else f"{count} steps"


def _render_preview(form: Form[CleanConfig], sessions: SessionPool) -> None:
    with gr.Row(elem_classes=["ps-buttons"]):
        look = gr.Button("Preview", elem_id="clean-look", scale=0)
    shown = gr.HTML(_NO_PREVIEW, js_on_load=script("clean.js"), elem_id="clean-preview")
    # Key of the previewed corpus, in the browser: the server forgets sessions.
    key = gr.Textbox("", label="Previewed corpus", elem_classes=["ps-unseen"])

    def start(*raw: Any) -> dict[Any, Any]:
        config = form.parse(*raw)
        try:
            opened = sessions.open(config.corpus, _SAMPLE_DOCUMENTS)
            html = render_preview(sessions.preview(opened, config))
        except StudioError as error:
            return {shown: present.error_card(error), key: "", **form.beside_field(error)}
        return {shown: html, key: opened}

    def follow(*raw: Any) -> dict[Any, Any]:
        *values, opened = raw
        if not opened:
            return {}
        config = form.parse(*values)
        if sessions.key_of(config.corpus) != opened:
            return {shown: _OTHER_CORPUS}
        try:
            return {shown: render_preview(sessions.preview(str(opened), config))}
        except CorpusError as error:
            return {shown: present.error_card(error)}

    look.click(
        form.guarded(start),
        form.inputs,
        [shown, key, *form.problem_outputs],
        show_progress_on=[shown],
        api_visibility="private",
    )
    form.on_change(follow, [shown], otherwise={}, also=[key])


def _render_list(workspace: Workspace, line: gr.HTML) -> tuple[gr.Button, gr.Dropdown]:
    gr.HTML('<h3 class="ps-subheading">Cleaned corpora in this workspace</h3>')
    listed = gr.HTML(markup.SKELETON, elem_id="clean-list")
    with gr.Column(elem_classes=["ps-card"], visible=False) as card:
        with gr.Row(elem_classes=["ps-inline"]):
            chosen = gr.Dropdown(
                [], label="Report of", elem_id="clean-chosen", interactive=True, scale=2
            )
            use = gr.Button("Use for tokenizer and shards", elem_id="clean-use", scale=0)
        report = gr.HTML(elem_id="clean-report")

    def show(name: str | None) -> str:
        try:
            return render_report(workspace.find_own("corpus", name)) if name else ""
        except StudioError as error:
            return present.error_card(error)

    fill_list(
        line, find=lambda: workspace.list("corpus"), table=_list, nothing=_NONE_YET,
        listed=listed, card=card, chosen=chosen,
    )  # fmt: skip
    chosen.change(present.guarded(show), chosen, report, **QUIET)
    return use, chosen


def _list(corpora: Sequence[Artifact]) -> str:
    headings = ("Name", "Read", "Training", "Validation", "Text", "Created")
    return markup.table(headings, map(_row, corpora), label="Cleaned corpora in this workspace")


def _row(corpus: Artifact) -> tuple[str, ...]:
    counts = corpus.manifest.counts
    read = counts.get("read")
    return (
        corpus.name,
        markup.count(read.get("documents", 0)) if isinstance(read, dict) else "unknown",
        markup.count(counts.get("train_documents", 0)),
        markup.count(counts.get("validation_documents", 0)),
        markup.byte_count(counts.get("train_bytes", 0) + counts.get("validation_bytes", 0)),
        markup.date(corpus.manifest.created),
    )
