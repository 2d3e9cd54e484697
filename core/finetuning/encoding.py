"""Encodes texts and tagged sentences as sequences of tokens with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.architecture.heads import Head
from core.errors import ConfigError, CorpusError
from core.finetuning.alignment import Window, split_sentences
from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.native import native_calls

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class TokenSequence:
    """Tokens of a text or a window.

    Attributes:
        segments: Token type ids; None: all 0.
        position: Index of the token that represents the text; None: all tokens are read.
    """

    ids: Ids
    segments: Ids | None = None
    position: int | None = None


class TextEncoder:
    """Encodes texts for a classifier.

    Args:
        longest: Most tokens of a sequence.
        uses_segments: Whether the second text of a pair is marked by token type ids.
    """

    def __init__(
        self,
        tokenizer: StudioTokenizer,
        architecture: Architecture,
        head: Head,
        longest: int,
        *,
        uses_segments: bool = False,
    ) -> None:
        from tokenizers import Tokenizer

        self.longest = min(longest, architecture.max_seq_length)
        self.architecture = architecture
        self._head = head
        self._uses_segments = uses_segments and architecture.type_vocab_size > 1
        self._backend = Tokenizer.from_str(tokenizer.backend.to_str())
        self._backend.enable_truncation(self.longest)
        self._backend.no_padding()
        _check_frame(tokenizer, architecture, head)

    def encode(self, texts: Sequence[tuple[str, ...]]) -> list[TokenSequence]:
        """Encodes texts and pairs of texts; too long ones are cut off."""
        inputs = [parts[0] if len(parts) == 1 else parts for parts in texts]
        with native_calls():
            encoded = self._backend.encode_batch(inputs)
        sequences = []
        for encoding in encoded:
            ids = np.array(encoding.ids, np.int32)
            segments = np.array(encoding.type_ids, np.int32) if self._uses_segments else None
            sequences.append(TokenSequence(ids, segments, self._position(ids)))
        return sequences

    def is_cut(self, text: tuple[str, ...]) -> bool:
        """Returns whether a text or a pair is too long to be encoded as a whole."""
        with native_calls():
            pair = text[1] if len(text) > 1 else None
            return bool(self._backend.encode(text[0], pair).overflowing)

    def windows(self, sentences: Sequence[Sequence[str]]) -> list[Window]:
        """Encodes sentences as windows that contain each word once."""
        with native_calls():
            return split_sentences(self._backend, sentences, self.longest)

    def _position(self, ids: Ids) -> int:
        """Finds the token that represents a text, as transformers does."""
        if self._head.pooled == "first" or not len(ids):
            return 0
        if self._head.pooled == "end":
            return len(ids) - 1
        if self._head.pooled == "last":
            positions = np.flatnonzero(ids != self.architecture.pad_token_id)
        else:
            positions = np.flatnonzero(ids == self.architecture.eos_token_id)
        return int(positions[-1]) if len(positions) else len(ids) - 1


def check_not_empty(sequences: Sequence[TokenSequence], places: Sequence[str]) -> None:
    """Raises CorpusError for a text without any token."""
    for sequence, place in zip(sequences, places, strict=True):
        if not len(sequence.ids):
            raise CorpusError(
                f"{place or 'A text'} has no token",
                expected="a text of which the tokenizer keeps something",
                fix="correct or remove it",
                field="text_column",
            )


def _check_frame(tokenizer: StudioTokenizer, architecture: Architecture, head: Head) -> None:
    if head.pooled != "eos":
        return
    if architecture.eos_token_id is None or architecture.eos_token_id not in tokenizer.frame.after:
        raise ConfigError(
            "The model's tokenizer adds no end-of-sequence token, which represents a text",
            expected=f"the token with the id {architecture.eos_token_id} after each text",
            received=f"the ids {list(tokenizer.frame.after)}",
            fix="use a model whose tokenizer ends each text with it",
            field="model",
        )
