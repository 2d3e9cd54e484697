"""Decides which models fine-tuning can start from."""

from __future__ import annotations

from pathlib import Path

from core.architecture.heads import Head, Kind
from core.errors import ConfigError
from core.finetuning.heads import find_head
from core.models import hf


def check_tunable(folder: Path, kind: Kind, name: str = "") -> Head:
    """Returns the head with which a model can be fine-tuned.

    A fine-tuned model can be fine-tuned again; its own head is replaced.

    Args:
        name: The model's name in the error.

    Raises:
        ConfigError: transformers has no such class, or the model lacks weights for it.
        CheckpointError: The model's config is missing or damaged.
    """
    architecture, own = hf.read_architecture(folder, has_head=False), hf.find_head_kind(folder)
    head = find_head(architecture, kind)
    if own and find_head(architecture, own).encoder_only and not head.encoder_only:
        raise ConfigError(
            f"{name or f'The model in {folder}'} can't be fine-tuned for texts: it has no decoder",
            expected="a model with an encoder and a decoder",
            received="one that was fine-tuned to tag words, with the encoder alone",
            fix="choose the model that it was fine-tuned from",
            field="model",
        )
    return head
