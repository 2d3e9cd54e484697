"""Options of tokenizer training."""

from __future__ import annotations

from typing import Literal

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import FAMILY_OPTIONS, Family, FittedPresetName, option
from core.config.presets import TOKENIZER_PRESETS
from core.config.workers import cluster_option, skip_failing_parts_option, workers_option

# Ids fit in an unsigned 32-bit integer.
_MAX_VOCAB_SIZE = 1 << 24


class TokenizerConfig(StageConfig):
    """Options for training a tokenizer."""

    presets = TOKENIZER_PRESETS
    variant = "family"

    name: str = option(
        "",
        "Empty: named by its settings.",
        basic=True,
        identity=False,
    )
    preset: FittedPresetName = option(
        "fitted",
        "Starting values; a value you set wins.",
        details="With RoBERTa, the Flax preset is a byte-level BPE of 50,265 tokens.",
        options={
            "fitted": ("Fitted", "the family's algorithm, and a size that follows from the text"),
            "classic": ("Classic", "Unigram with 10,048 tokens, as in the TPU example"),
            "flax": ("Flax", "published algorithm and size of the family"),
            "custom": ("Custom", "default values"),
        },
        basic=True,
    )
    family: Family = option(
        "roberta",
        "The preset's algorithm and size depend on it.",
        options=FAMILY_OPTIONS,
        basic=True,
        identity=False,
    )
    corpus: CorpusConfig = option(CorpusConfig(), "Text to train on.")
    algorithm: Literal["unigram", "sentencepiece_unigram", "byte_level_bpe", "wordpiece"] = option(
        "unigram",
        "Learns the subword vocabulary.",
        options={
            "unigram": ("Unigram", "keeps the most probable tokens, as in the TPU example"),
            "sentencepiece_unigram": (
                "SentencePiece Unigram",
                "T5's, with sentinels and without a mask token",
            ),
            "byte_level_bpe": (
                "Byte-level BPE",
                "merges bytes and has no unknown tokens, as in RoBERTa, GPT-2 and BART",
            ),
            "wordpiece": ("WordPiece", "merges characters within words, as in BERT"),
        },
        basic=True,
    )
    pre_tokenization: Literal["gpt2", "smollm", "qwen2", "llama3"] = option(
        "gpt2",
        "Splits text into words, within which bytes are merged.",
        details="Byte-level BPE only. llama.cpp knows all of them.",
        options={
            "gpt2": ("GPT-2", "numbers are whole, as in RoBERTa and BART"),
            "smollm": ("SmolLM", "as GPT-2's, with single digits"),
            "qwen2": ("Qwen2", "single digits; punctuation joins the word after it"),
            "llama3": ("Llama 3", "as Qwen2's, with up to three digits"),
        },
        title="Pre-tokenization",
        is_later=True,
    )
    vocab_size: int | None = option(
        None,
        "Special tokens included; empty: follows from the text.",
        details="More words in the text give a larger vocabulary: docs/recipe.md.",
        title="Vocabulary size",
        automatic=True,
        basic=True,
        ge=16,
        le=_MAX_VOCAB_SIZE,
    )
    min_frequency: int = option(
        2,
        "Rarer pairs of symbols are never merged.",
        details="Byte-level BPE and WordPiece only.",
        title="Minimum frequency",
        ge=1,
    )
    lowercase: bool = option(
        False, "Lower-cases the text.", details="WordPiece and SentencePiece Unigram only."
    )
    strip_accents: bool | None = option(
        None,
        "Removes accents from letters.",
        details="WordPiece only. Not set: like BERT, if the text is lower-cased.",
    )
    memory_gb: float = option(
        2.0,
        "Limit on the memory for words, in GiB; rare words of larger texts are sampled.",
        details="A GiB holds 750,000 different words. The sample depends on the words and this "
        "limit only. On a cluster, it is the limit on each node.",
        title="Memory for words (GiB)",
        is_later=True,
        ge=0.001,
        le=4096,
    )
    workers: int | None = workers_option()
    cluster: str = cluster_option()
    part_mb: float = option(
        64,
        "Size of the parts that the text is read in, in MiB; it does not change the result.",
        title="Part size (MiB)",
        details="A stopped run goes on after the finished parts.",
        identity=False,
        gt=0,
        le=65_536,
    )
    skip_failing_parts: bool = skip_failing_parts_option()
    sentinels: int = option(
        100,
        "Number of sentinel tokens such as <extra_id_0>; T5 has 100.",
        details="SentencePiece Unigram only. A sentinel stands for a masked span.",
        ge=0,
        le=10_000,
    )
