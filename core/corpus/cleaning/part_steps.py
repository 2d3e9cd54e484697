"""The steps of cleaning on one part, in the process of a worker."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson

from core.config.clean import CleanConfig
from core.corpus.cleaning.blocks import Hashes
from core.corpus.cleaning.lines import count_lines
from core.corpus.cleaning.part_task import (
    FILTERED,
    LINES,
    NORMALIZED,
    SPLIT_FOLDERS,
    SPOOLED,
    PartResult,
    PartTask,
)
from core.corpus.cleaning.parts import Batch, write_batch
from core.corpus.cleaning.report import Tally
from core.corpus.cleaning.steps import filter_texts, near_keys, normalize_texts, text_keys
from core.workspace.atomic import writing_whole_file
from core.workspace.places import make_folder

# Higher levels take twice the time for a few percent.
_GZIP_LEVEL, _GZIP_WINDOW = 4, 31


def normalize_part(config: CleanConfig, task: PartTask) -> PartResult:
    """Normalises a part and hashes its documents."""
    tally = Tally()
    batch = normalize_texts(task.read(SPOOLED, "", tally), config, tally)
    write_batch(task.texts(NORMALIZED), batch)
    task.write_keys(NORMALIZED, text_keys(batch.texts)[None])
    return _result(batch, tally)


def count_lines_of_part(task: PartTask) -> PartResult:
    """Counts the documents with each line of a part."""
    batch = task.read(NORMALIZED, "", Tally())
    texts = [] if batch.is_reference else batch.texts
    hashes, counts = count_lines(texts)
    task.write_keys(LINES, np.stack([hashes, counts.astype(np.uint64)]))
    totals = Counter({"documents": len(texts), "lines": len(hashes)})
    return PartResult(batch.numbers[:0], batch.kinds[:0], Tally(), totals)


def filter_part(config: CleanConfig, frequent: Hashes, task: PartTask) -> PartResult:
    """Filters a part and hashes its documents for near duplicates."""
    tally = Tally()
    batch = task.read(NORMALIZED, "exact_duplicates", tally)
    batch = filter_texts(batch, config, frequent, tally)
    write_batch(task.texts(FILTERED), batch)
    if config.near_duplicates:
        task.write_keys(FILTERED, near_keys(batch.texts, config))
    return _result(batch, tally)


def write_part(task: PartTask) -> PartResult:
    """Writes a part's documents as compressed JSON lines."""
    tally = Tally()
    batch = task.read(FILTERED, "near_duplicates", tally)
    counts: Counter[str] = Counter()
    for split, kind in SPLIT_FOLDERS.items():
        texts = [batch.texts[place] for place in np.flatnonzero(batch.kinds == kind).tolist()]
        if texts:
            make_folder(task.output(split).parent)
            _write_lines(task.output(split), texts)
            counts[f"{split}_documents"] = len(texts)
            counts[f"{split}_bytes"] = sum(len(text.encode()) for text in texts)
    return PartResult(batch.numbers, batch.kinds, tally, counts)


def _result(batch: Batch, tally: Tally) -> PartResult:
    size = sum(len(text.encode()) for text in batch.texts)
    return PartResult(batch.numbers, batch.kinds, tally, Counter({"bytes": size}))


def _write_lines(path: Path, texts: Sequence[str]) -> None:
    lines = b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts)
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    with writing_whole_file(path) as draft:
        draft.write_bytes(packer.compress(lines) + packer.flush())
