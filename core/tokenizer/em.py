"""Chooses a Unigram model's tokens ("pieces") by expectation maximisation and pruning.

The library's trainer takes minutes for 30 MB, can't be stopped, isn't deterministic, and panics.

Source: Kudo (2018), https://arxiv.org/abs/1804.10959, section 3.2;
https://github.com/google/sentencepiece/blob/master/src/unigram_model_trainer.cc
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LONGEST_PIECE_CHARACTERS = 16

# Path probabilities must stay within float64.
_LONGEST_WORD_CHARACTERS = 32
_SUB_ITERATIONS = 2
_FINAL_ITERATIONS = 2
_SHRINKING_FACTOR = 0.75
_SPARE = 1.1
_SMALLEST_SEEDS = 100_000
_SEEDS_PER_PIECE = 10
_LEAST_EXPECTED = 0.5
_SMALLEST_TOTAL = 1e-280  # underflow is ignored
_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]
OnStep = Callable[[str], None]


@dataclass(frozen=True)
class ChosenPieces:
    """Result of the training.

    Attributes:
        pieces: Most probable first, with all single characters.
        scores: Natural log-probabilities.
        possible: Number that the words support.
    """

    pieces: list[str]
    scores: list[float]
    possible: int


def choose_pieces(
    words: Mapping[str, int], count: int, on_step: OnStep = lambda note: None
) -> ChosenPieces:
    """Chooses the pieces that give words the highest probability.

    Args:
        count: At least the number of distinct characters.
        on_step: Called about every second; may raise.
    """
    text = _Text.of(words)
    seeds = _find_seeds(text, max(_SMALLEST_SEEDS, _SEEDS_PER_PIECE * count), on_step)
    on_step("estimating")
    model = _Model(text, seeds)
    possible = len(model.scores)
    model.estimate(_SUB_ITERATIONS, least=count)
    while len(model.scores) > count * _SPARE:
        on_step(f"{len(model.scores):,} pieces left")
        model.prune(max(int(count * _SPARE), int(len(model.scores) * _SHRINKING_FACTOR)))
        model.estimate(_SUB_ITERATIONS, least=count)
    on_step("final estimation")
    model.prune(count)
    model.estimate(_FINAL_ITERATIONS, least=count)
    return model.chosen(possible)


@dataclass(frozen=True)
class _Text:
    """Concatenated words.

    Attributes:
        codes: Code points, (characters,).
        starts, lengths, counts: (words,).
    """

    codes: npt.NDArray[np.uint32]
    starts: Places
    lengths: Places
    counts: Floats

    @classmethod
    def of(cls, words: Mapping[str, int]) -> _Text:
        short: dict[str, int] = {}
        for word, count in words.items():
            for start in range(0, len(word), _LONGEST_WORD_CHARACTERS):
                part = word[start : start + _LONGEST_WORD_CHARACTERS]
                short[part] = short.get(part, 0) + count
        ordered = sorted(short)
        lengths = np.array([len(word) for word in ordered], np.int32)
        return cls(
            codes=np.frombuffer("".join(ordered).encode("utf-32-le"), np.uint32),
            starts=(np.cumsum(lengths) - lengths).astype(np.int32),
            lengths=lengths,
            counts=np.array([short[word] for word in ordered], np.float64),
        )

    def owners(self) -> Places:
        """Each character's word, (characters,)."""
        return np.repeat(np.arange(len(self.starts), dtype=np.int32), self.lengths)

    def left(self) -> Places:
        """Counts characters left in the word, (characters,)."""
        ends = (self.starts + self.lengths)[self.owners()]
        return (ends - np.arange(len(self.codes))).astype(np.int32)

    def string(self, start: int, length: int) -> str:
        return self.codes[start : start + length].tobytes().decode("utf-32-le")

    def select(self, starts: Places, lengths: Places) -> _Text:
        firsts = (np.cumsum(lengths) - lengths).astype(np.int32)
        places = np.repeat(starts - firsts, lengths) + np.arange(int(lengths.sum()))
        return _Text(self.codes[places], firsts, lengths, np.ones(len(starts)))


@dataclass(frozen=True)
class _Seeds:
    """Initial pieces, single characters first.

    Attributes:
        starts, lengths: First occurrences, (pieces,).
        weights: Count times length, (pieces,).
    """

    starts: Places
    lengths: Places
    weights: Floats
    characters: int


