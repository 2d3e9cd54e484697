"""The Corpus tab: text source, uploads and preview."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from core.config import AnalyseConfig, CorpusConfig
from core.errors import CorpusError, StudioError
from core.store import Store
from core.workspace import Workspace
from core.workspace.confinement import is_address
from core.workspace.places import make_folder
from ui import present
from ui.assets import script
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.parts.labels import relabel
from ui.parts.sources import CorpusForm
from ui.parts.stage import main_column, side_column, workbench
from ui.parts.text_choice import TextForm

if TYPE_CHECKING:
    from core.corpus.reading import CorpusPreview

_PREVIEWED_DOCUMENTS = 5
_SHOWN_CHARACTERS = 1500
_READING_OPTIONS = (
    "file_format", "encoding", "encoding_errors", "csv_header", "delimiter", "quoting",
    "text_column", "max_document_mb", "max_unpack_ratio",
)  # fmt: skip
_KEPT_FOR_RUNS = ("queued", "running", "stopping", "stopped", "failed", "lost")
_JSON = re.compile(r"\.json(\.\w+)?$", re.IGNORECASE)
_UNSAFE = re.compile(r"[^\w.-]+")
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
    uploads: list[Any] = []
    held = gr.JSON({}, visible=False)
    with workbench():
        with main_column(), gr.Column(elem_classes=["ps-card"]):
            form.render(
                before={"Several sources": form.render_help},
                after={
                    "General": lambda: uploads.extend(_render_uploads()),
                    "Several sources": form.render_sources,
                },
            )
            upload, listing = uploads
            form.connect_sources(upload, listing, held)
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
                column: _column_menu(config, workspace) if is_column else gr.skip(),
                **form.beside_field(error),
            }
        return {shown: html, column: _offer(columns)}

    look.click(
        form.guarded(show),
        form.inputs,
        [shown, column, *form.problem_outputs],
        api_visibility="private",
    )
    _connect_uploads(form, upload, listing, held, workspace)
    _forget_when_changed(form, shown)
    form.follow_artifacts(line, fills=False)
    _render_analysis(form, workspace, line)
    return form


def _render_analysis(form: CorpusForm, workspace: Workspace, line: gr.HTML) -> None:
    analysis = Form(AnalyseConfig, "analyse", workspace, nested={"corpus": form})
    with gr.Column(elem_classes=["ps-card"], elem_id="corpus-analysis"):
        gr.HTML(f'<h3 class="ps-subheading">Analysis</h3>{_ANALYSIS}')
        analysis.render()
        with gr.Row(elem_classes=["ps-buttons"]):
            start = gr.Button("Analyse", elem_id="analyse-start", scale=0)
        shown = gr.HTML(elem_id="analyse-result")
    analysis.follow_artifacts(line, fills=False)

    def show(*raw: Any) -> dict[Any, Any]:
        config = analysis.parse(*raw)
        try:
            return {shown: _analyse(config, workspace)}
        except StudioError as error:
            return {shown: present.error_card(error), **analysis.beside_field(error)}

    start.click(
        analysis.guarded(show),
        analysis.inputs,
        [shown, *analysis.problem_outputs],
        show_progress_on=[shown],
        api_visibility="private",
    )


def _analyse(config: AnalyseConfig, workspace: Workspace) -> str:
    from core.corpus.previewing import analyse_apart
    from ui.parts.analysis import render_analysis

    return render_analysis(analyse_apart(config, workspace))


def _render_uploads() -> list[Any]:
    # Any suffix: unreadable files are listed, the rest used.
    upload = gr.File(
        label="Upload files",
        file_count="multiple",
        height=150,
        elem_id="corpus-upload",
        elem_classes=["ps-conditional", "ps-when-corpus-source-files"],
    )
    listing = gr.HTML(
        "",
        js_on_load=script("upload.js"),
        elem_id="corpus-files",
        elem_classes=["ps-conditional", "ps-when-corpus-source-files"],
    )
    return [upload, listing]


def _column_menu(config: CorpusConfig, workspace: Workspace) -> Any:
    from core.corpus.previewing import list_columns

    return _offer(list_columns(config, workspace))


def _offer(columns: Sequence[str]) -> Any:
    return gr.update(choices=list(columns)) if columns else gr.skip()


def _connect_uploads(
    form: Form[CorpusConfig],
    upload: gr.File,
    listing: gr.HTML,
    held: gr.JSON,
    workspace: Workspace,
) -> None:
    path, column = form.components["path"], form.components["text_column"]

    def follow(files: Any, held: Any, *raw: Any) -> list[Any]:
        before = held if isinstance(held, dict) else {}
        if not files and not before:
            return [gr.skip()] * 4
        if not files:
            is_shown = form.shown(raw[0])["path"] == before.get("path")
            _remove(str(before.get("folder", "")), workspace)
            return ["" if is_shown else gr.skip(), {}, "", gr.skip()]
        try:
            config = form.parse(*raw)
        except StudioError:
            config = CorpusConfig(source="files")  # The form shows its own errors.
        kept = keep_uploads(files, config, workspace)
        _remove(str(before.get("folder", "")), workspace)
        return [
            kept.path,
            {"path": kept.path, "folder": str(kept.folder)},
            _list(kept),
            _offer(kept.columns),
        ]

    options = [form.components[name].change for name in _READING_OPTIONS]
    changes: list[Any] = [*options]
    gr.on(
        [getattr(upload, "change"), *changes],  # noqa: B009
        present.guarded(follow),
        [upload, held, *form.inputs],
        [path, held, listing, column],
        trigger_mode="always_last",
        **QUIET,
    )


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
    from core.corpus.files import FilesSource
    from core.corpus.members import naming_source

    for one in config.sources if config.source == "several" else ():
        with naming_source(one.name):
            _check(config.of_source(one))
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
    names = config.names_only or [one.name for one in config.sources]
    return f"{len(names)} {'source' if len(names) == 1 else 'sources'}: {', '.join(names)}"


def _line(text: str) -> str:
    return (
        f'<p class="ps-corpus-line"><span><b>Corpus:</b> {present.escape(text)}</span> '
        '<a href="#corpus" data-go="corpus">Change</a></p>'
    )


def _preview(config: CorpusConfig, workspace: Workspace) -> tuple[str, list[str]]:
    from core.corpus.previewing import preview_apart

    seen = preview_apart(config, workspace, documents=_PREVIEWED_DOCUMENTS)
    at_least = "" if seen.complete else "at least "
    figures = [
        ("documents", at_least + markup.count(seen.documents)),
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
    rows = [(name, markup.count(one["documents"]), markup.byte_count(one["bytes"]))
            for name, one in seen.by_source.items()]  # fmt: skip
    table = markup.table(("Source", "Documents", "Text"), rows, label="Sources")
    return f'<h3 class="ps-subheading">Sources</h3>{table}'


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " …"


@dataclass(frozen=True)
class KeptUploads:
    """Uploaded files kept in the workspace.

    Attributes:
        path: For the form; readable files only.
        sizes: Bytes, by name.
        problems: By name; these files move to `.refused` unless all fail.
        columns: From the first readable table.
    """

    folder: Path
    path: str
    sizes: dict[str, int]
    problems: dict[str, str]
    columns: list[str]


def keep_uploads(files: Sequence[str], config: CorpusConfig, workspace: Workspace) -> KeptUploads:
    """Keeps uploaded files, unreadable ones apart."""
    from core.corpus.previewing import CheckedFiles, check_files

    path = _keep(files, workspace)
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    kept = sorted(folder.iterdir())
    sizes = {one.name: one.stat().st_size for one in kept}
    try:
        found = check_files(kept, config, workspace)
    except StudioError as error:
        found = CheckedFiles(dict.fromkeys(kept, str(error)), [])
    problems = {one.name: text for one, text in found.problems.items()}
    if problems and len(problems) < len(kept):
        _set_aside(folder, problems)
        path = _path_of(folder)
    return KeptUploads(folder, path, sizes, problems, found.columns)


def _set_aside(folder: Path, names: Iterable[str]) -> None:
    """Moves files to a hidden folder, which isn't read."""
    refused = folder / ".refused"
    refused.mkdir(exist_ok=True)
    for name in names:
        (folder / name).rename(refused / name)


