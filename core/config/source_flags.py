"""Turns the command line's flags of sources into named sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.config.named_source import NamedSource, values_of_source
from core.config.options import flag_of
from core.config.source_file import is_source_file, load_sources
from core.errors import ConfigError

# Options of one source; with --add they are those of each source that doesn't set them.
_NAMING = {"source", "name", "path", "validation_path", "dataset_name", "corpus_name", "limit"}
_COMMON = NamedSource.model_fields.keys() - _NAMING


def with_named_sources(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Reads `--corpus FILE.toml` and `--add`; raises ConfigError."""
    file = str(flags.get("corpus_name") or "")
    added: Sequence[str] = flags.get("sources") or ()
    common = {name: value for name, value in flags.items() if name in _COMMON}
    if is_source_file(file):
        rest = {name: value for name, value in flags.items() if name != "corpus_name"}
        if common and not added:
            raise _unused_error(file, next(iter(common)))
        sources = [*load_sources(file), *_added(added, common)]
    elif added:
        rest = dict(flags)
        sources = _added(added, common)
    else:
        return dict(flags)
    left = {name: value for name, value in rest.items() if name not in common}
    return {**left, "sources": tuple(sources)}


def _added(texts: Sequence[str], common: Mapping[str, Any]) -> list[NamedSource]:
    return [NamedSource(**{**common, **values_of_source(text)}) for text in texts]


def _unused_error(file: str, name: str) -> ConfigError:
    flag = flag_of(name, NamedSource.model_fields[name])
    return ConfigError(
        f"⟬--{flag}⟭ has no effect on the sources of {file}",
        expected=f"⟬{name}⟭ in the file, for each source",
        received=f"⟬--{flag}⟭",
        fix=f"write ⟬{name}⟭ below the name of the source in {file}",
        field=name,
    )
