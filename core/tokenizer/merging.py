"""Learns merges of frequent pairs of symbols from counted words.

The trainer of `tokenizers` takes texts, so that counted words must be repeated; here they aren't,
and the merges are the same.

Source: Sennrich et al. (2016), https://arxiv.org/abs/1508.07909, algorithm 1; order of pairs:
https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/models/bpe/trainer.rs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from core.records.events import Reporter

Ids = npt.NDArray[np.int32]
Keys = npt.NDArray[np.int64]
Places = npt.NDArray[np.int64]
Candidate = tuple[int, int, int, Ids]  # negative count, key, order of arrival, words

# Token ids are smaller than 2**24.
_ID_BITS = 24
_ID_MASK = (1 << _ID_BITS) - 1
# Rarer pairs wait until more frequent ones are merged; most of them are never needed.
_FIRST_FLOOR_DIVISOR = 8
_FLOOR_DIVISOR = 4
_MERGES_BETWEEN_STEPS = 500


@dataclass(frozen=True)
class Merges:
    """Result of the training.

    Attributes:
        tokens: By id; the initial ones first.
        pairs: By rank.
    """

    tokens: list[str]
    pairs: list[tuple[str, str]]


def learn_merges(
    words: Mapping[str, int],
    tokens: Sequence[str],
    vocab_size: int,
    min_frequency: int,
    *,
    prefix: str = "",
    on_step: Callable[[int], None] = lambda tokens: None,
) -> Merges:
    """Merges the most frequent pair of symbols again and again; lower ids break ties.

    Args:
        tokens: Initial ones by id, with all characters and all prefixed inner characters.
        prefix: Marks tokens that don't begin a word.
        on_step: Called with the number of tokens, often; may raise.
    """
    learner = _Learner(_Words.of(words, tokens, prefix), list(tokens), prefix, min_frequency)
    learner.run(vocab_size, on_step)
    return learner.merges()


def merge_reporter(vocab_size: int, reporter: Reporter) -> Callable[[int], None]:
    """Returns an `on_step` that reports progress, and raises RunStopped on a request."""

    def report(tokens: int) -> None:
        reporter.raise_if_stopped()
        reporter.progress(tokens, vocab_size, "tokens", "merging")

    return report


@dataclass(frozen=True)
class _Words:
    """Words as sequences of token ids, which become shorter in place.

    Attributes:
        symbols: Concatenated, (characters,).
        starts, lengths, counts: (words,).
    """

    symbols: Ids
    starts: Places
    lengths: Places
    counts: Keys

    @classmethod
    def of(cls, words: Mapping[str, int], tokens: Sequence[str], prefix: str) -> _Words:
        longer = [word for word in words if len(word) > 1]
        lengths = np.array([len(word) for word in longer], np.int64)
        starts = np.cumsum(lengths) - lengths
        codes = np.frombuffer("".join(longer).encode("utf-32-le"), np.uint32)
        characters, places = np.unique(codes, return_inverse=True)
        ids = {token: number for number, token in enumerate(tokens)}
        texts = [chr(code) for code in characters]
        # Some characters occur only at the beginning of words.
        inner = np.array([ids.get(prefix + text, -1) for text in texts], np.int32)
        first = np.array([ids[text] for text in texts], np.int32)
        symbols = inner[places]
        symbols[starts] = first[places[starts]]
        return cls(
            symbols=symbols,
            starts=starts,
            lengths=lengths,
            counts=np.array([words[word] for word in longer], np.int64),
        )

    def places_of(self, where: Places | Ids) -> tuple[Places, Places]:
        """Lists places of words' symbols, and the number of each one's word in `where`."""
        lengths = self.lengths[where]
        firsts = np.cumsum(lengths) - lengths
        owners = np.repeat(np.arange(len(where)), lengths)
        places = (self.starts[where] - firsts)[owners] + np.arange(len(owners))
        return places, owners

    def pairs_of(self, where: Places | Ids) -> tuple[Keys, Ids]:
        """Lists the keys of words' pairs, and the word of each."""
        places, owners = self.places_of(where)
        symbols = self.symbols[places]
        inside = owners[:-1] == owners[1:]
        keys = _keys(symbols[:-1][inside], symbols[1:][inside])
        return keys, where[owners[:-1][inside]].astype(np.int32)

    def with_symbol(self, symbol: int) -> Places:
        """Lists words that have, or had, a symbol."""
        places = np.flatnonzero(self.symbols == symbol)
        return np.unique(np.searchsorted(self.starts, places, "right") - 1)


