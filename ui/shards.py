"""The Shards tab: packs text into sequences and shows them."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import gradio as gr
import numpy as np
from numpy.typing import NDArray

from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.errors import ConfigError, StudioError
from core.objectives.objective import Batch, ObjectiveSettings
from core.objectives.registry import create_objective
from core.pretraining.explain import explain_automatic
from core.shards.build import load_tokenizer
from core.shards.layout import check_options, with_noise
from core.shards.read import is_remote, open_shards
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.vocabulary import vocabulary_of
from core.workspace.manifests import Artifact
from core.workspace.workspace import Workspace
from ui import present
from ui.forms import Form
from ui.parts import markup
from ui.parts.events import QUIET
from ui.parts.result_list import fill_list
from ui.parts.stage import Earlier, Forecast, Launcher, main_column, side_column, workbench
from ui.parts.tokens import mark_masked

_AIMS = {
    "mlm": "masked LM",
    "clm": "causal LM",
    "span_corruption": "span corruption",
    "denoising": "denoising",
}
_SEEN = {
    "clm": "Input: the model sees the tokens before the one it predicts",
    "span_corruption": "Encoder input, with a sentinel for each masked span",
    "denoising": "Encoder input, with permuted sentences and a mask token for each masked span",
}
_ASKED = {
    "clm": "Target: each token is predicted from all before it",
    "span_corruption": "Decoder target, with a sentinel for each unmasked part",
    "denoising": "Decoder target",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_FAR = """
