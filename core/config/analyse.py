"""Options of the analysis of a corpus."""

from __future__ import annotations

from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import option


class AnalyseConfig(StageConfig):
    """Options for analysing a sample of a corpus."""

    corpus: CorpusConfig = option(CorpusConfig(), "Text to analyse.")
    tokenizer: str = option(
        "",
        "Tokenizer that counts tokens; empty means an estimate from words or bytes.",
        basic=True,
        artifact="tokenizer",
    )
    sample_mb: int = option(
        16,
        "Most text to read, in megabytes, from places all over each source.",
        title="Sample (MB)",
        ge=1,
        le=256,
    )
    sample_seconds: int = option(
        20,
        "Most time for reading, in seconds.",
        title="Reading time (s)",
        ge=1,
        le=600,
    )
