"""Translates errors about a corpus's options into this stage's options."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.config.advice import translate_error
from core.config.finetune import FinetuneConfig
from core.errors import ConfigError, CorpusError

_SUFFIXES = (
    "choose other files, or rename them so that their suffixes name their format: .csv, .tsv, "
    ".jsonl, .json or .parquet; tagged words in columns can have any other suffix"
)
_SHORTER = "shorten the longest row, or leave it out"
# Advice in place of setting an option that fine-tuning lacks.
_ADVICE = {
    "delimiter": "separate the cells of .csv files by commas and those of .tsv files by tabs, and "
    "quote cells of .csv files that contain commas",
    "encoding_errors": "set ⟬encoding⟭ to that of the file, or correct these bytes",
    "file_format": _SUFFIXES,
    "max_document_mb": _SHORTER,
    "max_unpack_ratio": "unpack the file first if it is the right one",
    "skip_unreadable": "give this account read access, or choose other files with a pattern",
    "source": "check that this machine is online, or download the files and set ⟬train_path⟭",
    "text_unit": _SHORTER,
}


@contextmanager
def naming_options(field: str, split_field: str = "train_split") -> Iterator[None]:
    """Names this stage's options in errors about a corpus's options.

    Args:
        field: Config field of the files or of the dataset.
        split_field: Config field of the split.
    """
    try:
        yield
    except (ConfigError, CorpusError) as error:
        raise translate_error(
            error,
            options=FinetuneConfig.model_fields,
            advice=_ADVICE,
            renamed={"path": field, "train_split": split_field},
            place=field,
        ) from error
