"""The Publish tab: previews, then sends to the Hugging Face Hub."""

from __future__ import annotations

import base64
import re
from typing import Any

import gradio as gr

from core.config.export import QUANTIZATIONS, ExportConfig, Format, Quantization
from core.config.options import option_label
from core.config.push import PushConfig
from core.errors import HubError, StudioError
from core.exporting.families import family_for_llama_cpp
from core.hub.client import Account, is_signed_in, sign_in
from core.models.hf import read_architecture
from core.publishing import push
from core.publishing.cards import CURVES_FILE
from core.workspace.workspace import Workspace
from ui import present
from ui.assets import script
from ui.forms import Form, labelled
from ui.parts import markup
from ui.parts.events import QUIET, listen
from ui.parts.stage import Forecast, Launcher, main_column, side_column, workbench
from ui.parts.subjects import SubjectForm, find_subject
from ui.present import escape

_NOT_ASKED = '<p class="ps-account"><i class="ps-dot"></i>Checking the Hub account …</p>'
_NOBODY = """
<p class="ps-account"><i class="ps-dot"></i><span><b>You are not signed in.</b> Run
<code>hf auth login</code> on the machine of the studio, with a
<a href="https://huggingface.co/settings/tokens" target="_blank" rel="noreferrer">token</a> with
write access. This page never asks for a token.</span></p>
"""
_EXPORT = """<p>Writes a decoder as a GGUF file for llama.cpp, Ollama, LM Studio and others, or any
model for browsers, ONNX Runtime or OpenVINO. The run's page shows its size and commands.</p>"""
_NOT_SHOWN = markup.empty_state(
    "No preview yet",
    "Preview lists every file with its size, and the card. Nothing is sent.",
)
# More files are collapsed.
_MOST_LISTED = 20
_HEADER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
# Links to repository files, absent here.
_BESIDE = re.compile(r"(?<!!)\[([^\[\]]{1,200})\]\((?!https?:)[^()]{1,500}\)")


def render(workspace: Workspace, line: gr.HTML, tab: gr.Tab) -> tuple[Launcher, Launcher]:
    """Renders the tab; returns the launchers of publication and export.

    Args:
        line: Its `artifacts` event reports new artifacts.
        tab: Opening it checks the Hub account.
    """
    form = Form(PushConfig, "publish", workspace, check=lambda config: _check(config, workspace))
    launcher = Launcher("push", form, workspace, _forecast, _summarize, ask=_sign_in)
    account = gr.HTML(_NOT_ASKED, elem_id="publish-account")
    with workbench():
        with main_column(), gr.Column(elem_classes=["ps-card"]):
            form.render()
        with side_column():
            launcher.render_facts()
            show = gr.Button("Preview", elem_id="publish-show", elem_classes=["ps-beside"])
            launcher.render_start("Publish")
    with gr.Column(elem_id="publish-preview"):
        listing = gr.HTML(_NOT_SHOWN)
        card = gr.Markdown(visible=False, elem_id="publish-card", latex_delimiters=[])
    tab.select(_who, None, account, **QUIET)
    _wire_preview(form, workspace, show, listing, card)
    _wire_choice(form)
    form.follow_artifacts(line)
    return launcher, _render_export(workspace, line)


def _render_export(workspace: Workspace, line: gr.HTML) -> Launcher:
    form = SubjectForm(
        ExportConfig, "export", workspace, check=lambda config: _check_export(config, workspace)
    )
    launcher = Launcher("export", form, workspace, _forecast_export, _summarize_export)
    launcher.section = gr.Accordion(
        "Export for other programs",
        open=False,
        elem_id="export-section",
        elem_classes=["ps-card", "ps-section"],
    )
    with launcher.section:
        gr.HTML(_EXPORT)
        form.render()
        launcher.render_facts()
        launcher.render_start("Export", "secondary")
    form.follow_artifacts(line)
    formats, quantizations = (form.components[name] for name in ("format", "quantization"))
    formats.change(_offer, [formats, quantizations], quantizations, **QUIET)
    return launcher


def _check_export(config: ExportConfig, workspace: Workspace) -> None:
    """Refuses what the format's program can't run; the run itself reads models of the Hub."""
    if (folder := find_subject(config.model, workspace)) and config.format == "gguf":
        family_for_llama_cpp(read_architecture(folder))


def _offer(file_format: Format, quantization: Quantization) -> Any:
    """Offers the number formats that a file format has."""
    offered = QUANTIZATIONS[file_format]
    field = ExportConfig.model_fields["quantization"]
    chosen = quantization if quantization in offered else field.default
    return gr.update(choices=labelled(field, offered), value=chosen)


def _forecast_export(config: ExportConfig) -> Forecast:
    return Forecast(_summarize_export(config))


def _summarize_export(config: ExportConfig) -> str:
    title = option_label(ExportConfig.model_fields["format"], config.format)
    return f"Export {config.model} as {title}" if config.model else "Export"


