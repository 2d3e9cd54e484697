"""Ask a trained model: what would it put where a word is hidden?

Importing this imports no engine. A loaded model is kept for the next call, and loaded again when
its files change. The answers are those of transformers' `pipeline("fill-mask")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.config import Dtype
from core.errors import ConfigError, TokenizerError
from core.inference.compiled import EngineModel
from core.inference.graph import GraphModel
from core.inference.graph import suits as suits_graph
from core.inference.models import check_finite, keep, load_tokenizer, read_suitable
from core.inference.packing import Shape, Size
from core.inference.together import Together
from core.models.architecture import Architecture
from core.models.finding import find_model
from core.workspace import Workspace

Prediction = dict[str, Any]
Ids = NDArray[np.int32]

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
        dtype: Precision to compute in: bfloat16 takes less memory, too; auto takes it where this
            machine is faster with it.

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
        on_engine: Whether an engine computes, even where a graph could.

    Raises:
        CheckpointError: The checkpoint is missing or damaged.
        ConfigError: The model is neither an encoder nor a BART.
        TokenizerError: There is no tokenizer beside it, or one without a mask token.
    """

    def __init__(self, folder: Path, dtype: Dtype = "float32", *, on_engine: bool = False) -> None:
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
        is_graph = not on_engine and suits_graph(self.architecture, dtype)
        # Loaded when it is needed, so that a bad question gets its answer at once.
        self.model: EngineModel | GraphModel = (GraphModel if is_graph else EngineModel)(
            folder, self.architecture, dtype, self.tokenizer.mask_id
        )
        self._together = Together(self._score, self.model.plan)

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

    def prepare(self) -> Iterator[Shape]:
        """Loads the model and makes it ready for texts as they are asked most often.

        Yields:
            What it was made ready for; after the first one it answers at once.
        """
        # Not beside somebody who loads it by a question.
        self._together([(Size(1, 1), np.array([self.tokenizer.mask_id], np.int32))])
        for shape in self.model.usual_shapes():
            self.model.make_ready(shape)
            yield shape

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
        logits = self.model.logits(shape, rows, places)
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


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _top(probabilities: NDArray[np.float32], count: int) -> list[int]:
    """Returns the most probable ids, the best first."""
    best = np.argpartition(-probabilities, count - 1)[:count]
    order = np.lexsort((best, -probabilities[best]))
    return [int(token) for token in best[order]]
