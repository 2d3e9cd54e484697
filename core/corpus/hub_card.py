"""Restricts a Hub dataset's data files to its own repository.

`datasets` opens any URL or local path in a card, so cards and resolved files are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import CorpusError
from core.workspace.names import has_control

# datasets merges the second into the first.
_CARDS = ("README.md", ".huggingface.yaml")
_CONFIGS = "configs"
_NAMING_KEYS = ("data_files", "data_dir")
_MOST_CARD_BYTES = 8 << 20
_MOST_VALUES = 100_000


def check_card(name: str, revision: str) -> None:
    """Refuses unreadable cards and files outside the repository."""
    for file in _CARDS:
        values = _read_card(name, revision, file)
        for text in _named_files(name, values):
            if flaw := flaw_of_data_file(text):
                raise _refusal(name, f"{file} names {ascii(text)[:120]}, which {flaw}")


def check_data_files(name: str, revision: str, data_files: Any) -> None:
    """Refuses resolved files outside the repository's commit."""
    own = f"hf://datasets/{name}@{revision}/"
    if not isinstance(data_files, Mapping):
        return
    for files in data_files.values():
        for file in files:
            if not str(file).startswith(own) or ".." in str(file).split("/"):
                raise _refusal(name, f"a data file at {ascii(str(file))[:120]}")


def flaw_of_data_file(text: object) -> str:
    """Returns the reason to refuse a name, or ""."""
    if not isinstance(text, str):
        return "is not a string"
    if has_control(text):
        return "has a control character"
    if "://" in text or "::" in text:
        return "is an address"
    if text.startswith(("/", "~")) or "\\" in text or text[1:2] == ":":
        return "is a path on this machine"
    if ".." in text.split("/"):
        return "points outside the repository"
    return ""


def _read_card(name: str, revision: str, file: str) -> dict[str, Any]:
    """Parses YAML as datasets does."""
    import yaml
    from huggingface_hub import DatasetCard, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        path = Path(hf_hub_download(name, file, repo_type="dataset", revision=revision))
    except EntryNotFoundError:
        return {}
    size = path.stat().st_size
    if size > _MOST_CARD_BYTES:
        raise _refusal(name, f"{file} of {size:,} bytes")
    try:
        if file == _CARDS[0]:
            values = DatasetCard.load(path).data.to_dict()
        else:
            values = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _refusal(name, f"{file} can't be read: {str(error)[:200]}") from error
    return values if isinstance(values, dict) else {}


def _named_files(name: str, values: dict[str, Any]) -> Iterator[object]:
    configs = values.get(_CONFIGS) or []
    for config in configs if isinstance(configs, list) else [configs]:
        if not isinstance(config, dict):
            continue
        for key in _NAMING_KEYS:
            yield from _leaves(name, config.get(key))


def _leaves(name: str, value: Any) -> Iterator[object]:
    left, count = [value], 0
    while left:
        value = left.pop()
        count += 1
        if count > _MOST_VALUES:
            raise _refusal(name, "a card with too many data files, or with recursive values")
        if isinstance(value, Mapping):
            left += [part for item in value.items() for part in item]
        elif isinstance(value, (list, tuple, set)):
            left += value
        elif value is not None:
            yield value


def _refusal(name: str, received: str) -> CorpusError:
    return CorpusError(
        f"The card of the dataset {name} is not accepted",
        expected="a readable card that names only files of its own repository",
        received=received,
        fix="choose another dataset, or download the files yourself and set ⟬source⟭ to files",
        field="dataset_name",
    )
