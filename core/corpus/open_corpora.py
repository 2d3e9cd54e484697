"""Well-known open corpora on the Hub, by language."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from core.config.corpus import CorpusConfig
from core.errors import ConfigError
from core.messages.suggestions import did_you_mean

# A sample that is read in minutes.
SAMPLE_DOCUMENTS = 10_000


@dataclass(frozen=True)
class OpenCorpus:
    """A corpus on the Hub in one language.

    Attributes:
        size: Approximate, as its card says; mostly of the whole corpus.
        gated: Whether the Hub asks for a login and the acceptance of terms.
        source: Address of the card with these facts.
    """

    title: str
    about: str
    dataset_name: str
    dataset_config: str
    size: str
    licence: str
    gated: bool
    source: str

    def sample_config(self, documents: int = SAMPLE_DOCUMENTS) -> CorpusConfig:
        """Returns settings that stream the first documents."""
        return CorpusConfig(
            source="hub",
            dataset_name=self.dataset_name,
            dataset_config=self.dataset_config,
            limit=documents,
        )


def list_languages() -> dict[str, str]:
    """Returns the languages' names by code."""
    return {code: known["name"] for code, known in _data()["languages"].items()}


def find_language(text: str) -> str:
    """Returns a language's code from its code or name; raises ConfigError."""
    wanted = text.strip().casefold()
    spellings: dict[str, str] = {}
    for code, known in _data()["languages"].items():
        for spelling in (code, known["name"], *known["aliases"]):
            spellings.setdefault(spelling.casefold(), code)
    if wanted in spellings:
        return spellings[wanted]
    names = list(list_languages().values())
    raise ConfigError(
        f"The language {text!r} is not in the list of open corpora",
        expected=f"a code or a name: {', '.join(list_languages())}",
        received=text,
        fix=did_you_mean(text, names) or "choose a dataset on the Hub yourself: ⟬--dataset-name⟭",
        field="language",
    )


def find_corpora(language: str) -> list[OpenCorpus]:
    """Lists the open corpora in a language, given by code or name; raises ConfigError."""
    code = find_language(language)
    return [
        _in_language(corpus, code)
        for corpus in _data()["corpora"]
        if code in corpus["configurations"]
    ]


def _in_language(corpus: dict[str, Any], code: str) -> OpenCorpus:
    facts = {name: value for name, value in corpus.items() if name != "configurations"}
    return OpenCorpus(dataset_config=corpus["configurations"][code], **facts)


@cache
def _data() -> dict[str, Any]:
    text = resources.files("core.corpus").joinpath("open_corpora.json").read_text("utf-8")
    return dict(json.loads(text))
