import json
import random
import time
from itertools import product

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from core.errors import TokenizerError
from core.records.events import Reporter, RunStopped
from core.tokenizer import bpe
from core.tokenizer.pre_tokenizers import PRE_TOKENIZATIONS
from tests.texts import sentences, varied_texts


@pytest.fixture(scope="module")
def backend() -> Tokenizer:
    return bpe.train_byte_level_bpe([*sentences(300), "<mask> <pad>"], 320, 2, Reporter())


def test_special_tokens_match_roberta(backend: Tokenizer) -> None:
    added = backend.get_added_tokens_decoder()
    assert [added[number].content for number in range(5)] == list(bpe.SPECIAL_TOKENS)
    assert added[4].lstrip and not added[4].rstrip
    assert backend.encode("a").tokens == ["<s>", "a", "</s>"]
    assert backend.encode("a", "b").tokens == ["<s>", "a", "</s>", "</s>", "b", "</s>"]


def test_vocabulary_has_the_requested_size(backend: Tokenizer) -> None:
    assert sorted(backend.get_vocab().values()) == list(range(320))


def test_text_round_trips_byte_for_byte(backend: Tokenizer) -> None:
    generator = np.random.default_rng(0)
    alphabet = [*" \t\r\n\0aé中😀\u2028\u00a0\ufeff▁Ġ", "  ", "the", " the", "\U0010ffff"]
    texts = ["", " ", "  leading", "trailing  ", "\r\n", "👩‍👩‍👧"]
    texts += ["".join(generator.choice(alphabet, int(n))) for n in generator.integers(0, 40, 500)]
    for text in texts:
        assert backend.decode(backend.encode(text).ids) == text


def test_mask_token_absorbs_the_preceding_space(backend: Tokenizer) -> None:
    a, dot = backend.token_to_id("a"), backend.token_to_id(".")
    assert backend.encode("a <mask>.").ids == [0, a, 4, dot, 2]
    assert backend.encode("<mask>.").ids == [0, 4, dot, 2]


def test_pairs_below_the_minimum_frequency_are_not_merged() -> None:
    texts = ["zq"] * 3 + sentences(50)
    often = bpe.train_byte_level_bpe(texts, 5000, 4, Reporter())
    rarely = bpe.train_byte_level_bpe(texts, 5000, 3, Reporter())
    assert "zq" not in often.get_vocab()
    assert "zq" in rarely.get_vocab()


def test_training_is_deterministic(backend: Tokenizer) -> None:
    again = bpe.train_byte_level_bpe([*sentences(300), "<mask> <pad>"], 320, 2, Reporter())
    assert again.to_str() == backend.to_str()


def test_vocabulary_too_small_for_the_bytes_is_refused() -> None:
    with pytest.raises(TokenizerError, match="at least 261: 256 byte tokens"):
        bpe.train_byte_level_bpe(["a"], 260, 2, Reporter())
    assert bpe.train_byte_level_bpe(["a"], 261, 2, Reporter()).get_vocab_size() == 261


def test_stop_request_ends_merging() -> None:
    class Stopping(Reporter):
        def stop_requested(self):  # type: ignore[no-untyped-def]
            return "abort"

    words = {"".join(word): 2 for word in product("abcde", repeat=5)}
    with pytest.raises(RunStopped):
        bpe.train_on_words(words, 2000, 2, Stopping())


def test_lone_surrogates_are_trained_as_question_marks() -> None:
    made = bpe.train_byte_level_bpe(["a\ud800b"] * 3, 300, 2, Reporter())
    assert made.get_vocab() == bpe.train_byte_level_bpe(["a?b"] * 3, 300, 2, Reporter()).get_vocab()


def plainly_trained(texts: list[str], size: int, pre_tokenization: str) -> dict[str, int]:
    """Trains with the trainer of `tokenizers` alone, without a limit on word length."""
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = PRE_TOKENIZATIONS[pre_tokenization].pre_tokenizer()
    trainer = BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=list(bpe.SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False,
    )  # fmt: skip
    plain.train_from_iterator(texts, trainer)
    vocabulary: dict[str, int] = plain.get_vocab()
    return vocabulary


@pytest.mark.parametrize("splits", PRE_TOKENIZATIONS)
def test_word_length_limit_does_not_change_the_vocabulary_of_ordinary_text(splits: str) -> None:
    awkward = [
        "it's we'll they've I'm  two   spaces\t\ttabs \r\n\r\n lines ", "x" * 1000, "กขคง" * 250,
        "1234567890" * 100, "!?" * 400, " " * 900 + "a", "\n" * 1000,
        "été 東京 🙂🙂 №½ a\u200bb\u0301", *varied_texts(),
    ]  # fmt: skip
    texts = [*sentences(200), *(text for text in awkward for _ in range(2))]
    texts = [text for text in texts if not any(token in text for token in bpe.SPECIAL_TOKENS)]
    limited = bpe.train_byte_level_bpe(texts, 900, 2, Reporter(), pre_tokenization=splits)
    assert limited.get_vocab() == plainly_trained(texts, 900, splits)
    written = json.loads(limited.to_str())
    assert written["model"].get("ignore_merges", False) == (splits == "llama3")
    assert (written["pre_tokenizer"]["type"] == "ByteLevel") == (splits == "gpt2")


@pytest.mark.parametrize("letter", ["ACGT", "1234567890", "!?.,;", "กขคงจฉ", " \t"])
def test_training_time_is_linear_in_the_length_of_a_word(letter: str) -> None:
    draw = random.Random(3)

    def seconds(length: int) -> float:
        text = "".join(draw.choices(letter, k=length))
        started = time.process_time()
        bpe.train_byte_level_bpe([text], 300, 1, Reporter())
        return time.process_time() - started

    seconds(1000)
    assert seconds(80_000) < 6 * seconds(20_000) + 0.5, "squared, it would be 16 times as long"
