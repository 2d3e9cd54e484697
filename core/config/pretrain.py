"""Options of pretraining: from text to a measured model in one call."""

from __future__ import annotations

from typing import Literal

from core.config import targets
from core.config.base import StageConfig
from core.config.corpus import CorpusConfig
from core.config.options import FAMILY_OPTIONS, Family, Size, option


class PretrainConfig(StageConfig):
    """Options for all stages from a text to a model; the rest follows from the text."""

    corpus: CorpusConfig = option(CorpusConfig(), "Text to train on.")
    name: str = option("", "Name of the model; empty: named after the text.", basic=True)
    family: Family = option(
        "roberta", "Architecture of the model.", options=FAMILY_OPTIONS, basic=True
    )
    minutes: float = option(
        10.0,
        "Minutes of training; a text that gives no more takes less.",
        title="Time budget (minutes)",
        basic=True,
        gt=0,
        le=1_000_000,
    )
    size: Literal["auto", Size] = option(
        "auto",
        "Published size of the family; automatic: the text and the time decide.",
        options={"auto": ("Automatic", "the best that the text and the time allow")},
        automatic=True,
    )
    target: str = option(
        "",
        "The machine that trains; empty: this one.",
        title="Address",
        details="docs/remote.md lists the kinds of addresses.",
        pattern=targets.PATTERN,
    )
    seed: int = option(0, "Seeds initial weights, data order and masks.", ge=0, lt=1 << 31)
