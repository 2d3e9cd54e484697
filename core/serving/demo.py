"""Serves one checkpoint to anonymous users."""

from __future__ import annotations

import logging
import re
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from core.architecture.architecture import Architecture
from core.architecture.heads import Kind
from core.artifacts.model_tokenizer import MOST_TOKENS
from core.config.options import Dtype
from core.errors import ConfigError, RunError, StudioError
from core.finetuning.saving import ClassifierConfig, is_classifier, read_classifier_config
from core.hub.client import parse_hub_id
from core.hub.pull import pull_model
from core.inference.classification import longest_text
from core.inference.masks import fills_masks
from core.models import hf
from core.models.registry import count_parameters
from core.processes.environment import MODEL_VARIABLE
from core.serving.playground import PlaygroundClient
from core.workspace.names import expand_path
from core.workspace.workspace import Workspace

logger = logging.getLogger("studio.demo")

CARD_FILE = "README.md"
MOST_CHARACTERS = 2000
MOST_MASKS = 10
MOST_PREDICTIONS = 20
MOST_NEW_TOKENS = 256
_MOST_EXAMPLES = 6
_LONGEST_DESCRIPTION = 360
_NEVER = float("inf")
# Only for masks: seeded generation needs float32.
_DTYPE: Dtype = "auto"
_FIGURES = {
    "validation loss": "Validation loss",
    "loss": "Validation loss",
    "eval_loss": "Validation loss",
    "unigram baseline": "Unigram baseline",
    "frequency baseline": "Unigram baseline",  # In cards of earlier versions.
    "frequency_baseline_loss": "Unigram baseline",
    "perplexity": "Perplexity",
    "accuracy": "Accuracy",
}
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^)\[]*\)")


@dataclass(frozen=True)
class Card:
    """Facts from a model card."""

    description: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    licence: str = ""
    examples: tuple[str, ...] = ()


class Demo:
    """A checkpoint for anonymous users.

    Args:
        reference: Folder, or Hub id `owner/name[@revision]`.

    Raises:
        ConfigError: Neither, or an unknown family.
        CheckpointError, HubError: It can't be read or downloaded.
    """

    def __init__(self, reference: str) -> None:
        self.reference = reference
        self.folder = find_checkpoint(reference)
        self.architecture: Architecture = hf.read_architecture(self.folder)
        self.classifier: ClassifierConfig | None = (
            read_classifier_config(self.folder) if is_classifier(self.folder) else None
        )
        self.card = read_card(self.folder)
        self._home = tempfile.TemporaryDirectory(prefix="studio-demo-")
        self._client = PlaygroundClient(
            Workspace(self._home.name), only=self.folder, idle_seconds=_NEVER
        )

    @property
    def hub_id(self) -> str:
        """The Hub id without revision; "" for a folder."""
        return "" if expand_path(self.reference).is_dir() else self.reference.split("@")[0]

    @property
    def title(self) -> str:
        return (self.hub_id or self.folder.name).split("/")[-1]

    @property
    def head(self) -> Kind | None:
        """The task of a fine-tuned model; None for other models."""
        return self.classifier.kind if self.classifier else None

    @property
    def writes(self) -> bool:
        return self.architecture.kind != "encoder" and not self.classifier

    @property
    def fills(self) -> bool:
        """True if the model fills masks."""
        return fills_masks(self.architecture) and not self.classifier

    @property
    def num_parameters(self) -> int:
        return count_parameters(self.architecture)

    @cached_property
    def longest(self) -> int:
        """The most tokens of a text; fine-tuned models cut longer ones."""
        if self.classifier:
            from core.tokenizer.loading import load

            return longest_text(self.folder, self.architecture, load(str(self.folder)))
        positions = self.architecture.max_seq_length
        return positions if self.architecture.kind == "encoder" else min(positions, MOST_TOKENS)

    @cached_property
    def mask(self) -> str:
        """The mask token, or ""."""
        from core.tokenizer.loading import load

        return load(str(self.folder)).mask_token or ""

    def prepare(self) -> None:
        """Warms up the model's process in the background."""
        threading.Thread(target=self._prepare, daemon=True).start()

    def close(self) -> None:
        self._client.close()
        self._home.cleanup()

    def fill_mask(self, model: str, text: str, top_k: int = 5, dtype: Dtype = _DTYPE) -> list[Any]:
        """Fills masks within limits, ignoring `model` and `dtype`; raises StudioError."""
        self._check_text(text, "text")
        _check_at_most("top_k", top_k, MOST_PREDICTIONS)
        if self.mask and text.count(self.mask) > MOST_MASKS:
            raise ConfigError(
                "The text has too many masks",
                expected=f"at most {MOST_MASKS}",
                received=str(text.count(self.mask)),
                fix="remove some of them",
                field="text",
            )
        try:
            return self._client.fill_mask(str(self.folder), text, top_k, _DTYPE)
        except StudioError as error:
            raise _for_anonymous_users(error) from error

    def generate(self, model: str, prompt: str, **options: Any) -> Generator[str, None, Any]:
        """Generates text within limits, ignoring `model`; see `core.inference.generate_stream`."""
        self._check_text(prompt, "prompt")
        _check_at_most("max_new_tokens", options.get("max_new_tokens", 1), MOST_NEW_TOKENS)
        allowed = {**options, "dtype": "float32"}
        try:
            return (yield from self._client.generate(str(self.folder), prompt, **allowed))
        except StudioError as error:
            raise _for_anonymous_users(error) from error

    def classify(self, model: str, text: str, text_pair: str = "") -> list[dict[str, Any]]:
        """Classifies a text within limits, ignoring `model`; raises StudioError."""
        self._check_text(text, "text")
        self._check_text(text_pair, "text_pair")
        try:
            return self._client.classify(str(self.folder), text, text_pair)
        except StudioError as error:
            raise _for_anonymous_users(error) from error

    def tag(self, model: str, text: str) -> list[dict[str, Any]]:
        """Tags words within limits, ignoring `model`; raises StudioError."""
        self._check_text(text, "text")
        try:
            return self._client.tag(str(self.folder), text)
        except StudioError as error:
            raise _for_anonymous_users(error) from error

    def _check_text(self, text: Any, name: str) -> None:
        # A list would evade the limits.
        if not isinstance(text, str):
            raise ConfigError(
                f"The {name} is not a string",
                expected="one string",
                received=type(text).__name__,
                fix="send one text at a time",
                field=name,
            )
        if len(text) > MOST_CHARACTERS:
            raise ConfigError(
                f"The {name} is too long",
                expected=f"at most {MOST_CHARACTERS} characters",
                received=f"{len(text)}",
                fix="shorten it",
                field=name,
            )

    def _prepare(self) -> None:
        started = time.monotonic()
        try:
            for number, _ in enumerate(self._client.prepare(str(self.folder), _DTYPE)):
                if number == 0:
                    seconds = time.monotonic() - started
                    print(f"The model is ready after {seconds:.1f} s.", flush=True)
        except StudioError as error:
            logger.warning("The model could not be prepared: %s", error)


