"""Returns the settings that a run used: automatic ones with the values that the run chose."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from core.families import sizes_of_family
from core.foreign_files import parse_bounded_json
from core.records.folder import RunFolder
from core.store import RunRow
from core.workspace.workspace import Workspace

# These name a run and don't tell it apart.
_NAMES = ("name",)
_AUTOMATIC = (None, "", "auto")
# A setting that another one overrides, once that one is given.
_OVERRIDDEN_BY = {"num_train_epochs": "num_train_steps", "warmup_ratio": "warmup_steps"}
# Each defines the model's dimensions.
_INSTEAD_OF_SIZE = ("checkpoint", "model_config_path", "num_hidden_layers", "hidden_size")
_MARK = b'"kind":"resolved"'
_MOST_KEPT = 4096

_Key = tuple[Path, int]
_kept: OrderedDict[_Key, dict[str, Any]] = OrderedDict()
_lock = Lock()


class UsedSettings:
    """The settings that a run used, by option.

    An automatic one has the value that the newest attempt logged, or else that of the results. It
    stays automatic before the run has chosen a value. The log is read only if it is needed.
    """

    def __init__(self, workspace: Workspace, row: RunRow) -> None:
        self._workspace = workspace
        self._row = row
        self._config = dict(flat_config(row.config))

    def __contains__(self, name: str) -> bool:
        return name in self._config

    def __getitem__(self, name: str) -> Any:
        given = self._config[name]
        if name == "size" and any(self._config.get(option) for option in _INSTEAD_OF_SIZE):
            return self._find_size()
        is_overridden = self._config.get(_OVERRIDDEN_BY.get(name, "")) is not None
        if given not in _AUTOMATIC and not is_overridden:
            return given
        resolved, result = self._resolved.get(name), self._row.results.get(name)
        if isinstance(resolved, str | bool | int | float):
            return resolved
        # A text of the results describes, like the device's.
        return result if isinstance(result, int | float) else given

    def _find_size(self) -> str | None:
        """Returns the size of a model with other dimensions than `size` says, if it has one."""
        dimensions = (self._resolved.get("num_hidden_layers"), self._resolved.get("hidden_size"))
        sizes = sizes_of_family(str(self._config.get("family")))
        return next(
            (
                size_name
                for size_name, size in sizes.items()
                if (size.layers, size.width) == dimensions
            ),
            None,
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: self[name] for name in self._config}

    @cached_property
    def _resolved(self) -> dict[str, Any]:
        return _resolved_of(self._workspace, self._row)


def flat_config(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the options of a config and their values; `corpus.path` is an option of the corpus."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat_config(value, f"{before}{name}.")
        elif before or name not in _NAMES:
            yield f"{before}{name}", value


def _read_newest(path: Path, *, is_first_attempt: bool) -> tuple[int, dict[str, Any]]:
    """Reads the newest `resolved` event; returns its number and settings, or (0, {}).

    Args:
        is_first_attempt: The log has one such event, so that its beginning is enough.
    """
    line = b""
    if path.is_file():  # Reading a pipe would block.
        with path.open("rb") as file:
            for event_line in file:
                if _MARK in event_line and event_line.endswith(b"\n"):
                    line = event_line
                    if is_first_attempt:
                        break
    return _parse(line)


def _parse(line: bytes) -> tuple[int, dict[str, Any]]:
    try:
        event = parse_bounded_json(line)
        number, settings = int(event["n"]), event["settings"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0, {}
    return (number, settings) if isinstance(settings, dict) else (0, {})


def _resolved_of(workspace: Workspace, row: RunRow) -> dict[str, Any]:
    key = (RunFolder.of(workspace, row.id).events, row.attempt)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    # A run that another machine executed or began has several starts in one attempt.
    is_first = row.attempt < 2 and not row.attempt_number and not row.remote
    number, settings = _read_newest(key[0], is_first_attempt=is_first)
    is_of_attempt = not row.remote and number > row.attempt_number
    if row.has_ended or is_of_attempt:
        with _lock:
            _kept[key] = settings
            while len(_kept) > _MOST_KEPT:
                _kept.popitem(last=False)
    return settings