class _Learner:
    """Mutable state of one training."""

    def __init__(self, words: _Words, tokens: list[str], prefix: str, min_frequency: int) -> None:
        self._words = words
        self._tokens = tokens
        self._ids = {token: number for number, token in enumerate(tokens)}
        self._prefix = prefix
        self._least = max(1, min_frequency)
        self._floor = self._least
        # Counts of pairs at or above the floor; a merged pair keeps its own.
        self._counts: dict[int, int] = {}
        self._candidates: list[Candidate] = []
        self._arrivals = 0
        self._ranks: dict[int, None] = {}

    def run(self, vocab_size: int, on_step: Callable[[int], None]) -> None:
        pairs = int((self._words.counts * (self._words.lengths - 1)).sum())
        self._floor = max(self._least, pairs // (vocab_size * _FIRST_FLOOR_DIVISOR))
        self._find_candidates()
        steps = 0
        while len(self._tokens) < vocab_size:
            if not self._candidates and not self._lower_floor():
                return
            self._take_best()
            steps += 1
            if steps % _MERGES_BETWEEN_STEPS == 0:
                on_step(len(self._tokens))

    def merges(self) -> Merges:
        pairs = [
            (self._tokens[key >> _ID_BITS], self._tokens[key & _ID_MASK]) for key in self._ranks
        ]
        return Merges(self._tokens, pairs)

    def _lower_floor(self) -> bool:
        """Returns whether there are candidates again."""
        while not self._candidates and self._floor > self._least:
            self._floor = max(self._least, self._floor // _FLOOR_DIVISOR)
            self._find_candidates()
        return bool(self._candidates)

    def _find_candidates(self) -> None:
        keys, words = self._words.pairs_of(np.flatnonzero(self._words.lengths > 1))
        for key, count, where in _grouped(keys, self._words.counts[words], words, self._floor):
            if key not in self._counts:
                self._counts[key] = count
                self._candidates.append(self._candidate(key, where))
        heapify(self._candidates)

    def _candidate(self, key: int, where: Ids) -> Candidate:
        self._arrivals += 1
        return -self._counts[key], key, self._arrivals, where

    def _take_best(self) -> None:
        negative, key, _, where = heappop(self._candidates)
        count = self._counts.get(key, 0)
        if count < self._floor:
            self._counts.pop(key, None)
        elif count != -negative:
            heappush(self._candidates, self._candidate(key, where))
        else:
            self._merge(key, where)

    def _merge(self, key: int, where: Ids) -> None:
        left, right = key >> _ID_BITS, key & _ID_MASK
        text = self._tokens[left] + self._tokens[right].removeprefix(self._prefix)
        merged = self._ids.get(text, len(self._tokens))
        is_new = merged == len(self._tokens)
        if is_new:
            self._tokens.append(text)
            self._ids[text] = merged
        self._ranks.pop(key, None)  # a repeated merge has its last rank
        self._ranks[key] = None
        changes = _replace(self._words, np.unique(where), (left, right), merged)
        if not changes:
            return
        counted = set() if is_new else self._add_waiting(merged, changes.added)
        self._apply(changes, counted)

    def _apply(self, changes: _Changes, counted: set[int]) -> None:
        known, removed = self._counts, dict(_summed(changes.removed, changes.counts))
        for key, count, where in _grouped(changes.added, changes.counts, changes.words, 1):
            # Some pairs that a merge adds, the next merge in the word removes.
            total = known.get(key, 0) + count - removed.pop(key, 0)
            if key in counted or (total < self._floor and key not in known):
                continue
            known[key] = total
            if total >= self._floor:
                heappush(self._candidates, self._candidate(key, where))
        for key, count in removed.items():
            if key in known:
                known[key] -= count

    def _add_waiting(self, token: int, added: Keys) -> set[int]:
        """Adds pairs of an old token that were too rare before, and returns them."""
        keys, words = self._words.pairs_of(self._words.with_symbol(token))
        concerned = np.isin(keys, added)
        keys, words = keys[concerned], words[concerned]
        pairs = set()
        for key, count, where in _grouped(keys, self._words.counts[words], words, self._floor):
            if key not in self._counts:
                pairs.add(key)
                self._counts[key] = count
                heappush(self._candidates, self._candidate(key, where))
        return pairs


@dataclass(frozen=True)
class _Changes:
    """Pairs that a merge removed and added, once per occurrence."""

    removed: Keys
    added: Keys
    counts: Keys
    words: Ids


def _replace(words: _Words, where: Ids, pair: tuple[int, int], merged: int) -> _Changes | None:
    """Merges a pair in words, from the left."""
    places, owners = words.places_of(where)
    symbols = words.symbols[places]
    occurrences = _occurrences(symbols, owners, pair)
    if not len(occurrences):
        return None
    changes = _changes(words, where, symbols, owners, occurrences, pair, merged)
    symbols[occurrences] = merged
    stays = np.ones(len(symbols), np.bool_)
    stays[occurrences + 1] = False
    words.lengths[where] -= np.bincount(owners[occurrences], minlength=len(where))
    shorter, _ = words.places_of(where)
    words.symbols[shorter] = symbols[stays]
    return changes


def _occurrences(symbols: Ids, owners: Places, pair: tuple[int, int]) -> Places:
    left, right = pair
    occurrences = np.flatnonzero(
        (symbols[:-1] == left) & (symbols[1:] == right) & (owners[:-1] == owners[1:])
    )
    if left != right or len(occurrences) < 2:
        return occurrences
    # In a run of equal symbols, every second occurrence overlaps.
    numbers = np.arange(len(occurrences))
    begins = np.concatenate([[True], np.diff(occurrences) != 1])
    in_run = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    return occurrences[in_run % 2 == 0]


def _changes(
    words: _Words,
    where: Ids,
    symbols: Ids,
    owners: Places,
    occurrences: Places,
    pair: tuple[int, int],
    merged: int,
) -> _Changes:
    owner = owners[occurrences]
    after = np.minimum(occurrences + 2, len(symbols) - 1)
    has_before = (occurrences > 0) & (owners[occurrences - 1] == owner)
    has_after = (occurrences + 2 < len(symbols)) & (owners[after] == owner)
    previous = symbols[occurrences - 1]
    # The occurrence before has been merged already.
    previous[1:][(np.diff(occurrences) == 2) & (np.diff(owner) == 0)] = merged
    previous, following = previous[has_before], symbols[after][has_after]
    changed = where[np.concatenate([owner[has_before], owner[has_after]])]
    return _Changes(
        removed=np.concatenate([_keys(previous, pair[0]), _keys(pair[1], following)]),
        added=np.concatenate([_keys(previous, merged), _keys(merged, following)]),
        counts=words.counts[changed],
        words=changed,
    )


def _keys(left: Ids | int, right: Ids | int) -> Keys:
    """Combines pairs of ids to integers of the same order."""
    return (np.asarray(left, np.int64) << _ID_BITS) | np.asarray(right, np.int64)


def _summed(keys: Keys, counts: Keys) -> Iterable[tuple[int, int]]:
    """Lists distinct keys and the sums of their counts."""
    if not len(keys):
        return ()
    _, distinct, _, sums = _group(keys, counts)
    return zip(distinct.tolist(), sums.tolist(), strict=True)


def _grouped(keys: Keys, counts: Keys, words: Ids, least: int) -> Iterator[tuple[int, int, Ids]]:
    """Yields distinct keys whose counts sum to at least `least`, the sums, and their words."""
    if not len(keys):
        return
    order, distinct, firsts, sums = _group(keys, counts)
    ends = np.append(firsts[1:], len(keys)).tolist()
    starts, names, totals = firsts.tolist(), distinct.tolist(), sums.tolist()
    for number in np.flatnonzero(sums >= least).tolist():
        yield names[number], totals[number], words[order[starts[number] : ends[number]]]


def _group(keys: Keys, counts: Keys) -> tuple[Places, Keys, Places, Keys]:
    """Returns an order by key, distinct keys, their first places in it, and sums of counts."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return order, ordered[firsts], firsts, np.add.reduceat(counts[order], firsts)
