"""Errors name options and choices by the web app's labels."""

from __future__ import annotations

import pytest

from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.config.train import TrainConfig
from core.errors import ConfigError, TokenizerError
from core.workspace.workspace import Workspace
from tests.ui.test_forms import problems, rendered, values_of, workspace
from ui import present
from ui.parts.labels import relabel

__all__ = ["workspace"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lower ⟬vocab_size⟭ to 216 or less", "lower Vocabulary size to 216 or less"),
        ("a tokenizer by ⟬algorithm:byte_level_bpe⟭", "a tokenizer by Byte-level BPE"),
        ("with ⟬sharding=fsdp⟭", "with Sharding FSDP"),
        ("set ⟬engine⟭ to auto or jax", "set Backend to auto or jax"),
        ("the objective ⟬objective:mlm⟭", "the objective Masked LM (BERT)"),
        ("the size and the family", "the size and the family"),
        ("set ⟬--model⟭", "set Model"),
        ("give --hours", None),
        ("data/vocab_size.txt, vocab_size", None),
        ("⟬no_such_option=3⟭", "no_such_option=3"),
    ],
)
def test_marked_options_become_labels(text: str, shown: str | None) -> None:
    assert relabel(text) == (shown or text)


def test_labels_of_the_errors_own_form_take_precedence() -> None:
    text = "set ⟬mlm_probability⟭ to 0.2"
    assert relabel(text, ShardConfig) == "set Noise density to 0.2"
    assert relabel(text, TrainConfig) == "set Masking probability to 0.2"


def test_an_error_beside_a_field_and_on_a_card_has_labels(workspace: Workspace) -> None:
    error = TokenizerError("Too small", fix="lower ⟬vocab_size⟭ to 216 or less", field="vocab_size")
    form = rendered(TokenizerConfig, workspace)

    def fail(*raw: object) -> dict[object, object]:
        raise error

    shown = problems(form.guarded(fail)(*values_of(form)), form)
    assert shown == {"vocab_size": "Too small. What to do: lower Vocabulary size to 216 or less."}
    assert "lower Vocabulary size to 216" in present.error_card(error)
    assert "Vocabulary size" in present.notice(error).message


def test_a_contradiction_is_explained_with_labels(workspace: Workspace) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(engine="tensorflow", sharding="fsdp")
    assert present.describe(caught.value)["problem"] == "TensorFlow doesn't support Sharding FSDP"
