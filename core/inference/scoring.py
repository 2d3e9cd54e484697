"""How well a model knows a text: its perplexity, and how much each token surprises it.

A decoder reads from left to right, so each token is scored given all those before it: the
perplexity is exact. An encoder sees both sides, so each token is hidden in turn and scored given
all the others: that is pseudo-perplexity, and can't be compared with a decoder's. A T5 and a BART
are refused: what their decoders say is given a text that their encoders have read, and of a text
alone they have no probability.

Importing this imports no engine.

Source: pseudo-perplexity: Salazar et al., https://arxiv.org/abs/1910.14659, section 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.config import Dtype
from core.errors import ConfigError
from core.inference.generation import Writer
from core.inference.masks import FillMask
from core.inference.models import keep, read_out, read_suitable
from core.inference.packing import MOST_TOKENS_AT_ONCE
from core.models.finding import find_model
from core.tokenizer import StudioTokenizer
from core.workspace import Workspace

# So many copies of a text, a token hidden in each, are in memory at once.
_HIDDEN_AT_ONCE = 32
# What float32 can't tell from 0 isn't infinitely surprising.
_LEAST_PROBABILITY = float(np.finfo(np.float32).tiny)


def perplexity(
    model: str | Path,
    text: str,
    *,
    workspace: Workspace | None = None,
    dtype: Dtype = "float32",
) -> dict[str, Any]:
    """Says how well a model knows a text, and how much each token surprises it.

    Special tokens around the text aren't scored. Of a decoder whose tokenizer puts nothing before a
    text, the first token isn't either: nothing stands before it. Unknown tokens, which
    stand for what isn't in the vocabulary, are scored of a decoder. No encoder has learned to
    predict them: there the figures are of the other tokens alone.

    Args:
        model: A model's name in the workspace, a checkpoint's folder, or an id on the Hub.
        text: What to score; of an encoder at least one token, of a decoder two where nothing is put
            before a text.
        workspace: Where names are looked up.
        dtype: Precision to compute in: bfloat16 takes less memory, too; auto takes it where this
            machine is faster with it. Figures that are compared want float32; of a decoder, auto
            goes by what is faster one token at a time.

    Returns:
        `perplexity`, `loss` (the mean surprise in nats, whose exponential that is), `kind` (`exact`
        of a decoder, `pseudo` of an encoder), `num_tokens` (those that are scored), and `tokens`: a
        dictionary for each, in order, with `token` (its id), `token_str` and `loss` in nats, None
        where it isn't scored.

    Raises:
        ConfigError: There is no such model, it has no perplexity, or the text is empty or too long.
        CheckpointError: The checkpoint is missing or damaged.
        TokenizerError: The checkpoint has no tokenizer, or an encoder's no mask token.
        HubError: The Hub has no such model, or can't be reached.
    """
    return read_out(perplexity_stream(model, text, workspace=workspace, dtype=dtype))


def perplexity_stream(
    model: str | Path,
    text: str,
    *,
    workspace: Workspace | None = None,
    dtype: Dtype = "float32",
) -> Generator[int, None, dict[str, Any]]:
    """Does what `perplexity` does, a part of the text at a time.

    Returns:
        A generator that says how many tokens are scored so far. Its own value is what `perplexity`
        returns. Closing it ends the scoring.

    Raises:
        StudioError: See `perplexity`; with the first part.
    """
    folder = find_model(model, workspace or Workspace())
    kinds = ("encoder", "decoder")
    architecture = read_suitable(folder, kinds, "has no perplexity of a text alone")
    longest = architecture.max_seq_length
    if architecture.kind == "decoder":
        writer: Writer = keep(folder, dtype, Writer)
        ids = _encode(text, writer.tokenizer.encode_beginning, longest)
        return _describe(ids, _from_left_to_right(writer, ids), writer.tokenizer, "exact")
    filler: FillMask = keep(folder, dtype, FillMask)
    ids = _encode(text, filler.tokenizer.encode, longest)
    losses: list[float] = []
    for some in _one_by_one(filler, ids):
        losses += some
        yield len(losses)
    return _describe(ids, losses, filler.tokenizer, "pseudo")


def _encode(
    text: str, encode: Callable[[str], NDArray[np.int32]], longest: int
) -> NDArray[np.int32]:
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(
            "There is no text to score",
            expected="a few words",
            received=repr(text) if isinstance(text, str) else type(text).__name__,
            fix="write a sentence",
            field="text",
        )
    ids = encode(text)
    if not len(ids):
        raise _no_token_error("none: its tokenizer takes all of it away")
    if len(ids) > longest:
        raise ConfigError(
            "The text is too long for this model",
            expected=f"at most {longest} tokens, special ones included",
            received=f"{len(ids)} tokens",
            fix="shorten it",
            field="text",
        )
    return ids


def _from_left_to_right(writer: Writer, ids: NDArray[np.int32]) -> Iterator[float]:
    """Yields what each token costs given those before it; nan for the first."""
    yield math.nan
    if len(ids) < 2:
        return
    for logits, token in zip(writer.read(ids)[:-1], ids[1:], strict=True):
        shifted = logits - logits.max()
        yield float(np.log(np.exp(shifted).sum()) - shifted[token])


def _one_by_one(filler: FillMask, ids: NDArray[np.int32]) -> Iterator[list[float]]:
    """Yields what each token costs given all others, of some tokens at a time."""
    mask = filler.tokenizer.mask_id
    assert mask is not None
    together = max(1, min(_HIDDEN_AT_ONCE, MOST_TOKENS_AT_ONCE // len(ids)))
    for start in range(0, len(ids), together):
        places = range(start, min(start + together, len(ids)))
        losses = []
        copies = []
        for place in places:
            copies.append(ids.copy())
            copies[-1][place] = mask
        for place, copy, rows in zip(places, copies, filler.probabilities(copies), strict=True):
            masked = np.flatnonzero(copy == mask).tolist()
            probability = float(rows[masked.index(place), ids[place]])
            losses.append(-math.log(max(probability, _LEAST_PROBABILITY)))
        yield losses


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
    scored = [one["loss"] for one in tokens if one["loss"] is not None]
    if not scored:
        raise _no_token_error(f"{len(ids)} tokens, all of them special or the first")
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
        "The text has no token that can be scored",
        expected="at least one token; two for a decoder that begins without a token of its own",
        received=received,
        fix="write some more words",
        field="text",
    )


def _unscored(tokenizer: StudioTokenizer, kind: str) -> set[int]:
    """Returns the special tokens that are no part of a text.

    GPT-2's own tokenizer calls the token unknown that begins and ends a text.
    """
    special = set(tokenizer.special_ids.tolist())
    other = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id)
    if kind == "pseudo" or tokenizer.unk_id in other:
        return special
    return special - {tokenizer.unk_id}
