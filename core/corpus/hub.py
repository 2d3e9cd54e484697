"""Streams documents of a Hub dataset at a pinned revision, without remote code."""

from __future__ import annotations

import copy
import csv
import gzip
import itertools
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from core.config.corpus import CorpusConfig
from core.corpus.columns import (
    JOINED,
    USUAL_NAME,
    choose_text_column,
    decode_text,
    string_columns,
    texts_within,
    value_at,
)
from core.corpus.hub_card import check_card, check_data_files
from core.corpus.parquet_rows import texts_within_type
from core.corpus.source import SourcePart
from core.errors import ConfigError, CorpusError, StudioError
from core.network.hub import guard_hub
from core.network.hub_ids import flaw_of_hub_id
from core.network.outbound import guard_fsspec, refusal_in

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_SHA = re.compile(r"[0-9A-Za-z]{1,64}")
_LOOKUP_TIMEOUT_SECONDS = 30.0
_ROWS_AT_ONCE = 1000
_SAMPLED_ROWS = 20
_STRING_TYPES = {"string", "large_string"}
_BYTES_TYPES = {"binary", "large_binary"}
_NOT_ALLOWED = (401, 403)
# Decompressors and parsers raise these for damaged files, besides OSError and ValueError.
_DAMAGES = (
    EOFError, KeyError, IndexError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
    csv.Error,
)  # fmt: skip

_LISTED = re.compile(r"\[([^\[\]]*)\]")

_REPLACEMENTS: dict[str, str] = {
    "bookcorpus": "rojagtap/bookcorpus",
    "cc100": "HuggingFaceFW/fineweb-2 (a configuration is a language, as nob_Latn or kor_Hang)",
    "mc4": "allenai/c4 (a configuration is a language, as en or no)",
    "openwebtext": "Skylion007/openwebtext",
    "wikipedia": "wikimedia/wikipedia (a configuration is a dump and a language, as 20231101.en)",
    "wikitext": "Salesforce/wikitext (wikitext-103-raw-v1)",
}
# Known to need a script, if the Hub is unreachable.
_SCRIPTED = re.compile(
    r"(oscar-corpus/)?oscar(-2\d{3})?|(legacy-datasets/)?(mc4|wikipedia)|(statmt/)?cc100",
    re.IGNORECASE,
)
_OSCAR_CONFIG = re.compile(r"unshuffled_(?:original|deduplicated)_(\w+)")


