import threading

import numpy as np
import pytest
from tokenizers import Tokenizer

from core.errors import TokenizerError
from core.events import Reporter, RunStopped
from core.tokenizer import bpe
from core.tokenizer.native import run_watched
from tests.texts import sentences


@pytest.fixture(scope="module")
def backend() -> Tokenizer:
    return bpe.train_byte_level_bpe([*sentences(300), "<mask> <pad>"], 320, 2, Reporter())


def test_the_special_tokens_are_robertas(backend: Tokenizer) -> None:
    added = backend.get_added_tokens_decoder()
    assert [added[number].content for number in range(5)] == list(bpe.SPECIAL_TOKENS)
    assert added[4].lstrip and not added[4].rstrip
    assert backend.encode("a").tokens == ["<s>", "a", "</s>"]
    assert backend.encode("a", "b").tokens == ["<s>", "a", "</s>", "</s>", "b", "</s>"]


def test_the_vocabulary_has_the_size_asked_for(backend: Tokenizer) -> None:
    assert sorted(backend.get_vocab().values()) == list(range(320))


def test_every_text_comes_back_byte_for_byte(backend: Tokenizer) -> None:
    generator = np.random.default_rng(0)
    alphabet = [*" \t\r\n\0aé中😀\u2028\u00a0\ufeff▁Ġ", "  ", "the", " the", "\U0010ffff"]
    texts = ["", " ", "  leading", "trailing  ", "\r\n", "👩‍👩‍👧"]
    texts += ["".join(generator.choice(alphabet, int(n))) for n in generator.integers(0, 40, 500)]
    for text in texts:
        assert backend.decode(backend.encode(text).ids) == text


def test_the_mask_takes_the_space_before_it(backend: Tokenizer) -> None:
    a, dot = backend.token_to_id("a"), backend.token_to_id(".")
    assert backend.encode("a <mask>.").ids == [0, a, 4, dot, 2]
    assert backend.encode("<mask>.").ids == [0, 4, dot, 2]


def test_rare_pairs_are_not_merged() -> None:
    texts = ["zq"] * 3 + sentences(50)
    often = bpe.train_byte_level_bpe(texts, 5000, 4, Reporter())
    rarely = bpe.train_byte_level_bpe(texts, 5000, 3, Reporter())
    assert "zq" not in often.get_vocab()
    assert "zq" in rarely.get_vocab()


def test_training_twice_gives_the_same_tokenizer(backend: Tokenizer) -> None:
    again = bpe.train_byte_level_bpe([*sentences(300), "<mask> <pad>"], 320, 2, Reporter())
    assert again.to_str() == backend.to_str()


def test_a_vocabulary_without_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(TokenizerError, match="at least 261 tokens"):
        bpe.train_byte_level_bpe(["a"], 260, 2, Reporter())
    assert bpe.train_byte_level_bpe(["a"], 261, 2, Reporter()).get_vocab_size() == 261


def test_a_native_call_is_left_when_asked_to_stop() -> None:
    class Stopping(Reporter):
        def stop_requested(self):  # type: ignore[no-untyped-def]
            return "abort"

    forever = threading.Event()
    with pytest.raises(RunStopped):
        run_watched(forever.wait, Stopping(), "waiting")
    forever.set()


def test_what_a_native_call_raises_is_raised() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_watched(fail, Reporter(), "failing")
