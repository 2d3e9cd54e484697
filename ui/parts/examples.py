"""Examples for a model from its card, validation documents or labelled texts, and its facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path, PurePath

from core.architecture.architecture import Architecture
from core.architecture.heads import Kind
from core.artifacts.finding import is_on_hub, must_be_fetched
from core.artifacts.locating import find_checkpoint
from core.config.corpus import CorpusConfig
from core.config.finetune import FinetuneConfig
from core.errors import CheckpointError, StudioError
from core.families import title_of_family
from core.finetuning.data import read_beginning
from core.finetuning.examples import Example, Sentence
from core.finetuning.names import is_of_finetuning
from core.finetuning.saving import is_classifier, read_classifier_config
from core.hub.pull import find_fetched
from core.inference.masks import fills_masks
from core.models import hf
from core.models.hf import CONFIG_FILE
from core.models.registry import count_parameters
from core.serving.demo import read_card
from core.shards.examples import HOLE, example_sentences, with_hole
from core.tokenizer.loading import StudioTokenizer, load
from core.tokenizer.roles import TOKENIZER_FILE
from core.workspace.manifests import Artifact, Manifest
from core.workspace.workspace import Workspace
from ui.parts.markup import short_count

_EXAMPLES_SHOWN = 4
_EXAMPLES_READ = 500
_LONGEST_EXAMPLE = 200
_CLASSES_SHOWN = 12
_WITHHOLES = (
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
        return hf.read_architecture(folder_of(name, workspace))
    except StudioError:
        return None


def head_of(name: str | None, workspace: Workspace) -> Kind | None:
    """Returns what a fine-tuned model predicts for; None for other models."""
    if architecture_of(name, workspace) is None:
        return None
    try:
        folder = folder_of(str(name), workspace)
        return read_classifier_config(folder).kind if is_classifier(folder) else None
    except StudioError:
        return None


def is_checkpoint(name: str, workspace: Workspace) -> bool:
    """Returns whether a name refers to a checkpoint that exists: RUN@best."""
    try:
        return find_checkpoint(name, workspace) is not None
    except StudioError:
        return False


def folder_of(name: str, workspace: Workspace) -> Path:
    """Finds the folder of a local or fetched model."""
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
    architecture = architecture_of(name, workspace)
    is_decoding = architecture is not None and architecture.kind != "encoder"
    return is_decoding and not head_of(name, workspace)


def fills(name: str | None, workspace: Workspace) -> bool:
    """Returns whether a model fills masks (BART too)."""
    return fills_masks(architecture_of(name, workspace)) and not head_of(name, workspace)


def examples(name: str | None, workspace: Workspace) -> list[str]:
    """Returns example sentences, masked unless the model is a decoder or classifies."""
    architecture = architecture_of(name, workspace)
    if not name or architecture is None:
        return []
    if is_on_hub(name, workspace) or find_checkpoint(name, workspace):
        folder, model = folder_of(name, workspace), None
    else:
        model = workspace.find("model", name)
        folder = model.path
    own = list(read_card(folder).examples)
    if head_of(name, workspace):
        return own or (_labelled_texts(model, workspace) if model else [])
    if not own and model:
        cut = str if architecture.kind == "decoder" else with_hole
        own = _own_texts(model, workspace, cut)
    return general_examples(architecture, folder, own)


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
    mask = load(str(folder)).mask_token or "<mask>"
    return [text.replace(HOLE, mask) for text in own or _WITHHOLES]


def tokenizer_of(name: str | None, workspace: Workspace) -> StudioTokenizer | None:
    """Returns a local or fetched model's tokenizer, if readable."""
    if architecture_of(name, workspace) is None:
        return None
    try:
        return load_once(folder_of(str(name), workspace))
    except StudioError:
        return None


def load_once(folder: Path) -> StudioTokenizer | None:
    """Returns a folder's tokenizer, cached until it changes."""
    try:
        return _load(folder, (folder / TOKENIZER_FILE).stat().st_mtime_ns)
    except (OSError, StudioError):
        return None