def find_checkpoint(reference: str) -> Path:
    """Finds or downloads a checkpoint; raises ConfigError or HubError."""
    folder = expand_path(reference)
    if folder.is_dir():
        return folder.resolve()
    if parse_hub_id(reference) is None:
        raise ConfigError(
            f"The model in {MODEL_VARIABLE} was not found",
            expected="an existing folder, or a Hub id like owner/name or owner/name@revision",
            received=reference,
            fix="check the spelling",
            field="model",
        )
    return pull_model(reference)


def read_card(folder: Path) -> Card:
    """Reads a model card; empty if missing or damaged."""
    from huggingface_hub import ModelCard

    path = folder / CARD_FILE
    if not path.is_file():
        return Card()
    try:
        card = ModelCard(path.read_text("utf-8"), ignore_metadata_errors=True)
    except Exception as error:  # noqa: BLE001 -- a card is untrusted text; a demo works without it
        logger.warning("The model card %s can't be read: %s", path, error)
        return Card()
    data: dict[str, Any] = card.data.to_dict()  # type: ignore[no-untyped-call]
    return Card(
        description=describe(card.text),
        figures=_figures(card.data),
        licence=str(data.get("license") or ""),
        examples=_examples(data.get("widget")),
    )


def describe(text: str) -> str:
    """Returns a card's first paragraph without markup."""
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.split())
        if not plain or plain[0] in "#<|`![-*>" or plain.startswith("---"):
            continue
        plain = re.sub(r"[*`]", "", _LINK.sub(r"\1", plain))
        if len(plain) <= _LONGEST_DESCRIPTION:
            return plain
        return plain[:_LONGEST_DESCRIPTION].rsplit(" ", 1)[0] + " …"
    return ""


def _figures(data: Any) -> dict[str, float]:
    figures: dict[str, float] = {}
    for result in data.get("eval_results") or []:
        names = (str(result.metric_name or "").lower(), str(result.metric_type or "").lower())
        name = next((_FIGURES[name] for name in names if name in _FIGURES), None)
        value = result.metric_value
        if name and name not in figures and isinstance(value, int | float):
            figures[name] = float(value)
    order = list(dict.fromkeys(_FIGURES.values()))
    return dict(sorted(figures.items(), key=lambda item: order.index(item[0])))


def _examples(widget: Any) -> tuple[str, ...]:
    entries = widget if isinstance(widget, list) else []
    texts = (entry.get("text") for entry in entries if isinstance(entry, dict))
    return tuple(str(text) for text in texts if text)[:_MOST_EXAMPLES]


def _check_at_most(name: str, value: Any, most: int) -> None:
    if isinstance(value, int) and value > most:
        raise ConfigError(
            f"{name} is too large",
            expected=f"at most {most}",
            received=str(value),
            fix=f"choose {most} or less",
            field=name,
        )


def _for_anonymous_users(error: StudioError) -> StudioError:
    """Hides errors that may reveal something about the machine."""
    if isinstance(error, ConfigError):
        return error
    logger.error("The model could not answer: %s", error)
    return RunError(
        "The model can't answer now",
        expected="an answer",
        received="an error in the model's process",
        fix="try again in a minute; the owner of this demo can find the cause in its log",
    )
