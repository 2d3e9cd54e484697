"""Loads a model's tokenizer, and tells how many tokens of it the model takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core.architecture.architecture import Architecture
from core.errors import CheckpointError

if TYPE_CHECKING:
    from core.tokenizer.loading import StudioTokenizer

# For models without a maximum position: attention's cost is quadratic.
MOST_TOKENS = 4096


def load_tokenizer(folder: Path, vocab_size: int) -> StudioTokenizer:
    """Loads a model's tokenizer.

    Raises:
        TokenizerError: There is none.
        CheckpointError: It has more tokens than the model.
    """
    from core.tokenizer.loading import load

    tokenizer = load(str(folder))
    if tokenizer.vocab_size > vocab_size:
        raise CheckpointError(
            f"The tokenizer in {folder} doesn't fit the model",
            expected=f"ids below {vocab_size}, the model's vocabulary",
            received=f"ids up to {tokenizer.vocab_size - 1}",
            fix="replace it with the tokenizer that the model was trained with",
        )
    return tokenizer


def longest_sequence(architecture: Architecture, tokenizer: StudioTokenizer) -> int:
    """Returns the most tokens of a sequence: the positions, or fewer if the tokenizer says so."""
    positions = architecture.max_seq_length if architecture.limits_length else MOST_TOKENS
    return min(positions, tokenizer.longest or positions)
