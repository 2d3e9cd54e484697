"""The preview: what a row says, and what the model will see of it."""

from __future__ import annotations

import pytest

from core.config import ShardConfig
from core.errors import ConfigError
from core.shards.build import build
from core.shards.preview import preview
from core.shards.read import Shards, open_shards
from core.tokenizer import load
from core.workspace import Workspace


@pytest.fixture
def shards(config: ShardConfig, workspace: Workspace) -> Shards:
    build(config, workspace)
    return open_shards("small", workspace)


def test_a_row_is_shown_as_text_and_masked(shards: Shards, workspace: Workspace) -> None:
    tokenizer = load("unigram", workspace)
    shown = preview(shards, tokenizer, row=3, mlm_probability=0.25)
    row = shards.train.take([3])[0]
    assert [token.id for token in shown.tokens] == row.tolist()
    assert shown.text == tokenizer.decode(row, skip_special=False)
    masked = [token for token in shown.tokens if token.masked]
    assert len(masked) == 4
    assert all(token.label == token.id for token in masked)
    assert {token.kind for token in masked} <= {"masked", "replaced", "kept"}
    assert any(token.input_id == tokenizer.mask_id for token in masked)
    assert "[MASK]" in shown.masked_text
    others = [token for token in shown.tokens if not token.masked]
    assert all(
        (token.kind, token.label, token.input_id) == ("", None, token.id) for token in others
    )


def test_the_seed_decides_what_is_masked(shards: Shards, workspace: Workspace) -> None:
    tokenizer = load("unigram", workspace)
    assert preview(shards, tokenizer, seed=1) == preview(shards, tokenizer, seed=1)
    assert preview(shards, tokenizer, seed=1) != preview(shards, tokenizer, seed=2)


def test_a_row_that_is_not_there_is_named(shards: Shards, workspace: Workspace) -> None:
    tokenizer = load("unigram", workspace)
    with pytest.raises(ConfigError, match="There is no row 100000") as caught:
        preview(shards, tokenizer, row=100_000, split="validation")
    assert caught.value.field == "row"
