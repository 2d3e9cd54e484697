"""BART: a post-norm encoder-decoder with a head tied to its token embeddings.

Source: https://arxiv.org/abs/1910.13461. Initialisation: N(0, 0.02²), zero biases (section 2.1;
    `init_std` in transformers). Computes as `BartForConditionalGeneration` in transformers, but
    without `final_logits_bias`, which is always zero.
"""

from __future__ import annotations

from core.models.architecture import check_length
from core.models.encoder import blocks_of
from core.models.encoder_decoder import EncoderDecoder
from core.models.layers import BlockOptions, EmbeddingOptions


class BartForConditionalGeneration(EncoderDecoder):
    """BART with a language-model head."""

    def block_options(self) -> BlockOptions:
        return blocks_of(self.architecture)

    def embedding_options(self) -> EmbeddingOptions:
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
        check_length(max(lengths), self.architecture)
