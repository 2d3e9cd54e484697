"""Ask a trained model: what would it put where a word is hidden?

Importing this imports no engine; the first call does. A loaded model is kept for the next call, and
loaded again when its files change. The answers are those of transformers' `pipeline("fill-mask")`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from core.config import Dtype
from core.errors import ConfigError, TokenizerError
from core.inference.models import (
    check_finite,
    choose_engine,
    keep,
    load_model,
    load_tokenizer,
    read_suitable,
)
from core.inference.packing import Plan, Planner, Shape, Size
from core.inference.precision import choose_dtype
from core.models.architecture import Architecture
from core.models.finding import find_model
from core.objectives.rows import shift_right
from core.workspace import Workspace

if TYPE_CHECKING:
    import keras

Prediction = dict[str, Any]
Ids = NDArray[np.int32]

# Of a sentence that is asked by itself.
_TYPICAL_TOKENS = 32
# BART's encoder reads the text with its masks, and so does its decoder, one token later.
_FILLERS = ("encoder", "bart")
# Of a long list: their probabilities are dropped before those of the next are computed.
_TEXTS_AT_ONCE = 256


def fills_masks(architecture: Architecture | None) -> bool:
    """Returns whether a model fills masks; one of which nothing is known is taken to."""
    if architecture is None:
        return True
    return bool({architecture.kind, architecture.model_type} & set(_FILLERS))


def fill_mask(
    model: str | Path,
    text: str | Sequence[str],
    top_k: int = 5,
    *,
    workspace: Workspace | None = None,
    dtype: Dtype = "float32",
) -> list[Any]:
    """Predicts what stands where the mask tokens are.

    Args:
        model: A model's name in the workspace, a checkpoint's folder, or an id on the Hub.
        text: A text with one or several mask tokens, or a list of such texts.
        top_k: Predictions for each mask, at least 1.
        workspace: Where names are looked up.
        dtype: Precision to compute in: bfloat16 also keeps the weights in it, in half the memory;
            auto takes it where this machine is faster with it.

    Returns:
        For one mask a list of dictionaries, the most probable first: `score` (a probability),
        `token` (its id), `token_str`, `sequence` (the text with it filled in). For several masks a
        list of such lists. For a list of texts a list with one of these for each text.

    Raises:
        ConfigError: There is no such model, it is neither an encoder nor a BART, a text has no mask
            or is too long, or `top_k` is out of bounds.
        CheckpointError: The checkpoint is missing or damaged.
        TokenizerError: The checkpoint has no tokenizer, or one without a mask token.
        HubError: The Hub has no such model, or can't be reached.
    """
    folder = find_model(model, workspace or Workspace())
    filler: FillMask = keep(folder, dtype, FillMask)
    if isinstance(text, str):
        return filler([text], top_k)[0]
    return filler(list(text), top_k)


class FillMask:
    """A model with its tokenizer.

    May be called from several threads: the texts of those who wait for it at the same time are
    computed together.

    Args:
        folder: The checkpoint.
        dtype: Precision to compute in.

    Attributes:
        planner: What chooses the shapes to compute in.
        ready: Those that a program was compiled for.

    Raises:
        CheckpointError: The checkpoint is missing or damaged.
        ConfigError: The model is neither an encoder nor a BART.
        TokenizerError: There is no tokenizer beside it, or one without a mask token.
    """

    def __init__(self, folder: Path, dtype: Dtype = "float32") -> None:
        self.architecture = read_suitable(folder, _FILLERS, "fills no masks")
        self.tokenizer = load_tokenizer(folder, self.architecture.vocab_size)
        if self.tokenizer.mask_id is None:
            raise TokenizerError(
                f"The tokenizer in {folder} has no mask token",
                expected="one, such as <mask> or [MASK]",
                received="none",
                fix="use a model that was trained for masked language modelling",
            )
        self._folder = folder
        self._dtype = dtype
        self.planner = _planner_for(self.architecture)
        self.ready: set[Shape] = set()
        self._asked_for: set[Shape] = set()
        self._preparer = ThreadPoolExecutor(1)
        self._preparing: Future[None] | None = None
        self._together = Together(self._score, self._plan)

    def __call__(self, texts: Sequence[str], top_k: int = 5) -> list[Any]:
        """Fills the masks of some texts; see `fill_mask` for what comes back."""
        self._check_top_k(top_k)
        encoded = [self._encode(text) for text in texts]
        answers = []
        for start in range(0, len(encoded), _TEXTS_AT_ONCE):
            some = encoded[start : start + _TEXTS_AT_ONCE]
            scores = self.probabilities(some)
            pairs = zip(some, scores, strict=True)
            answers += [self._describe(ids, rows, top_k) for ids, rows in pairs]
        return answers

    def probabilities(self, encoded: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """Returns, for each text, what it is filled with: float32 (masks, vocabulary).

        Args:
            encoded: Ids int32 (tokens,) with at least one mask, no more than there are positions.
        """
        return self._together([(Size(len(ids), len(self._places(ids))), ids) for ids in encoded])

    def prepare(self, shape: Shape) -> None:
        """Compiles the model for a shape, once it is loaded; those who ask needn't wait for that.

        Args:
            shape: One of `planner.usual_shapes`.
        """
        ids = np.array([self.tokenizer.mask_id], np.int32)
        if "_predict" not in self.__dict__:
            self._together([(Size(1, 1), ids)])
        if shape not in self.ready:
            self._score(shape, [[ids]])

    def settle(self) -> None:
        """Waits for the shape that is being made ready for texts like those of before, if any."""
        if self._preparing is not None:
            self._preparing.result()

    def _plan(self, sizes: Sequence[Size]) -> Plan:
        """Returns the next batch, and lets the shape be made ready that it had better been in."""
        plan = self.planner.plan(sizes, tuple(self.ready))
        # No more than one at a time: a process that ends waits for it.
        is_free = self._preparing is None or self._preparing.done()
        if plan.better is not None and plan.better not in self._asked_for and is_free:
            self._asked_for.add(plan.better)
            self._preparing = self._preparer.submit(self.prepare, plan.better)
        return plan

    @cached_property
    def _predict(self) -> Callable[[Mapping[str, NDArray]], NDArray[np.float32]]:
        """The model; loaded when it is needed, so that a bad question gets its answer at once."""
        choose_engine()
        dtype = choose_dtype(self._dtype, self.architecture, _TYPICAL_TOKENS)
        return _compile(load_model(self._folder, dtype))

    def _check_top_k(self, top_k: int) -> None:
        most = self.architecture.vocab_size
        if not isinstance(top_k, int) or isinstance(top_k, bool) or not 1 <= top_k <= most:
            raise ConfigError(
                "top_k is out of bounds",
                expected=f"a whole number from 1 to {most}, the size of the vocabulary",
                received=repr(top_k),
                fix="ask for 5, say",
                field="top_k",
            )

    def _encode(self, text: str) -> Ids:
        """Returns a text's ids, with at least one mask and no more than fit the model."""
        if not isinstance(text, str):
            raise ConfigError(
                "That is not a text",
                expected="a string with a mask token",
                received=type(text).__name__,
                field="text",
            )
        ids = self.tokenizer.encode(text)
        if not np.any(ids == self.tokenizer.mask_id):
            mask = self.tokenizer.mask_token
            raise ConfigError(
                "The text has no mask",
                expected=f"at least one {mask}, this model's mask token",
                received=repr(text if len(text) <= 80 else text[:77] + "..."),
                fix=f"write {mask} where the model is to fill in a word",
                field="text",
            )
        longest = self.architecture.max_seq_length
        if len(ids) > longest:
            raise ConfigError(
                "The text is too long for this model",
                expected=f"at most {longest} tokens, the ones that begin and end it included",
                received=f"{len(ids)} tokens",
                fix="shorten the text around the mask",
                field="text",
            )
        return ids

    def _places(self, ids: Ids) -> NDArray[np.intp]:
        return np.flatnonzero(ids == self.tokenizer.mask_id)

    def _score(
        self, shape: Shape, rows: Sequence[Sequence[Ids]]
    ) -> list[list[NDArray[np.float32]]]:
        """Returns, for each text of each row, the probabilities at its masks, (masks, V)."""
        places = [[self._places(ids) for ids in row] for row in rows]
        logits = self._predict(_pad(shape, rows, places, self.architecture))
        self.ready.add(shape)
        found = [
            [_softmax(some) for some in np.split(of_row, np.cumsum(list(map(len, row))))[:-1]]
            for of_row, row in zip(logits, places, strict=False)
        ]
        # Where one logit isn't a number, none of the probabilities is.
        first = [some[:, 0] for row in found for some in row]
        check_finite(np.concatenate(first), self._folder)
        return found

    def _describe(self, ids: Ids, rows: NDArray[np.float32], top_k: int) -> list[Any]:
        """Returns the predictions for a text: a list, or for several masks a list of lists."""
        places = self._places(ids)
        single = len(places) == 1
        results = [
            [
                self._prediction(ids, int(place), token, row[token], single)
                for token in _top(row, top_k)
            ]
            for place, row in zip(places, rows, strict=True)
        ]
        return results[0] if single else results

    def _prediction(
        self, ids: Ids, place: int, token: int, score: float, single: bool
    ) -> Prediction:
        """Fills in one token. Special tokens are left out, but not beside other masks."""
        filled = ids.copy()
        filled[place] = token
        kept = filled[filled != self.tokenizer.pad_id]
        return {
            "score": float(score),
            "token": token,
            "token_str": self.tokenizer.decode([token], skip_special=False),
            "sequence": self.tokenizer.decode(kept.tolist(), skip_special=single),
        }