class HubSource:
    """Documents of a dataset on the Hub.

    Raises:
        ConfigError: The id is invalid.
        CorpusError: The dataset can't be read.
    """

    def __init__(self, config: CorpusConfig) -> None:
        if config.validation_split and config.validation_split == config.train_split:
            raise ConfigError(
                "The training and validation splits are the same",
                expected=f"a split other than {config.train_split}, or none",
                received=f"⟬validation_split={config.validation_split}⟭",
                fix="choose another split, or leave ⟬validation_split⟭ empty: part of the training "
                "split is then held out",
                field="validation_split",
            )
        self._config = config
        self.has_validation = bool(config.validation_split)
        self._name, self._revision = _look_up(config)
        self._opened: dict[str, Any] = {}
        # Number of a data file, and how many there are.
        self._shard: tuple[int, int] | None = None

    @property
    def identity(self) -> Any:
        splits = [self._config.train_split, self._config.validation_split]
        return [self._name, self._config.dataset_config, self._revision, *splits]

    def columns(self) -> tuple[list[str], str]:
        """Returns the columns and the text column."""
        with _explaining(self._config):
            return self._columns_of(self._open("train"))

    def parts(self, split: str, target_bytes: int) -> Iterator[SourcePart]:
        with _explaining(self._config):
            count = self._open(split).num_shards
        for number in range(count):
            shown = f"data file {number + 1:,} of {count:,} of {self._name}"
            yield SourcePart(self._limited_to(number, count), shown, 0)

    def of_configuration(self, name: str) -> HubSource:
        """Returns another configuration of the same revision."""
        other = copy.copy(self)
        other._opened = {}
        other._config = self._config.model_copy(update={"dataset_config": name})
        return other

    def _limited_to(self, number: int, count: int) -> HubSource:
        limited = copy.copy(self)
        limited._opened = {}
        limited._shard = (number, count)
        return limited

    def documents(self, split: str) -> Iterator[str]:
        with _explaining(self._config):
            dataset = self._open(split)
            columns, column = self._columns_of(dataset)
            top = column if column in columns else column.partition(JOINED)[0].split(".")[0]
            dataset = self._shard_of(dataset)
            batches = dataset.select_columns([top]).with_format("arrow")
            for batch in batches.iter(batch_size=_ROWS_AT_ONCE):
                for value in batch[top].to_pylist():
                    yield self._text(value_at({top: value}, column)[1])

    def __getstate__(self) -> dict[str, Any]:
        # Open datasets stay in their process.
        return {**self.__dict__, "_opened": {}}

    def _shard_of(self, dataset: Any) -> Any:
        if self._shard is None:
            return dataset
        number, count = self._shard
        if dataset.num_shards != count:
            raise _unreadable_error(
                self._config, f"{dataset.num_shards:,} data files, after {count:,} before"
            )
        return dataset.shard(count, number)

    def configurations(self) -> list[str]:
        """Lists the dataset's configurations."""
        from datasets import get_dataset_config_names

        with _explaining(self._config):
            guard_fsspec()
            check_card(self._name, self._revision)
            address = f"hf://datasets/{self._name}"
            return list(get_dataset_config_names(address, revision=self._revision))

    def rows(self, configuration: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of a configuration's training split."""
        with _explaining(self._config):
            yield from self._table(configuration)

    def class_names(self, configuration: str) -> dict[str, tuple[str, ...]]:
        """Returns the names of the classes that `rows` has as numbers, by column.

        A column's feature is a ClassLabel, or a list of them.
        """
        with _explaining(self._config):
            features = self._table(configuration).features or {}
            named = {column: _class_names(feature) for column, feature in features.items()}
        return {column: names for column, names in named.items() if names}

    def _table(self, configuration: str) -> Any:
        key = f"rows of {configuration}"
        if key not in self._opened:
            self._opened[key] = self._load(self._config.train_split, configuration)
        return self._opened[key]

    def _open(self, split: str) -> Any:
        if split not in self._opened:
            name = self._config.train_split if split == "train" else self._config.validation_split
            self._opened[split] = self._load_split(name)
        return self._opened[split]

    def _load_split(self, split: str) -> Any:
        try:
            return self._load(split, self._config.dataset_config)
        except ValueError as error:
            if "BuilderConfig" in str(error) and self._config.has_leftover_configuration:
                return self._load(split, "")
            raise

    def _load(self, split: str, configuration: str) -> Any:
        from datasets import load_dataset_builder

        guard_hub()
        guard_fsspec()
        check_card(self._name, self._revision)
        # A plain name could be taken for a local folder.
        builder = load_dataset_builder(
            f"hf://datasets/{self._name}", configuration or None, revision=self._revision
        )
        check_data_files(self._name, self._revision, builder.config.data_files)
        return builder.as_streaming_dataset(split=split)

    def _columns_of(self, dataset: Any) -> tuple[list[str], str]:
        if dataset.features:
            columns = list(dataset.features)
            strings = [name for name in columns if _is_string(dataset.features[name], name)]
            schema = dataset.features.arrow_schema
            within = [
                name for field in schema for name in texts_within_type(field.name, field.type)
            ]
        else:
            rows = list(itertools.islice(dataset, _SAMPLED_ROWS))
            strings, columns = string_columns(rows)
            nested = (texts_within(name, value) for row in rows for name, value in row.items())
            within = list(dict.fromkeys(itertools.chain.from_iterable(nested)))
        chosen = choose_text_column(
            self._config.text_column, strings, columns, f"The dataset {self._name}", within
        )
        return columns, chosen

    def _text(self, value: Any) -> str:
        value = decode_text(value, self._config.text_column or USUAL_NAME, self._name)
        if value is not None and not isinstance(value, str):
            raise CorpusError(
                f"The column {self._config.text_column!r} of {self._name} doesn't contain text",
                expected="a string or null", received=f"{type(value).__name__} {str(value)[:80]}",
                fix="set ⟬text_column⟭ to the column that contains the text", field="text_column",
            )  # fmt: skip
        return value or ""


def replacement_for(name: str, configuration: str) -> str:
    """Returns a scripted dataset's Parquet replacement; "" if unknown."""
    short = name.rsplit("/", 1)[-1].lower()
    if short.startswith("oscar"):
        language = _OSCAR_CONFIG.fullmatch(configuration)
        code = language.group(1) if language else "en"
        return (
            f"wikimedia/wikipedia with the configuration 20231101.{code}, or "
            "HuggingFaceFW/fineweb-2, whose configurations are languages like nob_Latn or kor_Hang"
        )
    return _REPLACEMENTS.get(short, "")


def _check_dataset_id(name: str) -> None:
    if not _NAME.fullmatch(name) or flaw_of_hub_id(name):
        raise ConfigError(
            "The dataset id is not valid", expected="owner/name, as in Salesforce/wikitext",
            received=repr(name), fix="copy the id from the dataset's page",
            field="dataset_name",
        )  # fmt: skip


def _look_up(config: CorpusConfig) -> tuple[str, str]:
    from huggingface_hub import HfApi

    _check_dataset_id(config.dataset_name)
    guard_hub()
    with _explaining(config):
        info = HfApi().dataset_info(
            config.dataset_name, revision=config.dataset_revision or None,
            timeout=_LOOKUP_TIMEOUT_SECONDS,
        )  # fmt: skip
    script = f"{info.id.rsplit('/', 1)[-1]}.py"
    if any(file.rfilename == script for file in info.siblings or []):
        raise _script_error(config, script)
    if not _NAME.fullmatch(str(info.id)) or not _SHA.fullmatch(str(info.sha)):
        raise _unreadable_error(config, f"the id {info.id!a} with the revision {info.sha!a}")
    return str(info.id), str(info.sha)


@contextmanager
def _explaining(config: CorpusConfig) -> Iterator[None]:
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError

    # The base class of the HTTP client's errors.
    client_error: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        yield
    except StudioError:
        raise
    except (OSError, ValueError, RuntimeError, DatasetsError, client_error, *_DAMAGES) as error:
        if refusal := refusal_in(error):
            raise refusal from error
        raise _explained(config, error) from error


def _explained(config: CorpusConfig, error: Exception) -> CorpusError:
    from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError, DatasetsError
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    text = str(error)
    if isinstance(error, GatedRepoError) or "is a gated dataset" in text:
        return _closed_error(config, "a gated dataset, for which its owner grants access")
    if isinstance(error, (RepositoryNotFoundError, DatasetNotFoundError)):
        return _missing_error(config)
    if isinstance(error, RevisionNotFoundError):
        return _part_error(config, "revision", "dataset_revision", text)
    if "scripts are no longer supported" in text:
        return _script_error(config, text.rsplit(" ", 1)[-1])
    if "Bad split" in text:
        return _part_error(config, "split", _split_field(config, text), text)
    if "BuilderConfig" in text or "Config name is missing" in text:
        return _part_error(config, "configuration", "dataset_config", text)
    if isinstance(error, DataFilesNotFoundError) or type(error).__name__ == "EmptyDatasetError":
        return _unreadable_error(config, "no data files")
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        status = error.response.status_code
        if status in _NOT_ALLOWED:
            return _closed_error(config, f"the HTTP status {status}")
        return _unreachable_error(config, f"the HTTP status {status}")
    if _is_damage(error):
        return _damaged_error(config, error)
    is_of_the_data = isinstance(error, (ValueError, RuntimeError, DatasetsError))
    if is_of_the_data and not isinstance(error, OSError):
        return _unreadable_error(config, text)
    return _unreachable_error(config, text or type(error).__name__)


def _unreachable_error(config: CorpusConfig, received: str) -> CorpusError:
    if _SCRIPTED.fullmatch(config.dataset_name):
        return _script_error(config, f"{config.dataset_name.rsplit('/', 1)[-1]}.py")
    return CorpusError(
        f"The Hugging Face Hub can't be reached for {config.dataset_name}",
        expected="a network connection to the Hub (or to HF_ENDPOINT)", received=received[:200],
        fix="check that this machine is online, or set ⟬source⟭ to docs, which needs no network",
        field="source",
    )  # fmt: skip


def _missing_error(config: CorpusConfig) -> CorpusError:
    return CorpusError(
        f"The dataset {config.dataset_name} doesn't exist on the Hub, or you have no access to it",
        expected="the id of a public dataset, or of one that your Hub login can read",
        received=config.dataset_name, field="dataset_name",
        fix="check the spelling; for a private dataset, log in first: hf auth login",
    )  # fmt: skip


def _closed_error(config: CorpusConfig, received: str) -> CorpusError:
    return CorpusError(
        f"The dataset {config.dataset_name} requires permission",
        expected="a Hub login with access to this dataset", received=received,
        fix="request access on the dataset's page, then log in: hf auth login",
        field="dataset_name",
    )  # fmt: skip


def _script_error(config: CorpusConfig, script: str) -> CorpusError:
    instead = replacement_for(config.dataset_name, config.dataset_config)
    return CorpusError(
        f"The dataset {config.dataset_name} needs the loading script {script}, and neither this "
        "program nor the datasets library runs loading scripts",
        expected="a dataset of Parquet, JSON, CSV or text files", received=script,
        fix=f"use {instead}" if instead
        else "find the same text in Parquet on the Hub, or download it and set ⟬source⟭ to files",
        field="dataset_name",
    )  # fmt: skip


def _part_error(config: CorpusConfig, what: str, field: str, text: str) -> CorpusError:
    listed = _LISTED.search(text)
    expected = f"one of {listed.group(1)}" if listed else f"an existing {what}"
    return CorpusError(
        f"The dataset {config.dataset_name} has no {what} with this name",
        expected=expected[:400],
        received=str(getattr(config, field)) or "none",
        fix=f"set ⟬{field}⟭ to an existing one",
        field=field,
    )


def _unreadable_error(config: CorpusConfig, received: str) -> CorpusError:
    return CorpusError(
        f"The dataset {config.dataset_name} can't be read as a stream",
        expected="Parquet, JSON, CSV or text files", received=received[:400],
        fix="choose another dataset, or download it and set ⟬source⟭ to files",
        field="dataset_name",
    )  # fmt: skip


def _is_damage(error: BaseException) -> bool:
    """Returns whether a data file is damaged; errors of connections have a number or a subclass."""
    is_of_decompressor = type(error) is OSError and error.errno is None
    return is_of_decompressor or isinstance(error, (*_DAMAGES, gzip.BadGzipFile))


def _damaged_error(config: CorpusConfig, error: Exception) -> CorpusError:
    return CorpusError(
        f"A data file of the dataset {config.dataset_name} is damaged",
        expected="complete data files that can be unpacked",
        received=f"{type(error).__name__}: {error}"[:400],
        fix="choose another revision, report it to the dataset's owner, or skip this part "
        "(⟬skip_failing_parts⟭)",
        field="dataset_name",
    )


def _split_field(config: CorpusConfig, text: str) -> str:
    wrong = config.validation_split
    return "validation_split" if wrong and f"Bad split: {wrong}." in text else "train_split"


def _class_names(feature: Any) -> tuple[str, ...]:
    from datasets import ClassLabel

    if isinstance(feature, list) and feature:
        (feature, *_) = feature
    inner = getattr(feature, "feature", feature)
    return tuple(map(str, inner.names)) if isinstance(inner, ClassLabel) else ()


def _is_string(feature: Any, name: str) -> bool:
    kind = getattr(feature, "dtype", None)
    return kind in _STRING_TYPES or (kind in _BYTES_TYPES and name == USUAL_NAME)
