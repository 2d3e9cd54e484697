"""Identifies languages offline, with the model that py3langid contains."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from core.config.clean import CleanConfig
from core.errors import ConfigError

_READ_CHARACTERS = 2000
_BETWEEN_CODES = re.compile(r"[,\s]+")


def identify_language(text: str) -> tuple[str, float]:
    """Returns the language's ISO 639 code and its probability."""
    language, probability = _identifier().classify(text[:_READ_CHARACTERS])
    return str(language), float(probability)


def chosen_languages(config: CleanConfig) -> frozenset[str]:
    """Returns the codes to keep, none for all; raises ConfigError for unknown ones."""
    codes = frozenset(filter(None, _BETWEEN_CODES.split(config.languages.lower())))
    if not codes:
        return codes
    known = set(_identifier().labels)
    if unknown := sorted(codes - known):
        raise ConfigError(
            f"The language {unknown[0]!r} can't be identified",
            expected="ISO 639 codes among " + ", ".join(sorted(known)),
            received=config.languages,
            fix="choose known codes, or leave ⟬languages⟭ empty",
            field="languages",
        )
    return codes


@lru_cache(maxsize=1)
def _identifier() -> Any:
    # Loading takes half a second and 80 MB.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
