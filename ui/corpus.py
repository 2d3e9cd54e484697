"""The Data tab: text source, uploads and preview."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gradio as gr

from core.config.analyse import AnalyseConfig
from core.config.corpus import CorpusConfig
from core.corpus.files import FilesSource
from core.corpus.members import naming_source
from core.corpus.previewing import analyse_apart, list_columns, preview_apart
from core.corpus.reading import CorpusPreview
from core.errors import StudioError
from core.workspace.confinement import is_address
from core.workspace.workspace import Workspace
from ui import present
from ui.forms import Form
from ui.parts import markup
from ui.parts.analysis import render_analysis
from ui.parts.events import QUIET
from ui.parts.open_corpora import render_open_corpora
from ui.parts.sources import CorpusForm
from ui.parts.stage import main_column, side_column, workbench
from ui.parts.text_choice import TextForm
from ui.parts.upload_zone import UploadZone, connect_zone, offer_columns, render_zone

_PREVIEWED_DOCUMENTS = 5
_SHOWN_CHARACTERS = 1500
_READING_OPTIONS = (
    "file_format", "encoding", "encoding_errors", "csv_header", "delimiter", "quoting",
    "text_column", "max_document_mb", "max_unpack_ratio",
)  # fmt: skip
_ANALYSIS = """
<p class="ps-note">Reads a sample from places all over each source: sizes, languages, lengths,
duplicates, frequent lines, scripts, encoding problems, and the estimated tokens and training
time.</p>
"""
_NO_PREVIEW = markup.empty_state(
    "No preview yet", "Preview reads the beginning of the corpus and counts its documents."
)


def render(workspace: Workspace, line: gr.HTML) -> CorpusForm:
    """Renders the tab; later stages nest the returned form."""
    form = CorpusForm(CorpusConfig, "corpus", workspace, check=_check)
    zones: list[UploadZone] = []

    def render_places() -> None:
        shown_with = "ps-when-corpus-source"
        classes = ["ps-conditional", f"{shown_with}-files"]
        zones.append(render_zone("corpus", "Upload files", classes=classes))
        render_open_corpora("corpus", classes=["ps-conditional", f"{shown_with}-hub"])

    with workbench():
        with main_column(), gr.Column(elem_classes=["ps-card"]):
            form.render(
                before={"Several sources": form.render_help},
                after={
                    "General": render_places,
                    "Several sources": form.render_sources,
                },
            )
            (zone,) = zones
            form.connect_sources(zone.upload, zone.listing, zone.held)
            with gr.Row(elem_classes=["ps-buttons"]):
                look = gr.Button("Preview", variant="primary", elem_id="corpus-look", scale=0)
                gr.HTML(
                    '<p class="ps-note">Next: <a href="#clean" data-go="clean">clean it</a> or '
                    '<a href="#tokenizer" data-go="tokenizer">train a tokenizer →</a></p>'
                )
        with side_column():
            shown = gr.HTML(_NO_PREVIEW, elem_id="corpus-preview")

    column = form.components["text_column"]

    def show(*raw: Any) -> dict[Any, Any]:
        config = form.parse(*raw)
        try:
            html, columns = _preview(config, workspace)
        except StudioError as error:
            is_column = error.field == "text_column"
            return {
                shown: present.error_card(error),
                column: offer_columns(list_columns(config, workspace)) if is_column else gr.skip(),
                **form.beside_field(error),
            }
        return {shown: html, column: offer_columns(columns)}

    look.click(
        form.guarded(show),
        form.inputs,
        [shown, column, *form.problem_outputs],
        api_visibility="private",
    )
    connect_zone(
        zone, form, "path", _reading_function(form), workspace,
        when=[form.components[name].change for name in _READING_OPTIONS],
        offered={"text_column": column},
    )  # fmt: skip
    _forget_when_changed(form, shown)
    form.follow_artifacts(line, fills=False)
    _render_analysis(form, workspace, line)
    return form


def _render_analysis(form: CorpusForm, workspace: Workspace, line: gr.HTML) -> None:
    analysis = Form(AnalyseConfig, "analyse", workspace, nested={"corpus": form})
    with gr.Accordion(
        "Analysis of the text", open=False, elem_classes=["ps-card", "ps-section"],
        elem_id="corpus-analysis",
    ):  # fmt: skip
        gr.HTML(_ANALYSIS)
        analysis.render()
        with gr.Row(elem_classes=["ps-buttons"]):
            start = gr.Button("Analyse", elem_id="analyse-start", scale=0)
        shown = gr.HTML(elem_id="analyse-result")
    analysis.follow_artifacts(line, fills=False)

    def show(*raw: Any) -> dict[Any, Any]:
        config = analysis.parse(*raw)
        try:
            return {shown: render_analysis(analyse_apart(config, workspace))}
        except StudioError as error:
            return {shown: present.error_card(error), **analysis.beside_field(error)}

    start.click(
        analysis.guarded(show),
        analysis.inputs,
        [shown, *analysis.problem_outputs],
        show_progress_on=[shown],
        api_visibility="private",
    )


def _reading_function(form: Form[CorpusConfig]) -> Callable[..., CorpusConfig]:
    def config_of(*raw: Any) -> CorpusConfig:
        try:
            return form.parse(*raw)
        except StudioError:
            return CorpusConfig(source="files")  # The form shows its own errors.

    return config_of


def _forget_when_changed(form: Form[CorpusConfig], shown: gr.HTML) -> None:
    for component in form.components.values():
        component.change(None, None, shown, js=f"() => {json.dumps(_NO_PREVIEW)}", **QUIET)


def render_choice(form: TextForm, line: gr.HTML) -> None:
    """Renders the corpus line of a later stage, and its choice of a cleaned corpus."""
    shown = gr.HTML(elem_classes=["ps-corpus-line-host"])
    form.render_choice()
    _connect_line(form, shown)
    form.follow_corpora(line)


def render_line(form: Form[CorpusConfig]) -> None:
    """Renders the corpus line of another tab."""
    _connect_line(form, gr.HTML(elem_classes=["ps-corpus-line-host"]))


def _connect_line(form: Form[Any], line: gr.HTML) -> None:

    def describe(*raw: Any) -> dict[Any, Any]:
        config = form.parse(*raw)
        return {line: _line(describe_corpus(config))}

    form.on_change(describe, [line], otherwise={line: _line("not chosen yet")})


def _check(config: CorpusConfig) -> None:
    for source in config.sources if config.source == "several" else ():
        with naming_source(source.name):
            _check(config.of_source(source))
    if config.source == "files" and not is_address(config.path):
        FilesSource(config)


def describe_corpus(config: CorpusConfig) -> str:
    """Describes a corpus briefly."""
    source = {
        "docs": "documentation of the installed Python packages",
        "files": config.path or "files (none chosen yet)",
        "hub": " ".join(part for part in (config.dataset_name, config.dataset_config) if part),
        "corpus": f"cleaned corpus {config.corpus_name}".strip(),
        "several": describe_names(config),
    }[config.source]
    limit = f", at most {markup.count(config.limit)} documents" if config.limit else ""
    return f"{source}{limit}"


def describe_names(config: CorpusConfig) -> str:
    """Describes the named sources of a corpus."""
    names = config.names_only or [source.name for source in config.sources]
    return f"{len(names)} {'source' if len(names) == 1 else 'sources'}: {', '.join(names)}"


def _line(text: str) -> str:
    return (
        f'<p class="ps-corpus-line"><span><b>Corpus:</b> {present.escape(text)}</span> '
        '<a href="#corpus" data-go="corpus">Change</a></p>'
    )


def _preview(config: CorpusConfig, workspace: Workspace) -> tuple[str, list[str]]:
    seen = preview_apart(config, workspace, documents=_PREVIEWED_DOCUMENTS)
    at_least = "" if seen.complete else "at least "
    figures = [
        (
            "document" if seen.documents == 1 else "documents",
            at_least + markup.count(seen.documents),
        ),
        ("of UTF-8 text", at_least + markup.byte_count(seen.bytes)),
        ("characters", at_least + markup.short_count(seen.characters)),
        ("characters in the longest document", markup.count(seen.longest_characters)),
        ("blank documents skipped", markup.count(seen.blank_skipped)),
    ]
    sources = seen.sources or [""] * len(seen.samples)
    documents = "".join(map(_document, seen.samples, sources))
    column = f" (column {seen.text_column})" if seen.text_column else ""
    reading = "".join(f"<li>{present.escape(line)}</li>" for line in seen.reading)
    html = (
        f'<div class="ps-preview">{markup.tiles(figures)}{_sources_of(seen)}'
        '<h3 class="ps-subheading">Format</h3>'
        f'<ul class="ps-reading">{reading}</ul>'
        f'<h3 class="ps-subheading">First documents{present.escape(column)}</h3>'
        f'<ol class="ps-documents">{documents}</ol></div>'
    )
    return html, seen.columns


def _document(text: str, source: str) -> str:
    origin = f'<b class="ps-origin">{present.escape(source)}</b> ' if source else ""
    return f"<li>{origin}{present.escape(_shorten(text))}</li>"


def _sources_of(seen: CorpusPreview) -> str:
    if not seen.by_source:
        return ""
    rows = [(name, markup.count(counts["documents"]), markup.byte_count(counts["bytes"]))
            for name, counts in seen.by_source.items()]  # fmt: skip
    table = markup.table(("Source", "Documents", "Text"), rows, label="Sources")
    return f'<h3 class="ps-subheading">Sources</h3>{table}'


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " …"