def _find_seeds(text: _Text, most: int, on_step: OnStep) -> _Seeds:
    levels = list(_substrings(text, on_step))
    starts, lengths, weights = [levels[0].firsts], [1], [levels[0].frequencies]
    for number, shorter in enumerate(levels[1:], start=2):
        longer = levels[number] if number < len(levels) else None
        useful = (shorter.frequencies >= 2) & ~_always_extended(shorter, longer)
        starts.append(shorter.firsts[useful])
        weights.append(shorter.frequencies[useful] * shorter.length)
        lengths.append(shorter.length)
    sizes = [len(part) for part in starts]
    seeds = _Seeds(
        np.concatenate(starts), np.repeat(np.array(lengths, np.int32), sizes),
        np.concatenate(weights), sizes[0],
    )  # fmt: skip
    return _heaviest(seeds, most)


@dataclass(frozen=True)
class _Level:
    """The distinct substrings of one length.

    Attributes:
        places, numbers: Occurrences and their substrings, (places,).
        firsts, frequencies: (substrings,).
    """

    length: int
    places: Places
    numbers: npt.NDArray[np.int64]
    firsts: Places
    frequencies: Floats


def _substrings(text: _Text, on_step: OnStep) -> Iterator[_Level]:
    left, counts = text.left(), text.counts[text.owners()]
    places = np.arange(len(text.codes), dtype=np.int32)
    hashes = np.zeros(len(places), np.uint64)
    for length in range(1, LONGEST_PIECE_CHARACTERS + 1):
        on_step(f"finding repeated substrings of {length} characters")
        last = text.codes[places + (length - 1)].astype(np.uint64) + np.uint64(1)
        hashes = _mixed(hashes * _HASH_BASE + last)
        _, first, numbers = np.unique(hashes, return_index=True, return_inverse=True)
        frequencies = np.bincount(numbers, counts[places], len(first))
        yield _Level(length, places, numbers, places[first], frequencies.astype(np.float64))
        goes_on = (frequencies[numbers] >= 2) & (left[places] > length)
        places, hashes = places[goes_on], hashes[goes_on]
        if not len(places):
            return


def _mixed(hashes: Hashes) -> Hashes:
    return hashes ^ (hashes >> np.uint64(29))


def _always_extended(shorter: _Level, longer: _Level | None) -> npt.NDArray[np.bool_]:
    """Marks substrings with an extension of equal count."""
    extended = np.zeros(len(shorter.firsts), bool)
    if longer is None:
        return extended
    number_at = np.full(int(shorter.places[-1]) + 2, -1, np.int64)
    number_at[shorter.places] = shorter.numbers
    for inside in (longer.firsts, longer.firsts + 1):
        numbers = number_at[inside]
        same = longer.frequencies == shorter.frequencies[numbers]
        extended[numbers[same & (numbers >= 0)]] = True
    return extended


def _heaviest(seeds: _Seeds, most: int) -> _Seeds:
    count = seeds.characters
    order = np.lexsort((seeds.starts[count:], -seeds.weights[count:]))[: max(0, most - count)]
    chosen = np.concatenate([np.arange(count), np.sort(order) + count])
    return _Seeds(seeds.starts[chosen], seeds.lengths[chosen], seeds.weights[chosen], count)


@dataclass(frozen=True)
class _Group:
    """The arcs of one length that end at the same place within words.

    Attributes:
        start: Characters before the arc.
        nodes, pieces: (arcs,).
    """

    start: int
    length: int
    nodes: Places
    pieces: Places

    def only(self, numbers: Places) -> _Group:
        """Renumbers pieces; drops those numbered -1."""
        pieces = numbers[self.pieces]
        remains = pieces >= 0
        return _Group(self.start, self.length, self.nodes[remains], pieces[remains])


