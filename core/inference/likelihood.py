"""Scores the tokens of sequences by their log-likelihood or pseudo-log-likelihood.

A decoder reads a sequence once. Other models read a copy per token, in which this token alone is
masked; an encoder-decoder then predicts it from that source.

Source: https://arxiv.org/abs/1910.14659, section 2.1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.artifacts.model_tokenizer import MOST_TOKENS, load_tokenizer, longest_sequence
from core.errors import TokenizerError
from core.families import find_family
from core.inference.graph import suits_openvino
from core.inference.likelihood_models import GRAPHS, BackendLikelihood, LikelihoodModel
from core.inference.models import check_finite
from core.models import hf
from core.objectives.sequences import shift_right
from core.tokenizer.framing import Frame
from core.tokenizer.native import native_calls
from core.tokenizer.roles import without_lone_surrogates

Ids = NDArray[np.int32]
Positions = NDArray[np.intp]

METHODS = {
    "encoder": "pseudo_log_likelihood",
    "decoder": "log_likelihood",
    "encoder-decoder": "masked_source_log_likelihood",
}


class TokenSequence(NamedTuple):
    """Token ids with special tokens, int32 (tokens,), and the positions to score."""

    ids: Ids
    scored: Positions


class TokenScorer:
    """A model with its tokenizer, in float32.

    Args:
        on_backend: Use TensorFlow or JAX even if OpenVINO suits.
    """

    def __init__(self, folder: Path, *, on_backend: bool = False) -> None:
        hf.check_pretrained(folder)
        self.architecture = hf.read_architecture(folder)
        self.tokenizer = load_tokenizer(folder, self.architecture.vocab_size)
        self._folder = folder
        graph = None if on_backend or not suits_openvino() else GRAPHS.get(self.architecture.kind)
        self._model: LikelihoodModel = (graph or BackendLikelihood)(folder, self.architecture)
        self._reads_once = self.architecture.kind == "decoder"
        self._mask = -1 if self._reads_once else self._find_mask()

    def reload(self, folder: Path) -> None:
        """Takes the weights of another folder, of the same architecture."""
        self._folder = folder
        self._model.reload(folder)

    @property
    def method(self) -> str:
        """The name of the score's definition."""
        return METHODS[self.architecture.kind]

    @property
    def longest(self) -> int:
        """The most tokens of a sequence, without special tokens around it."""
        longest = min(longest_sequence(self.architecture, self.tokenizer), MOST_TOKENS)
        return longest - sum(map(len, self._frame))

    @cached_property
    def unscored_ids(self) -> Ids:
        """Special tokens except the unknown token."""
        special = self.tokenizer.special_ids
        return special[special != self.tokenizer.unk_id]

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Encodes texts without special tokens around them, int32 (tokens,)."""
        clean = [without_lone_surrogates(text) for text in texts]
        with native_calls():
            encodings = self.tokenizer.backend.encode_batch_fast(clean, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def frame(self, ids: Ids, first: int = 0, stop: int | None = None) -> TokenSequence:
        """Adds special tokens; tokens `first` to `stop` are scored, except special ones."""
        before, after = self._frame
        places = np.arange(first, len(ids) if stop is None else stop)
        scored = places[~np.isin(ids[places], self.unscored_ids)]
        framed = np.concatenate([before, ids, after]).astype(np.int32)
        scored = scored + len(before)
        # Nothing precedes it.
        return TokenSequence(framed, scored[scored > 0] if self._reads_once else scored)

    def log_probabilities(
        self,
        sequences: Sequence[TokenSequence],
        report: Callable[[int], None] = lambda tokens: None,
    ) -> list[NDArray[np.float32]]:
        """Computes the log-probabilities of each sequence's scored tokens, float32 (scored,).

        Args:
            report: Gets the number of tokens scored so far.

        Raises:
            CheckpointError: The model gives NaN or infinity.
        """
        ends = np.cumsum([len(sequence.scored) for sequence in sequences], dtype=np.int64)
        log_probabilities = np.empty(ends[-1] if len(ends) else 0, np.float32)
        done = 0
        for group in self._groups(sequences, ends):
            for slots, values in self._score_group(group):
                check_finite(values, self._folder)
                log_probabilities[slots] = values
                done += len(values)
                report(done)
        return np.split(log_probabilities, ends[:-1])

    def _groups(
        self, sequences: Sequence[TokenSequence], ends: NDArray[np.int64]
    ) -> Iterator[_Group]:
        def length_of(number: int) -> int:
            return self._model.padded_length(len(sequences[number].ids))

        wanted = (number for number, sequence in enumerate(sequences) if len(sequence.scored))
        for length, members in groupby(sorted(wanted, key=length_of), key=length_of):
            chosen = list(members)
            yield _Group.of(
                [sequences[number] for number in chosen],
                [int(ends[number]) for number in chosen],
                length,
                self.architecture.pad_token_id,
            )

    def _score_group(self, group: _Group) -> Iterator[tuple[Positions, NDArray[np.float32]]]:
        return self._score_once(group) if self._reads_once else self._score_masked(group)

    def _score_once(self, group: _Group) -> Iterator[tuple[Positions, NDArray[np.float32]]]:
        predictions = group.ids.shape[1] - 1
        size = self._model.batch_size(predictions, predictions)
        for start in range(0, len(group.ids), size):
            ids = group.ids[start : start + size]
            inputs = {"input_ids": ids[:, :-1], "attention_mask": group.mask(start, size)[:, :-1]}
            values = self._model(inputs, ids[:, 1:])
            first, stop = np.searchsorted(group.owners, [start, start + size])
            rows, places = group.owners[first:stop] - start, group.places[first:stop] - 1
            yield group.slots[first:stop], values[rows, places]

    def _score_masked(self, group: _Group) -> Iterator[tuple[Positions, NDArray[np.float32]]]:
        size = self._model.batch_size(group.ids.shape[1], 1)
        for start in range(0, len(group.owners), size):
            owners, places = group.owners[start : start + size], group.places[start : start + size]
            whole = group.ids[owners]
            rows = np.arange(len(whole))
            targets = whole[rows, places]
            source = whole.copy()
            source[rows, places] = self._mask
            mask = np.arange(whole.shape[1]) < group.lengths[owners][:, None]
            inputs = {"input_ids": source, "attention_mask": mask.astype(np.int32)}
            inputs |= self._predicted_from(whole, places)
            yield group.slots[start : start + size], self._model(inputs, targets[:, None])[:, 0]

    def _predicted_from(self, whole: Ids, places: Positions) -> Mapping[str, Ids]:
        """Returns the positions of the logits, and an encoder-decoder's decoder inputs."""
        positions = places[:, None].astype(np.int32)
        if self.architecture.kind == "encoder":
            return {"masked_positions": positions}
        start = getattr(self.architecture, "decoder_start_token_id", 0)
        if self._restores_text:
            decoder_ids = shift_right(whole, start)
            return {"masked_positions": positions, "decoder_input_ids": decoder_ids}
        decoder_ids = np.tile(np.array([[start, self._mask]], np.int32), (len(whole), 1))
        return {"masked_positions": np.ones_like(positions), "decoder_input_ids": decoder_ids}

    @property
    def _restores_text(self) -> bool:
        """Whether the target is the whole text, not only what the sentinel stands for."""
        return find_family(self.architecture.model_type).decoder_reads_masks

    @cached_property
    def _frame(self) -> Frame:
        before, after = self.tokenizer.frame
        if not self._reads_once:
            return Frame(before, after)
        first = self.architecture.bos_token_id
        first = self.architecture.eos_token_id if first is None else first
        return Frame(before or (() if first is None else (first,)), ())

    def _find_mask(self) -> int:
        if self.architecture.kind == "encoder" or self._restores_text:
            mask_ids = [] if self.tokenizer.mask_id is None else [self.tokenizer.mask_id]
            name = "a mask token, such as <mask> or [MASK]"
        else:
            mask_ids = self.tokenizer.sentinel_ids().tolist()
            name = "sentinels: <extra_id_0>, <extra_id_1> and so on"
        if not mask_ids:
            raise TokenizerError(
                f"The tokenizer in {self._folder} has no token to mask with",
                expected=name,
                fix="use the tokenizer that the model was trained with",
            )
        return int(mask_ids[0])


class _Group(NamedTuple):
    """Sequences padded to one length; `owners`, `places` and `slots` locate each scored token."""

    ids: Ids
    lengths: Positions
    owners: Positions
    places: Positions
    slots: Positions

    @classmethod
    def of(
        cls, sequences: Sequence[TokenSequence], ends: Sequence[int], length: int, pad_id: int
    ) -> _Group:
        ids = np.full((len(sequences), length), pad_id, np.int32)
        for number, sequence in enumerate(sequences):
            ids[number, : len(sequence.ids)] = sequence.ids
        counts = [len(sequence.scored) for sequence in sequences]
        slots = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
        return cls(
            ids=ids,
            lengths=np.array([len(sequence.ids) for sequence in sequences]),
            owners=np.repeat(np.arange(len(sequences)), counts),
            places=np.concatenate([sequence.scored for sequence in sequences]),
            slots=np.concatenate(slots),
        )

    def mask(self, start: int, size: int) -> Ids:
        """Marks tokens of some sequences, int32 (B, L)."""
        lengths = self.lengths[start : start + size]
        return (np.arange(self.ids.shape[1]) < lengths[:, None]).astype(np.int32)
