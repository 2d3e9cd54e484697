"""Scores minimal pairs: whether a model prefers the acceptable sentence.

Source: https://arxiv.org/abs/1912.00582
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import ConfigError
from core.evaluation.baselines import baselines_for
from core.evaluation.pairs import Pair
from core.evaluation.statistics import Tally, mean_accuracy
from core.inference.likelihood import TokenScorer
from core.records.events import Reporter

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class ScoredPair:
    """A pair with its sentences' summed log-probabilities, in nats."""

    pair: Pair
    good: float
    bad: float

    @property
    def difference(self) -> float:
        return self.good - self.bad

    def to_json(self) -> dict[str, Any]:
        pair = self.pair
        return {
            "paradigm": pair.paradigm,
            "phenomenon": pair.phenomenon,
            "good": self.good,
            "bad": self.bad,
            "difference": self.difference,
            "sentence_good": pair.good,
            "sentence_bad": pair.bad,
        }


def score_pairs(
    scorer: TokenScorer, pairs: Sequence[Pair], reporter: Reporter | None = None
) -> list[ScoredPair]:
    """Scores both sentences of each pair; equal sentences are scored once.

    Raises:
        ConfigError: A sentence is too long, has a special token, or no token.
    """
    reporter = reporter or Reporter()
    places = {text: pair.place for pair in pairs for text in (pair.good, pair.bad)}
    sentences = list(places)
    encoded = scorer.encode(sentences)
    for sentence, ids in zip(sentences, encoded, strict=True):
        _check(scorer, ids, places[sentence])
    sequences = [scorer.frame(ids) for ids in encoded]
    total = sum(len(sequence.scored) for sequence in sequences)

    def report(done: int) -> None:
        reporter.raise_if_stopped()
        reporter.progress(done, total, "tokens", "scoring")

    log_probabilities = scorer.log_probabilities(sequences, report)
    scores = {
        sentence: math.fsum(values.tolist())
        for sentence, values in zip(sentences, log_probabilities, strict=True)
    }
    _warn_of_unknown(scorer, encoded, reporter)
    return [ScoredPair(pair, scores[pair.good], scores[pair.bad]) for pair in pairs]


def summarize_pairs(scored: Sequence[ScoredPair]) -> dict[str, Any]:
    """Computes accuracies by paradigm and phenomenon, with 95 % intervals."""
    overall = Tally()
    paradigms: Mapping[str, Tally] = defaultdict(Tally)
    phenomena: Mapping[str, Tally] = defaultdict(Tally)
    for scored_pair in scored:
        pair = scored_pair.pair
        for tally in (overall, paradigms[pair.paradigm], *_named(phenomena, pair)):
            tally.add(scored_pair.difference)
    phenomenon_of = {
        scored_pair.pair.paradigm: scored_pair.pair.phenomenon for scored_pair in scored
    }
    return {
        **overall.to_json(),
        "mean_over_paradigms": mean_accuracy(paradigms.values()),
        **({"mean_over_phenomena": mean_accuracy(phenomena.values())} if phenomena else {}),
        "by_paradigm": {
            name: {**tally.to_json(), "phenomenon": phenomenon_of[name]}
            for name, tally in sorted(paradigms.items())
        },
        "by_phenomenon": {name: tally.to_json() for name, tally in sorted(phenomena.items())},
        "baselines": baselines_for(phenomena),
    }


def _named(phenomena: Mapping[str, Tally], pair: Pair) -> Iterator[Tally]:
    if pair.phenomenon:
        yield phenomena[pair.phenomenon]


def _check(scorer: TokenScorer, ids: Ids, place: str) -> None:
    if not len(ids):
        raise ConfigError(
            f"{place} has a sentence without tokens",
            expected="a sentence of which the tokenizer keeps something",
            fix="correct or remove the pair",
            field="path",
        )
    if len(ids) > scorer.longest:
        raise ConfigError(
            f"{place} has a sentence that is too long for this model",
            expected=f"at most {scorer.longest} tokens",
            received=f"{len(ids)} tokens",
            fix="shorten or remove the pair, or evaluate a model with more positions",
            field="path",
        )
    special = ids[np.isin(ids, scorer.unscored_ids)]
    if len(special):
        raise ConfigError(
            f"{place} has a special token of the model in a sentence",
            expected="plain text",
            received=scorer.tokenizer.readable(int(special[0])),
            fix="correct or remove the pair",
            field="path",
        )


def _warn_of_unknown(scorer: TokenScorer, encoded: Sequence[Ids], reporter: Reporter) -> None:
    unknown = scorer.tokenizer.unk_id
    count = sum(int(unknown in ids) for ids in encoded) if unknown is not None else 0
    if count:
        reporter.warn(
            f"{count:,} of {len(encoded):,} sentences have characters that the tokenizer doesn't "
            "know: their scores include the unknown token's"
        )
