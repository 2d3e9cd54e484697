"""Reads held-out text: documents of files, or of a dataset on the Hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from core.config.corpus import CorpusConfig
from core.config.evaluate import EvaluateConfig
from core.corpus.files import FilesSource
from core.corpus.hub import HubSource
from core.errors import ConfigError, CorpusError
from core.evaluation.advice import naming_options
from core.evaluation.hub import chosen_configurations, corpus_of

# Name that the datasets library gives to the only configuration.
_ONLY = "default"


def read_documents(
    config: EvaluateConfig,
    skipped: Counter[str] | None = None,
    warn: Callable[[str], object] = lambda message: None,
) -> Iterator[tuple[str, Iterator[str]]]:
    """Yields each file or configuration with its documents, at most `config.limit`.

    Blank documents are left out.

    Args:
        skipped: Counts them, and rows of tables without text, by reason.
        warn: Told of files that aren't read.

    Raises:
        ConfigError, CorpusError, HubError: The text is missing or unreadable.
    """
    for name, texts in _sources(config, skipped if skipped is not None else Counter(), warn):
        yield name, islice((text for text in texts if text.strip()), config.limit)


def check_text(config: EvaluateConfig) -> None:
    """Raises ConfigError or CorpusError if there is no text to read."""
    if not any(True for _, texts in read_documents(config) for _ in texts):
        raise no_text_error(config)


def check_is_named(config: EvaluateConfig) -> None:
    """Raises ConfigError if no text is named."""
    if not config.path and not config.dataset:
        raise ConfigError(
            "There is no text to evaluate on",
            expected="a file, a folder, a pattern, or a dataset on the Hub",
            received="neither ⟬path⟭ nor ⟬dataset_name⟭",
            fix="set ⟬path⟭ or ⟬dataset_name⟭",
            field="path",
        )


def no_text_error(config: EvaluateConfig) -> CorpusError:
    return CorpusError(
        f"{config.path or config.dataset} contains no text to score",
        expected="at least one document with a token",
        fix=f"choose another {'file' if config.path else 'dataset'}, or check ⟬text_column⟭",
        field="path" if config.path else "dataset_name",
    )


def _sources(
    config: EvaluateConfig, skipped: Counter[str], warn: Callable[[str], object]
) -> Iterable[tuple[str, Iterator[str]]]:
    check_is_named(config)
    return _files(config, skipped, warn) if config.path else _configurations(config)


def _files(
    config: EvaluateConfig, skipped: Counter[str], warn: Callable[[str], object]
) -> Iterator[tuple[str, Iterator[str]]]:
    corpus = CorpusConfig(
        source="files",
        path=config.path,
        text_unit=config.text_unit,
        text_column=config.text_column,
        file_format=config.file_format,
        encoding=config.encoding,
        encoding_errors=config.encoding_errors,
        csv_header=config.csv_header,
        delimiter=config.delimiter,
        quoting=config.quoting,
    )
    with naming_options(config):
        source = FilesSource(corpus)
    if skipped_files := source.report.describe_skipped():
        warn(skipped_files)
    for name, texts in source.documents_by_file("train"):
        yield name, _named(texts, config)
    skipped.update(source.report.rows)


def _named(texts: Iterator[str], config: EvaluateConfig) -> Iterator[str]:
    with naming_options(config):
        yield from texts


def _configurations(config: EvaluateConfig) -> Iterator[tuple[str, Iterator[str]]]:
    with naming_options(config):
        source = HubSource(corpus_of(config))
        configurations = chosen_configurations(config, source)
    for configuration in configurations:
        texts = source.of_configuration(configuration).documents("train")
        yield config.dataset if configuration == _ONLY else configuration, _named(texts, config)
