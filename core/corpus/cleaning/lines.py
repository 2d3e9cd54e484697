"""Removes lines: those that occur in many documents, and those that C4 doesn't keep."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from core.config.clean import CleanConfig
from core.corpus.cleaning.blocks import Block, Flags, Hashes, block_ranges
from core.corpus.cleaning.rules import find_all, lowered

# Source: C4, https://github.com/tensorflow/datasets/blob/master/tensorflow_datasets/text/c4_utils.py
_C4_PHRASES = (
    "javascript",
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
_NO_LINES = np.zeros(0, np.uint64)
_BUCKET_LINES = 1 << 24
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")


def count_lines(texts: Sequence[str]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Returns hashes of lines, ascending, and the number of documents with each."""
    lines_by_block = [_distinct_lines(Block(texts[chosen])) for chosen in block_ranges(texts)]
    return np.unique(np.concatenate([_NO_LINES, *lines_by_block]), return_counts=True)


def _distinct_lines(block: Block) -> Hashes:
    """Returns each line's hash once per document."""
    hashes = block.hasher(block.lines.starts, block.lines.stops)
    order = np.lexsort((hashes, block.lines.owners))
    hashes, owners = hashes[order], block.lines.owners[order]
    is_new = np.ones(len(hashes), bool)
    is_new[1:] = (np.diff(owners) > 0) | (hashes[1:] != hashes[:-1])
    return hashes[is_new]


def least_documents(config: CleanConfig, documents: int) -> float:
    """Returns the fewest documents with a boilerplate line."""
    return max(config.boilerplate_min_documents, documents * config.boilerplate_min_percent / 100)


def frequent_lines(paths: Sequence[Path], lines: int, least: float) -> Hashes:
    """Returns the hashes of lines in at least so many documents, ascending.

    Args:
        paths: Hashes of each part in ascending order, and counts, uint64 (2, lines).
        lines: Number of lines in all parts.
    """
    bits = max(0, (lines // _BUCKET_LINES).bit_length())
    frequent = [_NO_LINES]
    for bucket in range(1 << bits):
        parts = [_in_bucket(path, bucket, bits) for path in paths]
        hashes, counts = np.concatenate([np.zeros((2, 0), np.uint64), *parts], axis=1)
        distinct, places = np.unique(hashes, return_inverse=True)
        frequent.append(distinct[np.bincount(places, counts) >= least])
    return np.concatenate(frequent)


def _in_bucket(path: Path, bucket: int, bits: int) -> Hashes:
    """Reads the lines whose hashes begin with these bits."""
    lines = np.load(path, mmap_mode="r", allow_pickle=False)
    bounds = [min(place << (64 - bits), (1 << 64) - 1) for place in (bucket, bucket + 1)]
    start, stop = np.searchsorted(lines[0], np.array(bounds, np.uint64))
    is_last = bucket + 1 == 1 << bits
    return np.array(lines[:, start : None if is_last else stop])


def repeated_lines(block: Block, frequent: Hashes) -> Flags:
    """Marks lines among the frequent ones, (lines,)."""
    if not len(frequent):
        return np.zeros(len(block.lines.starts), bool)
    hashes = block.hasher(block.lines.starts, block.lines.stops)
    places = np.minimum(np.searchsorted(frequent, hashes), len(frequent) - 1)
    return frequent[places] == hashes


def c4_lines(block: Block, config: CleanConfig) -> Flags:
    """Marks lines that C4 doesn't keep, (lines,)."""
    drops = np.zeros(len(block.lines.starts), bool)
    if config.c4_end_punctuation:
        drops |= ~block.ends_in_punctuation | block.ends_in_ellipsis
    if config.c4_min_line_words is not None:
        drops |= block.line_word_counts < config.c4_min_line_words
    if config.c4_max_word_length is not None:
        long_words = block.words.starts[block.words.lengths > config.c4_max_word_length]
        drops[np.searchsorted(block.lines.starts, long_words, side="right") - 1] = True
    text = lowered(block.text)
    for phrase in _C4_PHRASES:
        drops[np.searchsorted(block.lines.starts, find_all(text, phrase), side="right") - 1] = True
    return drops


def remove_citations(text: str) -> str:
    """Removes marks such as [1] and [edit]."""
    return _CITATION.sub("", text) if "[" in text else text


def without_lines(block: Block, drops: Flags, *, keeps_blank: bool) -> dict[int, tuple[str, int]]:
    """Returns the texts that lose lines, by document, and the number of lines lost.

    Args:
        drops: Lines to remove, (lines,).
        keeps_blank: Whether blank lines stay.
    """
    lost = block.count(block.lines.owners[drops])
    return {
        number: (_text_without(block, number, drops, keeps_blank), int(lost[number]))
        for number in np.flatnonzero(lost).tolist()
    }


def _text_without(block: Block, number: int, drops: Flags, keeps_blank: bool) -> str:
    first, last = np.searchsorted(block.lines.owners, [number, number + 1])
    chosen = ~drops[first:last]
    if not keeps_blank:
        starts, stops = block.lines.starts[first:last], block.lines.stops[first:last]
        pairs = zip(starts[chosen].tolist(), stops[chosen].tolist(), strict=True)
        return "\n".join([block.text[start:stop] for start, stop in pairs])
    stays = iter(chosen.tolist())
    lines = block.texts[number].split("\n")
    return "\n".join([line for line in lines if not line.strip() or next(stays)]).strip("\n")