def _compile(model: keras.Model) -> Callable[[Mapping[str, NDArray]], NDArray[np.float32]]:
    """Returns the model as a function of arrays, compiled once for each shape."""
    import keras

    return (_compile_jax if keras.config.backend() == "jax" else _compile_tensorflow)(model)


def _compile_tensorflow(
    model: keras.Model,
) -> Callable[[Mapping[str, NDArray]], NDArray[np.float32]]:
    import tensorflow as tf

    compiled = tf.function(model, autograph=False)

    def predict(inputs: Mapping[str, NDArray]) -> NDArray[np.float32]:
        tensors = {name: tf.convert_to_tensor(values) for name, values in inputs.items()}
        return compiled(tensors).numpy()

    return predict


def _compile_jax(model: keras.Model) -> Callable[[Mapping[str, NDArray]], NDArray[np.float32]]:
    import jax

    # Arguments and not constants, which would be compiled into the program.
    weights = [variable.value for variable in model.trainable_variables]
    others = [variable.value for variable in model.non_trainable_variables]

    def logits(weights: list[Any], others: list[Any], inputs: Mapping[str, Any]) -> Any:
        return model.stateless_call(weights, others, inputs)[0]

    compiled = jax.jit(logits)
    return lambda inputs: np.asarray(compiled(weights, others, inputs))


