"""Datasets on the Hub that an evaluation reads."""

from __future__ import annotations

from core.config.corpus import CorpusConfig
from core.config.evaluate import EvaluateConfig
from core.corpus.hub import HubSource


def corpus_of(config: EvaluateConfig) -> CorpusConfig:
    """Returns the dataset as a corpus."""
    return CorpusConfig(
        source="hub",
        dataset_name=config.dataset,
        train_split=config.split,
        text_column=config.text_column,
    )


def chosen_configurations(config: EvaluateConfig, source: HubSource) -> list[str]:
    """Returns the configurations to read, by default all."""
    return [config.dataset_config] if config.dataset_config else source.configurations()
