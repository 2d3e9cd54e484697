"""Tests of the check that a text supports a vocabulary, made before a run starts."""

from pathlib import Path

import pytest

from core.config.tokenizer import TokenizerConfig
from core.errors import TokenizerError
from core.tokenizer.capacity import check_vocabulary
from tests.texts import write_sentences


def config_of(path: Path, size: int, algorithm: str = "byte_level_bpe") -> TokenizerConfig:
    corpus = {"source": "files", "path": str(path)}
    return TokenizerConfig.parse({"algorithm": algorithm, "vocab_size": size, "corpus": corpus})


@pytest.mark.parametrize("algorithm", ["unigram", "sentencepiece_unigram", "wordpiece"])
@pytest.mark.parametrize("count", [600, 8000], ids=["trained", "counted"])
def test_vocabulary_too_large_for_the_text_is_refused(
    tmp_path: Path, algorithm: str, count: int
) -> None:
    text = write_sentences(tmp_path / "text.txt", count)
    with pytest.raises(TokenizerError, match="too small for a vocabulary") as error:
        check_vocabulary(config_of(text, 10_048, algorithm))
    assert error.value.field == "vocab_size"


def test_vocabulary_that_the_text_supports_is_accepted(tmp_path: Path) -> None:
    check_vocabulary(config_of(write_sentences(tmp_path / "text.txt", 600), 400))


def test_changed_file_is_checked_again(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("one two three")
    with pytest.raises(TokenizerError):
        check_vocabulary(config_of(path, 320))
    write_sentences(path, 600)
    check_vocabulary(config_of(path, 320))
