"""Hyperparameters that presets fill in, with overrides by family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.architecture.family import NO_DROPOUT, Family, Values, WriteUp
from core.families import find_family, list_family_names


@dataclass(frozen=True)
class PowerLaw:
    """A setting by the number of parameters, those of embeddings excluded.

    Source: https://arxiv.org/abs/2406.19146, whose smallest model has 108 million.
    """

    at_108_million: float
    exponent: float

    def __call__(self, parameters: int) -> float:
        return float(self.at_108_million * (parameters / 108e6) ** self.exponent)


@dataclass(frozen=True)
class Preset:
    """A preset's values and overrides, and what follows from the size of the model.

    Attributes:
        learning_rate: Peak learning rate; None: the optimizer decides.
        tokens_per_step: Tokens on all devices; None: the number of sequences decides.
    """

    values: Values
    variants: Mapping[str, Values] = field(default_factory=dict)
    learning_rate: PowerLaw | None = None
    tokens_per_step: PowerLaw | None = None

    def values_for(self, variant: object) -> dict[str, Any]:
        own = self.variants.get(variant, {}) if isinstance(variant, str) else {}
        return {**self.values, **own}


class FamilyValues(Mapping[str, Values]):
    """A preset's overrides by registered family."""

    def __init__(self, overrides: Callable[[Family], Values]) -> None:
        self._overrides = overrides

    def __getitem__(self, family: str) -> Values:
        if family not in list_family_names():
            raise KeyError(family)
        return self._overrides(find_family(family))

    def __iter__(self) -> Iterator[str]:
        return iter(list_family_names())

    def __len__(self) -> int:
        return len(list_family_names())


def _for_tokenizers(preset: str) -> FamilyValues:
    return FamilyValues(lambda family: family.tokenizer_presets.get(preset, {}))


def _for_training(preset: str) -> FamilyValues:
    return FamilyValues(lambda family: family.train_presets.get(preset, {}))


# The family's algorithm; the size follows from the text.
_FITTED_TOKENIZER = Preset(
    {"algorithm": "unigram", "vocab_size": None, "min_frequency": 2, "lowercase": False},
    FamilyValues(
        lambda family: {**family.tokenizer_presets.get("classic", {}), "vocab_size": None}
    ),
)
# Source: TPU_EXAMPLE/train_unigram.py.
_CLASSIC_TOKENIZER = Preset(
    {"algorithm": "unigram", "vocab_size": 10_048, "min_frequency": 2, "lowercase": False},
    _for_tokenizers("classic"),
)
# Source: FLAX_EXAMPLES/README.md, "Train tokenizer".
_FLAX_TOKENIZER = Preset(
    {
        "algorithm": "byte_level_bpe",
        "vocab_size": 50_265,
        "min_frequency": 2,
        "lowercase": False,
    },
    _for_tokenizers("flax"),
)
TOKENIZER_PRESETS = {
    "fitted": _FITTED_TOKENIZER,
    "classic": _CLASSIC_TOKENIZER,
    "flax": _FLAX_TOKENIZER,
}

SHARD_PRESETS = {
    "fitted": Preset({"max_seq_length": None}),
    # Source: TPU_EXAMPLE/prepare_tfrecord_shards.py
    "classic": Preset({"max_seq_length": 512}),
    # Source: FLAX_EXAMPLES/README.md and run_clm_flax.py.
    "flax": Preset(
        {"max_seq_length": 128},
        {
            "clm": {"max_seq_length": 512},
            "span_corruption": {"max_seq_length": 512},
            "denoising": {"max_seq_length": 1024},
        },
    ),
}