class _Lattice:
    """All segmentations; a word of n characters has n + 1 nodes."""

    def __init__(self, text: _Text, groups: Sequence[_Group]) -> None:
        self._groups = groups
        self._first = text.starts + np.arange(len(text.starts), dtype=np.int32)
        self._last = self._first + text.lengths
        self._counts = text.counts
        self._nodes = int(self._last[-1]) + 1 if len(self._last) else 0

    def only(self, numbers: Places) -> None:
        groups = (group.only(numbers) for group in self._groups)
        self._groups = [group for group in groups if len(group.nodes)]

    def expected(self, probabilities: Floats) -> tuple[Floats, float]:
        """Returns pieces' expected counts, and the log-probability of all words.

        Args:
            probabilities: Times c ** length, near 1, (pieces,).
        """
        forward, backward = np.zeros(self._nodes), np.zeros(self._nodes)
        forward[self._first] = backward[self._last] = 1.0
        for group in self._groups:
            ends = group.nodes + group.length
            forward[ends] += forward[group.nodes] * probabilities[group.pieces]
        totals = forward[self._last]
        usable = (totals > _SMALLEST_TOTAL) & (totals < 1 / _SMALLEST_TOTAL)
        backward[self._last] = np.where(usable, self._counts / np.where(usable, totals, 1.0), 0.0)
        expected = np.zeros(len(probabilities))
        for group in sorted(self._groups, key=lambda group: -group.start):
            flows = probabilities[group.pieces] * backward[group.nodes + group.length]
            backward[group.nodes] += flows
            flows *= forward[group.nodes]
            expected += np.bincount(group.pieces, flows, len(expected))
        return expected, float(self._counts[usable] @ np.log(totals[usable]))

    def best(self, scores: Floats) -> Floats:
        best = np.full(self._nodes, -np.inf)
        best[self._first] = 0.0
        for group in self._groups:
            ends = group.nodes + group.length
            best[ends] = np.maximum(best[ends], best[group.nodes] + scores[group.pieces])
        return best[self._last]


class _Model:
    """Pieces whose scores are estimated and pruned.

    Attributes:
        scores: Log-probabilities, (pieces,).
    """

    def __init__(self, text: _Text, seeds: _Seeds) -> None:
        self._text = text
        self._starts, self._lengths = seeds.starts, seeds.lengths
        self._characters = seeds.characters
        self._expected = seeds.weights
        self.scores = np.log(seeds.weights / seeds.weights.sum())
        self._total_characters = float(text.counts @ text.lengths)
        self._nats_per_character = float(-(self.scores[: seeds.characters].mean()) / 2)
        self._lattice = _Lattice(text, _groups_of(text, text, seeds.starts, seeds.lengths))
        own = text.select(seeds.starts[self._characters :], seeds.lengths[self._characters :])
        groups = _groups_of(own, text, seeds.starts, seeds.lengths, proper=True)
        self._own, self._own_text = groups, own

    def estimate(self, iterations: int, least: int) -> None:
        """Fits scores; drops hardly used pieces, but keeps `least`."""
        from scipy.special import digamma  # takes half a second

        for _ in range(iterations):
            scaled = self.scores + self._nats_per_character * self._lengths
            self._expected, log_total = self._lattice.expected(np.exp(scaled))
            self._nats_per_character -= log_total / self._total_characters
            self._drop_unused(least)
            expected = np.maximum(self._expected, _LEAST_EXPECTED)
            # Kudo's sparse prior: subtracts about a half from each count.
            self.scores = digamma(expected) - digamma(expected.sum(keepdims=True))

    def prune(self, count: int) -> None:
        excess = len(self.scores) - count
        if excess <= 0:
            return
        alternatives = self._alternatives()
        scores = self.scores[self._characters :]
        losses = self._expected[self._characters :] * (scores - alternatives)
        self._keep(_all_but_lowest(losses, excess))

    def chosen(self, possible: int) -> ChosenPieces:
        places = zip(self._starts.tolist(), self._lengths.tolist(), strict=True)
        strings = [self._text.string(start, length) for start, length in places]
        entries = sorted(zip(self.scores.tolist(), strings, strict=True), key=_by_score)
        return ChosenPieces([piece for _, piece in entries], [s for s, _ in entries], possible)

    def _alternatives(self) -> Floats:
        """Scores longer pieces segmented into others."""
        return _Lattice(self._own_text, self._own).best(self.scores)

    def _drop_unused(self, least: int) -> None:
        expected = self._expected[self._characters :]
        excess = len(self.scores) - least
        unused = int((expected < _LEAST_EXPECTED).sum())
        if excess > 0 and unused:
            self._keep(_all_but_lowest(expected, min(unused, excess)))

    def _keep(self, keeps: npt.NDArray[np.bool_]) -> None:
        own = np.flatnonzero(keeps)
        chosen = np.concatenate([np.arange(self._characters), own + self._characters])
        numbers = np.full(len(self.scores), -1, np.int32)
        numbers[chosen] = np.arange(len(chosen), dtype=np.int32)
        self.scores, self._expected = self.scores[chosen], self._expected[chosen]
        self._starts, self._lengths = self._starts[chosen], self._lengths[chosen]
        self._lattice.only(numbers)
        self._own = [group.only(numbers) for group in self._own]
        self._own_text, self._own = _keep_words(self._own_text, self._own, keeps)


