"""GPT-2: a decoder that normalises first, with positions, its head tied to the words.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", section 2.3. First
weights are normal with a standard deviation of 0.02, and in kernels whose outputs are added to the
hidden states smaller by √(2 · layers). The arithmetic is that of `GPT2LMHeadModel` in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from core.models.architecture import Gpt2Architecture, check_length
from core.models.decoding import Decoding
from core.models.encoder import blocks_of
from core.models.head import LanguageModel
from core.models.layers import (
    BlockOptions,
    Cache,
    EmbeddingOptions,
    FirstScales,
    FirstWeights,
    Tensor,
    both_biases,
    causal_bias,
    padding_bias,
    past_bias,
)
from core.models.stack import Stack


class Gpt2LMHeadModel(Decoding, LanguageModel):
    """A GPT-2 with a language-model head.

    Args:
        architecture: Its dimensions.
        seed: Decides the first weights and the dropout.
        dtype: Precision policy: float32, mixed_bfloat16 or bfloat16.
        remat: Keep only each layer's inputs for the gradient, and compute the rest twice.
    """

    def __init__(
        self,
        architecture: Gpt2Architecture,
        *,
        seed: int,
        dtype: str = "float32",
        remat: bool = False,
    ) -> None:
        super().__init__(name=architecture.model_type, dtype=dtype)
        self.architecture = architecture
        self.decoder = Stack(
            architecture.num_hidden_layers,
            _embedding_options(architecture),
            _block_options(architecture),
            FirstWeights(seed, architecture.initializer_range),
            remat=remat,
            name="decoder",
            dtype=self.dtype_policy,
        )
        self.build()

    def build(self, input_shape: Any = None) -> None:
        self.decoder.build()
        self.built = True

    def states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns what the token after each is predicted from, (B, L, H).

        Args:
            inputs: `input_ids` int32 (B, L). Optional: `attention_mask` (B, L), 1 for tokens and 0
                for padding; padding behind a text needs none. Optional: `dropout_seed` int32 (2,),
                other ones for each step; without it nothing is dropped.

        Raises:
            ConfigError: The rows are longer than the model's positions.
        """
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        check_length(ids.shape[1], self.architecture)
        bias = both_biases(causal_bias(ids.shape[1]), None if mask is None else padding_bias(mask))
        return self.decoder(ids, bias, inputs.get("dropout_seed"))

    def output_weights(self) -> tuple[Tensor, None]:
        """Returns the table of words; there is no bias."""
        return self.decoder.embeddings.words.whole_table(), None

    def start_cache(self, inputs: Mapping[str, Tensor], length: int) -> Cache:
        """Returns an empty cache.

        Args:
            inputs: `input_ids` int32 (B, L), of which only B matters.
            length: Slots: tokens of the prompt and of what is to be generated.

        Raises:
            ConfigError: The model has fewer positions.
        """
        check_length(length, self.architecture)
        size = inputs["input_ids"].shape[0]
        return {
            "positions": ops.zeros((size,), "int32"),
            "layers": self.decoder.start_cache(size, length),
        }

    def predict_next(self, ids: Tensor, cache: Cache) -> tuple[Tensor, list[Cache]]:
        """Returns the logits of the token after each; see `Decoding.predict_next`."""
        positions, layers = cache["positions"], cache["layers"]
        past = past_bias(positions, layers[0]["key"].shape[-1])
        hidden, new = self.decoder.step(ids, layers, positions, past, causal_bias(ids.shape[1]))
        return self.decode(hidden), new


def _block_options(found: Gpt2Architecture) -> BlockOptions:
    added = (2 * found.num_hidden_layers) ** -0.5
    return blocks_of(found, norm_first=True, scales=FirstScales(mixed=added, down=added))


def _embedding_options(found: Gpt2Architecture) -> EmbeddingOptions:
    return EmbeddingOptions(
        rows=found.vocab_size,
        width=found.hidden_size,
        dropout=found.hidden_dropout_prob,
        positions=found.max_position_embeddings,
    )
