"""Classifies texts and tags words with fine-tuned models."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.architecture.architecture import Architecture
from core.architecture.options import Dtype
from core.artifacts.locating import locate_model
from core.artifacts.model_tokenizer import load_tokenizer, longest_sequence
from core.errors import ConfigError
from core.finetuning.batches import LabelledSequences, collate, ordered_batches
from core.finetuning.encoding import TextEncoder, TokenSequence, check_not_empty
from core.finetuning.saving import (
    ClassifierConfig,
    ScoreFunction,
    read_classifier_config,
    read_classifier_weights,
    trained_length,
)
from core.inference.models import check_finite, choose_backend, keep
from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.roles import passes_segments, without_lone_surrogates
from core.workspace.workspace import Workspace

_TEXTS_AT_ONCE = 16
logger = logging.getLogger(__name__)


def classify(
    model: str | Path,
    text: str,
    *,
    text_pair: str = "",
    workspace: Workspace | None = None,
    dtype: Dtype = "float32",
) -> list[dict[str, Any]]:
    """Classifies a text, or a pair of texts.

    Args:
        model: Name in the workspace, folder, run's checkpoint, or Hub id of a fine-tuned model.
        text_pair: The second text of a pair.

    Returns:
        `label` and `score` of each class, the highest first. Scores are those of transformers'
        pipeline: probabilities that sum to 1; probabilities of their own if a text may have several
        classes or there is only one; the numbers of a regression.

    Raises:
        ConfigError: The text is empty, or the model isn't fine-tuned for texts.
        CheckpointError, TokenizerError, HubError: The model can't be loaded.
    """
    _check_text(text)
    classifier = _load(model, workspace, dtype, "sequence")
    texts = [without_lone_surrogates(given_text) for given_text in (text, text_pair) if given_text]
    sequences = classifier.encoder.encode([tuple(texts)])
    check_not_empty(sequences, ["The text"])
    if classifier.encoder.is_cut(tuple(texts)):
        longest = classifier.encoder.longest
        logger.warning("The model reads the first %d tokens of the text, and no more", longest)
    (logits,) = classifier.logits(sequences)
    scores = _scores(logits[0], classifier.config.score_function)
    names = classifier.config.labels or ("LABEL_0",)
    order = np.argsort(-scores, kind="stable")
    return [
        {"label": names[label_number], "score": float(scores[label_number])}
        for label_number in order
    ]


def tag(
    model: str | Path,
    text: str | Sequence[str],
    *,
    workspace: Workspace | None = None,
    dtype: Dtype = "float32",
) -> list[dict[str, Any]]:
    """Tags the words of a text.

    Args:
        model: Name in the workspace, folder, run's checkpoint, or Hub id of a fine-tuned model.
        text: A list of words, or a text whose words are separated by spaces.

    Returns:
        `word`, `tag` and `score` (the tag's probability) of each word, in order.

    Raises:
        ConfigError: There are no words, or the model isn't fine-tuned for words.
        CheckpointError, TokenizerError, HubError: The model can't be loaded.
    """
    words = (
        re.split(r"[ \t\n]+", text.strip(" \t\n"))
        if isinstance(text, str)
        else [str(word) for word in text]
    )
    _check_text(" ".join(words))
    classifier = _load(model, workspace, dtype, "token")
    windows = classifier.encoder.windows([[without_lone_surrogates(word) for word in words]])
    sequences = [TokenSequence(window.ids) for window in windows]
    check_not_empty(sequences, ["The text"] * len(sequences))
    scores = np.concatenate(
        [
            _softmax(logits[window.positions])
            for window, logits in zip(windows, classifier.logits(sequences), strict=True)
        ]
    )
    return [
        {"word": word, "tag": classifier.config.labels[row.argmax()], "score": float(row.max())}
        for word, row in zip(words, scores, strict=True)
    ]


def prepare_classifier(folder: Path) -> str:
    """Loads a fine-tuned model, so that its first answer comes sooner; says what it does."""
    classifier: LoadedClassifier = keep(folder, "float32", LoadedClassifier)
    classifier.logits([TokenSequence(classifier.encoder.encode([("a",)])[0].ids)])
    return "classifying" if classifier.config.kind == "sequence" else "tagging"


def longest_text(folder: Path, architecture: Architecture, tokenizer: StudioTokenizer) -> int:
    """Returns the tokens at which a fine-tuned model cuts texts: at most as in its training."""
    longest = longest_sequence(architecture, tokenizer)
    return min(longest, trained_length(folder) or longest)


class LoadedClassifier:
    """A fine-tuned model with its tokenizer, on the chosen backend."""

    def __init__(self, folder: Path, dtype: Dtype) -> None:
        self.config: ClassifierConfig = read_classifier_config(folder)
        architecture, head = self.config.architecture, self.config.head
        tokenizer = load_tokenizer(folder, architecture.vocab_size)
        self.encoder = TextEncoder(
            tokenizer,
            architecture,
            head,
            longest_text(folder, architecture, tokenizer),
            uses_segments=passes_segments(folder),
        )
        self._folder = folder
        weights = read_classifier_weights(folder, self.config)
        choose_backend()
        from core.backends.compilation import compile_method
        from core.finetuning.classifier import Classifier

        # A zero range skips random initialisation.
        empty = replace(architecture, initializer_range=0.0)
        model = Classifier(
            empty, head, self.config.kind, self.config.outputs, seed=0,
            dtype="float32" if dtype == "auto" else dtype,
        )  # fmt: skip
        for variable in model.variables:
            if variable.path in weights:
                variable.assign(weights[variable.path])
        self._call = compile_method(model, "call")

    def logits(self, sequences: Sequence[TokenSequence]) -> list[NDArray[np.float32]]:
        """Computes the logits of each sequence, (1 or L, outputs)."""
        count = len(sequences)
        data = LabelledSequences(
            sequences, [np.zeros(1, np.int32)] * count, [np.zeros(1, np.float32)] * count
        )
        all_logits = [np.empty(0, np.float32)] * count
        size = 1 if count == 1 else _TEXTS_AT_ONCE
        for chosen in ordered_batches([len(sequence.ids) for sequence in sequences], size):
            values = np.asarray(self._call(self._inputs(data, chosen, size)))
            check_finite(values[: len(chosen)], self._folder)
            for row, number in enumerate(chosen):
                all_logits[number] = values[row]
        return all_logits

    def _inputs(self, data: LabelledSequences, chosen: Any, size: int) -> dict[str, Any]:
        architecture, head = self.config.architecture, self.config.head
        uses_decoder = architecture.kind == "encoder-decoder" and not head.encoder_only
        batch = collate(
            data, chosen, size, self.encoder.longest, architecture, uses_decoder=uses_decoder
        )
        return {name: array for name, array in batch.items() if not name.startswith("label")}


def _load(
    model: str | Path, workspace: Workspace | None, dtype: Dtype, kind: str
) -> LoadedClassifier:
    folder = locate_model(model, workspace)
    config = read_classifier_config(folder)
    if config.kind != kind:
        wanted = ("classifies texts", "tags words")
        here, other = wanted if kind == "sequence" else wanted[::-1]
        raise ConfigError(
            f"The model in {folder} {other}",
            expected=f"a model that {here}",
            received=f"a model that {other}",
            fix="use tag instead" if kind == "sequence" else "use classify instead",
            field="model",
        )
    classifier: LoadedClassifier = keep(folder, dtype, LoadedClassifier)
    return classifier


def _check_text(text: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(
            "The text is empty",
            expected="a few words",
            received=repr(text),
            fix="write a sentence",
            field="text",
        )


def _scores(logits: NDArray[np.float32], function: ScoreFunction) -> NDArray[np.float64]:
    if function == "softmax":
        return _softmax(logits)
    values = logits.astype(np.float64)
    # The equal 1 / (1 + exp(-x)) overflows.
    return 0.5 * (1 + np.tanh(0.5 * values)) if function == "sigmoid" else values


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    values = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(values / values.sum(axis=-1, keepdims=True), np.float64)
