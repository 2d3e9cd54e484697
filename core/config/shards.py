"""Options of shard building."""

from __future__ import annotations

from typing import Literal

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import OBJECTIVE_OPTIONS, FittedPresetName, option
from core.config.presets import SHARD_PRESETS
from core.config.workers import (
    cluster_option,
    part_mb_option,
    skip_failing_parts_option,
    workers_option,
)


class ShardConfig(StageConfig):
    """Options for packing text into TFRecord shards."""

    presets = SHARD_PRESETS
    variant = "objective"

    name: str = option(
        "",
        "Empty: named by its settings.",
        basic=True,
        identity=False,
    )
    preset: FittedPresetName = option(
        "fitted",
        "Starting values; a value you set wins.",
        options={
            "fitted": ("Fitted", "a sequence length that follows from the text"),
            "classic": ("Classic", "sequences of 512 tokens"),
            "flax": (
                "Flax",
                (
                    "published lengths: 128 for masked LM, 512 for causal LM and span "
                    "corruption, 1,024 for denoising"
                ),
            ),
            "custom": ("Custom", "default values"),
        },
        basic=True,
    )
    corpus: CorpusConfig = option(CorpusConfig(), "Text to tokenise.")
    tokenizer: str = option(
        "",
        "Name, folder or Hub id.",
        basic=True,
        artifact="tokenizer",
    )
    objective: Literal["mlm", "clm", "span_corruption", "denoising"] = option(
        "mlm",
        "Pretraining objective to pack sequences for.",
        details=(
            "Masked LM and causal LM pack documents one after another, and can share "
            "sequences if the tokenizer ends each document with a token; causal LM "
            "always adds one. Span corruption packs sequences so long that T5 sees "
            "Sequence length tokens after masking. Denoising marks the ends of "
            "sentences."
        ),
        options=OBJECTIVE_OPTIONS,
        basic=True,
    )
    max_seq_length: int | None = option(
        None,
        "Tokens per sequence; empty: follows from the text.",
        automatic=True,
        title="Sequence length",
        basic=True,
        ge=8,
        le=65_536,
    )
    mlm_probability: float | None = option(
        None,
        "Share of tokens that span corruption masks.",
        details="Span corruption only. Empty: 0.15.",
        title="Noise density",
        gt=0,
        le=0.9,
    )
    mean_noise_span_length: float | None = option(
        None,
        "Mean number of tokens in a masked span.",
        details="Span corruption only. Empty: 3.",
        title="Mean span length",
        ge=1,
        le=100,
    )
    line_by_line: bool = option(
        False,
        "Makes one padded sequence of each line.",
        details="Masked LM only. Longer lines are cut.",
    )
    packing: Literal["stream", "best_fit"] = option(
        "stream",
        "How documents share sequences.",
        details="Causal LM only.",
        options={
            "stream": ("Stream", "one after another; those at the end of a sequence are cut"),
            "best_fit": ("Best fit", "whole documents where they fit, and padding: for long ones"),
        },
        is_later=True,
    )
    split: Literal["all", "train", "validation"] = option(
        "all",
        "Split to write.",
        options={
            "all": ("All", "both splits"),
            "train": ("Training", ""),
            "validation": ("Validation", ""),
        },
    )
    shard_size: int = option(
        16_384, "Sequences in one TFRecord file.", title="Sequences per file", ge=1, le=10_000_000
    )
    record_format: Literal["bytes", "int64"] = option(
        "bytes",
        "Layout of a record.",
        options={
            "bytes": ("Bytes", "fixed-width ids, the fastest to read"),
            "int64": (
                "Int64",
                "input_ids and attention_mask, as the original TPU script writes them",
            ),
        },
    )
    workers: int | None = workers_option()
    cluster: str = cluster_option()
    part_mb: float = part_mb_option()
    skip_failing_parts: bool = skip_failing_parts_option()
    output_dir: str = option(
        "",
        "Folder, or an address like gs://bucket/folder.",
        details="Empty: the workspace.",
        title="Output folder",
        path=True,
        identity=False,
    )
