"""The Tokenizer tab."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import gradio as gr

from core.config.options import option_label
from core.config.tokenizer import TokenizerConfig
from core.pretraining.explain import explain_automatic
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.scoring import pieces
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from ui import present
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.parts.result_list import fill_list
from ui.parts.stage import Forecast, Launcher, main_column, side_column, workbench
from ui.parts.tokens import colour_tokens, list_tokens

_ALGORITHM = TokenizerConfig.model_fields["algorithm"]
_SENTENCE = "Tokenization splits uncommon words into smaller, more frequent pieces."
_MOST_CHARACTERS = 5000
_NONE_YET = markup.empty_state(
    "No tokenizer yet",
    "What you train appears here, with its scores and a field to try it.",
)


def render(workspace: Workspace, text: Form[Any], line: gr.HTML) -> Launcher:
    """Renders the tab and returns its launcher."""
    form = Form(
        TokenizerConfig,
        "tokenizer",
        workspace,
        nested={"corpus": text},
        check=_check_vocabulary,
    )
    launcher = Launcher(
        "tokenizer", form, workspace, _forecast, _summarize, explain=explain_automatic
    )
    with workbench():
        with main_column(), gr.Column(elem_classes=["ps-card"]):
            form.render()
        with side_column():
            launcher.render_facts()
            launcher.render_start("Train a tokenizer")
    _render_list(workspace, line)
    return launcher


def _check_vocabulary(config: TokenizerConfig) -> None:
    # The trainers, which the start doesn't need.
    from core.tokenizer.capacity import check_vocabulary

    check_vocabulary(config)


def _forecast(config: TokenizerConfig) -> Forecast:
    _check_vocabulary(config)
    algorithm = option_label(_ALGORITHM, config.algorithm)
    summary = f"{_size(config)} · {algorithm}"
    return Forecast(_summarize(config), summary=summary)


def _summarize(config: TokenizerConfig) -> str:
    algorithm = option_label(_ALGORITHM, config.algorithm)
    return f"Train a {algorithm} tokenizer, {_size(config)}"


def _size(config: TokenizerConfig) -> str:
    if config.vocab_size is None:
        return "sized by the text"
    return f"{markup.count(config.vocab_size)} tokens"


def _render_list(workspace: Workspace, line: gr.HTML) -> None:
    gr.HTML('<h3 class="ps-subheading">Tokenizers in this workspace</h3>')
    listed = gr.HTML(markup.SKELETON, elem_id="tokenizer-list")
    with gr.Column(elem_classes=["ps-card"], visible=False) as card:
        chosen = gr.Dropdown([], label="Tokenizer", elem_id="tokenizer-chosen", interactive=True)
        sentence = gr.Textbox(
            _SENTENCE,
            label="Text to tokenize",
            info="Tokenized as you type.",
            lines=2,
            max_lines=8,
            max_length=_MOST_CHARACTERS,
            elem_id="tokenizer-sentence",
        )
        tokens = gr.HTML(elem_id="tokenizer-tokens")
        extremes = gr.HTML(elem_id="tokenizer-extremes")
    fill_list(
        line, find=lambda: workspace.list("tokenizer"), table=_list, nothing=_NONE_YET,
        listed=listed, card=card, chosen=chosen,
    )  # fmt: skip
    chosen.change(
        present.guarded(lambda name: _extremes(name, workspace)),
        chosen,
        extremes,
        **QUIET,
    )
    gr.on(
        [chosen.change, sentence.change],
        present.guarded(lambda name, words: _cut(name, words, workspace)),
        [chosen, sentence],
        tokens,
        trigger_mode="always_last",
        **QUIET,
    )


def _list(tokenizers: Sequence[Artifact]) -> str:
    headings = (
        "Name",
        "Algorithm",
        "Tokens",
        "Tokens per word",
        "Bytes per token",
        "Unknown",
        "Created",
    )
    return markup.table(headings, map(_row, tokenizers), label="Tokenizers in this workspace")


def _row(artifact: Artifact) -> tuple[str, ...]:
    manifest, score = artifact.manifest, artifact.manifest.counts
    algorithm = str(manifest.config.get("algorithm", ""))
    return (
        artifact.name,
        option_label(_ALGORITHM, algorithm),
        markup.count(score.get("vocab_size", 0)),
        f"{score.get('tokens_per_word', 0):.2f}",
        f"{score.get('bytes_per_token', 0):.2f}",
        markup.percent(score.get("unknown_share", 0)),
        markup.date(manifest.created),
    )


def _cut(name: str | None, sentence: str, workspace: Workspace) -> str:
    if not name or not sentence:
        return ""
    tokenizer = _open(name, workspace.find("tokenizer", name).fingerprint, workspace)
    cut = pieces(tokenizer, sentence)
    special = frozenset(tokenizer.special_ids.tolist())
    note = f"{len(cut)} tokens for {len(sentence.split())} words"
    return f'{colour_tokens(cut, special)}<p class="ps-note">{note}</p>'


@lru_cache(maxsize=4)
def _open(name: str, fingerprint: str, workspace: Workspace) -> StudioTokenizer:
    """Cached, as users type quickly."""
    return load(name, workspace)


def _extremes(name: str | None, workspace: Workspace) -> str:
    if not name:
        return ""
    counts = workspace.find("tokenizer", name).manifest.counts
    lines = [
        f'<p class="ps-note">{label}</p>{list_tokens(texts)}'
        for label, texts in (
            ("Longest tokens", counts.get("longest_tokens", [])),
            ("Shortest tokens", counts.get("shortest_tokens", [])),
        )
    ]
    return "".join(lines)
