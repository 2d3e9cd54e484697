import pytest
from tokenizers import Tokenizer

from core.errors import TokenizerError
from core.records.events import Reporter
from core.tokenizer import sentencepiece
from tests.texts import sentences

TEXTS = [*sentences(300), "In 1984, at 12:30 (or so).", "</s> <extra_id_7>"]


@pytest.fixture(scope="module")
def backend() -> Tokenizer:
    return sentencepiece.train_sentencepiece(TEXTS, 250, Reporter())


def test_special_tokens_come_first_and_sentinels_last(backend: Tokenizer) -> None:
    assert [backend.id_to_token(number) for number in range(3)] == ["<pad>", "</s>", "<unk>"]
    assert backend.get_vocab_size() == 250
    sentinels = [backend.token_to_id(f"<extra_id_{number}>") for number in range(100)]
    assert sentinels == list(range(249, 149, -1))
    assert sorted(backend.get_vocab().values()) == list(range(250))


def test_text_ends_with_the_end_token(backend: Tokenizer) -> None:
    assert backend.encode("the house").tokens == ["▁the", "▁house", "</s>"]
    assert backend.encode("the", "a").tokens == ["▁the", "</s>", "▁a", "</s>"]


def test_digits_and_punctuation_are_separate_tokens(backend: Tokenizer) -> None:
    tokens = backend.encode("in 1984, (a)", add_special_tokens=False).tokens
    assert [token.removeprefix("▁") for token in tokens if token != "▁"][-7:] == list("1984,(a)")[
        1:
    ]
    assert not any(
        any(sign in token for sign in "0123456789.,():") and len(token) > 1
        for token in backend.get_vocab()
        if not token.startswith("<")
    )


def test_repeated_spaces_and_full_width_letters_are_normalised(backend: Tokenizer) -> None:
    plain = backend.encode("the house").ids
    assert backend.encode("the    house").ids == plain
    assert backend.encode("the\nhouse").ids == plain
    assert backend.encode("ｔｈｅ\u3000house").ids == plain
    assert backend.decode(plain) == "the house"


def test_sentinel_absorbs_the_preceding_space(backend: Tokenizer) -> None:
    ids = backend.encode("the <extra_id_0> house").ids
    tokens = [backend.id_to_token(number) for number in ids]
    assert tokens == ["▁the", "<extra_id_0>", "▁house", "</s>"]


def test_lower_casing_is_an_option(backend: Tokenizer) -> None:
    small = sentencepiece.train_sentencepiece(TEXTS, 250, Reporter(), lowercase=True)
    assert small.encode("THE House").ids == small.encode("the house").ids
    assert backend.encode("THE House").ids != backend.encode("the house").ids


def test_number_of_sentinels_can_be_set() -> None:
    made = sentencepiece.train_sentencepiece(TEXTS, 120, Reporter(), sentinels=2)
    assert made.token_to_id("<extra_id_0>") == 119 and made.token_to_id("<extra_id_2>") is None


def test_training_is_deterministic(backend: Tokenizer) -> None:
    again = sentencepiece.train_sentencepiece(TEXTS, 250, Reporter())
    assert again.to_str() == backend.to_str()


def test_vocabulary_too_small_for_the_sentinels_is_refused() -> None:
    with pytest.raises(TokenizerError, match="too small for the characters") as caught:
        sentencepiece.train_sentencepiece(TEXTS, 110, Reporter())
    assert caught.value.field == "vocab_size" and "100 sentinels" in caught.value.expected