class Together:
    """Computes together what several threads ask for at the same time.

    Whoever finds nobody computing computes for others who wait, too: as many as make the most of a
    batch. Meanwhile the next ones gather. No one waits for others to come.

    Args:
        compute: Takes a shape and the texts of each row, and returns an answer for each.
        plan: Takes the sizes of the texts that wait, and returns a batch, the first one in it.
    """

    def __init__(
        self,
        compute: Callable[[Shape, list[list[Any]]], Sequence[Sequence[Any]]],
        plan: Callable[[list[Size]], Plan],
    ) -> None:
        self._compute = compute
        self._plan = plan
        self._computing = threading.Lock()
        self._changing = threading.Lock()
        self._waiting: list[_Waiting] = []

    def __call__(self, texts: Sequence[tuple[Size, Any]]) -> list[Any]:
        """Returns an answer for each text."""
        mine = [_Waiting(size, text) for size, text in texts]
        with self._changing:
            self._waiting += mine
        try:
            for one in mine:
                with self._computing:
                    if not one.is_done:
                        self._compute_batch(*self._take(one))
                if one.error is not None:
                    raise one.error
        finally:
            self._withdraw(mine)
        return [one.answer for one in mine]

    def _withdraw(self, texts: list[_Waiting]) -> None:
        """Lets those not wait any more of whom nobody will take the answers."""
        gone = set(map(id, texts))
        with self._changing:
            self._waiting = [one for one in self._waiting if id(one) not in gone]

    def _take(self, first: _Waiting) -> tuple[Shape, list[list[_Waiting]]]:
        """Takes one that waits, and those that go with it."""
        with self._changing:
            waiting = [first, *(one for one in self._waiting if one is not first)]
            plan = self._plan([one.size for one in waiting])
            batch = [[waiting[number] for number in row] for row in plan.rows]
            taken = {id(one) for row in batch for one in row}
            self._waiting = [one for one in self._waiting if id(one) not in taken]
        return plan.shape, batch

    def _compute_batch(self, shape: Shape, batch: list[list[_Waiting]]) -> None:
        every = list(chain.from_iterable(batch))
        try:
            answers = self._compute(shape, [[one.text for one in row] for row in batch])
            for one, answer in zip(every, chain.from_iterable(answers), strict=True):
                one.answer = answer
        except Exception as error:  # noqa: BLE001 -- each of those who wait is told
            for one in every:
                one.error = error
        for one in every:
            one.is_done = True


