"""BERT: a post-norm encoder with position and segment embeddings.

Source: https://arxiv.org/abs/1810.04805. Initialisation: N(0, 0.02²), zero biases
    (https://github.com/google-research/bert, modeling.py, `initializer_range`). Computes as
    `BertForMaskedLM` in transformers.
"""

from __future__ import annotations

from keras import ops

from core.models.encoder import EncoderForMaskedLM, blocks_of
from core.models.layers import BlockOptions, EmbeddingOptions, Tensor


class BertForMaskedLM(EncoderForMaskedLM):
    """BERT with a language-model head tied to its token embeddings."""

    def block_options(self) -> BlockOptions:
        return blocks_of(self.architecture)

    def embedding_options(self) -> EmbeddingOptions:
        found = self.architecture
        return EmbeddingOptions(
            rows=found.vocab_size,
            width=found.hidden_size,
            dropout=found.hidden_dropout_prob,
            zero_row=found.pad_token_id,
            positions=found.max_position_embeddings,
            first_position=found.first_position,
            segments=found.type_vocab_size,
            norm="layer",
            epsilon=found.layer_norm_eps,
        )

    def position_ids(self, ids: Tensor, text_starts: Tensor | None = None) -> Tensor | None:
        if text_starts is None:
            return None
        return ops.arange(ids.shape[1])[None] - text_starts + self.architecture.first_position
