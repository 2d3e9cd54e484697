"""Previews labelled data; files are read in a subprocess (this module)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from core.config.finetune import FinetuneConfig
from core.corpus.isolation import answer_parent, ask_child, raise_error
from core.corpus.table_preview import TablePreview, add_row, count_all
from core.finetuning.conll import read_sentences
from core.finetuning.examples import NO_TAG, Example, Sentence
from core.finetuning.file_kinds import holds_tables
from core.finetuning.glue import with_glue
from core.finetuning.tables import Record, TableReader, file_records, hub_records

_MODULE = "core.finetuning.previewing"


def preview_examples_apart(config: FinetuneConfig, split: str) -> TablePreview:
    """Previews a split's file in a subprocess, or its dataset here.

    Args:
        split: train, validation or test.

    Raises:
        ConfigError, CorpusError, HubError: The data are missing or unreadable.
    """
    config = with_glue(config)
    if not getattr(config, f"{split}_path"):
        return preview_examples(config, split)
    question = {"config": config.model_dump(mode="json"), "split": split}
    answer = ask_child(_MODULE, question)
    raise_error(answer)
    return TablePreview(**answer["preview"])


def preview_examples(config: FinetuneConfig, split: str) -> TablePreview:
    """Previews a split; see `preview_examples_apart`."""
    seen = TablePreview()
    tagging = config.task == "token_classification"
    if config.task != "regression":
        seen.grouped_by = "tag" if tagging else "class"
    count_all(
        seen, _read(config, split, seen), _text_of, _labels_of if seen.grouped_by else _no_labels
    )
    return seen


def _read(config: FinetuneConfig, split: str, seen: TablePreview) -> Iterator[Example | Sentence]:
    field = f"{split}_path"
    path = getattr(config, field)
    if path and config.task == "token_classification" and not holds_tables(path, field):
        for sentence in read_sentences(config, path, field):
            add_row(seen, {"words": list(sentence.words), "tags": list(sentence.tags)})
            yield sentence
        return
    records = (
        file_records(config, path, field)
        if path
        else hub_records(config, getattr(config, f"{split}_split"), f"{split}_split")
    )
    yield from TableReader(config, _noting(records, seen)).examples(iter)


def _noting(records: Iterator[Record], seen: TablePreview) -> Iterator[Record]:
    for record in records:
        add_row(seen, record.values)
        yield record


def _text_of(example: Example | Sentence) -> str:
    return " ".join(example.texts if isinstance(example, Example) else example.words)


def _labels_of(example: Example | Sentence) -> list[str]:
    if isinstance(example, Example):
        return [example.label]
    return [tag for tag in example.tags if tag != NO_TAG]


def _no_labels(_: Example | Sentence) -> list[str]:
    return []


def _answer(question: dict[str, Any]) -> TablePreview:
    return preview_examples(FinetuneConfig.parse(question["config"]), question["split"])


if __name__ == "__main__":
    answer_parent(_answer)