def _groups_of(
    words: _Text, text: _Text, starts: Places, lengths: Places, proper: bool = False
) -> list[_Group]:
    """Finds all occurrences of pieces, or only within longer words (`proper`)."""
    groups: list[_Group] = []
    owners, left = words.owners(), words.left()
    before = (np.arange(len(words.codes)) - words.starts[owners]).astype(np.int32)
    hashes, piece_hashes = np.zeros(len(words.codes), np.uint64), np.zeros(len(starts), np.uint64)
    for length in range(1, int(lengths.max(initial=0)) + 1):
        fits = np.flatnonzero(left >= length)
        hashes[fits] = _extended(hashes[fits], words.codes[fits + (length - 1)])
        longer = np.flatnonzero(lengths >= length)
        piece_hashes[longer] = _extended(
            piece_hashes[longer], text.codes[starts[longer] + (length - 1)]
        )
        if proper:
            fits = fits[(before[fits] > 0) | (left[fits] > length)]
        pieces = _look_up(hashes[fits], piece_hashes, np.flatnonzero(lengths == length))
        places, pieces = fits[pieces >= 0], pieces[pieces >= 0]
        order = np.argsort(before[places], kind="stable")
        places, pieces = places[order], pieces[order]
        bounds = np.flatnonzero(np.diff(before[places], prepend=-1))
        for low, high in zip(bounds, [*bounds[1:], len(places)], strict=False):
            at = places[low:high]
            nodes = (at + owners[at]).astype(np.int32)
            groups.append(_Group(int(before[at[0]]), length, nodes, pieces[low:high]))
    return sorted(groups, key=lambda group: group.start + group.length)


def _extended(hashes: Hashes, codes: npt.NDArray[np.uint32]) -> Hashes:
    return _mixed(hashes * _HASH_BASE + (codes.astype(np.uint64) + np.uint64(1)))


def _look_up(hashes: Hashes, known: Hashes, numbers: npt.NDArray[np.int64]) -> Places:
    """Returns -1 if absent."""
    if not len(numbers):
        return np.full(len(hashes), -1, np.int32)
    order = numbers[np.argsort(known[numbers])]
    places = np.searchsorted(known[order], hashes)
    positions = order[np.minimum(places, len(order) - 1)].astype(np.int32)
    return np.where(known[positions] == hashes, positions, np.int32(-1)).astype(np.int32)


def _keep_words(
    text: _Text, groups: Sequence[_Group], keeps: npt.NDArray[np.bool_]
) -> tuple[_Text, list[_Group]]:
    owners = np.repeat(np.arange(len(keeps)), text.lengths + 1)
    stays = keeps[owners]
    moved = np.cumsum(stays) - 1
    remaining = text.select(text.starts[keeps], text.lengths[keeps])
    selected = []
    for group in groups:
        chosen = stays[group.nodes]
        nodes = moved[group.nodes[chosen]].astype(np.int32)
        if len(nodes):
            selected.append(_Group(group.start, group.length, nodes, group.pieces[chosen]))
    return remaining, selected


def _all_but_lowest(values: Floats, count: int) -> npt.NDArray[np.bool_]:
    """Drops later ones of equal values first."""
    keeps = np.ones(len(values), bool)
    order = np.lexsort((-np.arange(len(values)), values))
    keeps[order[:count]] = False
    return keeps


def _by_score(entry: tuple[float, str]) -> tuple[float, str]:
    return -entry[0], entry[1]
