"""Hyperparameters of the presets, by family or objective. A preset fills unset fields.

`fast` is the studio's own. `classic` is Hugging Face's TPU example, which trains RoBERTa. `flax`
follows each family's section in the README of Hugging Face's Flax examples; ModernBERT is younger
and has its authors' recipe.

The Flax examples train on `oscar`, `unshuffled_deduplicated_no`, a script-based dataset, which
`datasets` no longer loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]

TPU_EXAMPLE = (
    "https://github.com/huggingface/transformers/tree/v4.57.0/"
    "examples/tensorflow/language-modeling-tpu"
)
FLAX_EXAMPLES = (
    "https://github.com/huggingface/transformers/tree/v4.57.0/examples/flax/language-modeling"
)


@dataclass(frozen=True)
class Preset:
    """Values that a preset fills in, and overrides by family or, for shards, by objective."""

    values: Values
    variants: Mapping[str, Values] = field(default_factory=dict)

    def values_for(self, variant: object) -> dict[str, Any]:
        own = self.variants.get(variant, {}) if isinstance(variant, str) else {}
        return {**self.values, **own}


@dataclass(frozen=True)
class WriteUp:
    """The source of a preset's training hyperparameters, and its published result.

    `setting` names model, sequence length, vocabulary, text and hardware.
    """

    source: str
    setting: str
    command: str
    result: str


# TPU_EXAMPLE/train_unigram.py; for other families the same vocabulary size with their own
# algorithm.
_CLASSIC_TOKENIZER = Preset(
    {"algorithm": "unigram", "vocab_size": 10_048, "min_frequency": 2, "lowercase": False},
    {
        "gpt2": {"algorithm": "byte_level_bpe"},
        "bart": {"algorithm": "byte_level_bpe"},
        "t5": {"algorithm": "sentencepiece_unigram"},
    },
)
# FLAX_EXAMPLES/README.md, "Train tokenizer" of each write-up.
_FLAX_TOKENIZER = Preset(
    {
        "algorithm": "byte_level_bpe",
        "vocab_size": 50_265,
        "min_frequency": 2,
        "lowercase": False,
    },
    {
        "gpt2": {"vocab_size": 50_257},
        # The source trains 32,000 pieces; T5's tokenizer class adds the sentinels, which count
        # here. t5_tokenizer_model.py always lower-cases.
        "t5": {"algorithm": "sentencepiece_unigram", "vocab_size": 32_100, "lowercase": True},
        # No write-up of its own: the tokenizer of bert-base-uncased, as in run_bert_flax.py.
        "bert": {"algorithm": "wordpiece", "vocab_size": 30_522, "lowercase": True},
        # https://arxiv.org/abs/2412.13663, section 2.1.3.
        "modernbert": {"vocab_size": 50_368},
    },
)
TOKENIZER_PRESETS = {"classic": _CLASSIC_TOKENIZER, "flax": _FLAX_TOKENIZER}

SHARD_PRESETS = {
    # TPU_EXAMPLE/prepare_tfrecord_shards.py
    "classic": Preset({"max_seq_length": 512}),
    # FLAX_EXAMPLES/README.md: --max_seq_length, and --block_size of run_clm_flax.py.
    "flax": Preset(
        {"max_seq_length": 128},
        {
            "clm": {"max_seq_length": 512},
            "span_corruption": {"max_seq_length": 512},
            "denoising": {"max_seq_length": 1024},
        },
    ),
}

_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# "Dropout was turned off in pre-training (quality win)": https://huggingface.co/google/t5-v1_1-base.
# The 0.1 in its config.json is for fine-tuning.
_T5_DROPOUT = _NO_DROPOUT

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
    },
    {"t5": _T5_DROPOUT, "modernbert": _NO_DROPOUT},
)
_FLAX_TRAINING = Preset(
    # RoBERTa's values, which run_mlm_flax.py also uses for BERT.
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
    },
    {
        "gpt2": {
            "per_replica_batch_size": 64,
            "num_train_epochs": 20.0,
            "learning_rate": 5e-3,
            # resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0 in "Create configuration".
            **_NO_DROPOUT,
        },
        "t5": {
            "per_replica_batch_size": 32,
            "num_train_epochs": 3.0,
            "optimizer": "adafactor",
            "learning_rate": 5e-3,
            # The command has --weight_decay=0.001, but the script applies it only to AdamW.
            "weight_decay": 0.0,
            "adam_beta2": 0.999,
            "warmup_steps": 2000,
            **_T5_DROPOUT,
        },
        "bart": {
            "per_replica_batch_size": 32,
            "num_train_epochs": 3.0,
            "learning_rate": 1e-4,
            "weight_decay": 0.0,
            "adam_beta2": 0.999,
            "warmup_steps": 2000,
        },
        # Scaled down: batches of 768 sequences on eight devices, the smallest of the authors, and
        # 1,000 warm-up steps instead of 3 billion tokens; AdamW instead of StableAdamW, and no
        # dropout after attention instead of 0.1.
        "modernbert": {
            "per_replica_batch_size": 96,
            "num_train_epochs": 1.0,
            "learning_rate": 8e-4,
            "lr_scheduler_type": "constant",
            "weight_decay": 1e-5,
            "adam_epsilon": 1e-6,
            "mlm_probability": 0.3,
            **_NO_DROPOUT,
        },
    },
)
# docs/recipe.md gives the effect of each of these, and what was tried and left out.
_FAST_TRAINING = Preset(
    {
        "per_replica_batch_size": 32,
        "num_train_epochs": 1.0,
        "optimizer": "muon",
        "learning_rate": None,
        "adam_learning_rate_ratio": 0.5,
        "muon_momentum": 0.9,
        "lr_scheduler_type": "linear",
        "weight_decay": 0.01,
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
        **_NO_DROPOUT,
    },
    {family: {"mlm_probability": 0.4} for family in ("roberta", "bert", "modernbert")},
)
TRAINING_PRESETS = {"fast": _FAST_TRAINING, "classic": _CLASSIC_TRAINING, "flax": _FLAX_TRAINING}

_ON_OSCAR = "from scratch on Norwegian OSCAR on a TPU v3-8"
_MASKED = WriteUp(
    f"{FLAX_EXAMPLES}#masked-language-modeling",
    f"roberta-base, rows of 128, vocabulary 50,265, {_ON_OSCAR}",
    "run_mlm_flax.py --max_seq_length=128 --per_device_train_batch_size=128 --learning_rate=3e-4 "
    "--warmup_steps=1000 --adam_beta1=0.9 --adam_beta2=0.98 --weight_decay=0.01 "
    "--num_train_epochs=18",
    "loss 1.78, accuracy 0.64 after 18 epochs, in less than 18 hours",
)
# By preset and family. A family without an entry uses another family's preset.
WRITE_UPS: dict[tuple[str, str], WriteUp] = {
    ("classic", "roberta"): WriteUp(
        TPU_EXAMPLE,
        "roberta-base, rows of 512, vocabulary 10,048, on WikiText-103",
        "run_mlm.py, with the defaults of its arguments",
        "no loss is published with the script",
    ),
    ("flax", "roberta"): _MASKED,
    ("flax", "gpt2"): WriteUp(
        f"{FLAX_EXAMPLES}#causal-language-modeling",
        f"gpt2 without dropout, blocks of 512, vocabulary 50,257, {_ON_OSCAR}",
        "run_clm_flax.py --block_size=512 --per_device_train_batch_size=64 --learning_rate=5e-3 "
        "--warmup_steps=1000 --adam_beta1=0.9 --adam_beta2=0.98 --weight_decay=0.01 "
        "--num_train_epochs=20",
        "loss 3.24, perplexity 25.72 after 20 epochs, in less than 21 hours",
    ),
    ("flax", "t5"): WriteUp(
        f"{FLAX_EXAMPLES}#t5-like-span-masked-language-modeling",
        f"google/t5-v1_1-base, 512 tokens for the encoder, vocabulary 32,000, {_ON_OSCAR}",
        "run_t5_mlm_flax.py --max_seq_length=512 --per_device_train_batch_size=32 --adafactor "
        "--learning_rate=0.005 --weight_decay=0.001 --warmup_steps=2000",
        "loss 2.36, accuracy 57.0 after 3 epochs, in 4.5 hours",
    ),
    ("flax", "bart"): WriteUp(
        f"{FLAX_EXAMPLES}#bart-denoising-language-modeling",
        f"facebook/bart-base, rows of 1,024, vocabulary 50,265, {_ON_OSCAR}",
        "run_bart_dlm_flax.py --max_seq_length=1024 --per_device_train_batch_size=32 "
        "--learning_rate=1e-4 --warmup_steps=2000",
        "loss 1.36, accuracy 0.77 after 3 epochs, in less than 6 hours",
    ),
    ("flax", "modernbert"): WriteUp(
        # With https://arxiv.org/abs/2412.13663.
        "https://github.com/AnswerDotAI/ModernBERT/blob/main/yamls/modernbert/"
        "modernbert-base-pretrain.yaml",
        "ModernBERT-base, rows of 1,024, vocabulary 50,368, on 1.7 trillion tokens",
        "batches from 768 to 4,608 rows, StableAdamW, learning rate 8e-4 without decay, betas 0.9 "
        "and 0.98, epsilon 1e-6, weight decay 1e-5, 30 % masked, no dropout",
        "GLUE 88.4",
    ),
}


def write_up_of(preset: str, family: str) -> WriteUp | None:
    if (preset, family) == ("flax", "bert"):
        return _MASKED
    return WRITE_UPS.get((preset, family))
