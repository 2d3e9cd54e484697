"""Previews cleaning on a sample: each document before and after, and why it was removed."""

from __future__ import annotations

import itertools
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.config.clean import CleanConfig
from core.corpus.cleaning.blocks import Hashes
from core.corpus.cleaning.duplicates import firsts_of
from core.corpus.cleaning.lines import count_lines, least_documents
from core.corpus.cleaning.parts import TRAIN, Batch
from core.corpus.cleaning.report import Report, Tally, steps_in_use
from core.corpus.cleaning.steps import filter_texts, near_keys, normalize_texts, text_keys
from core.corpus.reading import read_documents
from core.errors import ConfigError
from core.workspace.workspace import Workspace

# More would take more than some seconds.
_MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class CleanedDocument:
    """A document of the sample.

    Attributes:
        after: Empty if the document is removed.
        step, rule, explanation: Why it is removed; empty if it stays.
        changed_by: Steps that change it, in order.
    """

    before: str
    after: str
    step: str
    rule: str
    explanation: str
    changed_by: list[str]


@dataclass(frozen=True)
class CleaningPreview:
    """Result of cleaning a sample.

    Attributes:
        summary: Counts like those of the report.
    """

    documents: list[CleanedDocument]
    summary: dict[str, Any]


def preview_cleaning(
    config: CleanConfig, sample: int = 200, workspace: Workspace | None = None
) -> CleaningPreview:
    """Cleans the first documents of a corpus within seconds, in memory.

    Duplicates and frequent lines are searched within the sample only.

    Args:
        sample: Number of documents; fewer if they have more than 8 MiB.

    Raises:
        ConfigError: An argument has the wrong type, or the sample is empty.
        CorpusError: The corpus can't be read.
    """
    check_arguments(config, sample, workspace)
    documents = read_documents(config.corpus, Workspace.of(workspace))
    return clean_sample(config, list(_up_to(_MOST_BYTES, itertools.islice(documents, sample))))


def clean_sample(config: CleanConfig, texts: list[str]) -> CleaningPreview:
    """Cleans documents in memory, as `preview_cleaning`; raises ConfigError."""
    tally = Tally(most_examples=None)
    batch = Batch(texts, np.arange(len(texts)), np.full(len(texts), TRAIN, np.uint8))
    batch = normalize_texts(batch, config, tally)
    if config.exact_duplicates:
        batch = _without_repeats(batch, text_keys(batch.texts)[None], "exact_duplicates", tally)
    batch = filter_texts(batch, config, _frequent_lines(batch, config), tally)
    if config.near_duplicates:
        batch = _without_repeats(batch, near_keys(batch.texts, config), "near_duplicates", tally)
    return CleaningPreview(_documents(texts, batch, tally), _summary(texts, batch, tally, config))


def check_arguments(config: CleanConfig, sample: int, workspace: Workspace | None) -> None:
    """Raises ConfigError for arguments that a preview can't use."""
    if not isinstance(config, CleanConfig):
        raise _wrong_argument("config", "a CleanConfig", config, "CleanConfig(corpus=...)")
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 1:
        raise _wrong_argument("sample", "a whole number of documents from 1 on", sample, "200")
    if workspace is not None and not isinstance(workspace, Workspace):
        raise _wrong_argument("workspace", "a Workspace or None", workspace, "Workspace('folder')")


def _wrong_argument(name: str, expected: str, received: object, example: str) -> ConfigError:
    return ConfigError(
        f"The preview can't use this {name}",
        expected=expected,
        received=reprlib.repr(received),
        fix=f"set {name} to a valid value, such as {example}",
        field=name,
    )


def _up_to(most_bytes: int, texts: Iterable[str]) -> Iterator[str]:
    """Yields texts up to a total size, at least one."""
    for text in texts:
        yield text
        most_bytes -= len(text.encode())
        if most_bytes <= 0:
            return


def _without_repeats(batch: Batch, keys: Hashes, step: str, tally: Tally) -> Batch:
    firsts = firsts_of(keys, batch.kinds)
    keep = firsts == np.arange(len(batch))
    for place in np.flatnonzero(~keep).tolist():
        number = int(batch.numbers[firsts[place]])
        explanation = f"Repeats document {number + 1:,}"
        tally.remove(
            step, "of the same split", int(batch.numbers[place]), batch.texts[place], explanation
        )
    return batch.take(keep)


def _frequent_lines(batch: Batch, config: CleanConfig) -> Hashes:
    if not config.boilerplate_lines:
        return np.zeros(0, np.uint64)
    hashes, counts = count_lines(batch.texts)
    return hashes[counts >= least_documents(config, len(batch))]


def _documents(texts: list[str], batch: Batch, tally: Tally) -> list[CleanedDocument]:
    after = dict(zip(batch.numbers.tolist(), batch.texts, strict=True))
    removed = {example.document - 1: example for example in tally.examples if example.explanation}
    changes: dict[int, list[str]] = {}
    for example in tally.examples:
        if not example.explanation:
            changes.setdefault(example.document - 1, []).append(example.step)
    return [
        CleanedDocument(
            text, after.get(number, ""), *_reason(removed.get(number)),
            list(dict.fromkeys(changes.get(number, []))),
        )
        for number, text in enumerate(texts)
    ]  # fmt: skip


def _reason(example: Any) -> tuple[str, str, str]:
    return (example.step, example.rule, example.explanation) if example else ("", "", "")


def _summary(texts: list[str], batch: Batch, tally: Tally, config: CleanConfig) -> dict[str, Any]:
    read = {"documents": len(texts), "bytes": sum(len(text.encode()) for text in texts)}
    counts = Counter(documents=len(batch), bytes=sum(len(text.encode()) for text in batch.texts))
    return Report(read, counts, tally, steps_in_use(config)).summary()
