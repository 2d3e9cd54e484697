"""Mixes sources of sequences in fixed proportions, as a pure function of seed and position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from core.errors import ConfigError
from core.training.batches import SequenceSource, permute

# Shares are whole numbers of this many sequences.
BLOCK = 1 << 16
# Odd, so that a block takes every place once; near BLOCK divided by the golden ratio, so that a
# source's sequences are spread evenly (https://en.wikipedia.org/wiki/Low-discrepancy_sequence,
# additive recurrence).
_STRIDE = 40_503
_SOURCE_BITS = 40


def integer_shares(
    weights: Sequence[float], names: Sequence[str], *, are_given: bool = True
) -> list[int]:
    """Rounds weights to shares that sum to `BLOCK`, by largest remainders.

    Args:
        are_given: Whether the user gave the weights, not a temperature.

    Raises:
        ConfigError: A weight rounds to zero, so that its source would be missing.
    """
    relative = np.asarray(weights, np.float64) / max(weights)  # Sums of huge ones overflow.
    exact = relative / relative.sum() * BLOCK
    if (exact < 0.5).any():
        least = int(np.argmin(exact))
        raise ConfigError(
            f"The weight of {names[least]} in the mixture rounds to zero",
            expected=f"at least one sequence of {BLOCK:,}",
            received=f"{exact[least]:.2g} of {BLOCK:,}",
            fix=(f"give {names[least]} a larger weight" if are_given else "raise the temperature")
            + ", or leave it out of the mixture",
            field="mixture",
        )
    shares = np.maximum(np.floor(exact), 1).astype(np.int64)
    remainders = exact - shares
    while (missing := BLOCK - int(shares.sum())) > 0:
        chosen = int(np.argmax(remainders))
        shares[chosen] += 1
        remainders[chosen] -= 1
    # Small shares were rounded up to one sequence.
    shares[np.argmax(shares)] += missing
    return [int(share) for share in shares]


def temperature_weights(sizes: Sequence[int], temperature: float) -> list[float]:
    """Returns sizes to the power of 1 / temperature, relative to the largest.

    Source: https://arxiv.org/abs/1907.05019, section 4.2.
    """
    largest = max(sizes)
    return [(size / largest) ** (1 / temperature) for size in sizes]


@dataclass(frozen=True)
class ConcatenatedSequences:
    """Several sources of sequences, one after the other."""

    sources: tuple[SequenceSource, ...]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First index of each source, and the length of all, int64 (sources + 1,)."""
        return np.cumsum([0, *(len(source) for source in self.sources)], dtype=np.int64)

    @property
    def row_length(self) -> int:
        return self.sources[0].row_length

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns int32 (n, row_length)."""
        numbers = np.searchsorted(self.starts, indices, side="right") - 1
        sequences = np.empty((len(indices), self.row_length), np.int32)
        for number in np.unique(numbers):
            chosen = numbers == number
            sequences[chosen] = self.sources[number].take(indices[chosen] - self.starts[number])
        return sequences


@dataclass(frozen=True)
class MixtureOrder:
    """The order in which a mixture takes the sequences of its sources.

    Each source is shuffled anew in each of its own epochs.

    Args:
        shares: They sum to `BLOCK`.
        lengths: Number of sequences of each source.
        epoch_length: Positions that count as one epoch of the mixture.
    """

    shares: tuple[int, ...]
    lengths: tuple[int, ...]
    seed: int
    epoch_length: int

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns indices into `ConcatenatedSequences`, int64 (n,)."""
        block, within = np.divmod(positions, BLOCK)
        sources, ranks = self._block
        chosen = sources[within]
        indices_in_source = block * np.asarray(self.shares)[chosen] + ranks[within]
        starts = np.cumsum([0, *self.lengths])
        indices = np.empty(len(positions), np.int64)
        for source in np.unique(chosen):
            own_positions = np.flatnonzero(chosen == source)
            epochs, rest = np.divmod(indices_in_source[own_positions], self.lengths[source])
            for epoch in np.unique(epochs):
                now = epochs == epoch
                key = int(epoch) + (int(source) << _SOURCE_BITS)
                shuffled = permute(rest[now], self.lengths[source], self.seed, key)
                indices[own_positions[now]] = shuffled + starts[source]
        return indices

    def indices(self, first: int, stop: int) -> NDArray[np.int64]:
        """Returns the indices at positions from `first` to `stop`, int64 (stop - first,)."""
        return self.at(np.arange(first, stop, dtype=np.int64))

    def counts(self, positions: int) -> list[int]:
        """Counts the sequences of each source in the first positions."""
        blocks, rest = divmod(positions, BLOCK)
        begun = np.bincount(self._block[0][:rest], minlength=len(self.shares))
        return [blocks * share + int(more) for share, more in zip(self.shares, begun, strict=True)]

    def epochs(self, positions: int) -> list[float]:
        """Returns how often each source is read in the first positions."""
        return [
            count / length
            for count, length in zip(self.counts(positions), self.lengths, strict=True)
        ]

    @property
    def _block(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return _block(self.shares, self.seed)


@lru_cache(maxsize=4)
def _block(shares: tuple[int, ...], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the source of each place in a block, and how many of the source come before it."""
    first = int(np.random.Philox(key=seed).random_raw()) % BLOCK
    values = (_STRIDE * np.arange(BLOCK, dtype=np.int64) + first) % BLOCK
    sources = np.searchsorted(np.cumsum(shares), values, side="right")
    ranks = np.empty(BLOCK, np.int64)
    for source, share in enumerate(shares):
        ranks[sources == source] = np.arange(share)
    return sources, ranks


@dataclass(frozen=True)
class OrderedSequences:
    """One epoch of a mixture, read in its order."""

    rows: SequenceSource
    order: MixtureOrder

    @property
    def row_length(self) -> int:
        return self.rows.row_length

    def __len__(self) -> int:
        return self.order.epoch_length

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns int32 (n, row_length)."""
        return self.rows.take(self.order.at(indices))