def _wire_preview(
    form: Form[PushConfig], workspace: Workspace, show: gr.Button, listing: gr.HTML, card: Any
) -> None:
    shown = gr.State("")
    nothing = {listing: _NOT_SHOWN, card: gr.update(value="", visible=False), shown: ""}

    def preview(*raw: Any) -> dict[Any, Any]:
        config = form.parse(*raw)
        try:
            preview = push.preview(config, workspace)
        except StudioError as error:
            problem = {**nothing, listing: present.error_card(error)}
            return {**problem, **form.beside_field(error)}
        receipt = _listing(preview.receipt)
        return {listing: receipt, card: _card(preview), shown: config.fingerprint()}

    def forget(*raw: Any) -> dict[Any, Any]:
        *values, previewed = raw
        try:
            same = form.parse(*values).fingerprint() == previewed
        except StudioError:
            same = False
        return {shown: gr.skip()} if same or not previewed else nothing

    show.click(
        form.guarded(preview),
        form.inputs,
        [listing, card, shown, *form.problem_outputs],
        api_visibility="private",
    )
    gr.on(
        form.changes,
        present.guarded(forget),
        [*form.inputs, shown],
        [listing, card, shown],
        trigger_mode="always_last",
        **QUIET,
    )


def _wire_choice(form: Form[PushConfig]) -> None:
    listener = gr.HTML(
        html_template="", js_on_load=script("publish.js"), elem_classes=["ps-unseen"]
    )

    def choose(event: gr.EventData) -> list[Any]:
        return ["model", str(event._data["model"])]

    listen(listener.choose, choose, [], [form.components["kind"], form.components["model"]])


def _check(config: PushConfig, workspace: Workspace) -> None:
    push.check(config, workspace)
    if not config.dry_run and not is_signed_in():
        # The account's line above says how.
        raise HubError("Sign in to publish")


def _sign_in(config: PushConfig) -> None:
    if not config.dry_run:
        sign_in(attempts=1)


def _who() -> str:
    """The token is neither shown nor kept."""
    if not is_signed_in():
        return _NOBODY
    try:
        return _signed_in(sign_in(attempts=1))
    except StudioError as error:
        return (
            f'<p class="ps-account"><i class="ps-dot failed"></i><span><b>{escape(error.problem)}.'
            f"</b> {escape(error.received)}. What to do: {escape(error.fix)}.</span></p>"
        )


def _signed_in(account: Account) -> str:
    if not account.can_write:
        return (
            f'<p class="ps-account"><i class="ps-dot failed"></i><span>Signed in as <b>'
            f"{escape(account.name)}</b>, with a token that may only read. To publish, run "
            "<code>hf auth login</code> with one that may write.</span></p>"
        )
    return (
        '<p class="ps-account"><i class="ps-dot done"></i><span>Signed in as '
        f"<b>{escape(account.name)}</b>.</span></p>"
    )


def _forecast(config: PushConfig) -> Forecast:
    return Forecast(_summarize(config))


def _summarize(config: PushConfig) -> str:
    name = getattr(config, config.kind)
    if not name:
        return "Publish"
    verb = "Preview publishing" if config.dry_run else "Publish"
    visibility = "private" if config.private else "public"
    space = " and a Space" if config.space and config.kind == "model" else ""
    return f"{verb} {name}{space} ({visibility})"


def _listing(receipt: push.Receipt) -> str:
    return "".join(
        [
            _files(f"{receipt.repo_id} would get", receipt.files),
            _files("The Space would get", receipt.space_files),
            _header(receipt.card),
        ]
    )


def _files(title: str, files: list[dict[str, Any]]) -> str:
    if not files:
        return ""
    lines = "".join(
        f"<li>{escape(file['path'])}<span>{markup.byte_count(file['bytes'])}</span></li>"
        for file in files
    )
    total = markup.byte_count(sum(file["bytes"] for file in files))
    heading = f"{escape(title)} {len(files)} files, {total}"
    listed = f'<ul class="ps-files">{lines}</ul>'
    if len(files) > _MOST_LISTED:
        return f"<details><summary>{heading}</summary>{listed}</details>"
    return f'<h3 class="ps-subheading">{heading}</h3>{listed}'


def _header(card: str) -> str:
    match = _HEADER.match(card)
    if match is None:
        return ""
    code = markup.code_blocks([("README.md begins with", match[1])])
    return (
        f"<details><summary>The card’s header, for machines</summary>{code}</details>"
        '<h3 class="ps-subheading ps-card-title">The card, as people will see it</h3>'
    )


def _card(preview: push.Preview) -> Any:
    body = _HEADER.sub("", preview.receipt.card)
    picture = base64.b64encode(preview.picture).decode()
    body = body.replace(f"({CURVES_FILE})", f"(data:image/png;base64,{picture})")
    return gr.update(value=_BESIDE.sub(r"\1", body), visible=bool(body))
