"""Languages are identified offline."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from core.corpus.cleaning.language import chosen_languages, identify_language
from core.errors import ConfigError
from tests.core.corpus.cleaning.support import filtered, plain_config, removed_by

TEXTS = {
    "en": "The museum shows paintings of the nineteenth century, and is open on all days.",
    "ko": "이 박물관은 십구 세기의 그림을 전시하며 매일 문을 엽니다.",
    "no": "Museet viser malerier fra det nittende århundret, og er åpent alle dager i uken.",
    "de": "Das Museum zeigt Gemälde des neunzehnten Jahrhunderts und ist täglich geöffnet.",
}


def test_languages_are_identified_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    found = {language: identify_language(text) for language, text in TEXTS.items()}
    assert {language: one[0] for language, one in found.items()} == {one: one for one in TEXTS}
    assert all(0 < probability <= 1 for _, probability in found.values())


def test_models_are_loaded_only_when_they_are_needed() -> None:
    code = "import sys, core.corpus.cleaning.stage; print({'py3langid', 'ftfy'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


def test_documents_in_other_languages_are_removed() -> None:
    kept, tally = filtered([*TEXTS.values()], languages="ko, de", min_language_probability=0)
    assert kept == [TEXTS["ko"], TEXTS["de"]]
    assert removed_by(tally) == {0: "en", 2: "no"}


def test_uncertain_documents_are_removed() -> None:
    kept, tally = filtered([TEXTS["en"]], languages="en", min_language_probability=1)
    assert not kept and removed_by(tally) == {0: "min_language_probability"}


def test_unknown_language_is_named() -> None:
    with pytest.raises(ConfigError, match="'english' can't be identified") as caught:
        chosen_languages(plain_config(languages="english"))
    assert caught.value.field == "languages" and " ko," in caught.value.expected
    assert chosen_languages(plain_config()) == frozenset()