@lru_cache(maxsize=2)
def _load(folder: Path, changed: int) -> StudioTokenizer:
    return load(str(folder))


def _own_texts(model: Artifact, workspace: Workspace, cut: Callable[[str], str]) -> list[str]:
    name = str(model.manifest.config.get("shards", ""))
    return example_sentences(name, workspace, cut, _EXAMPLES_SHOWN)


def _labelled_texts(model: Artifact, workspace: Workspace) -> list[str]:
    """Returns a short text of each class, from the files that the model was tuned on."""
    try:
        config = FinetuneConfig.parse(model.manifest.config)
        for name in ("test_path", "validation_path", "train_path"):
            if path := str(getattr(config, name)):
                workspace.confine(path, field=name)
                examples = read_beginning(config, name.removesuffix("_path"), _EXAMPLES_READ)
                return _one_of_each(examples)
    except StudioError:
        return []
    return []


def _one_of_each(examples: Sequence[Example | Sentence]) -> list[str]:
    chosen: dict[object, str] = {}
    for example in examples:
        text = " ".join(example.texts[:1] if isinstance(example, Example) else example.words)
        key = example.label if isinstance(example, Example) else text
        if key not in chosen and len(text) <= _LONGEST_EXAMPLE:
            chosen[key] = text
    return list(chosen.values())[:_EXAMPLES_SHOWN]


def comparable(name: str | None, names: Sequence[str], workspace: Workspace) -> list[str]:
    """Returns those of some models that can answer the same questions as a model."""
    kind = _abilities(name, workspace)
    return [other for other in names if other != name and kind & _abilities(other, workspace)]


def _abilities(name: str | None, workspace: Workspace) -> set[str]:
    if head := head_of(name, workspace):
        return {head}
    abilities = {"fills": fills(name, workspace), "writes": writes(name, workspace)}
    return {ability for ability, has_it in abilities.items() if has_it}


def describe_model(name: str | None, workspace: Workspace) -> str:
    """Describes a model: family, parameters, and the data of its training; "" if unknown."""
    architecture = architecture_of(name, workspace)
    if not name or architecture is None:
        return ""
    parameters = short_count(count_parameters(architecture))
    size = f"{title_of_family(architecture.model_type)}, {parameters} parameters"
    if is_on_hub(name, workspace) or find_checkpoint(name, workspace):
        return f"{size}."
    made = workspace.find("model", name).manifest
    if is_of_finetuning(made):
        counts = made.counts
        classes = [str(label) for label in counts.get("labels") or ()]
        data = made.config.get("glue") or made.config.get("train_path") or ""
        data = PurePath(str(data or made.config.get("dataset_name", ""))).name
        parts = [size, f"fine-tuned from {counts.get('model')}", f"on {data}" if data else ""]
        shown = f" Predicts: {', '.join(classes[:_CLASSES_SHOWN])}." if classes else ""
        return f"{_sentence(parts)}{shown}"
    return _sentence([size, _trained_on(made, workspace)])


def _sentence(parts: Sequence[str]) -> str:
    return ", ".join(filter(None, parts)) + "."


def _trained_on(made: Manifest, workspace: Workspace) -> str:
    name = str(made.config.get("shards") or "")
    if not name:
        return ""
    try:
        workspace.confine_artifact("shards", name, field="shards")
        shards = workspace.find("shards", name).manifest
    except StudioError:
        return f"trained on the shards {name}"
    tokens = shards.counts.get("tokens") or shards.counts.get("train_tokens")
    size = f", {short_count(tokens)} tokens" if isinstance(tokens, int) else ""
    text = _corpus_of(shards.config.get("corpus"))
    return f"trained on {text or name}{size}"


def _corpus_of(values: object) -> str:
    if not isinstance(values, dict):
        return ""
    try:
        config = CorpusConfig.parse(values)
    except StudioError:
        return ""
    kinds = {
        "docs": "the documentation of Python packages",
        "files": PurePath(config.path).name,
        "hub": config.dataset_name,
        "corpus": f"the cleaned corpus {config.corpus_name}",
    }
    return kinds.get(config.source, "") or ", ".join(source.name for source in config.sources)
