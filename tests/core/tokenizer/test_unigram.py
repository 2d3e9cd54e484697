from collections import Counter

import numpy as np
import pytest
from tokenizers import Tokenizer

from core.errors import TokenizerError
from core.records.events import Reporter
from core.tokenizer import unigram
from core.tokenizer.counting import count_texts
from tests.texts import sentences

TEXTS = [
    *sentences(300),
    "  Two spaces,\n\n    four spaces; a\ttab.\r\n",
    "``quoted'' <unk> and [MASK] <pad>",
    "é 😀 中文字 ▁ \0",
]
AWKWARD = [
    "", " ", "  ", "\n", "\n\n  \n", " the", "the ", "   the   river", "the\n  river\n",
    "\tthe", "a  b   c", "the\r\nriver", "``the''", "'' ``", "中 文", "😀😀", "\0the\0",
]  # fmt: skip


@pytest.fixture(scope="module")
def backend() -> Tokenizer:
    return unigram.train_unigram(TEXTS, 120, Reporter())


def normalised(text: str) -> str:
    return text.replace("``", '"').replace("''", '"')


def test_special_tokens_match_the_original_example(backend: Tokenizer) -> None:
    added = backend.get_added_tokens_decoder()
    assert [added[number].content for number in range(5)] == list(unigram.SPECIAL_TOKENS)
    assert added[4].lstrip and not added[4].rstrip
    assert all(token.special for token in added.values())
    ids = backend.encode("the").ids
    assert (ids[0], ids[-1]) == (0, 1)
    pair = backend.encode("the", "river")
    assert [pair.tokens[0], pair.tokens[-1], pair.type_ids[-1]] == ["[CLS]", "[SEP]", 1]


def test_vocabulary_has_the_requested_size_without_duplicates(backend: Tokenizer) -> None:
    vocabulary = backend.get_vocab()
    assert sorted(vocabulary.values()) == list(range(120))


def test_normaliser_matches_the_original_example(backend: Tokenizer) -> None:
    assert backend.normalizer.normalize_str("``a'' 'b'") == "\"a\" 'b'"


@pytest.mark.parametrize("text", AWKWARD)
def test_text_with_unusual_white_space_round_trips(backend: Tokenizer, text: str) -> None:
    encoding = backend.encode(text, add_special_tokens=False)
    assert 2 not in encoding.ids
    assert backend.decode(encoding.ids) == normalised(text)


def test_random_text_of_known_characters_round_trips(backend: Tokenizer) -> None:
    generator = np.random.default_rng(0)
    known = [*' \n\t"', *"thervmounai.,", "  ", "``", "''", "the", "é", "😀", "中"]
    for _ in range(500):
        text = "".join(generator.choice(known, int(generator.integers(0, 30))))
        encoding = backend.encode(text)
        assert 2 not in encoding.ids
        assert backend.decode(encoding.ids) == normalised(text)


def test_unknown_character_becomes_the_unknown_token(backend: Tokenizer) -> None:
    assert 2 in backend.encode("the ß").ids


def test_mask_token_absorbs_the_preceding_space(backend: Tokenizer) -> None:
    the, river = backend.token_to_id("▁the"), backend.token_to_id("▁river")
    assert backend.encode("the [MASK] river").ids == [0, the, 4, river, 1]
    assert backend.encode("[MASK] river").ids == [0, 4, river, 1]
    assert backend.encode("the [MASK]  river").ids == [
        0,
        the,
        4,
        backend.token_to_id("▁"),
        river,
        1,
    ]


def counted(texts: list[str], memory_gb: float = 2.0) -> dict[str, int]:
    return count_texts(texts, unigram.UnigramCounter(), memory_gb)


def test_first_word_has_the_same_token_as_later_words(backend: Tokenizer) -> None:
    assert backend.encode("river").tokens[1] == backend.encode("the river").tokens[2] == "▁river"


