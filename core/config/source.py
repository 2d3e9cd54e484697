"""Options of one source of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from core.config.base import StageConfig
from core.config.options import option
from core.errors import ConfigError

# It has no default configuration.
_OFFERED_DATASET, _OFFERED_CONFIG = "Salesforce/wikitext", "wikitext-103-raw-v1"

FileFormat = Literal["auto", "text", "jsonl", "json", "csv", "tsv", "parquet", "arrow"]
TextUnit = Literal["line", "paragraph", "file", "mark"]
EncodingErrors = Literal["strict", "replace", "ignore"]
Delimiter = Literal["auto", "comma", "semicolon", "tab", "pipe"]
YesNo = Literal["auto", "yes", "no"]

SOURCE_OPTIONS = {
    "docs": (
        "Installed Python docs",
        "The documentation of the Python packages on this machine; no download",
    ),
    "files": ("My files", "Text, table or JSON files on this machine or at an address"),
    "hub": ("Hugging Face dataset", "A dataset on the Hugging Face Hub, streamed"),
    "corpus": ("Cleaned corpus", "A corpus of the workspace that was cleaned before"),
}


def limit_option() -> Any:
    """Declares the limit of documents."""
    return option(
        None,
        "Read at most this many documents; empty means all.",
        title="Document limit",
        group="Validation",
        basic=True,
        details="With several sources, of each.",
        ge=1,
    )


class SourceConfig(StageConfig):
    """The place of documents, and how they are read."""

    # The source that a field implies.
    implied: ClassVar[dict[str, str]] = {
        "validation_path": "files",
        "path": "files",
        "dataset_name": "hub",
        "corpus_name": "corpus",
    }

    source: str = option("docs", "Where the text comes from.")
    path: str = option(
        "",
        "A file, a folder or a pattern like data/*.txt, also at an address.",
        title="Path",
        group="Files",
        basic=True,
        path=True,
        details="Formats: .txt, .jsonl, .json, .csv, .tsv, .parquet and .arrow, also compressed "
        "(.gz, .zst, .xz, .bz2, .zip, .tar). Test files beside training files are left out. "
        "Quote a pattern on the command line: 'data/*.txt'. An address "
        "begins with https://, gs://, s3:// or hf://; its files are downloaded to the workspace.",
    )
    text_unit: TextUnit = option(
        "line",
        "One document in a .txt file; blank ones are skipped.",
        title="Document",
        group="Files",
        basic=True,
        options={
            "line": ("Line", ""),
            "paragraph": ("Paragraph", ""),
            "file": ("File", ""),
            "mark": ("Up to a mark", "documents end with <|endoftext|>, as in TinyStories"),
        },
    )
    text_column: str = option(
        "",
        "Column of a table with the text.",
        group="Files",
        basic=True,
        choices=("text",),
        details="Empty: the only column of strings, or the one named text. a.b is a field within a "
        "column; a[] joins a list of strings, a[].b one of objects.",
    )
    file_format: FileFormat = option(
        "auto",
        "Format of the files, whatever their names.",
        group="Files",
        options={"auto": ("Automatic", "Detected by suffix and content")},
    )
    encoding: str = option(
        "",
        "Such as utf-16 or cp949; empty means UTF-8, auto what each file seems to have.",
        title="Character encoding",
        group="Files",
        choices=(
            "auto",
            "utf-16",
            "cp1252",
            "cp949",
            "cp932",
            "gb18030",
            "big5",
            "cp1251",
            "iso8859-2",
        ),
    )
    encoding_errors: EncodingErrors = option(
        "strict",
        "Treatment of bytes that the encoding does not allow.",
        group="Files",
        options={
            "strict": ("Refuse", "Refuse the file"),
            "replace": ("Replace", "Write U+FFFD in their place"),
            "ignore": ("Drop", "Drop these bytes"),
        },
    )
    csv_header: YesNo = option(
        "auto",
        "Whether the first row of a CSV or TSV file names the columns.",
        title="CSV header",
        group="Files",
        options={
            "auto": ("Automatic", "Detected from the rows; an error if unclear"),
            "yes": ("Yes", "The first row names the columns"),
            "no": ("No", "The columns are called 1, 2, 3"),
        },
    )
    delimiter: Delimiter = option(
        "auto",
        "Separator of the cells of a CSV or TSV file.",
        group="Files",
        options={"auto": ("Automatic", "Detected from the first rows")},
    )
    quoting: YesNo = option(
        "auto",
        "Whether quotation marks enclose cells of a CSV or TSV file.",
        group="Files",
        options={
            "auto": ("Automatic", "Yes; an error if the marks do not pair up"),
            "yes": ("Yes", "Marks enclose cells, which can span several lines"),
            "no": ("No", "Marks are text, and each line is a row"),
        },
    )
    skip_unreadable: bool = option(
        False,
        "Skip files and folders that cannot be opened.",
        group="Files",
    )
    max_document_mb: int = option(
        128,
        "Largest document or table row, in megabytes.",
        title="Document size limit (MB)",
        group="Files",
        ge=1,
        le=1_000_000,
    )
    max_document_characters: int | None = option(
        None,
        "Cut longer documents of files into passages of at most so many characters; empty: none.",
        title="Longest document (characters)",
        group="Files",
        details="They are cut at white space where possible. A text of a few long documents can "
        "then be held out in part.",
        is_later=True,
        ge=100,
    )
    max_unpack_ratio: int = option(
        200,
        "Largest ratio of unpacked to packed size, for more than 256 MB of text.",
        title="Unpacking limit (ratio)",
        group="Files",
        ge=1,
    )
    dataset_name: str = option(
        _OFFERED_DATASET,
        "Id of the dataset, as in owner/name.",
        title="Dataset",
        group="Hub",
        basic=True,
    )
    dataset_config: str = option(
        "",
        "Configuration of the dataset; empty means its default.",
        title="Configuration",
        group="Hub",
        basic=True,
        details=f"The default of {_OFFERED_DATASET} is {_OFFERED_CONFIG}.",
    )
    dataset_revision: str = option(
        "",
        "Branch, tag or commit of the dataset; empty means the newest.",
        title="Revision",
        group="Hub",
        is_later=True,
        details="The commit is looked up once at the start and read throughout.",
    )
    corpus_name: str = option(
        "",
        "Name or folder.",
        title="Cleaned corpus",
        group="Corpus",
        basic=True,
        flag="corpus",
        artifact="corpus",
        is_later=True,
        details="Its held-out documents are kept; the options of validation have no effect.",
    )
    train_split: str = option("train", "Split to train on.", group="Hub")
    validation_split: str = option(
        "",
        "Split to validate on; empty means documents held out of the training split.",
        group="Hub",
    )
    validation_path: str = option(
        "",
        "Files to validate on; empty means documents held out of the training files.",
        details="Validation files inside the training folder are not trained on.",
        group="Files",
        path=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _infer(cls, values: Any) -> Any:
        return cls._configured(cls.inferred(values)) if isinstance(values, dict) else values

    @classmethod
    def _configured(cls, values: dict[str, Any]) -> dict[str, Any]:
        fields = cls.model_fields
        source, name, chosen = (
            values.get(field, fields[field].default)
            for field in ("source", "dataset_name", "dataset_config")
        )
        is_read = source == "hub" and name == _OFFERED_DATASET
        return {**values, "dataset_config": _OFFERED_CONFIG} if is_read and not chosen else values

    @property
    def has_leftover_configuration(self) -> bool:
        """True if another dataset has the default dataset's configuration."""
        is_offered = self.dataset_name == _OFFERED_DATASET
        return self.dataset_config == _OFFERED_CONFIG and not is_offered

    def pin_inferred(self, changed: dict[str, Any]) -> dict[str, Any]:
        named = not self.implied.keys().isdisjoint(changed)
        return {"source": self.source, **changed} if named else changed

    @classmethod
    def inferred(
        cls, values: dict[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Infers the source from fields that name text; raises ConfigError."""
        name = values.get("dataset_name")
        if name and name != (before or {}).get("dataset_name"):
            values = {"dataset_config": "", **values}
        named = {source: name for name, source in cls.implied.items() if values.get(name)}
        if "source" in values or not named:
            return values
        if len(named) > 1:
            raise _ambiguous_source({name: values[name] for name in named.values()}, named)
        return {**values, "source": next(iter(named))}


def _ambiguous_source(given: Mapping[str, Any], sources: Iterable[str]) -> ConfigError:
    return ConfigError(
        "The source of the text is ambiguous",
        expected="files, a dataset on the Hub, a cleaned corpus or several sources; or an "
        "explicit source",
        received=" and ".join(
            f"⟬{name}⟭" if name == "sources" else f"⟬{name}={value}⟭"
            for name, value in given.items()
        ),
        fix=f"set ⟬source⟭ to {' or '.join(sources)}, or remove one of them",
        field="source",
    )
