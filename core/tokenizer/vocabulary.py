"""What an objective knows of a tokenizer: ids and flags, no text."""

from __future__ import annotations

from core.objectives.objective import Vocabulary
from core.tokenizer.loading import StudioTokenizer


def vocabulary_of(tokenizer: StudioTokenizer) -> Vocabulary:
    """Returns a tokenizer's ids and flags for objectives."""
    return Vocabulary(
        size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.cls_id,
        eos_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
        sentinel_ids=tokenizer.sentinel_ids(),
        word_starts=tokenizer.word_starts(),
    )
