"""Examples from a model's validation documents, or plain English."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import CheckpointError, StudioError
from core.evaluation.subject import find_checkpoint
from core.finetuning.heads import Kind
from core.finetuning.saving import is_classifier, read_classifier_config
from core.hub.pull import find_fetched
from core.inference import fills_masks
from core.models import hf
from core.models.architecture import Architecture
from core.models.finding import is_on_hub, must_be_fetched
from core.models.hf import CONFIG_FILE
from core.workspace import Artifact, Workspace

if TYPE_CHECKING:
    from core.tokenizer import StudioTokenizer

_HOLE = "{mask}"
_SENTENCES_TRIED = 12
_EXAMPLES_SHOWN = 4
_WORD = re.compile(r"[^\W\d_]+")
_SHORTEST_WORD = 3
_WITH_HOLES = (
    "Returns the {mask} of the array.",
    "If {mask} is not given, the default is used.",
    "The capital of {mask} is a large {mask}.",
)
_BEGINNINGS = (
    "Returns the sum of",
    "If the file does not exist,",
    "The capital of the country",
)


def architecture_of(name: str | None, workspace: Workspace) -> Architecture | None:
    """Returns a local or fetched model's architecture; None if unknown or forbidden."""
    if not name:
        return None
    try:
        if folder := find_checkpoint(name, workspace):
            return hf.read_architecture(folder)
        workspace.confine_artifact("model", name, field="model")
        if must_be_fetched(name, workspace):
            return None
        return hf.read_architecture(_folder_of(name, workspace))
    except StudioError:
        return None


def head_of(name: str | None, workspace: Workspace) -> Kind | None:
    """Returns what a fine-tuned model predicts for; None for other models."""
    if architecture_of(name, workspace) is None:
        return None
    try:
        folder = _folder_of(str(name), workspace)
        return read_classifier_config(folder).kind if is_classifier(folder) else None
    except StudioError:
        return None


def is_checkpoint(name: str, workspace: Workspace) -> bool:
    """Returns whether a name refers to a checkpoint that exists: RUN@best."""
    try:
        return find_checkpoint(name, workspace) is not None
    except StudioError:
        return False


def _folder_of(name: str, workspace: Workspace) -> Path:
    if folder := find_checkpoint(name, workspace):
        return folder
    if is_on_hub(name, workspace):
        # Examples don't wait for a download.
        config = find_fetched(name, CONFIG_FILE)
        if config is None:
            raise CheckpointError(f"Nothing says what {name} is", expected=CONFIG_FILE)
        return config.parent
    return workspace.find("model", name).path


def writes(name: str | None, workspace: Workspace) -> bool:
    """Returns whether a model generates text."""
    found = architecture_of(name, workspace)
    return found is not None and found.kind != "encoder" and not head_of(name, workspace)


def fills(name: str | None, workspace: Workspace) -> bool:
    """Returns whether a model fills masks (BART too)."""
    return fills_masks(architecture_of(name, workspace)) and not head_of(name, workspace)


def examples(name: str | None, workspace: Workspace) -> list[str]:
    """Returns example sentences, masked unless the model is a decoder."""
    found = architecture_of(name, workspace)
    if not name or found is None or head_of(name, workspace):
        return []
    if is_on_hub(name, workspace) or find_checkpoint(name, workspace):
        return general_examples(found, _folder_of(name, workspace))
    model = workspace.find("model", name)
    cut = str if found.kind == "decoder" else with_hole
    return general_examples(found, model.path, _own_texts(model, workspace, cut))


def general_examples(
    architecture: Architecture, folder: Path, own: Sequence[str] = ()
) -> list[str]:
    """Returns examples for a kind of model.

    Args:
        folder: Holds its tokenizer.
        own: Better examples, with {mask}.
    """
    if architecture.kind == "decoder":
        return list(own or _BEGINNINGS)
    from core.tokenizer import load

    mask = load(str(folder)).mask_token or "<mask>"
    return [text.replace(_HOLE, mask) for text in own or _WITH_HOLES]


def with_hole(sentence: str) -> str:
    """Masks a word in the middle; "" if there is none."""
    found = [one for one in _WORD.finditer(sentence) if len(one[0]) >= _SHORTEST_WORD]
    # Outer words say least about themselves.
    inner = found[1:-1] or found
    middle = len(sentence) / 2
    if len(inner) > 1 or (inner and " " in sentence):
        chosen = min(inner, key=lambda one: abs((one.start() + one.end()) / 2 - middle))
        return f"{sentence[: chosen.start()]}{_HOLE}{sentence[chosen.end() :]}"
    if not found or " " in sentence:
        return ""
    # No spaces: mask one character.
    longest = max(found, key=lambda one: len(one[0]))
    place = (longest.start() + longest.end()) // 2
    return f"{sentence[:place]}{_HOLE}{sentence[place + 1 :]}"


def tokenizer_of(name: str | None, workspace: Workspace) -> StudioTokenizer | None:
    """Returns a local or fetched model's tokenizer, if readable."""
    if architecture_of(name, workspace) is None:
        return None
    try:
        return load_once(_folder_of(str(name), workspace))
    except StudioError:
        return None


def load_once(folder: Path) -> StudioTokenizer | None:
    """Returns a folder's tokenizer, cached until it changes."""
    from core.tokenizer.roles import TOKENIZER_FILE

    try:
        return _load(folder, (folder / TOKENIZER_FILE).stat().st_mtime_ns)
    except (OSError, StudioError):
        return None


@lru_cache(maxsize=2)
def _load(folder: Path, changed: int) -> StudioTokenizer:
    from core.tokenizer import load

    return load(str(folder))


def _own_texts(model: Artifact, workspace: Workspace, cut: Callable[[str], str]) -> list[str]:
    from core.shards.read import is_remote, open_shards
    from core.shards.sentences import validation_sentences
    from core.tokenizer import load

    name = str(model.manifest.config.get("shards", ""))
    try:
        if is_remote(name, workspace):
            return []
        shards = open_shards(name, workspace)
        tokenizer = load(str(shards.tokenizer_folder), workspace)
        found = validation_sentences(shards, tokenizer, _SENTENCES_TRIED)
    except StudioError:
        return []
    texts = (cut(sentence) for sentence in found if _HOLE not in sentence)
    return [text for text in texts if text][:_EXAMPLES_SHOWN]
