"""Scores how well a tokenizer fits texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.native import native_calls

_TEXTS_AT_ONCE = 256
_SHOWN_TOKENS = 10


def scorecard(tokenizer: StudioTokenizer, texts: Iterable[str]) -> dict[str, Any]:
    """Scores a tokenizer on texts, preferably held-out ones, without special tokens."""
    unknown_id = -1 if tokenizer.unk_id is None else tokenizer.unk_id
    counts = dict.fromkeys(("documents", "characters", "bytes", "words", "tokens", "unknown"), 0)
    for batch in _batches(texts):
        with native_calls():
            encodings = tokenizer.backend.encode_batch_fast(batch, add_special_tokens=False)
        counts["documents"] += len(batch)
        counts["characters"] += sum(map(len, batch))
        counts["bytes"] += sum(len(text.encode("utf-8")) for text in batch)
        counts["words"] += sum(len(text.split()) for text in batch)
        counts["tokens"] += sum(map(len, encodings))
        counts["unknown"] += sum(encoding.ids.count(unknown_id) for encoding in encodings)
    unknown = counts.pop("unknown")
    tokens = max(1, counts["tokens"])
    return {
        **counts,
        "tokens_per_word": counts["tokens"] / max(1, counts["words"]),
        "tokens_per_byte": counts["tokens"] / max(1, counts["bytes"]),
        "bytes_per_token": counts["bytes"] / tokens,
        "unknown_share": unknown / tokens,
        **_extremes(tokenizer),
    }


def pieces(tokenizer: StudioTokenizer, text: str) -> list[tuple[str, int]]:
    """Returns readable tokens and ids, without special ones."""
    ids = tokenizer.encode(text, special=False).tolist()
    return [(tokenizer.readable(number), number) for number in ids]


def _extremes(tokenizer: StudioTokenizer) -> dict[str, list[str]]:
    special = set(tokenizer.special_ids.tolist())
    numbers = [number for number in range(tokenizer.vocab_size) if number not in special]
    texts = [text for number in numbers if (text := tokenizer.readable(number))]
    texts.sort(key=len)  # stable: frequent tokens come first
    longest = sorted(texts, key=len, reverse=True)
    return {
        "longest_tokens": longest[:_SHOWN_TOKENS],
        "shortest_tokens": texts[:_SHOWN_TOKENS],
    }


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(texts)
    while batch := list(islice(iterator, _TEXTS_AT_ONCE)):
        yield batch
