"""Words and subwords: each word is labelled at its first subword and predicted once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.finetuning.alignment import align, split_sentences
from core.finetuning.tasks import join_windows
from core.workspace.workspace import Workspace
from tests.checkpoints import make_tokenizer

WORDS = ["The", "ship", "reads", "ẞtraße", "½", ",", "the", "horse", "한국어", "-", "runs", "."]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


@pytest.mark.parametrize("algorithm", ["unigram", "byte_level_bpe"])
def test_each_word_is_labelled_at_its_first_subword(workspace: Workspace, algorithm: str) -> None:
    tokenizer = make_tokenizer(workspace, algorithm).backend  # type: ignore[arg-type]
    encoding = tokenizer.encode(" ".join(WORDS))
    positions, has_own = align(encoding, WORDS)
    assert has_own.all() and (np.diff(positions) > 0).all()
    begin = 0
    for word, position in zip(WORDS, positions, strict=True):
        start, stop = encoding.offsets[position]
        assert begin - 1 <= start <= begin <= stop and stop > start, word
        begin += len(word) + 1


def test_words_begin_at_the_tokens_of_transformers(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(Workspace(tmp_path), "unigram").backend
    theirs = tokenizer.encode(WORDS, is_pretokenized=True)
    ours = tokenizer.encode(" ".join(WORDS))
    assert ours.ids == theirs.ids
    first = [theirs.word_ids.index(number) for number in range(len(WORDS))]
    assert align(ours, WORDS)[0].tolist() == first


def test_word_that_the_tokenizer_removes_shares_the_token_before() -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Replace
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.normalizer = Replace("x", "")
    tokenizer.pre_tokenizer = WhitespaceSplit()
    positions, has_own = align(tokenizer.encode("a x b"), ["a", "x", "b"])
    assert positions.tolist() == [0, 0, 1] and has_own.tolist() == [True, False, True]


@pytest.mark.parametrize("longest", [8, 13, 40, 400])
def test_long_sentences_are_split_and_each_word_is_predicted_once(
    workspace: Workspace, longest: int
) -> None:
    from tokenizers import Tokenizer

    backend = make_tokenizer(Workspace(workspace.root / str(longest)), "unigram").backend
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.enable_truncation(longest)
    sentences = [WORDS * 5, ["a"], WORDS[:3]]
    windows = split_sentences(tokenizer, sentences, longest)
    assert all(len(one.ids) <= longest for one in windows)
    numbered = [(one.sentence, one.first + place) for one in windows
                for place in range(len(one.positions))]  # fmt: skip
    assert numbered == [(s, w) for s, words in enumerate(sentences) for w in range(len(words))]
    # The tag of a token is its position, so each word's tag says where it was read.
    names = [str(position) for position in range(longest)]
    outputs = [np.eye(longest, dtype=np.float32)[: len(one.ids)] for one in windows]
    tags = join_windows(windows, outputs, names, len(sentences))
    assert list(map(len, tags)) == list(map(len, sentences))
    found = [str(place) for one in windows for place in one.positions]
    assert found == [tag for sentence in tags for tag in sentence]
