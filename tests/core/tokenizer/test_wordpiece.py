import subprocess
import sys
from hashlib import sha256
from typing import Any

import pytest
from tokenizers import Tokenizer

from core.errors import TokenizerError
from core.records.events import Reporter
from core.tokenizer import wordpiece
from tests.texts import sentences

TEXTS = [*sentences(300), "[MASK] [PAD]", "Café crème, déjà vu! " * 3]


@pytest.fixture(scope="module")
def backend() -> Tokenizer:
    return wordpiece.train_wordpiece(TEXTS, 150, 2, Reporter())


def test_special_tokens_match_bert(backend: Tokenizer) -> None:
    added = backend.get_added_tokens_decoder()
    assert [added[number].content for number in range(5)] == list(wordpiece.SPECIAL_TOKENS)
    assert len(added) == 5 and added[4].lstrip and not added[4].rstrip
    assert backend.encode("the house").tokens[0] == "[CLS]"
    assert backend.encode("the", "a").tokens[-1] == "[SEP]"
    ids = backend.encode("the [MASK].").ids
    tokens = [backend.id_to_token(number) for number in ids]
    assert tokens == ["[CLS]", "the", "[MASK]", ".", "[SEP]"]


def test_vocabulary_has_the_requested_size(backend: Tokenizer) -> None:
    assert sorted(backend.get_vocab().values()) == list(range(150))


def test_continuation_tokens_have_the_prefix_and_round_trip(backend: Tokenizer) -> None:
    tokens = backend.encode("the xylographer", add_special_tokens=False).tokens
    assert tokens[0] == "the"
    text = "The small river runs behind the loud mountain."
    encoding = backend.encode(text)
    assert any(token.startswith("##") for token in encoding.tokens)
    assert backend.decode(encoding.ids) == text


def test_word_with_an_unknown_character_becomes_the_unknown_token(backend: Tokenizer) -> None:
    tokens = backend.encode("the ☃n h", add_special_tokens=False).tokens
    assert tokens[:3] == ["the", "[UNK]", "h"]


def test_lowercase_strips_accents_unless_disabled() -> None:
    small = wordpiece.train_wordpiece(TEXTS, 150, 2, Reporter(), lowercase=True)
    assert small.decode(small.encode("CAFÉ").ids) == "cafe"
    kept = wordpiece.train_wordpiece(TEXTS, 150, 2, Reporter(), lowercase=True, strip_accents=False)
    assert kept.decode(kept.encode("CAFÉ").ids) == "café"


def test_training_is_deterministic_across_processes(backend: Tokenizer) -> None:
    code = (
        "from hashlib import sha256\n"
        "from core.records.events import Reporter\n"
        "from core.tokenizer import wordpiece\n"
        "from tests.core.tokenizer.test_wordpiece import TEXTS\n"
        "made = wordpiece.train_wordpiece(TEXTS, 150, 2, Reporter())\n"
        "print(sha256(made.to_str().encode()).hexdigest())\n"
    )
    expected = sha256(backend.to_str().encode()).hexdigest()
    for _ in range(2):
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert found.stdout.strip() == expected, found.stderr


def test_vocabulary_too_small_for_the_characters_is_refused() -> None:
    with pytest.raises(TokenizerError, match="too small for the characters") as caught:
        wordpiece.train_wordpiece(TEXTS, 40, 2, Reporter())
    assert caught.value.field == "vocab_size"


def test_words_of_rare_characters_are_dropped_if_they_fill_too_much_of_the_vocabulary() -> None:
    texts = [*sentences(3000), "".join(map(chr, range(0xAC00, 0xAC28)))]
    made = wordpiece.train_wordpiece(texts, 160, 2, Reporter())
    assert not any(chr(0xAC00) in token for token in made.get_vocab())


class Listener(Reporter):
    """Records warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []

    def warn(self, message: str, **_: Any) -> None:
        self.warnings.append(message)


def test_text_of_overlong_words_is_refused_with_the_reason() -> None:
    texts = ["ACGT" * 30, *["TTGCA" * 40] * 50]
    with pytest.raises(TokenizerError, match="longer than 100 characters") as told:
        wordpiece.train_wordpiece(texts, 300, 2, Reporter())
    assert "byte_level_bpe" in told.value.fix
    assert "vocab_size" not in told.value.fix, "no smaller vocabulary mends it"


def test_overlong_words_are_reported_in_a_warning() -> None:
    listener = Listener()
    wordpiece.train_wordpiece([*TEXTS, "x" * 101], 150, 2, listener)
    assert any("[UNK]" in warning and "100 characters" in warning for warning in listener.warnings)
    listener = Listener()
    wordpiece.train_wordpiece([*TEXTS, "x" * 100], 150, 2, listener)
    assert not any("100 characters" in warning for warning in listener.warnings)


def test_one_overlong_word_does_not_refuse_the_training() -> None:
    backend = wordpiece.train_wordpiece([*TEXTS, "x" * 101], 3000, 2, Reporter())
    assert backend.get_vocab_size() < 3000
