"""BART: BERT's post-norm blocks as encoder and decoder, its head tied to the words.

Source: https://arxiv.org/abs/1910.13461. First weights are normal with a standard deviation of
0.02, biases zero (section 2.1, and `init_std` in transformers). The arithmetic is that of
`BartForConditionalGeneration` in transformers. Its `final_logits_bias`, which is always zero, isn't
a weight here.
"""

from __future__ import annotations

from core.models.architecture import check_length
from core.models.encoder import blocks_of
from core.models.encoder_decoder import EncoderDecoder
from core.models.layers import BlockOptions, EmbeddingOptions


class BartForConditionalGeneration(EncoderDecoder):
    """A BART with a language-model head."""

    def block_options(self) -> BlockOptions:
        """Returns BART's blocks."""
        return blocks_of(self.architecture)

    def embedding_options(self) -> EmbeddingOptions:
        """Returns words and positions, summed and normalised."""
        found = self.architecture
        return EmbeddingOptions(
            rows=found.vocab_size,
            width=found.hidden_size,
            dropout=found.hidden_dropout_prob,
            zero_row=found.pad_token_id,
            positions=found.max_position_embeddings + found.POSITION_OFFSET,
            first_position=found.POSITION_OFFSET,
            norm="layer",
            epsilon=found.layer_norm_eps,
        )

    def check_lengths(self, *lengths: int) -> None:
        """Refuses rows that the model has no positions for."""
        check_length(max(lengths), self.architecture)
