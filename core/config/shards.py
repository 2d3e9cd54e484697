"""Options of shard building."""

from __future__ import annotations

from typing import Literal

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import PresetName, knob
from core.presets import SHARD_PRESETS


class ShardConfig(StageConfig):
    """Options for packing text into TFRecord shards of fixed-length sequences."""

    presets = SHARD_PRESETS
    variant = "objective"

    name: str = knob(
        "",
        "What to call the shards. Empty: a name is made from the settings.",
        basic=True,
        identity=False,
    )
    preset: PresetName = knob(
        "classic",
        "classic: rows of 512 tokens; flax: rows of 128 for mlm, 512 for clm and span_corruption, "
        "1,024 for denoising; custom: fills nothing in, what you don't set has its field's own "
        "default.",
        basic=True,
    )
    corpus: CorpusConfig = knob(CorpusConfig(), "The text to tokenise.")
    tokenizer: str = knob(
        "",
        "A tokenizer's name in the workspace, its folder, or its id on the Hub.",
        basic=True,
        artifact="tokenizer",
    )
    objective: Literal["mlm", "clm", "span_corruption", "denoising"] = knob(
        "mlm",
        "What the rows are for. mlm and clm: documents one after the other, rows for either where "
        "the tokenizer puts an end after a text (clm does so in any case); "
        "span_corruption: rows so long that T5 sees max_seq_length tokens of them; denoising: the "
        "ends of sentences are marked for BART.",
        basic=True,
    )
    max_seq_length: int = knob(
        512, "Tokens that the model sees.", title="Row length", basic=True, ge=8, le=65_536
    )
    mlm_probability: float | None = knob(
        None,
        "Share of the tokens that the rows are laid out to hide (span_corruption only). Empty: "
        "0.15.",
        title="Noise density",
        gt=0,
        le=0.9,
    )
    mean_noise_span_length: float | None = knob(
        None,
        "Mean tokens in a hidden span that the rows are laid out for (span_corruption only). "
        "Empty: 3.",
        ge=1,
        le=100,
    )
    line_by_line: bool = knob(
        False,
        "Each line is a row of its own, filled up with padding; a longer one is cut (mlm only).",
    )
    split: Literal["all", "train", "validation"] = knob(
        "all", "Which part to write, as in the original script; all writes both."
    )
    shard_size: int = knob(16_384, "Rows in one file.", title="Rows per file", ge=1, le=10_000_000)
    record_format: Literal["bytes", "int64"] = knob(
        "bytes",
        "bytes: fixed-width ids, the studio's own fast layout; int64: input_ids and "
        "attention_mask as the original TPU script writes and reads them.",
    )
    output_dir: str = knob(
        "",
        "Where the files go: a folder, or an address like gs://bucket/folder. Empty: the "
        "workspace.",
        path=True,
        identity=False,
    )
