"""Co-occurrence token embeddings, as initial values.

Sources: Levy and Goldberg, https://papers.nips.cc/paper/5477; Levy et al.,
https://aclanthology.org/Q15-1016, sections 3 and 5; Halko et al., https://arxiv.org/abs/0909.4061,
algorithm 4.4.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core.training.batches import SequenceSource

if TYPE_CHECKING:
    import keras
    from scipy.sparse import csr_array

_MOST_TOKENS = 2_000_000
_FARTHEST = 5
_CONTEXT_POWER = 0.75
_MOST_DIMENSIONS = 256
_SPARE_DIMENSIONS = 16
_ROUNDS = 2
# The optimizer soon overwrites shorter embeddings; longer ones, tied to the output projection,
# start above the baseline.
_LENGTH = 0.8


class CooccurrenceCount:
    """Computes `count_cooccurrences`, now or in a thread."""

    def __init__(
        self, rows: SequenceSource, shape: tuple[int, int], special_ids: NDArray[np.int32]
    ) -> None:
        self._count = partial(count_cooccurrences, rows, shape, special_ids)
        self._running: Future[NDArray[np.float32]] | None = None
        self._unwanted = threading.Event()

    def begin(self) -> None:
        """Starts counting in a thread."""
        with_one = ThreadPoolExecutor(1, thread_name_prefix="word-vectors")
        self._running = with_one.submit(self._count, self._unwanted)
        with_one.shutdown(wait=False)

    def forget(self) -> None:
        """Cancels the thread."""
        self._unwanted.set()
        self._running = None

    def wait(self) -> None:
        """Waits for the thread, before work that it would slow down."""
        if self._running:
            wait([self._running])

    def vectors(self) -> NDArray[np.float32]:
        """Returns the vectors; raises ShardError."""
        # Free them after use: they are as large as the embedding matrix.
        running, self._running = self._running, None
        return running.result() if running else self._count()


def count_cooccurrences(
    rows: SequenceSource,
    shape: tuple[int, int],
    special_ids: NDArray[np.int32],
    unwanted: threading.Event | None = None,
) -> NDArray[np.float32]:
    """Returns unit vectors, float32 (V, H), zero for tokens without neighbours.

    Args:
        rows: Sampled evenly if many.
        shape: (V, H).
        special_ids: Tokens to ignore.
        unwanted: Set to raise CancelledError.
    """
    unwanted = unwanted or threading.Event()
    vocab_size, width = shape
    count = min(len(rows), max(1, _MOST_TOKENS // rows.row_length))
    sample = rows.take(np.linspace(0, len(rows) - 1, count).astype(np.int64))
    counts = _count_neighbours(sample, vocab_size, special_ids, unwanted)
    information = _mutual_information(counts)
    generator = np.random.default_rng(0)
    dimensions = min(width, _MOST_DIMENSIONS, vocab_size)
    factors = _factorize(information, dimensions, generator, unwanted)
    factors[np.diff(information.indptr) == 0] = 0
    # No direction should dominate.
    turned, _ = np.linalg.qr(generator.standard_normal((width, factors.shape[1])))
    vectors = factors @ turned.T.astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths[lengths <= 1e-6] = np.inf
    vectors /= lengths
    return vectors


def set_token_embeddings(table: keras.Variable, vectors: NDArray[np.float32]) -> None:
    """Assigns scaled unit vectors; zero vectors keep initial values."""
    drawn = np.asarray(table)
    length = max(_LENGTH, float(np.sqrt(np.square(drawn).sum(axis=1).mean())))
    is_known = np.any(vectors != 0, axis=1, keepdims=True)
    table.assign(np.where(is_known, vectors * length, drawn))


def find_token_embeddings(model: keras.Model) -> keras.Variable:
    """Returns the embedding matrix, (V, H)."""
    return next(
        variable for variable in model.trainable_variables if variable.path.endswith("words/table")
    )


def _count_neighbours(
    rows: NDArray[np.int32],
    vocab_size: int,
    special_ids: NDArray[np.int32],
    unwanted: threading.Event,
) -> csr_array:
    from scipy.sparse import coo_array, csr_array

    is_word = np.ones(vocab_size, bool)
    is_word[special_ids] = False
    counts = csr_array((vocab_size, vocab_size), dtype=np.float32)
    for distance in range(1, min(_FARTHEST, rows.shape[1] - 1) + 1):
        _check_wanted(unwanted)
        first, second = rows[:, :-distance].ravel(), rows[:, distance:].ravel()
        are_words = is_word[first] & is_word[second]
        first, second = first[are_words], second[are_words]
        weights = np.full(len(first), 1 / distance, np.float32)
        counts += coo_array((weights, (first, second)), shape=counts.shape).tocsr()
    return counts + counts.T


def _mutual_information(counts: csr_array) -> csr_array:
    pairs = counts.tocoo()
    first, second = pairs.coords
    of_word = np.asarray(counts.sum(axis=1)).ravel()
    of_context = of_word**_CONTEXT_POWER
    expected = of_word[first] * of_context[second] + of_context[first] * of_word[second]
    ratios = 2 * pairs.data * of_context.sum() / expected
    pairs.data = np.maximum(np.log(ratios), 0).astype(np.float32)
    information = pairs.tocsr()
    information.eliminate_zeros()
    return information


def _factorize(
    matrix: csr_array,
    dimensions: int,
    generator: np.random.Generator,
    unwanted: threading.Event,
) -> NDArray[np.float32]:
    """Returns F (V, dimensions) with F D F.T close to the matrix, D diagonal."""
    # NumPy's qr would compute in float64 and copy.
    from scipy.linalg import qr

    tried = min(dimensions + _SPARE_DIMENSIONS, matrix.shape[0])
    basis = generator.standard_normal((matrix.shape[0], tried), np.float32)
    for _ in range(_ROUNDS + 1):
        _check_wanted(unwanted)
        basis, _ = qr(matrix @ basis, overwrite_a=True, mode="economic", check_finite=False)
    small = basis.T @ (matrix @ basis)
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    largest = np.argsort(-np.abs(values))[:dimensions]
    factors: NDArray[np.float32] = basis @ (vectors[:, largest] * np.sqrt(np.abs(values[largest])))
    return factors


def _check_wanted(unwanted: threading.Event) -> None:
    if unwanted.is_set():
        raise CancelledError
