"""Reads minimal pairs in BLiMP's format, from JSON lines or the Hub."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from core.config.corpus import CorpusConfig
from core.config.evaluate import EvaluateConfig
from core.corpus.files import FilesSource
from core.corpus.finding import DATA_SUFFIXES
from core.corpus.hub import HubSource
from core.errors import ConfigError, CorpusError
from core.evaluation.advice import naming_options
from core.evaluation.hub import chosen_configurations, corpus_of
from core.messages.values import shown
from core.records.events import Reporter
from core.tokenizer.roles import without_lone_surrogates

_ROWS_BETWEEN_REPORTS = 1000


class Pair(NamedTuple):
    """A minimal pair; `place` names it in errors."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    place: str


class _Record(NamedTuple):
    place: str
    source: str
    values: Mapping[str, Any]


def read_pairs(config: EvaluateConfig, reporter: Reporter | None = None) -> list[Pair]:
    """Reads the pairs, at most `config.limit` per paradigm.

    Raises:
        ConfigError: A field is missing, or both sentences are read from the same.
        CorpusError: The data are unreadable, empty, or a sentence isn't text.
    """
    pairs = list(iterate_pairs(config, reporter))
    if not pairs:
        raise _no_pairs(config)
    return pairs


def iterate_pairs(config: EvaluateConfig, reporter: Reporter | None = None) -> Iterator[Pair]:
    """Yields the pairs; see `read_pairs`."""
    reporter = reporter or Reporter()
    _check_fields(config)
    counts: Counter[str] = Counter()
    for number, record in enumerate(_records(config)):
        if number % _ROWS_BETWEEN_REPORTS == 0:
            reporter.raise_if_stopped()
            reporter.progress(number, None, "pairs", "reading pairs")
        pair = _pair(record, config)
        counts[pair.paradigm] += 1
        if config.limit is None or counts[pair.paradigm] <= config.limit:
            yield pair


def check_pairs(config: EvaluateConfig) -> None:
    """Reads the first pair; raises ConfigError or CorpusError."""
    _check_fields(config)
    first = next(_records(config), None)
    if first is None:
        raise _no_pairs(config)
    _pair(first, config)


def _check_fields(config: EvaluateConfig) -> None:
    if config.good_field == config.bad_field:
        raise ConfigError(
            "Both sentences of a pair would be read from the same field",
            expected="two different fields",
            received=f"{config.good_field!r} twice",
            fix="correct ⟬good_field⟭ or ⟬bad_field⟭",
            field="good_field",
        )


def _no_pairs(config: EvaluateConfig) -> CorpusError:
    return CorpusError(
        f"{config.path or config.dataset} has no minimal pairs",
        expected=f'lines such as {{"{config.good_field}": "...", "{config.bad_field}": "..."}}',
        fix="choose another file",
        field="path" if config.path else "dataset_name",
    )


def _records(config: EvaluateConfig) -> Iterator[_Record]:
    with naming_options(config):
        yield from _file_records(config) if config.path else _hub_records(config)


def _file_records(config: EvaluateConfig) -> Iterator[_Record]:
    corpus = CorpusConfig(
        source="files",
        path=config.path,
        encoding=config.encoding,
        encoding_errors=config.encoding_errors,
    )
    source = FilesSource(corpus)
    named = _named(source.paths)
    for row in source.rows("train"):
        yield _Record(row.place, named[row.path], row.values)


def _named(paths: Sequence[Path]) -> dict[Path, str]:
    """Names files without suffixes, and with their folders where these differ alone."""
    short = {path: _without_suffixes(path.name) for path in paths}
    if len(set(short.values())) == len(short):
        return short
    common = Path(os.path.commonpath([path.parent for path in paths]))
    return {path: (path.parent.relative_to(common) / short[path]).as_posix() for path in paths}


def _without_suffixes(name: str) -> str:
    path = PurePath(name)
    while path.suffix.lower() in DATA_SUFFIXES:
        path = path.with_suffix("")
    return path.name


def _hub_records(config: EvaluateConfig) -> Iterator[_Record]:
    source = HubSource(corpus_of(config))
    for configuration in chosen_configurations(config, source):
        for number, values in enumerate(source.rows(configuration), 1):
            place = f"Row {number} of {config.dataset} ({configuration})"
            yield _Record(place, configuration, values)


def _pair(record: _Record, config: EvaluateConfig) -> Pair:
    good, bad = (_sentence(record, config, name) for name in ("good_field", "bad_field"))
    paradigm = _label(record, config, "paradigm_field") or record.source
    return Pair(good, bad, paradigm, _label(record, config, "phenomenon_field"), record.place)


def _sentence(record: _Record, config: EvaluateConfig, option: str) -> str:
    value = _value(record, config, option)
    if isinstance(value, str) and value.strip():
        return without_lone_surrogates(value)
    name = getattr(config, option)
    raise CorpusError(
        f"{record.place} has no sentence in the field {name!r}",
        expected="a sentence",
        received="an empty text" if isinstance(value, str) else shown(value),
        fix=f"correct the data, or set ⟬{option}⟭ to the field with the sentence",
        field=option,
    )


def _label(record: _Record, config: EvaluateConfig, option: str) -> str:
    """Returns a label, "" if there is none; the default field may be missing."""
    name = getattr(config, option)
    if not name or (name not in record.values and name == _default(option)):
        return ""
    value = _value(record, config, option)
    if value is None:
        return ""
    return without_lone_surrogates(value) if isinstance(value, str) else shown(value)


def _value(record: _Record, config: EvaluateConfig, option: str) -> Any:
    name = getattr(config, option)
    if name in record.values:
        return record.values[name]
    fields = ", ".join(list(map(str, record.values))[:20]) or "none"
    raise ConfigError(
        f"{record.place} has no field {name!r}",
        expected=f"one of the fields {fields}",
        received=name or "nothing",
        fix=f"set ⟬{option}⟭ to the right field",
        field=option,
    )


def _default(option: str) -> str:
    return str(EvaluateConfig.model_fields[option].default)
