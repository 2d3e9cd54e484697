"""Plans batches: which texts are computed together, and in which shape.

Several texts may share a sequence. Compiling a shape takes seconds and ten megabytes, so a compiled
one serves meanwhile.

Source: https://arxiv.org/abs/2107.02027
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_SHORTEST_LENGTH = 16
_SHARED_LENGTH = 128
# Halved if a mask costs more than _DEAR_MASK tokens.
_SHARED_MASKS = 8
_DEAR_MASK = 2
_ROWS = (1, 4, 8, 32)
# Each has a probability per token of the vocabulary.
_MOST_MASKS_AT_ONCE = 512
MOST_TOKENS_AT_ONCE = 32 * 512
# 50 to 100, measured on a CPU.
_TOKENS_BESIDE_A_BATCH = 64
# For a small model ten times that.
_TOKENS_OF_COMPILING = 2048
_WORTH_COMPILING = 1.2
# More gain nothing, and attention covers them all.
_ROW_TOKENS = 256
_MOST_LOOKED_AT = 256


def bucket_size(size: int, smallest: int, largest: int, *, middles: bool = False) -> int:
    """Rounds up to a power of two, or with `middles` also 24, 48, ..."""
    power = 1 << max(0, size - 1).bit_length()
    if middles and smallest < power and size <= power * 3 // 4:
        power = power * 3 // 4
    return min(max(power, smallest), largest)


class Size(NamedTuple):
    """Size of a text."""

    tokens: int
    masks: int


class Shape(NamedTuple):
    """Number of sequences, and tokens and masks in each."""

    rows: int
    length: int
    masks: int


class BatchPlan(NamedTuple):
    """A planned batch: a shape, indices of texts per sequence, and a better shape to compile."""

    shape: Shape
    rows: list[list[int]]
    better: Shape | None = None


@dataclass(frozen=True)
class Planner:
    """Plans batches for a model; `mask_cost` is in tokens."""

    longest: int
    mask_cost: float
    shares_rows: bool

    def usual_shapes(self) -> list[Shape]:
        """Returns common shapes, most frequent first."""
        alone = [Shape(1, length, 1) for length in (16, 32, 24, 64, 48) if length <= self.longest]
        shared = [shape for shape in self._shapes_for_several(Size(1, 1)) if shape.rows < _ROWS[-1]]
        return [*alone, *shared]

    def plan(self, sizes: Sequence[Size], ready: Collection[Shape] | None = None) -> BatchPlan:
        """Returns the batch with the most text per unit of time, the first text included.

        `ready` are compiled shapes; None: none need compiling.
        """
        best = self._best(self._shapes_for(sizes), sizes)
        if ready is None or best.shape in ready:
            return best
        first, most = sizes[0], self._padded(best.shape) + _TOKENS_OF_COMPILING
        suitable = [
            shape
            for shape in ready
            if first.tokens <= shape.length
            and first.masks <= shape.masks
            and self._padded(shape) <= most
        ]
        if not suitable:
            return best
        best_suitable = self._best(suitable, sizes)
        gain = self._worth(best, sizes) / self._worth(best_suitable, sizes)
        return best_suitable._replace(better=best.shape if gain >= _WORTH_COMPILING else None)

    def _best(self, shapes: Iterable[Shape], sizes: Sequence[Size]) -> BatchPlan:
        plans = [BatchPlan(shape, self._fill(shape, sizes[:_MOST_LOOKED_AT])) for shape in shapes]
        return max(plans, key=lambda plan: self._worth(plan, sizes))

    def _worth(self, plan: BatchPlan, sizes: Sequence[Size]) -> float:
        tokens = sum(sizes[number].tokens for row in plan.rows for number in row)
        return tokens / (_TOKENS_BESIDE_A_BATCH + self._padded(plan.shape))

    def _padded(self, shape: Shape) -> float:
        return shape.rows * (shape.length + shape.masks * self.mask_cost)

    def _length_of(self, size: Size) -> int:
        return bucket_size(size.tokens, _SHORTEST_LENGTH, self.longest, middles=True)

    def _shapes_for(self, sizes: Sequence[Size]) -> Iterator[Shape]:
        length = self._length_of(sizes[0])
        yield Shape(1, length, min(_masks_of(sizes[0]), length))
        if len(sizes) > 1:
            yield from self._shapes_for_several(sizes[0])

    def _shapes_for_several(self, first: Size) -> Iterator[Shape]:
        length, masks = self._length_of(first), _masks_of(first)
        if self.shares_rows:
            length = max(length, min(_SHARED_LENGTH, self.longest))
            masks = max(masks, _SHARED_MASKS // (2 if self.mask_cost > _DEAR_MASK else 1))
        masks = min(masks, length)
        for rows in _ROWS:
            if rows * length <= MOST_TOKENS_AT_ONCE and rows * masks <= _MOST_MASKS_AT_ONCE:
                yield Shape(rows, length, masks)

    def _fill(self, shape: Shape, sizes: Sequence[Size]) -> list[list[int]]:
        """Packs the first text, then those that fit, the largest first."""
        chosen, room = [], shape.rows * shape.length
        for number, size in enumerate(sizes):
            if size.tokens <= min(room, shape.length) and size.masks <= shape.masks:
                chosen.append(number)
                room -= size.tokens
        chosen.sort(key=lambda number: (number > 0, -sizes[number].tokens))
        rows: list[list[int]] = []
        left: list[Size] = []
        for number in chosen:
            size = sizes[number]
            row = self._row_for(size, left)
            if row is None and len(rows) < shape.rows:
                row = len(rows)
                rows.append([])
                left.append(Size(shape.length, shape.masks))
            if row is not None:
                rows[row].append(number)
                left[row] = Size(left[row].tokens - size.tokens, left[row].masks - size.masks)
        return rows

    def _row_for(self, size: Size, left: Sequence[Size]) -> int | None:
        if not self.shares_rows:
            return None
        return next(
            (
                row
                for row, room in enumerate(left)
                if size.tokens <= room.tokens and size.masks <= room.masks
            ),
            None,
        )


def plan_row(sizes: Sequence[Size]) -> BatchPlan:
    """Plans one sequence without padding."""
    chosen, room = [0], max(_ROW_TOKENS, sizes[0].tokens) - sizes[0].tokens
    masks = sizes[0].masks
    for number, size in enumerate(sizes[1:], 1):
        if size.tokens <= room and masks + size.masks <= _MOST_MASKS_AT_ONCE:
            chosen.append(number)
            room -= size.tokens
            masks += size.masks
    return BatchPlan(Shape(1, sum(sizes[number].tokens for number in chosen), masks), [chosen])


def _masks_of(size: Size) -> int:
    """Rounds up to a power of four."""
    bits = (size.masks - 1).bit_length()
    return int(1 << bits + bits % 2)
