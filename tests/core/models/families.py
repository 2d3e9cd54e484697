"""Small models of all families, for numerical tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.architecture.architecture import Architecture
from core.architecture.options import RotaryScaling
from core.config.train import TrainConfig
from core.models.registry import resolve_architecture

ENCODERS = ("roberta", "bert", "modernbert")
DECODERS = ("gpt2", "llama", "qwen3")
ENCODER_DECODERS = ("t5", "bart")
GENERATORS = (*DECODERS, *ENCODER_DECODERS)
FAMILIES = (*ENCODERS, *GENERATORS)
VOCAB_SIZE, LENGTH, PAD, BOS, EOS = 61, 16, 3, 0, 2

# Grouped queries and a tied head, and neither, each with scaled rotary positions.
_LLAMA3 = RotaryScaling("llama3", 4.0, 8, low_freq_factor=1.0, high_freq_factor=4.0)
_YARN = RotaryScaling("yarn", 4.0, 8, beta_fast=4.0, beta_slow=1.0, attention_factor=1.1)
# Make local attention and long distances matter at the tested length.
_CHANGES: dict[str, dict[str, Any]] = {
    "modernbert": {"local_attention": 8, "global_rope_theta": 100.0},
    "t5": {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "d_kv": 12},
    "bart": {"num_decoder_layers": 3},
    "llama": {"num_key_value_heads": 2, "rope_theta": 100.0, "rope_scaling": _LLAMA3},
    "qwen3": {
        "head_dim": 12,
        "num_key_value_heads": 0,
        "rope_theta": 100.0,
        "rope_scaling": _YARN,
        "tie_word_embeddings": False,
    },
}


def small_architecture(family: str) -> Architecture:
    """A model with a few layers and dropout."""
    config = TrainConfig(
        family=family,  # type: ignore[arg-type]
        size="mini",
        num_hidden_layers=4 if family == "modernbert" else 2,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=40,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    found = resolve_architecture(
        config, vocab_size=VOCAB_SIZE, row_length=LENGTH, pad_id=PAD, bos_id=BOS, eos_id=EOS
    )
    return replace(found, **_CHANGES.get(family, {}))
