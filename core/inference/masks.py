"""Predicts masked tokens, as transformers' `pipeline("fill-mask")` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.architecture.options import Dtype
from core.artifacts.locating import locate_model
from core.artifacts.model_tokenizer import load_tokenizer
from core.errors import ConfigError, TokenizerError
from core.families import find_family, list_families
from core.inference.compiled import BackendModel
from core.inference.dynamic_batching import DynamicBatcher
from core.inference.graph import GraphModel
from core.inference.graph import suits as suits_graph
from core.inference.models import check_finite, keep, read_compatible
from core.inference.packing import Shape, Size
from core.workspace.workspace import Workspace

Prediction = dict[str, Any]
Ids = NDArray[np.int32]

_TEXTS_AT_ONCE = 256


class MaskedText(NamedTuple):
    """Token ids, int32 (tokens,), and positions of masks."""

    ids: Ids
    masked_positions: NDArray[np.intp]


def fills_masks(architecture: Architecture | None) -> bool:
    """Checks whether a model fills masks; an unknown one is assumed to."""
    if architecture is None:
        return True
    return find_family(architecture.model_type).fills_masks


def _kinds_that_fill() -> tuple[str, ...]:
    others = [family.name for family in list_families() if family.decoder_reads_masks]
    return ("encoder", *others)


def fill_mask(
    model: str | Path,
    text: str | Sequence[str],
    top_k: int = 5,
    *,
    workspace: Workspace | None = None,
    dtype: Dtype = "float32",
) -> list[Any]:
    """Predicts the masked tokens of one or more texts.

    Args:
        model: Name in the workspace, folder, run's checkpoint (`RUN@best`), or Hub id.
        dtype: auto uses bfloat16 if faster.

    Returns:
        Dictionaries, most probable first, of `score` (a probability), `token` (its id),
        `token_str`, `sequence`; nested lists for several masks or texts.

    Raises:
        ConfigError: An unsuitable argument or model.
        CheckpointError, TokenizerError, HubError: The model can't be loaded.
    """
    folder = locate_model(model, workspace)
    filler: FillMask = keep(folder, dtype, FillMask)
    if isinstance(text, str):
        return filler([text], top_k)[0]
    return filler(list(text), top_k)


class FillMask:
    """A fill-mask model with its tokenizer. Thread-safe; batches concurrent requests."""

    def __init__(self, folder: Path, dtype: Dtype = "float32", *, on_engine: bool = False) -> None:
        self.architecture = read_compatible(folder, _kinds_that_fill(), "can't fill masks")
        self.tokenizer = load_tokenizer(folder, self.architecture.vocab_size)
        mask_id = self.tokenizer.mask_id
        if mask_id is None:
            raise _no_mask_token(folder)
        self._folder = folder
        is_graph = not on_engine and suits_graph(self.architecture, dtype)
        # Loaded on first use: a bad request fails at once.
        self.model: BackendModel | GraphModel = (GraphModel if is_graph else BackendModel)(
            folder, self.architecture, dtype, mask_id
        )
        self._together = DynamicBatcher(self._score, self.model.plan)

    def __call__(self, texts: Sequence[str], top_k: int = 5) -> list[Any]:
        self._check_top_k(top_k)
        encoded = [self._encode(text) for text in texts]
        answers = []
        for start in range(0, len(encoded), _TEXTS_AT_ONCE):
            some = encoded[start : start + _TEXTS_AT_ONCE]
            scores = self._probabilities(some)
            pairs = zip(some, scores, strict=True)
            answers += [self._describe(text, rows, top_k) for text, rows in pairs]
        return answers

    def probabilities(self, encoded: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """Computes the probabilities at each text's masks, float32 (masks, V)."""
        return self._probabilities([self._find_masks(ids) for ids in encoded])

    def prepare(self) -> Iterator[Shape]:
        """Loads the model; yields each common shape once warm."""
        # Through the queue: a concurrent request mustn't load it too.
        self.probabilities([np.array([self.tokenizer.mask_id], np.int32)])
        for shape in self.model.usual_shapes():
            self.model.warm_up(shape)
            yield shape

    def _probabilities(self, texts: Sequence[MaskedText]) -> list[NDArray[np.float32]]:
        return self._together(
            [(Size(len(text.ids), len(text.masked_positions)), text) for text in texts]
        )

    def _check_top_k(self, top_k: int) -> None:
        most = self.architecture.vocab_size
        if not isinstance(top_k, int) or isinstance(top_k, bool) or not 1 <= top_k <= most:
            raise ConfigError(
                "top_k is out of range",
                expected=f"a whole number from 1 to {most}, the size of the vocabulary",
                received=repr(top_k),
                fix="set top_k to 5, for example",
                field="top_k",
            )

    def _encode(self, text: str) -> MaskedText:
        if not isinstance(text, str):
            raise ConfigError(
                "The text is not a string",
                expected="a string with a mask token",
                received=type(text).__name__,
                field="text",
            )
        encoded = self._find_masks(self.tokenizer.encode(text))
        if not len(encoded.masked_positions):
            mask = self.tokenizer.mask_token
            raise ConfigError(
                "The text has no mask",
                expected=f"at least one {mask}, this model's mask token",
                received=repr(text if len(text) <= 80 else text[:77] + "..."),
                fix=f"write {mask} where the model should predict a word",
                field="text",
            )
        longest = self.architecture.max_seq_length
        if len(encoded.ids) > longest:
            raise ConfigError(
                "The text is too long for this model",
                expected=f"at most {longest} tokens, including special tokens",
                received=f"{len(encoded.ids)} tokens",
                fix="shorten the text around the mask",
                field="text",
            )
        return encoded

    def _find_masks(self, ids: Ids) -> MaskedText:
        return MaskedText(ids, np.flatnonzero(ids == self.tokenizer.mask_id))

    def _score(
        self, shape: Shape, rows: Sequence[Sequence[MaskedText]]
    ) -> list[list[NDArray[np.float32]]]:
        positions = [[text.masked_positions for text in row] for row in rows]
        logits = self.model.logits(shape, [[text.ids for text in row] for row in rows], positions)
        predictions = [
            [_softmax(some) for some in np.split(of_row, np.cumsum(list(map(len, row))))[:-1]]
            for of_row, row in zip(logits, positions, strict=False)
        ]
        # One NaN logit makes all its mask's probabilities NaN.
        first = [some[:, 0] for row in predictions for some in row]
        check_finite(np.concatenate(first), self._folder)
        return predictions

    def _describe(self, text: MaskedText, rows: NDArray[np.float32], top_k: int) -> list[Any]:
        single = len(text.masked_positions) == 1
        results = [
            [
                self._prediction(text.ids, int(position), token, row[token], single)
                for token in _top(row, top_k)
            ]
            for position, row in zip(text.masked_positions, rows, strict=True)
        ]
        return results[0] if single else results

    def _prediction(
        self, ids: Ids, position: int, token: int, score: float, single: bool
    ) -> Prediction:
        filled = ids.copy()
        filled[position] = token
        unpadded_ids = filled[filled != self.tokenizer.pad_id]
        return {
            "score": float(score),
            "token": token,
            "token_str": self.tokenizer.decode([token], skip_special=False),
            "sequence": self.tokenizer.decode(unpadded_ids.tolist(), skip_special=single),
        }


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _top(probabilities: NDArray[np.float32], count: int) -> list[int]:
    best = np.argpartition(-probabilities, count - 1)[:count]
    order = np.lexsort((best, -probabilities[best]))
    return [int(token) for token in best[order]]


def _no_mask_token(folder: Path) -> TokenizerError:
    return TokenizerError(
        f"The tokenizer in {folder} has no mask token",
        expected="a mask token, such as <mask> or [MASK]",
        fix="use a model that was trained for masked language modelling",
    )
