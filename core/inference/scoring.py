"""Computes the perplexity of a text and the loss of each token.

An encoder's is pseudo-perplexity, not comparable with a decoder's: each token is masked in turn.

Source: https://arxiv.org/abs/1910.14659, section 2
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.options import Dtype
from core.artifacts.locating import locate_model
from core.errors import ConfigError
from core.inference.generation import TextGenerator
from core.inference.masks import FillMask
from core.inference.models import keep, read_compatible, read_out
from core.inference.packing import MOST_TOKENS_AT_ONCE
from core.tokenizer.loading import StudioTokenizer
from core.workspace.workspace import Workspace

_HIDDEN_AT_ONCE = 32
# Underflow must not give an infinite loss.
_LEAST_PROBABILITY = float(np.finfo(np.float32).tiny)


def perplexity(
    model: str | Path,
    text: str,
    *,
    workspace: Workspace | None = None,
    dtype: Dtype = "float32",
) -> dict[str, Any]:
    """Computes the perplexity of a text and the loss of each token.

    Special tokens aren't scored, nor a decoder's first token without one before it. Only a decoder
    scores unknown tokens.

    Args:
        model: Name in the workspace, folder, run's checkpoint (`RUN@best`), or Hub id.
        dtype: Compare figures in float32.

    Returns:
        `perplexity`, `loss` (mean, in nats), `kind` (`exact` or `pseudo`), `num_tokens`, and
        `tokens`: `token` (id), `token_str` and `loss`, None if not scored.

    Raises:
        ConfigError: An unsuitable text or model.
        CheckpointError, TokenizerError, HubError: The model can't be loaded.
    """
    return read_out(perplexity_stream(model, text, workspace=workspace, dtype=dtype))


def perplexity_stream(
    model: str | Path,
    text: str,
    *,
    workspace: Workspace | None = None,
    dtype: Dtype = "float32",
) -> Generator[int, None, dict[str, Any]]:
    """Yields the number of tokens scored so far; returns `perplexity`'s result."""
    folder = locate_model(model, workspace)
    kinds = ("encoder", "decoder")
    architecture = read_compatible(folder, kinds, "can't score a text")
    longest = architecture.max_seq_length
    if architecture.kind == "decoder":
        writer: TextGenerator = keep(folder, dtype, TextGenerator)
        ids = _encode(text, writer.tokenizer.encode_beginning, longest)
        return _describe(ids, _score_left_to_right(writer, ids), writer.tokenizer, "exact")
    filler: FillMask = keep(folder, dtype, FillMask)
    ids = _encode(text, filler.tokenizer.encode, longest)
    losses: list[float] = []
    for some in _score_one_by_one(filler, ids):
        losses += some
        yield len(losses)
    return _describe(ids, losses, filler.tokenizer, "pseudo")


def _encode(
    text: str, encode: Callable[[str], NDArray[np.int32]], longest: int
) -> NDArray[np.int32]:
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(
            "The text to score is empty",
            expected="a few words",
            received=repr(text) if isinstance(text, str) else type(text).__name__,
            fix="write a sentence",
            field="text",
        )
    ids = encode(text)
    if not len(ids):
        raise _no_token_error("no tokens: the tokenizer removes the whole text")
    if len(ids) > longest:
        raise ConfigError(
            "The text is too long for this model",
            expected=f"at most {longest} tokens, including special tokens",
            received=f"{len(ids)} tokens",
            fix="shorten the text",
            field="text",
        )
    return ids


def _score_left_to_right(writer: TextGenerator, ids: NDArray[np.int32]) -> Iterator[float]:
    yield math.nan
    if len(ids) < 2:
        return
    for logits, token in zip(writer.read(ids)[:-1], ids[1:], strict=True):
        shifted = logits - logits.max()
        yield float(np.log(np.exp(shifted).sum()) - shifted[token])


def _score_one_by_one(filler: FillMask, ids: NDArray[np.int32]) -> Iterator[list[float]]:
    mask = filler.tokenizer.mask_id
    assert mask is not None
    together = max(1, min(_HIDDEN_AT_ONCE, MOST_TOKENS_AT_ONCE // len(ids)))
    for start in range(0, len(ids), together):
        places = range(start, min(start + together, len(ids)))
        copies = [_masked_at(ids, place, mask) for place in places]
        losses = []
        for place, copy, rows in zip(places, copies, filler.probabilities(copies), strict=True):
            masked = np.flatnonzero(copy == mask).tolist()
            probability = float(rows[masked.index(place), ids[place]])
            losses.append(-math.log(max(probability, _LEAST_PROBABILITY)))
        yield losses


def _masked_at(ids: NDArray[np.int32], place: int, mask_id: int) -> NDArray[np.int32]:
    masked = ids.copy()
    masked[place] = mask_id
    return masked


def _describe(
    ids: NDArray[np.int32], losses: Iterable[float], tokenizer: StudioTokenizer, kind: str
) -> dict[str, Any]:
    special = _unscored(tokenizer, kind)
    tokens = [
        {
            "token": token,
            "token_str": tokenizer.readable(token),
            "loss": None if token in special or math.isnan(loss) else loss,
        }
        for token, loss in zip(ids.tolist(), losses, strict=True)
    ]
    scored = [token["loss"] for token in tokens if token["loss"] is not None]
    if not scored:
        raise _no_token_error(f"{len(ids)} tokens, none of which is scored")
    mean = math.fsum(scored) / len(scored)
    return {
        "perplexity": math.exp(min(mean, 700.0)),
        "loss": mean,
        "kind": kind,
        "num_tokens": len(scored),
        "tokens": tokens,
    }


def _no_token_error(received: str) -> ConfigError:
    return ConfigError(
        "The text has no tokens to score",
        expected="at least one token, or two for a decoder without a beginning-of-text token",
        received=received,
        fix="write more words",
        field="text",
    )


def _unscored(tokenizer: StudioTokenizer, kind: str) -> set[int]:
    """GPT-2's tokenizer uses one token as unknown and as the end of a text."""
    special = set(tokenizer.special_ids.tolist())
    other = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id)
    if kind == "pseudo" or tokenizer.unk_id in other:
        return special
    return special - {tokenizer.unk_id}
