"""RoBERTa: BERT with positions counted from the padding token's id.

Source: https://arxiv.org/abs/1907.11692. Logits equal those of `RobertaForMaskedLM` in
    transformers.
"""

from __future__ import annotations

from dataclasses import replace

from keras import ops

from core.models.bert import BertForMaskedLM
from core.models.layers import EmbeddingOptions, Tensor


class RobertaForMaskedLM(BertForMaskedLM):
    """RoBERTa with a language-model head tied to its token embeddings."""

    def embedding_options(self) -> EmbeddingOptions:
        return replace(super().embedding_options(), zero_position=self.architecture.pad_token_id)

    def position_ids(self, ids: Tensor, text_starts: Tensor | None = None) -> Tensor:
        """Counts tokens from `pad_token_id + 1`; padding has `pad_token_id`, as in transformers."""
        pad = self.architecture.pad_token_id
        tokens = ops.cast(ops.not_equal(ids, pad), "int32")
        counts = ops.cumsum(tokens, axis=1)
        if text_starts is not None:
            counts -= ops.take_along_axis(counts - tokens, text_starts, axis=1)
        return counts * tokens + pad
