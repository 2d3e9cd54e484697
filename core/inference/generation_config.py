"""Settings of generation in a model's files, applied as transformers' `generate` does.

The strategy (greedy or sampling, temperature, lengths) is the caller's.

Source: transformers 5, GenerationMixin._get_logits_processor
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.errors import CheckpointError
from core.foreign_files import read_json
from core.messages.values import shown
from core.models import hf

Logits = NDArray[np.float32]
_Reader = Callable[[Any], Any]

_MOST_BYTES = 4 << 20
_MOST_SEQUENCES = 10_000


@dataclass(frozen=True)
class GenerationConfig:
    """Settings of `generation_config.json`, or of `config.json` without one.

    Attributes:
        decoder_start_token_id: An encoder-decoder's first decoder input.
        eos_token_id: Each ends a text.
        sequence_bias: Values to add to the logits of a sequence's last token.
    """

    vocab_size: int
    decoder_start_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    min_length: int = 0
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    encoder_repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()

    @property
    def first_token(self) -> int:
        """An encoder-decoder's first decoder input."""
        starts = (self.decoder_start_token_id, self.bos_token_id)
        return next((token for token in starts if token is not None), 0)


def read_generation_config(folder: Path, architecture: Architecture) -> GenerationConfig:
    """Reads a model's generation settings; raises CheckpointError for invalid ones."""
    path = folder / hf.GENERATION_CONFIG_FILE
    path = path if os.path.lexists(path) else folder / hf.CONFIG_FILE
    values = read_json(path, _MOST_BYTES)
    values = dict(values) if isinstance(values, dict) else {}
    if path.name == hf.CONFIG_FILE and values.get("force_bos_token_to_be_generated"):
        values.setdefault("forced_bos_token_id", values.get("bos_token_id"))
    if values.get("decoder_start_token_id") is None and values.get("bos_token_id") is None:
        # transformers refuses a model without both.
        values["decoder_start_token_id"] = getattr(architecture, "decoder_start_token_id", None)
    settings: dict[str, Any] = {}
    for name, read in _READERS.items():
        if values.get(name) is None:
            continue
        try:
            settings[name] = read(values[name])
        except (TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(
                f"{path} has an invalid {name}",
                expected="a value that transformers accepts",
                received=shown(values[name]),
                fix="correct or remove it",
            ) from error
    config = GenerationConfig(architecture.vocab_size, **settings)
    if architecture.kind == "encoder-decoder":
        _check_first_token(config, path)
    return config


def _check_first_token(config: GenerationConfig, path: Path) -> None:
    if config.first_token >= config.vocab_size:
        raise CheckpointError(
            f"{path} has a first token outside the vocabulary",
            expected=f"decoder_start_token_id below {config.vocab_size}",
            received=str(config.first_token),
            fix="correct it",
        )


class LogitsProcessor:
    """Changes the logits of one text's next tokens.

    Args:
        ids: The tokens before the first new one: a decoder's prompt, or the first decoder input.
        source: The prompt.
        last: Length of `ids` with all new tokens.
    """

    def __init__(
        self, config: GenerationConfig, ids: Sequence[int], source: Sequence[int], last: int
    ) -> None:
        self._config = config
        self._ids = list(ids)
        self._source = list(source)
        self._begin = len(ids)
        self._last = last

    @property
    def forces_end(self) -> bool:
        """Whether the next token is forced to end the text at its maximum length."""
        return bool(self._config.forced_eos_token_id) and len(self._ids) == self._last - 1

    def add(self, token: int) -> None:
        self._ids.append(token)

    def __call__(self, logits: Logits) -> Logits:
        """Returns the changed logits, float32 (V,)."""
        config, scores, length = self._config, logits.copy(), len(self._ids)
        banned = [banned_ids for banned_ids in config.bad_words_ids if banned_ids not in self._ends]
        for sequence, bias in (
            *config.sequence_bias,
            *((sequence, -math.inf) for sequence in banned),
        ):
            if tuple(self._ids[length - len(sequence) + 1 :]) == sequence[:-1]:
                _at(scores, sequence[-1:], partial(operator.add, bias))
        source = self._source
        _penalise(scores, source, 1 / config.encoder_repetition_penalty)
        _penalise(scores, self._ids, config.repetition_penalty)
        _ban(scores, _completing(self._ids, self._ids, config.no_repeat_ngram_size))
        _ban(scores, _completing(self._ids, source, config.encoder_no_repeat_ngram_size))
        if length < config.min_length or length - self._begin < config.min_new_tokens:
            _ban(scores, config.eos_token_id)
        if length == 1 and config.forced_bos_token_id is not None:
            _force(scores, (config.forced_bos_token_id,))
        if self.forces_end:
            _force(scores, config.forced_eos_token_id)
        _ban(scores, config.suppress_tokens)
        is_delayed = self._begin == 1 and config.forced_bos_token_id is not None
        if length == self._begin + is_delayed:
            _ban(scores, config.begin_suppress_tokens)
        return scores

    @property
    def _ends(self) -> set[tuple[int, ...]]:
        return {(token,) for token in self._config.eos_token_id}


def _at(
    scores: Logits, tokens: Sequence[int], change: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    chosen = np.unique([token for token in tokens if 0 <= token < len(scores)]).astype(np.intp)
    scores[chosen] = change(scores[chosen])


def _ban(scores: Logits, tokens: Sequence[int]) -> None:
    _at(scores, tokens, lambda values: np.full_like(values, -np.inf))


def _force(scores: Logits, tokens: Sequence[int]) -> None:
    scores[:] = -np.inf
    _at(scores, tokens, np.zeros_like)


def _penalise(scores: Logits, tokens: Sequence[int], penalty: float) -> None:
    if penalty != 1:
        _at(scores, tokens, lambda values: np.where(values < 0, values * penalty, values / penalty))


def _completing(ids: Sequence[int], among: Sequence[int], size: int) -> list[int]:
    """Returns the tokens with which `ids` would repeat a sequence of `size` tokens."""
    if not size or len(ids) < size - 1:
        return []
    begin = list(ids[len(ids) - size + 1 :])
    starts = range(len(among) - size + 1)
    return [among[start + size - 1] for start in starts if among[start : start + size - 1] == begin]


def _id(value: Any) -> int | None:
    """Returns a token id; negative ones, which no token has, count as none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value if value >= 0 else None


def _ids(value: Any) -> tuple[int, ...]:
    token_ids = [_id(number) for number in (value if isinstance(value, list) else [value])]
    return tuple(token for token in token_ids if token is not None)


def _sequences(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list) or len(value) > _MOST_SEQUENCES:
        raise TypeError
    return tuple(filter(None, map(_ids, value)))


def _biases(value: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    if not isinstance(value, list) or len(value) > _MOST_SEQUENCES:
        raise TypeError
    return tuple((_ids(sequence), float(bias)) for sequence, bias in value if sequence)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError
    return value


def _penalty(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise TypeError
    return float(value)


_READERS: dict[str, _Reader] = {
    "decoder_start_token_id": _id,
    "bos_token_id": _id,
    "eos_token_id": _ids,
    "forced_bos_token_id": _id,
    "forced_eos_token_id": _ids,
    "suppress_tokens": _ids,
    "begin_suppress_tokens": _ids,
    "min_length": _count,
    "min_new_tokens": _count,
    "repetition_penalty": _penalty,
    "encoder_repetition_penalty": _penalty,
    "no_repeat_ngram_size": _count,
    "encoder_no_repeat_ngram_size": _count,
    "bad_words_ids": _sequences,
    "sequence_bias": _biases,
}