<p class="ps-note">These sequences aren't on this machine. A run that trains on them fetches them
first; then they can be shown here.</p>
"""
_NONE_YET = markup.empty_state(
    "No shards yet", "What you build appears here, with its counts and examples."
)


def render(workspace: Workspace, text: Form[Any], pieces: Launcher, line: gr.HTML) -> Launcher:
    """Renders the tab and returns its launcher.

    Args:
        pieces: Trains a tokenizer if there is none.
    """
    form = Form(
        ShardConfig,
        "shards",
        workspace,
        nested={"corpus": text},
        check=lambda config: _check_tokenizer(config, workspace),
    )
    earlier = Earlier(pieces, "tokenizer", "Train a new tokenizer first", _check_tokenizer_fits)
    launcher = Launcher(
        "shards", form, workspace, _forecast, _summarize, earlier, explain=explain_automatic
    )
    with workbench():
        with main_column(), gr.Column(elem_classes=["ps-card"]):
            form.render()
        with side_column():
            launcher.render_facts()
            launcher.render_start("Build shards")
    form.follow_artifacts(line)
    _render_list(workspace, line)
    return launcher


def _check_tokenizer(config: ShardConfig, workspace: Workspace) -> None:
    """Leaves a tokenizer that only the Hub may have to the run."""
    check_options(config)
    is_here = (workspace.folder("tokenizer") / config.tokenizer).is_dir()
    if not config.tokenizer or is_here or not _HUB_ID.fullmatch(config.tokenizer):
        load_tokenizer(config, workspace)


def _check_tokenizer_fits(pieces: TokenizerConfig, config: ShardConfig) -> None:
    has_sentinels = pieces.algorithm == "sentencepiece_unigram" and pieces.sentinels > 0
    wants = {"span_corruption": True, "mlm": False, "denoising": False}.get(config.objective)
    if wants is not None and wants != has_sentinels:
        raise ConfigError(
            f"A tokenizer by ⟬algorithm:{pieces.algorithm}⟭ doesn't fit the objective "
            f"⟬objective:{config.objective}⟭",
            expected="⟬algorithm:sentencepiece_unigram⟭, with sentinels"
            if wants
            else "one with a mask token",
            received=f"⟬algorithm:{pieces.algorithm}⟭",
            fix="in the Tokenizer tab choose "
            + ("the family t5" if wants else "another algorithm than T5's"),
            field="objective",
        )


def _forecast(config: ShardConfig) -> Forecast:
    summary = f"{_length(config)} · {_AIMS[config.objective]}"
    return Forecast(_summarize(config), summary=summary)


def _summarize(config: ShardConfig) -> str:
    each = ", one per line," if config.line_by_line else ""
    length = "" if config.max_seq_length is None else f" of {_length(config)}"
    return f"Build shards of sequences{length}{each} for {_AIMS[config.objective]}"


def _length(config: ShardConfig) -> str:
    if config.max_seq_length is None:
        return "length by the text"
    return f"{markup.count(config.max_seq_length)} tokens"


def _render_list(workspace: Workspace, line: gr.HTML) -> None:
    gr.HTML('<h3 class="ps-subheading">Shards in this workspace</h3>')
    listed = gr.HTML(markup.SKELETON, elem_id="shards-list")
    with gr.Column(elem_classes=["ps-card"], visible=False) as card:
        with gr.Row(elem_classes=["ps-inline"]):
            chosen = gr.Dropdown(
                [], label="Inspect", elem_id="shards-chosen", interactive=True, scale=2
            )
            another = gr.Button("Show another sequence", elem_id="shards-another", scale=0)
        row = gr.HTML(elem_id="shards-row")

    def show_row(name: str | None) -> str:
        try:
            return _show_sequence(name, workspace) if name else ""
        except StudioError as error:
            return present.error_card(error)

    fill_list(
        line, find=lambda: workspace.list("shards"), table=_list, nothing=_NONE_YET,
        listed=listed, card=card, chosen=chosen,
    )  # fmt: skip
    gr.on(
        [chosen.change, another.click],
        present.guarded(show_row),
        chosen,
        row,
        **QUIET,
    )


def _list(artifacts: Sequence[Artifact]) -> str:
    rows = [
        (
            artifact.name,
            _AIMS.get(artifact.manifest.config.get("objective", "mlm"), ""),
            markup.count(artifact.manifest.counts.get("row_length", 0)),
            markup.count(artifact.manifest.counts.get("train_rows", 0)),
            markup.count(artifact.manifest.counts.get("validation_rows", 0)),
            markup.short_count(artifact.manifest.counts.get("train_tokens", 0)),
            markup.byte_count(sum(file["bytes"] for file in artifact.manifest.files.values())),
        )
        for artifact in artifacts
    ]
    headings = (
        "Name",
        "Objective",
        "Sequence length",
        "Training sequences",
        "Validation sequences",
        "Training tokens",
        "Size",
    )
    return markup.table(headings, rows, label="Shards in this workspace")


def _show_sequence(name: str, workspace: Workspace) -> str:
    """Renders a random sequence with its model input; remote shards would take long."""
    if is_remote(name, workspace):
        return _FAR
    shards = open_shards(name, workspace)
    rows = shards.train if len(shards.train) else shards.validation
    tokenizer = load(str(shards.tokenizer_folder), workspace) if shards.tokenizer_folder else None
    if not len(rows) or tokenizer is None:
        raise ConfigError(
            f"No sequence of {name} can be shown",
            expected="sequences, and a copy of their tokenizer",
            received=f"{len(rows)} sequences and {tokenizer or 'no tokenizer'}",
            fix="build the shards again",
        )
    settings = ObjectiveSettings(shards.max_seq_length, line_by_line=shards.line_by_line)
    settings = with_noise(settings, *shards.noise)
    objective = create_objective(shards.objective, settings, vocabulary_of(tokenizer))
    number = random.randrange(len(rows))
    row = rows.take(np.array([number]))
    batch = objective.batch(row, seed=0, step=random.randrange(1 << 20))
    title = f"Sequence {markup.count(number + 1)} of {markup.count(len(rows))}"
    if shards.objective == "mlm":
        return _masked_html(_masked_tokens(row, batch, tokenizer), title)
    return _pair_html(shards.objective, row, batch, tokenizer, title)


def _masked_tokens(
    row: NDArray[np.int32], batch: Batch, tokenizer: StudioTokenizer
) -> list[tuple[str, str, bool]]:
    """Returns (input token, original, whether predicted), without padding."""
    asked = set(batch["masked_positions"][0][batch["label_weights"][0] > 0].tolist())
    shown, stood = batch["input_ids"][0].tolist(), row[0].tolist()
    length = int(batch["attention_mask"][0].sum()) if "attention_mask" in batch else len(stood)
    return [
        (tokenizer.readable(shown[place]), tokenizer.readable(stood[place]), place in asked)
        for place in range(length)
    ]


def _masked_html(tokens: list[tuple[str, str, bool]], title: str) -> str:
    asked = sum(is_asked for _, _, is_asked in tokens)
    original = present.escape("".join(old for _, old, _ in tokens))
    return (
        f'<p class="ps-note">{title}. Marked: the {asked} tokens to predict; most are '
        f"masked, some replaced, some kept.</p>{mark_masked(tokens)}"
        f'<p class="ps-note">Original:</p><p class="ps-tokens row">{original}</p>'
    )


def _pair_html(
    objective: str, row: NDArray[np.int32], batch: Batch, tokenizer: StudioTokenizer, title: str
) -> str:
    def text_of(ids: NDArray[np.int32]) -> str:
        text = "".join(tokenizer.readable(number) for number in ids.tolist())
        return f'<p class="ps-tokens row">{present.escape(text)}</p>'

    inputs, labels = batch["input_ids"][0], batch["labels"][0]
    if "attention_mask" in batch:
        inputs = inputs[batch["attention_mask"][0] > 0]
    asked = labels[batch["label_weights"][0] > 0]
    return (
        f'<p class="ps-note">{title}. {_SEEN[objective]} ({len(inputs)} tokens):</p>'
        f"{text_of(inputs)}"
        f'<p class="ps-note">{_ASKED[objective]} ({len(asked)} tokens):</p>{text_of(asked)}'
        f'<p class="ps-note">Stored sequence ({row.shape[1]} tokens):</p>{text_of(row[0])}'
    )
