"""Datasets on the Hub that an evaluation reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.config import CorpusConfig, EvaluateConfig
from core.corpus.hub import HubSource
from core.errors import CorpusError

# Options of a corpus, as an evaluation calls them, with the advice on each.
_RENAMED = {
    "train_split": ("split", "set split to an existing one"),
    "source": ("dataset_name", "check that this machine is online, or set path to a file"),
}


def corpus_of(config: EvaluateConfig, configuration: str = "") -> CorpusConfig:
    """Returns the dataset as a corpus."""
    return CorpusConfig(
        source="hub",
        dataset_name=config.dataset,
        dataset_config=configuration,
        train_split=config.split,
        text_column=config.text_column,
    )


def chosen_configurations(config: EvaluateConfig, source: HubSource) -> list[str]:
    """Returns the configurations to read, by default all."""
    return [config.dataset_config] if config.dataset_config else source.configurations()


@contextmanager
def naming_options() -> Iterator[None]:
    """Names the options of an evaluation in errors about a corpus."""
    try:
        yield
    except CorpusError as error:
        if error.field not in _RENAMED:
            raise
        field, fix = _RENAMED[error.field]
        raise CorpusError(
            error.problem,
            expected=error.expected,
            received=error.received,
            fix=fix,
            field=field,
        ) from error
