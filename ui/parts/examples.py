"""What to try a model on: pieces of its own validation text, else plain English."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from core.errors import CheckpointError, StudioError
from core.hub.pull import find_fetched
from core.inference import fills_masks
from core.models import hf
from core.models.architecture import Architecture
from core.models.finding import is_on_hub, must_be_fetched
from core.models.hf import CONFIG_FILE
from core.workspace import Artifact, Workspace

# What stands where a word is hidden.
_HOLE = "{mask}"
_ROWS_TRIED = 60
_EXAMPLES_SHOWN = 4
_EXAMPLE_WORDS = 10
_HOLE_AT = 5
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
    """Returns the dimensions of a model, here or fetched from the Hub; None where none is known.

    Of a folder that the page may not read, none is.
    """
    if not name:
        return None
    try:
        workspace.confine_artifact("model", name, field="model")
        if must_be_fetched(name, workspace):
            return None
        return hf.read_architecture(_folder_of(name, workspace))
    except StudioError:
        return None


def _folder_of(name: str, workspace: Workspace) -> Path:
    """Returns a model's folder: of the workspace, or, by an id on the Hub, in the Hub's cache."""
    if is_on_hub(name, workspace):
        # As far as it is there: nobody waits for a download here.
        config = find_fetched(name, CONFIG_FILE)
        if config is None:
            raise CheckpointError(f"Nothing says what {name} is", expected=CONFIG_FILE)
        return config.parent
    return workspace.find("model", name).path


def writes(name: str | None, workspace: Workspace) -> bool:
    """Returns whether a model of the workspace writes."""
    found = architecture_of(name, workspace)
    return found is not None and found.kind != "encoder"


def fills(name: str | None, workspace: Workspace) -> bool:
    """Returns whether a model of the workspace fills masks, as BART does besides writing."""
    return fills_masks(architecture_of(name, workspace))


def examples(name: str | None, workspace: Workspace) -> list[str]:
    """Returns texts for a model: with masks, or, where it goes on with a text, beginnings."""
    found = architecture_of(name, workspace)
    if not name or found is None:
        return []
    if is_on_hub(name, workspace):
        return general_examples(found, _folder_of(name, workspace))
    model = workspace.find("model", name)
    cut = beginning_of if found.kind == "decoder" else with_hole
    return general_examples(found, model.path, _own_texts(model, workspace, cut))


def general_examples(
    architecture: Architecture, folder: Path, own: Sequence[str] = ()
) -> list[str]:
    """Returns texts for any model of a kind.

    Args:
        architecture: The model's.
        folder: Where its tokenizer lies.
        own: Texts that suit it better, with {mask} where a word is hidden.
    """
    if architecture.kind == "decoder":
        return list(own or _BEGINNINGS)
    from core.tokenizer import load

    mask = load(str(folder)).mask_token or "<mask>"
    return [text.replace(_HOLE, mask) for text in own or _WITH_HOLES]


def with_hole(text: str) -> str:
    """Returns some plain words of a text with a hole among them; nothing where there are none."""
    words = _plain_words(text)
    if not words:
        return ""
    return " ".join([*words[:_HOLE_AT], _HOLE, *words[_HOLE_AT + 1 :]])


def beginning_of(text: str) -> str:
    """Returns some plain words of a text to go on with; nothing where there are none."""
    return " ".join(_plain_words(text)[:_HOLE_AT])


def _plain_words(text: str) -> list[str]:
    words = text.split()
    for start in range(1, len(words) - _EXAMPLE_WORDS):
        window = words[start : start + _EXAMPLE_WORDS]
        if all(word.rstrip(".,;:").isalpha() for word in window) and window[_HOLE_AT].isalpha():
            return window
    return []


def _own_texts(model: Artifact, workspace: Workspace, cut: Callable[[str], str]) -> list[str]:
    """Returns pieces of the validation rows, if the shards are still there, and here."""
    import numpy as np

    from core.shards.read import is_far, open_shards
    from core.tokenizer import load

    name = str(model.manifest.config.get("shards", ""))
    try:
        if is_far(name, workspace):
            return []
        shards = open_shards(name, workspace)
        tokenizer = load(str(shards.tokenizer_folder), workspace)
        numbers = np.linspace(0, len(shards.validation) - 1, _ROWS_TRIED).astype(int)
        rows = shards.validation.take(np.unique(numbers))
    except StudioError:
        return []
    found = (cut(tokenizer.decode(row)) for row in rows)
    return [text for text in found if text][:_EXAMPLES_SHOWN]
