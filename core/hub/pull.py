"""Downloads models and tokenizers, never pickles or code."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from core.errors import CheckpointError, HubError
from core.hub.client import ask, connect, explaining
from core.network.hub_ids import check_hub_id
from core.records.events import Reporter
from core.workspace.names import relative_name
from core.workspace.places import apply_umask_below

# The card holds a demo's metrics.
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
# The first format found is used.
_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
    ("flax_model.msgpack", "flax_model.msgpack.index.json", "flax_model-*-of-*.msgpack"),
    ("tf_model.h5", "tf_model.h5.index.json", "tf_model-*-of-*.h5"),
)
_PICKLES = "pytorch_model*.bin"
_REMEMBERED_SECONDS = 600.0

_fetched: dict[tuple[str, Collection[str]], tuple[float, Path]] = {}


def pull_model(reference: str, reporter: Reporter | None = None, *, field: str = "model") -> Path:
    """Downloads a model's missing files; returns its cached folder.

    Raises:
        HubError: The repository or the Hub is inaccessible.
        CheckpointError: The weights are a pickle.
    """
    return _pull(reference, _MODEL_FILES, _WEIGHTS, reporter or Reporter(), field)


def pull_config(reference: str, *, field: str = "model") -> Path:
    """Downloads `config.json`; its path is missing if there is none."""
    return _pull(reference, (_CONFIG,), (), Reporter(), field) / _CONFIG


def pull_tokenizer(reference: str, names: tuple[str, ...]) -> Path:
    """Downloads a tokenizer's files, as far as they exist.

    Args:
        reference: Same as for `pull_model`, or an old model's bare name.
    """
    return _pull(reference, names, (), Reporter(), "tokenizer")


def is_fetched(reference: str) -> bool:
    """Returns whether a model's weights are cached."""
    whole = (file for files in _WEIGHTS for file in files if "*" not in file)
    return any(find_fetched(reference, file) for file in whole)


def find_fetched(reference: str, file: str) -> Path | None:
    """Returns a file's cached path, or None, offline."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    name, revision = _split(reference)
    try:
        cached_path = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError:
        return None
    return Path(cached_path) if isinstance(cached_path, str) else None


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
    problem = f"{reference} could not be downloaded from the Hub"
    files, online = _list_files(name, revision, problem, field)
    wanted = [*_matching(files, names), *_choose_weights(reference, files, weights)]
    for file in wanted:
        relative_name(file, f"The repository {name} on the Hub")
    with explaining(problem, field=field):
        folder = _download(name, revision, wanted, reporter, online=online)
    _fetched[reference, names] = (time.monotonic(), folder)
    return folder


def _split(reference: str) -> tuple[str, str]:
    name, _, revision = reference.partition("@")
    return name, revision or "main"


def _choose_weights(
    reference: str, files: list[str], weights: tuple[tuple[str, ...], ...]
) -> list[str]:
    matches_by_format = [_matching(files, patterns) for patterns in weights]
    chosen = next(filter(None, matches_by_format), [])
    if weights and not chosen and (pickles := _matching(files, (_PICKLES,))):
        raise CheckpointError(
            f"The weights of {reference} are a pickle file, and pickle files are never loaded",
            expected="model.safetensors, flax_model.msgpack or tf_model.h5",
            received=f"{pickles[0]}, which can run any code when it is loaded",
            fix="if you trust it, load it with transformers and call "
            "model.save_pretrained(folder, safe_serialization=True), which writes safetensors",
        )
    return chosen


def _matching(files: list[str], patterns: tuple[str, ...]) -> list[str]:
    return [
        name for name in files if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def _list_files(name: str, revision: str, problem: str, field: str) -> tuple[list[str], bool]:
    from huggingface_hub import get_cached_repo_tree

    try:
        info = ask(problem, connect().model_info, name, revision=revision, field=field)
        files = [file.rfilename for file in info.siblings or []]
        with explaining(problem, field=field):
            if wrong := [file_name for file_name in files if not isinstance(file_name, str)]:
                raise TypeError(f"a file named {wrong[0]!r}")
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
    apply_umask_below(Path(folder).parent.parent)
    return Path(folder)


def _progress_bar(reporter: Reporter, name: str) -> Any:
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            # huggingface_hub has two: bytes received and bytes written.
            self._counts = str(named.get("desc", "")).startswith("Reconstructing")
            super().__init__(*arguments, **{**named, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self._counts:
                reporter.progress(self.n, self.total, "bytes", f"downloading {name}")

    return Bar
