"""Translates errors about a corpus's options into those of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.config.advice import translate_error
from core.config.evaluate import EvaluateConfig, options_read
from core.errors import ConfigError, CorpusError

_SHORTER = "shorten the longest line, or leave it out"
# Advice in place of setting an option that evaluations lack.
_ADVICE = {
    "file_format": "choose JSON lines, in files that end in .jsonl",
    "max_document_mb": _SHORTER,
    "max_unpack_ratio": "unpack the file first if it is the right one",
    "skip_failing_parts": "choose another dataset, or report it to the dataset's owner",
    "skip_unreadable": "give this account read access, or choose other files with a pattern",
    "source": "check that this machine is online, choose another dataset, or download its files "
    "and set ⟬path⟭ to a file or a folder",
    "text_unit": _SHORTER,
}
_SHORTER_TEXT = "set ⟬text_unit⟭ to line if a file is one document, or shorten the longest document"


@contextmanager
def naming_options(config: EvaluateConfig) -> Iterator[None]:
    """Names the options of an evaluation in errors about a corpus's options."""
    place = "path" if config.path else "dataset_name"
    of_text = {"max_document_mb": _SHORTER_TEXT} if config.task == "text" else {}
    try:
        yield
    except (ConfigError, CorpusError) as error:
        raise translate_error(
            error,
            options=options_read(config.task, has_path=bool(config.path)),
            advice={**_ADVICE, **of_text},
            renamed={"train_split": "split"},
            place=place,
        ) from error