_CLASSIC_TRAINING = Preset(
    {
        "per_replica_batch_size": 8,
        "num_train_epochs": 1.0,
        "optimizer": "adamw",
        "learning_rate": 1e-4,
        "lr_scheduler_type": "linear",
        "weight_decay": 1e-3,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "warmup_ratio": 0.05,
        "warmup_steps": None,
        "mlm_probability": None,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "intra_document_masking": False,
    },
    _for_training("classic"),
)
_FLAX_TRAINING = Preset(
    # RoBERTa's values, also for BERT in run_mlm_flax.py.
    {
        "per_replica_batch_size": 128,
        "num_train_epochs": 18.0,
        "optimizer": "adamw",
        "learning_rate": 3e-4,
        "lr_scheduler_type": "linear",
        "weight_decay": 0.01,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-8,
        "warmup_ratio": 0.0,
        "warmup_steps": 1000,
        "mlm_probability": None,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "intra_document_masking": False,
    },
    _for_training("flax"),
)
# Source: https://github.com/huggingface/smollm, text/pretraining/smollm2.
_SMOLLM2_TRAINING = Preset(
    {
        "per_replica_batch_size": 8,
        "num_train_epochs": 1.0,
        "optimizer": "adamw",
        "learning_rate": 3e-3,
        "lr_scheduler_type": "warmup_stable_decay",
        "weight_decay": 0.01,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_epsilon": 1e-8,
        "max_grad_norm": 1.0,
        "warmup_ratio": 0.0,
        "warmup_steps": 2000,
        "mlm_probability": None,
        **NO_DROPOUT,
        "intra_document_masking": False,
    },
    _for_training("smollm2"),
)
# Source: https://github.com/jzhang38/TinyLlama, pretrain/tinyllama.py; there the learning rate ends
# at a tenth of its peak.
_TINYLLAMA_TRAINING = Preset(
    {
        **_SMOLLM2_TRAINING.values,
        "learning_rate": 4e-4,
        "lr_scheduler_type": "cosine",
        "weight_decay": 0.1,
    },
    _for_training("tinyllama"),
)
# Source: https://github.com/allenai/OLMo-core, model_ladder/wsds_chinchilla_run_configurator.py;
# there embeddings don't decay.
_OLMO_LADDER_TRAINING = Preset(
    {
        **_SMOLLM2_TRAINING.values,
        "per_replica_batch_size": None,
        "num_train_epochs": None,
        "learning_rate": None,
        "decay_ratio": 0.1,
        "weight_decay": 0.1,
        "adam_beta2": None,
        "warmup_ratio": None,
        "warmup_steps": None,
    },
    _for_training("olmo-ladder"),
    learning_rate=PowerLaw(0.0047 / 2, -1 / 3),
    tokens_per_step=PowerLaw(160 * 2048, 2 / 3),
)
# docs/recipe.md gives each value's effect.
_FAST_TRAINING = Preset(
    {
        "per_replica_batch_size": None,
        "num_train_epochs": None,
        "optimizer": "muon",
        "learning_rate": None,
        "adam_learning_rate_ratio": 0.5,
        "muon_momentum": 0.9,
        "lr_scheduler_type": "linear",
        "weight_decay": None,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-8,
        "warmup_ratio": 0.05,
        "warmup_steps": None,
        "mlm_probability": None,
        "dtype_policy": "auto",
        "output_bias": "log_frequency",
        "word_embeddings": "cooccurrence",
        "attention_kernels": "neighbours",
        "hidden_dropout_prob": None,
        "attention_probs_dropout_prob": None,
        "intra_document_masking": None,
    },
    _for_training("fast"),
)
TRAINING_PRESETS = {
    "fast": _FAST_TRAINING,
    "classic": _CLASSIC_TRAINING,
    "flax": _FLAX_TRAINING,
    "smollm2": _SMOLLM2_TRAINING,
    "tinyllama": _TINYLLAMA_TRAINING,
    "olmo-ladder": _OLMO_LADDER_TRAINING,
}


def write_up_of(preset: str, family: str) -> WriteUp | None:
    """Returns a preset's source for a family."""
    return find_family(family).write_ups.get(preset)
