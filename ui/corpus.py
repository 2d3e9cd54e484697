"""The Corpus tab: where the text comes from, and a look at it before anything is spent."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from core.config import CorpusConfig
from core.errors import CorpusError, StudioError
from core.places import make_folder
from core.workspace import Workspace
from ui import present
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET

_PREVIEWED_DOCUMENTS = 5
_SHOWN_CHARACTERS = 1500
_UPLOAD_TYPES = [
    ".txt", ".text", ".md", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".gz",
]  # fmt: skip
_UNSAFE = re.compile(r"[^\w.-]+")
_NOT_LOOKED = markup.empty_state(
    "Nothing read yet", "“Look at the text” reads the beginning and counts. It changes nothing."
)


def render(workspace: Workspace) -> Form[CorpusConfig]:
    """Makes the tab and returns its form, from which later stages take their text."""
    form = Form(CorpusConfig, "corpus", workspace, check=_check)
    with gr.Column(elem_classes=["ps-card"]):
        form.render()
        upload = gr.File(
            label="Upload files",
            file_count="multiple",
            file_types=_UPLOAD_TYPES,
            height=110,
            elem_id="corpus-upload",
            elem_classes=["ps-conditional", "ps-when-corpus-source-files"],
        )
        with gr.Row(elem_classes=["ps-buttons"]):
            look = gr.Button("Look at the text", variant="primary", elem_id="corpus-look", scale=0)
            gr.HTML(
                '<p class="ps-note"><a href="#tokenizer" data-go="tokenizer">'
                "On to the tokenizer →</a></p>"
            )
    shown = gr.HTML(_NOT_LOOKED, elem_id="corpus-preview")

    def show(*raw: Any) -> dict[Any, Any]:
        config = form.parse(*raw)
        try:
            return {shown: _preview(config, workspace)}
        except StudioError as error:
            return {shown: present.error_card(error), **form.beside_field(error)}

    look.click(
        form.guarded(show),
        form.inputs,
        [shown, *form.problem_outputs],
        api_visibility="private",
    )
    upload.upload(
        present.guarded(lambda files: _keep(files, workspace)),
        upload,
        form.components["path"],
        **QUIET,
    )
    return form


def render_line(form: Form[CorpusConfig]) -> None:
    """Makes the line that says, in another tab, which text is in use."""
    line = gr.HTML(elem_classes=["ps-corpus-line-host"])

    def describe(*raw: Any) -> dict[Any, Any]:
        config = form.parse(*raw)
        return {line: _line(describe_corpus(config))}

    form.on_change(describe, [line], otherwise={line: _line("not settled yet")})


def _check(config: CorpusConfig) -> None:
    """Refuses a corpus whose files aren't there, before a run is queued for it.

    Raises:
        StudioError: With the field it concerns.
    """
    from core.corpus.files import FilesSource

    if config.source == "files":
        FilesSource(config)


def describe_corpus(config: CorpusConfig) -> str:
    """Returns a corpus in a few words."""
    source = {
        "docs": "documentation of the installed Python packages",
        "files": config.path or "files (no path given yet)",
        "hub": " ".join(part for part in (config.dataset_name, config.dataset_config) if part),
    }[config.source]
    limit = f", at most {markup.count(config.limit)} documents" if config.limit else ""
    return f"{source}{limit}"


def _line(text: str) -> str:
    return (
        f'<p class="ps-corpus-line"><span><b>Text:</b> {present.escape(text)}</span> '
        '<a href="#corpus" data-go="corpus">Change</a></p>'
    )


def _preview(config: CorpusConfig, workspace: Workspace) -> str:
    from core.corpus import preview

    seen = preview(config, workspace, documents=_PREVIEWED_DOCUMENTS)
    at_least = "" if seen.complete else "at least "
    figures = [
        ("documents", at_least + markup.count(seen.documents)),
        ("of UTF-8 text", at_least + markup.byte_count(seen.bytes)),
        ("characters", at_least + markup.short_count(seen.characters)),
        ("characters in the longest", markup.count(seen.longest_characters)),
        ("blank ones skipped", markup.count(seen.blank_skipped)),
    ]
    documents = "".join(f"<li>{present.escape(_shorten(text))}</li>" for text in seen.samples)
    column = f" (column {seen.text_column})" if seen.text_column else ""
    return (
        f'<div class="ps-preview">{markup.tiles(figures)}'
        f'<h3 class="ps-subheading">The first documents{present.escape(column)}</h3>'
        f'<ol class="ps-documents">{documents}</ol></div>'
    )


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " …"


def _keep(files: Sequence[str] | None, workspace: Workspace) -> str:
    """Copies uploaded files into the workspace and returns the path for the form."""
    if not files:
        raise CorpusError("No file came with the upload", fix="choose the files again")
    folder = _new_folder(workspace.uploads / time.strftime("%Y%m%d-%H%M%S"))
    for source in map(Path, files):
        _take_over(source, _free_path(folder / _safe_name(source.name)))
    kept = sorted(folder.iterdir())
    if len(kept) == 1:
        return str(kept[0])
    # Of a folder, .md files aren't read.
    return str(folder / "*" if any(".md" in path.suffixes for path in kept) else folder)


def _new_folder(wanted: Path) -> Path:
    """Makes a folder of its own for an upload, with a number where another has come just now."""
    folder, numbers = wanted, itertools.count(2)
    while True:
        try:
            make_folder(folder.parent)
            folder.mkdir()
            return folder
        except FileExistsError:
            folder = wanted.with_name(f"{wanted.name}-{next(numbers)}")


def _take_over(source: Path, target: Path) -> None:
    """Links a file that lies on the same disk, for texts can be large; copies it otherwise."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _free_path(path: Path) -> Path:
    candidates = [path, *(path.with_name(f"{number}-{path.name}") for number in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())


def _safe_name(name: str) -> str:
    """Returns a file's name without what could make it hidden or a path."""
    return _UNSAFE.sub("_", name).lstrip(".") or "file.txt"
