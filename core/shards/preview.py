"""A row as a person sees it: decoded, and masked as the model will get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from core.errors import ConfigError
from core.objectives.mlm import MaskedLanguageModel
from core.shards.read import SPLITS, Shards
from core.tokenizer import StudioTokenizer

Kind = Literal["", "masked", "replaced", "kept"]


@dataclass(frozen=True)
class PreviewToken:
    """One token of a previewed row.

    Attributes:
        piece: What the token stands for in the text.
        id: Its number in the vocabulary.
        masked: Whether the model is to predict it.
        kind: What the model sees in its place: the mask token (masked), a random token
            (replaced), or the token itself (kept). Empty where nothing is to be predicted.
        input_id: The id that the model sees.
        input_piece: What that stands for.
        label: The id to predict, or None.
    """

    piece: str
    id: int
    masked: bool
    kind: Kind
    input_id: int
    input_piece: str
    label: int | None


@dataclass(frozen=True)
class RowPreview:
    """A row, decoded and masked.

    Attributes:
        split: train or validation.
        row: Its number in the split.
        rows: How many rows the split has.
        text: The row's text, special tokens included.
        masked_text: The text that the model sees.
        tokens: The row token by token.
    """

    split: str
    row: int
    rows: int
    text: str
    masked_text: str
    tokens: list[PreviewToken]


def preview(
    shards: Shards,
    tokenizer: StudioTokenizer,
    row: int = 0,
    seed: int = 0,
    mlm_probability: float = 0.15,
    split: Literal["train", "validation"] = "train",
) -> RowPreview:
    """Decodes a row and masks it.

    Args:
        shards: Where the row is.
        tokenizer: The one that the shards were made with.
        row: The row's number, 0 to rows - 1.
        seed: Decides what is masked.
        mlm_probability: The share of tokens to predict.
        split: train or validation.

    Raises:
        ConfigError: There is no such row, or the tokenizer has no mask token.
        ShardError: The row is damaged.
    """
    rows = getattr(shards, split if split in SPLITS else "train")
    if not 0 <= row < len(rows):
        raise ConfigError(
            f"There is no row {row} to show",
            expected=f"0 to {len(rows) - 1}"
            if len(rows)
            else f"a split with rows; {split} has none",
            received=str(row),
            fix="choose another row",
            field="row",
        )
    ids = rows.take(np.array([row]))
    inputs, labels = _mask(shards, tokenizer, ids, seed, mlm_probability)
    tokens = [
        _token(tokenizer, int(token), int(seen), labels.get(place))
        for place, (token, seen) in enumerate(zip(ids[0], inputs, strict=True))
    ]
    return RowPreview(
        split=split,
        row=row,
        rows=len(rows),
        text=tokenizer.decode(ids[0], skip_special=False),
        masked_text=tokenizer.decode(inputs, skip_special=False),
        tokens=tokens,
    )


def _mask(
    shards: Shards,
    tokenizer: StudioTokenizer,
    ids: np.ndarray,
    seed: int,
    mlm_probability: float,
) -> tuple[np.ndarray, dict[int, int]]:
    """Returns what the model sees, and the labels by their place in the row."""
    if tokenizer.mask_id is None:
        raise ConfigError(
            f"The tokenizer {tokenizer.reference} has no mask token",
            expected="one, such as <mask> or [MASK]",
            received="none",
            fix="name the tokenizer that the shards were made with",
            field="tokenizer",
        )
    objective = MaskedLanguageModel(
        row_length=shards.row_length,
        mlm_probability=mlm_probability,
        mask_id=tokenizer.mask_id,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
    )
    batch = objective.batch(ids, seed, 0)
    counted = batch["label_weights"][0] > 0
    places = batch["masked_positions"][0][counted].tolist()
    return batch["input_ids"][0], dict(
        zip(places, batch["labels"][0][counted].tolist(), strict=True)
    )


def _token(tokenizer: StudioTokenizer, token: int, seen: int, label: int | None) -> PreviewToken:
    return PreviewToken(
        piece=tokenizer.readable(token),
        id=token,
        masked=label is not None,
        kind="" if label is None else _kind(tokenizer, token, seen),
        input_id=seen,
        input_piece=tokenizer.readable(seen),
        label=label,
    )


def _kind(tokenizer: StudioTokenizer, token: int, seen: int) -> Kind:
    if seen == tokenizer.mask_id:
        return "masked"
    return "kept" if seen == token else "replaced"