class _Waiting:
    """A text that waits for its answer."""

    def __init__(self, size: Size, text: Any) -> None:
        self.size = size
        self.text = text
        self.answer: Any = None
        self.error: Exception | None = None
        self.is_done = False


def _planner_for(architecture: Any) -> Planner:
    """Returns what chooses the batches of a model."""
    width, layers = architecture.hidden_size, architecture.num_hidden_layers
    return Planner(
        longest=architecture.max_seq_length,
        # The head's part in it, beside what a token costs in the layers.
        mask_cost=architecture.vocab_size / (12 * width * layers),
        shares_rows=architecture.kind == "encoder",
    )


def _pad(
    shape: Shape,
    rows: Sequence[Sequence[Ids]],
    places: Sequence[Sequence[NDArray[np.intp]]],
    architecture: Any,
) -> dict[str, Ids]:
    """Returns the model's inputs, padded to a shape."""
    input_ids = np.full((shape.rows, shape.length), architecture.pad_token_id, np.int32)
    # Padding is a text like others, and so sees only itself.
    text_starts = np.zeros((shape.rows, shape.length), np.int32)
    masked_positions = np.zeros((shape.rows, shape.masks), np.int32)
    for number, (row, masks_of_each) in enumerate(zip(rows, places, strict=True)):
        start = masks = 0
        for ids, found in zip(row, masks_of_each, strict=True):
            input_ids[number, start : start + len(ids)] = ids
            text_starts[number, start:] = start
            masked_positions[number, masks : masks + len(found)] = start + found
            start, masks = start + len(ids), masks + len(found)
        text_starts[number, start:] = start
    inputs = {"input_ids": input_ids, "masked_positions": masked_positions}
    if architecture.kind == "encoder":
        return {**inputs, "text_starts": text_starts}
    # One text a row, which begins where the row does. A row of nothing but padding would attend to
    # nothing at all.
    attention_mask = (text_starts == 0).astype(np.int32)
    shifted = shift_right(input_ids, architecture.decoder_start_token_id)
    return {**inputs, "attention_mask": attention_mask, "decoder_input_ids": shifted}


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _top(probabilities: NDArray[np.float32], count: int) -> list[int]:
    """Returns the most probable ids, the best first."""
    best = np.argpartition(-probabilities, count - 1)[:count]
    order = np.lexsort((best, -probabilities[best]))
    return [int(token) for token in best[order]]
