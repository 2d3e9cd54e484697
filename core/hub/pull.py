"""Fetches models and tokenizers from the Hub into its own cache, by `owner/name[@revision]`.

Of a repository only the files that are read here are fetched, never pickles or code.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from core.errors import CheckpointError, HubError
from core.events import Reporter
from core.hub.client import ask, connect, explaining
from core.hub.ids import check_hub_id
from core.paths import relative_name
from core.places import give_ordinary_modes

# Read beside the weights; the card holds the key figures that a demo shows.
_CONFIG = "config.json"
_MODEL_FILES = (
    _CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "training_config.json",
    "README.md",
)
# The first that a repository has is taken.
_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
    ("flax_model.msgpack", "flax_model.msgpack.index.json", "flax_model-*-of-*.msgpack"),
    ("tf_model.h5", "tf_model.h5.index.json", "tf_model-*-of-*.h5"),
)
_PICKLES = "pytorch_model*.bin"
# A model that is asked time and again is looked up on the Hub once in so long.
_REMEMBERED_SECONDS = 600.0

_fetched: dict[tuple[str, Collection[str]], tuple[float, Path]] = {}


def pull_model(reference: str, reporter: Reporter | None = None, *, field: str = "model") -> Path:
    """Returns the folder of a model's files in the Hub's cache, fetched where they aren't there.

    Args:
        reference: `owner/name` or `owner/name@revision`.
        reporter: Hears how far a download is.
        field: The config field that an error concerns.

    Raises:
        HubError: There is no such repository, it may not be read, or the Hub can't be reached.
        CheckpointError: Its weights are a pickle.
    """
    return _pull(reference, _MODEL_FILES, _WEIGHTS, reporter or Reporter(), field)


def pull_config(reference: str, *, field: str = "model") -> Path:
    """Returns where a model's `config.json` lies in the Hub's cache, fetched where it isn't there.

    Nothing lies there where the repository has none.

    Args:
        reference: `owner/name` or `owner/name@revision`.
        field: The config field that an error concerns.

    Raises:
        HubError: There is no such repository, it may not be read, or the Hub can't be reached.
    """
    return _pull(reference, (_CONFIG,), (), Reporter(), field) / _CONFIG


def pull_tokenizer(reference: str, names: tuple[str, ...]) -> Path:
    """Returns the folder of a tokenizer's files in the Hub's cache.

    Args:
        reference: `owner/name`, `owner/name@revision`, or one of the oldest models' bare names.
        names: The files to fetch, those that are there.

    Raises:
        HubError: There is no such repository, it may not be read, or the Hub can't be reached.
    """
    return _pull(reference, names, (), Reporter(), "tokenizer")


def is_fetched(reference: str) -> bool:
    """Tells whether a model is in the Hub's cache, so that opening it takes no download."""
    whole = (file for files in _WEIGHTS for file in files if "*" not in file)
    return any(find_fetched(reference, file) for file in whole)


def find_fetched(reference: str, file: str) -> Path | None:
    """Returns where a repository's file lies in the Hub's cache, or None; nobody is asked."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    name, revision = _split(reference)
    try:
        found = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError:
        return None  # Nothing can be called so.
    return Path(found) if isinstance(found, str) else None


def _pull(
    reference: str,
    names: tuple[str, ...],
    weights: tuple[tuple[str, ...], ...],
    reporter: Reporter,
    field: str,
) -> Path:
    known = _fetched.get((reference, names))
    if known and time.monotonic() - known[0] < _REMEMBERED_SECONDS and known[1].is_dir():
        return known[1]
    name, revision = _split(reference)
    check_hub_id(name, field=field)
    problem = f"{reference} could not be fetched from the Hub"
    files, online = _list_files(name, revision, problem, field)
    wanted = [*_matching(files, names), *_choose_weights(reference, files, weights)]
    for file in wanted:
        relative_name(file, f"The repository {name} on the Hub")
    with explaining(problem, field=field):
        folder = _download(name, revision, wanted, reporter, online=online)
    _fetched[reference, names] = (time.monotonic(), folder)
    return folder


def _split(reference: str) -> tuple[str, str]:
    """Returns id and revision; an id may have no owner here."""
    name, _, revision = reference.partition("@")
    return name, revision or "main"


def _choose_weights(
    reference: str, files: list[str], weights: tuple[tuple[str, ...], ...]
) -> list[str]:
    found = [_matching(files, patterns) for patterns in weights]
    chosen = next(filter(None, found), [])
    if weights and not chosen and (pickles := _matching(files, (_PICKLES,))):
        raise CheckpointError(
            f"The weights of {reference} are a pickle, and pickles are never loaded here",
            expected="model.safetensors, flax_model.msgpack or tf_model.h5",
            received=f"{pickles[0]}, which may run any code when it is opened",
            fix="where you trust it: load it with transformers and call "
            "model.save_pretrained(folder, safe_serialization=True), which writes safetensors",
        )
    return chosen


def _matching(files: list[str], patterns: tuple[str, ...]) -> list[str]:
    return [name for name in files if any(fnmatch.fnmatchcase(name, one) for one in patterns)]


def _list_files(name: str, revision: str, problem: str, field: str) -> tuple[list[str], bool]:
    """Returns a repository's files and whether the Hub said so; without a network the cache does.

    Raises:
        HubError: The Hub refuses, or can't be reached and nothing is in the cache.
    """
    from huggingface_hub import get_cached_repo_tree

    try:
        info = ask(problem, connect().model_info, name, revision=revision, field=field)
        files = [file.rfilename for file in info.siblings or []]
        with explaining(problem, field=field):
            if wrong := [one for one in files if not isinstance(one, str)]:
                raise TypeError(f"a file called {wrong[0]!r}")
        return files, True
    except HubError as error:
        if getattr(error.__cause__, "response", None) is not None:
            raise
        try:
            tree = get_cached_repo_tree(name, revision=revision)
        except Exception:  # noqa: BLE001 -- whatever the cache lacks, the first error is the one
            raise error from error.__cause__
        return [file.path for file in tree], False


def _download(
    name: str, revision: str, files: list[str], reporter: Reporter, *, online: bool
) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        name,
        revision=revision,
        endpoint=connect().endpoint,
        allow_patterns=files,
        local_files_only=not online,
        tqdm_class=_progress_bar(reporter, name),
    )
    # Other accounts may share the Hub's cache.
    give_ordinary_modes(Path(folder).parent.parent)
    return Path(folder)


def _progress_bar(reporter: Reporter, name: str) -> Any:
    """Returns the class of a progress bar that is seen in the run and not in its log."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            # There are two: bytes that came in, and bytes that are in their files.
            self._counts = str(named.get("desc", "")).startswith("Reconstructing")
            super().__init__(*arguments, **{**named, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self._counts:
                reporter.progress(self.n, self.total, "bytes", f"fetching {name}")

    return Bar
