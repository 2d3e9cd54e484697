"""The list of open corpora by language."""

from __future__ import annotations

import json

import pytest

from core.__main__ import main
from core.corpus.open_corpora import find_corpora, find_language, list_languages
from core.errors import ConfigError


@pytest.mark.parametrize("text", ["no", "Norwegian", "nob", "NORSK", " nb "])
def test_language_is_found_by_code_and_name(text: str) -> None:
    assert find_language(text) == "no"


def test_unknown_language_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean Norwegian"):
        find_corpora("norwegain")


def test_every_language_has_corpora_that_say_licence_size_and_source() -> None:
    for code in list_languages():
        corpora = find_corpora(code)
        assert len(corpora) >= 3, code
        for one in corpora:
            assert one.about and one.licence and one.size
            assert one.source == f"https://huggingface.co/datasets/{one.dataset_name}"


def test_a_sample_is_bounded_and_streamed_from_the_hub() -> None:
    corpora = {one.title: one for one in find_corpora("ko")}
    assert corpora["FineWeb-2"].dataset_config == "kor_Hang"
    assert corpora["CulturaX"].gated and not corpora["Wikipedia"].gated
    config = corpora["Wikipedia"].sample_config()
    assert (config.source, config.dataset_config, config.limit) == ("hub", "20231101.ko", 10_000)


def test_command_lists_corpora_of_a_language(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpora"]) == 0
    assert "ko  Korean" in capsys.readouterr().out
    assert main(["corpora", "english", "--json"]) == 0
    names = {one["dataset_name"] for one in json.loads(capsys.readouterr().out)}
    assert {"Salesforce/wikitext", "roneneldan/TinyStories", "allenai/c4"} <= names
    assert main(["corpora", "klingon"]) == 2
