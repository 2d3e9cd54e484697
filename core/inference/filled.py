"""Fills one mask at a time and keeps the rest of the text as written, unlike transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from core.tokenizer.loading import StudioTokenizer


def filled_texts(
    tokenizer: StudioTokenizer, text: str, predictions_of_each: Sequence[Sequence[dict[str, Any]]]
) -> list[list[str]]:
    """Returns the text with one mask filled, per prediction of each mask.

    Empty if the masks as written don't match `found`.
    """
    mask = tokenizer.mask_token
    parts = text.split(mask) if mask else []
    ids = tokenizer.encode(text)
    places = np.flatnonzero(ids == tokenizer.mask_id)
    if not len(parts) - 1 == len(places) == len(predictions_of_each):
        return []
    texts = []
    for number, (place, predictions) in enumerate(zip(places, predictions_of_each, strict=True)):
        left = str(mask).join(parts[: number + 1])
        right = str(mask).join(parts[number + 1 :])
        before = int(ids[place - 1]) if place else None
        texts.append(
            [f"{_joined(tokenizer, left, before, prediction)}{right}" for prediction in predictions]
        )
    return texts


def _joined(
    tokenizer: StudioTokenizer, left: str, before: int | None, prediction: dict[str, Any]
) -> str:
    token, word = int(prediction["token"]), str(prediction["token_str"])
    if token in tokenizer.special_ids:
        return left.rstrip(" ")
    if not left.strip() or before is None:
        return left + word.strip(" ")
    context = tokenizer.decode([before], skip_special=False)
    both = tokenizer.decode([before, token], skip_special=False)
    if not both.startswith(context):
        return left + word
    tail = both[len(context) :]
    if context[-1:].isspace() or left[-1:] in "\n\r\t":
        return left + tail.lstrip(" ")
    return left.rstrip(" ") + tail