def _list(kept: KeptUploads) -> str:
    read = len(kept.sizes) - len(kept.problems)
    rows = [
        (name, markup.byte_count(size), relabel(kept.problems.get(name, "Ready"), CorpusConfig))
        for name, size in kept.sizes.items()
    ]
    total = f"{read} of {len(rows)} uploaded {'file' if len(rows) == 1 else 'files'}"
    return (
        f'<p class="ps-note"><b>{total} can be read.</b> Add more files above; × removes one.</p>'
        + markup.table(("File", "Size", "Status"), rows, label="Uploaded files")
    )  # fmt: skip


def _remove(folder: str, workspace: Workspace) -> None:
    path = Path(folder)
    if not folder or path.parent != workspace.uploads or path.is_symlink() or not path.is_dir():
        return
    if not _is_used(folder, workspace):
        shutil.rmtree(path, ignore_errors=True)


def _is_used(folder: str, workspace: Workspace) -> bool:
    store = Store.open(workspace)
    try:
        configs = [row.config for row in store.list_runs(limit=100_000, states=_KEPT_FOR_RUNS)]
        configs += [dict(row.payload) for row in store.pending_requests()]
    finally:
        store.close()
    return any(folder in json.dumps(one, ensure_ascii=False) for one in configs)


def _keep(files: Sequence[str] | None, workspace: Workspace) -> str:
    if not files:
        raise CorpusError("No file came with the upload", fix="choose the files again")
    folder = _new_folder(workspace.uploads / time.strftime("%Y%m%d-%H%M%S"))
    for source in map(Path, files):
        name = _safe_name(source.name)
        _take_over(source, _free_path(folder / (_beside_others(name) if len(files) > 1 else name)))
    return _path_of(folder)


def _beside_others(name: str) -> str:
    """.json and .zip are read only alone."""
    if name.lower().endswith(".zip"):
        return name if Path(name).stem.endswith(".txt") else f"{name[:-4]}.txt.zip"
    return _JSON.sub(r".jsonl\1", name)


def _path_of(folder: Path) -> str:
    kept = sorted(one for one in folder.iterdir() if one.is_file())
    if len(kept) == 1:
        return str(kept[0])
    # A folder path skips its .md files.
    return str(folder / "*" if any(".md" in path.suffixes for path in kept) else folder)


def _new_folder(wanted: Path) -> Path:
    folder, numbers = wanted, itertools.count(2)
    while True:
        try:
            make_folder(folder.parent)
            folder.mkdir()
            return folder
        except FileExistsError:
            folder = wanted.with_name(f"{wanted.name}-{next(numbers)}")


def _take_over(source: Path, target: Path) -> None:
    """Corpora can be large: link on the same file system, else copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _free_path(path: Path) -> Path:
    candidates = [path, *(path.with_name(f"{number}-{path.name}") for number in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())


def _safe_name(name: str) -> str:
    return _UNSAFE.sub("_", name).lstrip(".") or "file.txt"
