"""Which of the texts that wait are computed together, and in which rows.

Most texts are short. Several share a row, each seeing only itself, so that a batch is nearly full
of text.

An engine compiles a program for each shape, which takes seconds and ten megabytes: so there are
few, what doesn't fill one is padding, and nobody waits for the best one where another that is ready
will do. A graph takes rows of any length, and there is no padding.

Source: of rows that texts share, Krell et al., "Efficient Sequence Packing without
    Cross-contamination", https://arxiv.org/abs/2107.02027.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from core.inference.models import bucket_size

# Of a text by itself: powers of two, and the middle between them.
_SHORTEST_LENGTH = 16
# Of rows that texts share.
_SHARED_LENGTH = 128
# Masks in a row are a power of four; a row that texts share has room for at least so many, or half
# of them where a mask costs more than so many tokens.
_SHARED_MASKS = 8
_DEAR_MASK = 2
_ROWS = (1, 4, 8, 32)
# Each of them has a probability for every token of the vocabulary.
_MOST_MASKS_AT_ONCE = 512
# Padding included: what attention needs grows with the length, too.
MOST_TOKENS_AT_ONCE = 32 * 512
# What a batch costs however small it is, in tokens: measured on a CPU, 50 to 100.
_TOKENS_BESIDE_A_BATCH = 64
# What it costs to compile a program, in tokens: of a small model it is ten times that.
_TOKENS_OF_COMPILING = 2048
# So many times the text in the same time is worth it.
_WORTH_COMPILING = 1.2
# Of a row that texts share where nothing is padded: more gain nothing, and attention looks at all.
_ROW_TOKENS = 256
# Of those who wait, as many as are looked at.
_MOST_LOOKED_AT = 256


class Size(NamedTuple):
    """What a text needs room for."""

    tokens: int
    masks: int


class Shape(NamedTuple):
    """Of a batch: its rows, and the tokens and the masks that each has room for."""

    rows: int
    length: int
    masks: int


class Plan(NamedTuple):
    """A batch.

    Attributes:
        shape: To compute it in.
        rows: For each row that isn't empty, the numbers of the texts in it.
        better: A shape that isn't ready, and that texts like these had better be computed in.
    """

    shape: Shape
    rows: list[list[int]]
    better: Shape | None = None


@dataclass(frozen=True)
class Planner:
    """Chooses batches.

    Attributes:
        longest: Tokens that the model has positions for.
        mask_cost: What a place for a mask costs, in tokens.
        shares_rows: Whether texts can share a row.
    """

    longest: int
    mask_cost: float
    shares_rows: bool

    def usual_shapes(self) -> list[Shape]:
        """Returns the shapes that are needed most, the more often the earlier."""
        alone = [Shape(1, length, 1) for length in (16, 32, 24, 64, 48) if length <= self.longest]
        shared = [shape for shape in self._shapes_for_several(Size(1, 1)) if shape.rows < _ROWS[-1]]
        return [*alone, *shared]

    def plan(self, sizes: Sequence[Size], ready: Collection[Shape] | None = None) -> Plan:
        """Returns the next batch: the one with the most text for its time.

        Args:
            sizes: Of the texts that wait, at least one, no longer than the model's positions. The
                first is always among those that are chosen.
            ready: Shapes that a program was compiled for; without it, none needs one. One of them
                is taken unless to compile a better one takes less time.
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
        found = self._best(suitable, sizes)
        gain = self._worth(best, sizes) / self._worth(found, sizes)
        return found._replace(better=best.shape if gain >= _WORTH_COMPILING else None)

    def _best(self, shapes: Iterable[Shape], sizes: Sequence[Size]) -> Plan:
        """Returns the batch with the most text for its time, in one of some shapes."""
        plans = [Plan(shape, self._fill(shape, sizes[:_MOST_LOOKED_AT])) for shape in shapes]
        return max(plans, key=lambda plan: self._worth(plan, sizes))

    def _worth(self, plan: Plan, sizes: Sequence[Size]) -> float:
        tokens = sum(sizes[number].tokens for row in plan.rows for number in row)
        return tokens / (_TOKENS_BESIDE_A_BATCH + self._padded(plan.shape))

    def _padded(self, shape: Shape) -> float:
        return shape.rows * (shape.length + shape.masks * self.mask_cost)

    def _length_of(self, size: Size) -> int:
        return bucket_size(size.tokens, _SHORTEST_LENGTH, self.longest, middles=True)

    def _shapes_for(self, sizes: Sequence[Size]) -> Iterator[Shape]:
        """Yields the shapes that are good for the first text, by itself or beside others."""
        length = self._length_of(sizes[0])
        yield Shape(1, length, min(_masks_of(sizes[0]), length))
        if len(sizes) > 1:
            yield from self._shapes_for_several(sizes[0])

    def _shapes_for_several(self, first: Size) -> Iterator[Shape]:
        """Yields the shapes that have room for a text and for others beside it."""
        length, masks = self._length_of(first), _masks_of(first)
        if self.shares_rows:
            # A short row would hold nothing else.
            length = max(length, min(_SHARED_LENGTH, self.longest))
            masks = max(masks, _SHARED_MASKS // (2 if self.mask_cost > _DEAR_MASK else 1))
        masks = min(masks, length)
        for rows in _ROWS:
            if rows * length <= MOST_TOKENS_AT_ONCE and rows * masks <= _MOST_MASKS_AT_ONCE:
                yield Shape(rows, length, masks)

    def _fill(self, shape: Shape, sizes: Sequence[Size]) -> list[list[int]]:
        """Puts the first text into a row, and those after it, the largest first, where they fit."""
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
        """Returns the first row that has room left for a text."""
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


def plan_row(sizes: Sequence[Size]) -> Plan:
    """Returns a batch of one row with no padding: the first text, and those after it that fit.

    Args:
        sizes: Of the texts that wait, at least one.
    """
    chosen, room = [0], max(_ROW_TOKENS, sizes[0].tokens) - sizes[0].tokens
    masks = sizes[0].masks
    for number, size in enumerate(sizes[1:], 1):
        if size.tokens <= room and masks + size.masks <= _MOST_MASKS_AT_ONCE:
            chosen.append(number)
            room -= size.tokens
            masks += size.masks
    return Plan(Shape(1, sum(sizes[number].tokens for number in chosen), masks), [chosen])


def _masks_of(size: Size) -> int:
    """Returns the next power of four."""
    bits = (size.masks - 1).bit_length()
    return int(1 << bits + bits % 2)
