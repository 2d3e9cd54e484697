"""Evaluates a model on held-out text: loss, perplexity and bits per byte."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.config.evaluate import EvaluateConfig
from core.corpus.report import count_skipped, describe_skipped
from core.errors import ConfigError
from core.evaluation.documents import no_text_error, read_documents
from core.evaluation.names import short_names
from core.inference.likelihood import TokenScorer, TokenSequence
from core.records.events import Reporter

Ids = NDArray[np.int32]

# Longer windows gain little, and an encoder reads one per token.
_MOST_CONTEXT = 512
_TOKENS_AT_ONCE = 1 << 14
_LARGEST_EXPONENT = 700.0


@dataclass
class TextTally:
    """Sums over documents.

    Attributes:
        nats: Negative log-likelihood of the scored tokens.
        unscored: Special tokens written in the text.
    """

    documents: int = 0
    bytes: int = 0
    tokens: int = 0
    nats: float = 0.0
    unknown: int = 0
    unscored: int = 0

    def add(self, other: TextTally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def to_json(self) -> dict[str, Any]:
        loss = self.nats / self.tokens if self.tokens else math.nan
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, _LARGEST_EXPONENT)),
            "bits_per_byte": self.nats / math.log(2) / self.bytes,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "documents": self.documents,
            "unknown_tokens": self.unknown,
        }


def evaluate_text(
    config: EvaluateConfig,
    scorer: TokenScorer,
    reporter: Reporter | None = None,
    documents: Iterable[tuple[str, Iterable[str]]] | None = None,
) -> dict[str, Any]:
    """Computes loss, perplexity and bits per byte, in all and by source.

    Args:
        documents: Names and documents of sources; None: those that the config names.

    Raises:
        ConfigError, CorpusError, HubError: The text is missing or unreadable.
    """
    reporter = reporter or Reporter()
    context = _context(config, scorer)
    total, by_source = TextTally(), {}
    rows: Counter[str] = Counter()
    for name, texts in (
        read_documents(config, rows, reporter.warn) if documents is None else documents
    ):
        tally = _evaluate_documents(iter(texts), scorer, context, reporter, total)
        if tally.tokens:
            by_source[name] = tally.to_json()
            total.add(tally)
    if not total.tokens:
        raise no_text_error(config)
    _warn(total, reporter)
    # Files are named as on another machine, where they lie in another folder.
    names = short_names(list(by_source)) if config.path else {}
    named = {names.get(name, name): figures for name, figures in by_source.items()}
    figures = {**total.to_json(), "context_tokens": context, "by_source": named}
    if not rows:
        return figures
    without_text = sum(rows.values()) - rows["rows"]
    read = count_skipped(rows["rows"] - without_text, without_text, rows)
    reporter.note(describe_skipped(read), reading=True)
    return {**figures, "rows": read}


def windows(
    scorer: TokenScorer, ids: Ids, context: int, *, looks_ahead: bool
) -> Iterator[TokenSequence]:
    """Splits a long document into overlapping windows that score each token once.

    A window of `context` tokens scores half of them: a decoder its second half, other models its
    middle. The windows at both ends also score the rest there.

    Source: https://huggingface.co/docs/transformers/perplexity
    """
    stride = max(1, context // 2)
    margin = stride // 2 if looks_ahead else 0
    done = 0
    for start in range(0, max(1, len(ids) - context + stride), stride):
        piece = ids[start : start + context]
        is_last = start + context >= len(ids)
        stop = len(piece) if is_last else len(piece) - margin
        yield scorer.frame(piece, done - start, stop)
        done = start + stop


def _context(config: EvaluateConfig, scorer: TokenScorer) -> int:
    if config.context_tokens is None:
        return min(scorer.longest, _MOST_CONTEXT)
    if config.context_tokens > scorer.longest:
        raise ConfigError(
            "The context is longer than the model's",
            expected=f"at most {scorer.longest} tokens",
            received=str(config.context_tokens),
            fix="set ⟬context_tokens⟭ to a lower value, or leave it empty",
            field="context_tokens",
        )
    return config.context_tokens


def _evaluate_documents(
    documents: Iterator[str],
    scorer: TokenScorer,
    context: int,
    reporter: Reporter,
    before: TextTally,
) -> TextTally:
    tally = TextTally()
    while texts := _take(documents):
        encoded = scorer.encode(texts)
        looks_ahead = scorer.architecture.kind != "decoder"
        sequences = [
            window
            for ids in encoded
            for window in windows(scorer, ids, context, looks_ahead=looks_ahead)
        ]

        def report(done: int, base: int = before.tokens + tally.tokens) -> None:
            reporter.raise_if_stopped()
            reporter.progress(base + done, None, "tokens", "scoring")

        log_probabilities = scorer.log_probabilities(sequences, report)
        tally.documents += len(texts)
        tally.bytes += sum(len(text.encode("utf-8", "replace")) for text in texts)
        tally.tokens += sum(map(len, log_probabilities))
        tally.nats -= math.fsum(float(values.sum(dtype=np.float64)) for values in log_probabilities)
        tally.unknown += _count(encoded, [scorer.tokenizer.unk_id])
        tally.unscored += _count(encoded, scorer.unscored_ids.tolist())
    return tally


def _take(documents: Iterator[str]) -> list[str]:
    """Takes the next documents, of some ten thousand tokens."""
    texts, size = [], 0
    for text in documents:
        texts.append(text)
        size += len(text)
        if size >= _TOKENS_AT_ONCE * 4:
            break
    return texts


def _count(encoded: list[Ids], wanted: list[int | None]) -> int:
    return sum(
        int(np.isin(ids, [wanted_id for wanted_id in wanted if wanted_id is not None]).sum())
        for ids in encoded
    )


def _warn(total: TextTally, reporter: Reporter) -> None:
    if total.unknown:
        reporter.warn(
            f"{total.unknown:,} of {total.tokens:,} tokens are unknown to the tokenizer: the loss "
            "and the bits per byte are too low to compare with other models"
        )
    if total.unscored:
        reporter.warn(f"{total.unscored:,} special tokens written in the text are not scored")
