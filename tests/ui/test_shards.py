"""The Shards tab: the preview of a sequence, and the checks before a run."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.errors import ConfigError
from core.shards.build import build
from core.tokenizer.training import train
from core.workspace.workspace import Workspace
from tests.texts import write_sentences
from ui import shards as tab

TOKENIZERS = {"byte_level_bpe": 300, "sentencepiece_unigram": 190}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    root = tmp_path_factory.mktemp("shards")
    write_sentences(root / "text.txt", 600)
    workspace = Workspace(root / "workspace")
    for algorithm, size in TOKENIZERS.items():
        corpus = {"source": "files", "path": str(root / "text.txt")}
        values = {"name": algorithm, "algorithm": algorithm, "vocab_size": size, "corpus": corpus}
        train(TokenizerConfig.parse(values), workspace)
    return workspace


def config_of(workspace: Workspace, **values: object) -> ShardConfig:
    path = Path(workspace.root).parent / "text.txt"
    common = {"corpus": CorpusConfig(source="files", path=str(path)), "max_seq_length": 64}
    return ShardConfig(**{**common, "tokenizer": "byte_level_bpe", **values})


def shown(workspace: Workspace, **values: object) -> tuple[str, list[str]]:
    """Builds shards and returns the HTML of a sequence and the texts in it."""
    artifact = build(config_of(workspace, **values), workspace)
    html = tab._show_sequence(artifact.name, workspace)
    texts = re.findall(r'<p class="ps-tokens row">(.*?)</p>', html, flags=re.DOTALL)
    return html, [unescape(re.sub("<[^>]+>", "", text)) for text in texts]


def test_masked_sequence_marks_the_tokens_to_predict(workspace: Workspace) -> None:
    html, (seen, stored) = shown(workspace)
    assert html.count('class="masked"') == 10 and "<mask>" in seen and "<mask>" not in stored


def test_padding_of_a_line_is_left_out(workspace: Workspace) -> None:
    html, (seen, stored) = shown(workspace, line_by_line=True)
    assert 'class="masked"' in html
    assert "<pad>" not in seen + stored and stored.startswith("<s>") and stored.endswith("</s>")


def test_causal_target_is_the_sequence_one_token_later(workspace: Workspace) -> None:
    _, (seen, asked, stored) = shown(workspace, objective="clm")
    assert seen == stored and stored.endswith(asked) and len(asked) < len(stored)


def test_corrupted_spans_are_shown_with_their_sentinels(workspace: Workspace) -> None:
    html, (seen, asked, stored) = shown(
        workspace, objective="span_corruption", tokenizer="sentencepiece_unigram"
    )
    assert "(64 tokens)" in html and "(70 tokens)" in html
    assert "<extra_id_0>" in seen and asked.startswith("<extra_id_0>")
    assert "<extra_id_0>" not in stored
    assert "span corruption" in tab._list(workspace.list("shards"))


def test_denoising_shows_padding_only_in_the_stored_sequence(workspace: Workspace) -> None:
    _, (seen, asked, stored) = shown(workspace, objective="denoising")
    assert "<mask>" in seen and "<pad>" not in seen + asked
    assert "<pad>" in stored and stored.replace("<pad>", "") == asked


def test_incompatible_settings_are_refused_before_a_run_is_queued(workspace: Workspace) -> None:
    tab._check_tokenizer(config_of(workspace), workspace)
    tab._check_tokenizer(config_of(workspace, tokenizer="someone/elses"), workspace)
    for values, field in (
        ({"objective": "span_corruption"}, "tokenizer"),
        ({"objective": "clm", "line_by_line": True}, "line_by_line"),
    ):
        with pytest.raises(ConfigError) as caught:
            tab._check_tokenizer(config_of(workspace, **values), workspace)
        assert caught.value.field == field