def test_word_counts_match_the_pre_tokenizer(backend: Tokenizer) -> None:
    for text in [*TEXTS[:50], TEXTS[300], TEXTS[302], *AWKWARD]:
        cut = backend.pre_tokenizer.pre_tokenize_str(normalised(text)) if text else []
        expected = Counter(piece for piece, _ in cut) if text else Counter(["▁"])
        assert counted([text]) == expected, repr(text)


def test_special_tokens_in_the_text_are_not_counted_as_words() -> None:
    words = counted(["a <unk> b[MASK]c"])
    assert words == Counter(["▁a", "▁", "▁b", "c"])


def test_training_is_deterministic(backend: Tokenizer) -> None:
    again = unigram.train_unigram(reversed(TEXTS), 120, Reporter())
    assert again.to_str() == backend.to_str()


def test_vocabulary_too_small_for_the_characters_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"at least \d+: \d+ different characters") as caught:
        unigram.train_unigram(TEXTS, 30, Reporter())
    assert caught.value.field == "vocab_size"
    needed = int(caught.value.expected.split()[2].rstrip(":"))
    assert unigram.train_unigram(TEXTS, needed, Reporter()).get_vocab_size() == needed
    with pytest.raises(TokenizerError):
        unigram.train_unigram(TEXTS, needed - 1, Reporter())


def test_rare_characters_are_dropped_if_they_fill_too_much_of_the_vocabulary() -> None:
    common = {"▁the": 100_000, "▁river": 50_000}
    rare = {chr(0x4E00 + number): 1 for number in range(100)}
    found = unigram.rare_characters(common | rare | {"▁☃": 1000}, 20)
    assert found < set(rare)
    assert len(found) == len(set("▁theriv☃")) + 100 - 20
    assert unigram.rare_characters(common | rare, 200) == set()
    assert unigram.rare_characters({"ab": 1, "cd": 1}, 1) == set(), "no text can do without half"
    words = unigram.without_characters({"a一b": 2, "一": 5, "b": 1, "a-]b": 1}, {"一", "]", "-"})
    assert words == Counter({"a": 3, "b": 4})


def test_sample_keeps_frequent_words_all_characters_and_the_total_count() -> None:
    generator = np.random.default_rng(0)
    rare = ["".join(generator.choice([*"abcdefgh"], 8)) for _ in range(5000)]
    words = {word: 1 + number % 3 for number, word in enumerate(rare)} | {"the": 900, "xéz": 1}
    sample = unigram.sample_words(words, 8000)
    assert sum(map(len, sample)) == pytest.approx(8000, rel=0.1)
    assert sum(sample.values()) == pytest.approx(sum(words.values()), rel=0.1)
    assert sample["the"] == 900
    assert set("".join(words)) == set("".join(sample))
    assert unigram.sample_words(words, 10**6) == words


def test_word_counting_drops_rare_words_but_no_characters() -> None:
    texts = [f"the w{number}x" for number in range(500)] + ["ß"]
    words = counted(texts, memory_gb=1e-4)
    assert len(words) < 120
    assert words["▁the"] == 500
    assert set("".join(words)) == set("".join(texts).replace(" ", "▁"))


def test_word_counting_keeps_the_proportions_of_the_text() -> None:
    """Half of the words, each of which occurs once, contain an a."""
    texts = [f"{'a' if number % 2 else 'b'}{number}" for number in range(20_000)]
    words = counted(["again again", *texts], memory_gb=2e-3)
    assert len(words) == pytest.approx(1500, rel=0.2)
    for letter in "ab":
        found = sum(
            count for word, count in words.items() if letter in word and "again" not in word
        )
        assert found == pytest.approx(10_000, rel=0.25)


def test_text_without_spaces_is_split_for_training() -> None:
    text = "日本語の文章には空白がありません。" * 200
    assert max(map(len, counted([text]))) <= 32
    backend = unigram.train_unigram([text], 30, Reporter())
    assert backend.decode(backend.encode(text).ids) == text
