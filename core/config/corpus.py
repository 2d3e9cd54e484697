"""Options of the corpus, which the tokenizer and the shards read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from core.config.base import StageConfig
from core.config.options import option
from core.errors import ConfigError

# The default dataset. It has several configurations, none of them the default.
_OFFERED_DATASET, _OFFERED_CONFIG = "Salesforce/wikitext", "wikitext-103-raw-v1"


# Fields that name text, and the source that each implies.
_SOURCES = {"validation_path": "files", "path": "files", "dataset_name": "hub"}


class CorpusConfig(StageConfig):
    """The source of the text, and how some of it is held out for validation."""

    source: Literal["docs", "files", "hub"] = option(
        "docs",
        "docs: the documentation of the Python packages installed here (no download); "
        "files: text on this machine; hub: a dataset on the Hugging Face Hub, streamed. Where it "
        "isn't given, a path means files, and a dataset's name hub.",
        basic=True,
    )
    path: str = option(
        "",
        "A file, a folder or a pattern like data/*.txt (in a shell in quotes: 'data/*.txt'): .txt, "
        ".jsonl, .json, .csv, .tsv, .parquet, also compressed (.gz, .zst, .xz, .bz2, .zip).",
        basic=True,
        group="Files",
        path=True,
    )
    text_unit: Literal["line", "paragraph", "file"] = option(
        "line",
        "What one document is in a .txt file. Blank ones are skipped.",
        group="Files",
        basic=True,
    )
    text_column: str = option(
        "",
        "The column that holds the text; a.b is a field within a column, a[] joins a list of "
        "strings. Empty: the only string column, or the one named text.",
        group="Files",
        basic=True,
    )
    file_format: Literal["auto", "text", "jsonl", "json", "csv", "tsv", "parquet"] = option(
        "auto",
        "How to read the files, whatever they are called. auto: by suffix and content.",
        group="Files",
    )
    encoding: str = option(
        "",
        "The files' character encoding, such as utf-16, cp1252 or cp949. Empty: UTF-8.",
        group="Files",
        choices=("utf-16", "cp1252", "cp949", "cp932", "gb18030", "big5", "cp1251", "iso8859-2"),
    )
    encoding_errors: Literal["strict", "replace", "ignore"] = option(
        "strict",
        "Bytes that are not in the encoding. strict: refuse the file; replace: write U+FFFD in "
        "their place; ignore: drop them.",
        group="Files",
    )
    csv_header: Literal["auto", "yes", "no"] = option(
        "auto",
        "Whether the first row of a CSV or TSV file names the columns. no: columns are called 1, "
        "2, 3. auto: decided from the rows, refused where that is not clear.",
        title="CSV header",
        group="Files",
    )
    delimiter: Literal["auto", "comma", "semicolon", "tab", "pipe"] = option(
        "auto",
        "What separates the cells of a CSV or TSV file. auto: decided from the first rows.",
        group="Files",
    )
    quoting: Literal["auto", "yes", "no"] = option(
        "auto",
        "Whether quotation marks enclose cells of a CSV or TSV file. no: they are text, and each "
        "line is a row. auto: yes, but refused where the marks do not pair up.",
        group="Files",
    )
    skip_unreadable: bool = option(
        False,
        "Pass over files and folders that cannot be opened, instead of refusing to start.",
        group="Files",
    )
    max_document_mb: int = option(
        128,
        "Refuse files with a document, or a table row, larger than this many megabytes.",
        title="Document size limit (MB)",
        group="Files",
        ge=1,
        le=1_000_000,
    )
    max_unpack_ratio: int = option(
        200,
        "Refuse files that hold this many times their own size in text, from 256 MB of text on.",
        title="Unpacking limit (ratio)",
        group="Files",
        ge=1,
    )
    dataset_name: str = option(
        _OFFERED_DATASET, "The dataset's id on the Hub.", group="Hub", basic=True
    )
    dataset_config: str = option(
        "",
        f"The dataset's configuration. Empty: its default one; {_OFFERED_CONFIG} of "
        f"{_OFFERED_DATASET}.",
        group="Hub",
        basic=True,
    )
    train_split: str = option("train", "The dataset's split to train on.", group="Hub")
    validation_split: str = option(
        "",
        "The dataset's split to validate on. Empty: hold documents out of the training split.",
        group="Hub",
    )
    validation_path: str = option(
        "",
        "Files to validate on (a pattern: in a shell in quotes). Those that lie in the training "
        "folder aren't trained on. Empty: hold documents out of the training files.",
        group="Files",
        path=True,
    )
    validation_percent: float = option(
        5.0,
        "Percent of the documents held out for validation where no part is named for it. "
        "A document's own hash decides, so equal documents are always on the same side.",
        group="Validation",
        basic=True,
        gt=0,
        le=50,
    )
    drop_overlapping_validation: bool | None = option(
        None,
        "Drop held-out documents that share a window of 20 words with a training document. "
        "Costs one more pass over the text. Empty: only for installed documentation.",
        group="Validation",
    )
    limit: int | None = option(
        None, "Read at most this many documents.", title="Document limit", basic=True, ge=1
    )

    @model_validator(mode="before")
    @classmethod
    def _infer(cls, values: Any) -> Any:
        return cls._configured(cls.inferred(values)) if isinstance(values, dict) else values

    @classmethod
    def _configured(cls, values: dict[str, Any]) -> dict[str, Any]:
        fields = cls.model_fields
        source, name, chosen = (
            values.get(one, fields[one].default)
            for one in ("source", "dataset_name", "dataset_config")
        )
        is_read = source == "hub" and name == _OFFERED_DATASET
        return {**values, "dataset_config": _OFFERED_CONFIG} if is_read and not chosen else values

    @property
    def has_leftover_configuration(self) -> bool:
        """True if a changed dataset name still has the default dataset's configuration."""
        is_offered = self.dataset_name == _OFFERED_DATASET
        return self.dataset_config == _OFFERED_CONFIG and not is_offered

    def pin_inferred(self, changed: dict[str, Any]) -> dict[str, Any]:
        named = not _SOURCES.keys().isdisjoint(changed)
        return {"source": self.source, **changed} if named else changed

    @classmethod
    def inferred(
        cls, values: dict[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Infers the source from the fields that name text, unless one is chosen.

        A newly named dataset doesn't inherit the previous one's configuration. Raises ConfigError
        if the values name two sources.
        """
        name = values.get("dataset_name")
        if name and name != (before or {}).get("dataset_name"):
            values = {"dataset_config": "", **values}
        named = {source: name for name, source in _SOURCES.items() if values.get(name)}
        if "source" in values or not named:
            return values
        if len(named) > 1:
            raise ConfigError(
                "It isn't clear where the text comes from",
                expected="files or a dataset on the Hub, or a source that says which counts",
                received=" and ".join(f"{name}={values[name]}" for name in named.values()),
                fix="set source to files or hub, or leave one of them out",
                field="source",
            )
        return {**values, "source": next(iter(named))}
