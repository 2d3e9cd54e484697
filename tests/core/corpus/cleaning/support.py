"""Documents and helpers of the tests of cleaning."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.corpus.cleaning.parts import TRAIN, Batch
from core.corpus.cleaning.report import Tally
from core.corpus.cleaning.steps import filter_texts
from core.workspace.manifests import Artifact
from tests.texts import sentences


def pages(count: int, seed: int = 0, lines: int = 12) -> list[str]:
    """Returns documents that pass the published rules: lines of several sentences."""
    found = sentences(count * lines * 3, seed)
    rows = [" ".join(found[place : place + 3]) for place in range(0, len(found), 3)]
    return ["\n".join(rows[place : place + lines]) for place in range(0, len(rows), lines)]


def write_documents(path: Path, texts: Iterable[str]) -> Path:
    """Writes documents as JSON lines."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return path


def clean_config(path: Path, **values: object) -> CleanConfig:
    """Returns a config of a JSON lines file, cleaned in this process."""
    corpus = {"source": "files", "path": str(path)}
    return CleanConfig.parse({"corpus": corpus, "workers": 1, "name": "C", **values})


def plain_config(**values: object) -> CleanConfig:
    return CleanConfig.parse({"corpus": CorpusConfig().model_dump(), **values})


def batch_of(texts: Sequence[str]) -> Batch:
    return Batch(texts, np.arange(len(texts)), np.full(len(texts), TRAIN, np.uint8))


def filtered(texts: Sequence[str], **values: object) -> tuple[list[str], Tally]:
    """Applies the steps between the searches for duplicates."""
    tally = Tally(most_examples=None)
    none = np.zeros(0, np.uint64)
    return list(filter_texts(batch_of(texts), plain_config(**values), none, tally).texts), tally


def removed_by(tally: Tally) -> dict[int, str]:
    """Returns the rule that removed each document, by number from 0."""
    return {one.document - 1: one.rule for one in tally.examples if one.explanation}


def documents_of(corpus: Artifact, split: str) -> list[str]:
    """Reads the documents of a cleaned corpus without the studio's reader."""
    files = sorted((corpus.path / split).glob("*.jsonl.gz"))
    lines = [line for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    return [json.loads(line)["text"] for line in lines]


def all_documents(corpus: Artifact) -> list[str]:
    return [*documents_of(corpus, "train"), *documents_of(corpus, "validation")]
