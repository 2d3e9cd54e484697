"""BERT: a post-norm encoder with positions and segments.

Source: https://arxiv.org/abs/1810.04805. First weights are normal with a standard deviation of
0.02, biases zero (https://github.com/google-research/bert, modeling.py, `initializer_range`). The
arithmetic is that of `BertForMaskedLM` in transformers.
"""

from __future__ import annotations

from keras import ops

from core.models.encoder import EncoderForMaskedLM, blocks_of
from core.models.layers import BlockOptions, EmbeddingOptions, Tensor


class BertForMaskedLM(EncoderForMaskedLM):
    """A BERT with a language-model head tied to its word embedding."""

    def block_options(self) -> BlockOptions:
        """Returns BERT's blocks."""
        return blocks_of(self.architecture)

    def embedding_options(self) -> EmbeddingOptions:
        """Returns words, positions and the one segment, summed and normalised."""
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

    def places(self, ids: Tensor, text_starts: Tensor | None = None) -> Tensor | None:
        """Counts from each text's beginning on."""
        if text_starts is None:
            return None
        return ops.arange(ids.shape[1])[None] - text_starts + self.architecture.first_position
