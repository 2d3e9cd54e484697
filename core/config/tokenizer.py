"""Options of tokenizer training."""

from __future__ import annotations

from typing import Literal

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import Family, PresetName, knob
from core.presets import TOKENIZER_PRESETS

# Far above any tokenizer in use; ids fit in an unsigned 32-bit integer.
_MAX_VOCAB_SIZE = 1 << 24


class TokenizerConfig(StageConfig):
    """Options for training a tokenizer."""

    presets = TOKENIZER_PRESETS
    variant = "family"

    name: str = knob(
        "",
        "What to call the tokenizer. Empty: a name is made from the settings.",
        basic=True,
        identity=False,
    )
    preset: PresetName = knob(
        "classic",
        "classic: 10,048 tokens, as the TPU example's Unigram; flax: algorithm and size of the "
        "family's write-up, as byte-level BPE of 50,265 for RoBERTa; custom: fills nothing in, "
        "what you don't set has its field's own default.",
        basic=True,
    )
    family: Family = knob(
        "roberta",
        "The architecture it is for: the preset's algorithm and size go by it.",
        basic=True,
        identity=False,
    )
    corpus: CorpusConfig = knob(CorpusConfig(), "The text to train on.")
    algorithm: Literal["unigram", "sentencepiece_unigram", "byte_level_bpe", "wordpiece"] = knob(
        "unigram",
        "unigram: picks the most probable pieces, as in the TPU example; sentencepiece_unigram: "
        "the same as T5 has it, with sentinels and no mask; byte_level_bpe: merges bytes, knows "
        "no unknown, as in RoBERTa, GPT-2 and BART; wordpiece: merges characters within words, as "
        "in BERT.",
        basic=True,
    )
    vocab_size: int = knob(
        10_048,
        "Number of tokens, special ones included.",
        title="Vocabulary size",
        basic=True,
        ge=16,
        le=_MAX_VOCAB_SIZE,
    )
    min_frequency: int = knob(
        2,
        "A pair of symbols seen less often is never merged (byte_level_bpe and wordpiece).",
        ge=1,
    )
    lowercase: bool = knob(
        False, "Upper case counts as lower case (wordpiece and sentencepiece_unigram)."
    )
    strip_accents: bool | None = knob(
        None,
        "Take accents off letters (wordpiece). Empty: as BERT does it, where text is lower-cased.",
    )
    sentinels: int = knob(
        100,
        "How many tokens <extra_id_0>, <extra_id_1> and so on stand for hidden spans; T5 has 100 "
        "(sentencepiece_unigram).",
        ge=0,
        le=10_000,
    )
