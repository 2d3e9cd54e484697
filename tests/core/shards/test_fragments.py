"""Tests that the tokens of a word's fragments are the tokens of the word."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from core.shards.distinct import Lists, UnitEncoder
from core.shards.fragments import Fragmenter, fragmenter_for
from core.shards.units import find_delimiter, unit_rule
from core.tokenizer.loading import StudioTokenizer, load

ALPHABET = "▁abcdé안"


def vocabulary(generator: random.Random) -> list[tuple[str, float]]:
    """Draws a vocabulary whose scores often tie, in which some characters have no entry."""
    pieces = {
        "".join(generator.choices(ALPHABET[1:], k=generator.randint(2, 5))) for _ in range(25)
    }
    singles = generator.sample(ALPHABET, 5)
    named = sorted({*pieces, *singles, "▁" + generator.choice("abc")})
    return [("<unk>", 0.0), *((piece, -generator.randint(2, 12) / 4) for piece in named)]


def words(generator: random.Random) -> list[str]:
    """Draws distinct words, some with characters that are not in the vocabulary."""
    drawn = {
        " " * generator.randint(0, 1)
        + "".join(generator.choices(ALPHABET[1:] + "xy語", k=generator.randint(1, 12)))
        for _ in range(40)
    }
    return sorted(drawn)


def cut(fragmenter: Fragmenter, texts: list[str]) -> list[list[str]]:
    """Splits each word into fragments."""
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(text) for text in encoded])
    whole = np.frombuffer(b"".join(encoded), np.uint8)
    places, counts = fragmenter.cut(whole, np.cumsum(lengths) - lengths)
    pieces = [part.tobytes().decode() for part in np.split(whole, places[1:])]
    ends = np.cumsum(counts)
    return [pieces[end - count : end] for end, count in zip(ends, counts, strict=True)]


def test_fragments_encode_to_the_tokens_of_whole_words() -> None:
    fragments = 0
    for seed in range(150):
        generator = random.Random(seed)
        entries = vocabulary(generator)
        model = models.Unigram(entries, unk_id=0, byte_fallback=False)
        texts = words(generator)
        parts = cut(Fragmenter([piece for piece, _ in entries]), texts)
        for text, found in zip(texts, parts, strict=True):
            assert "".join(found) == text
            expected = [token.id for token in model.tokenize(text.replace(" ", "▁"))]
            ids = [token.id for part in found for token in model.tokenize(part.replace(" ", "▁"))]
            assert ids == expected, (entries, text, found)
        fragments += sum(map(len, parts)) - len(texts)
    assert fragments > 5000


def test_words_are_not_split_inside_a_vocabulary_entry() -> None:
    fragmenter = Fragmenter(["▁", "a", "b", "c", "ab", "▁a", "bcd"])
    assert cut(fragmenter, [" abc", "bcdab", "a"]) == [[" ab", "c"], ["bcd", "ab"], ["a"]]
    # d is not an entry by itself, so two of them make one unknown token.
    assert cut(fragmenter, ["cdd", "xc"]) == [["c", "dd"], ["x", "c"]]


def test_only_unigram_tokenizers_have_a_fragmenter(tokenizer: StudioTokenizer) -> None:
    specification = json.loads(tokenizer.backend.to_str())
    is_unigram = specification["model"]["type"] == "Unigram"
    assert (fragmenter_for(specification) is not None) == is_unigram


@pytest.mark.parametrize(
    "model",
    [
        {"type": "BPE", "vocab": {"a": 0}},
        {"type": "Unigram", "vocab": [["a", -1.5], ["b", -0.1]]},
        {"type": "Unigram", "vocab": [["a", -1.5], ["b" * 65, -1.0]]},
        {"type": "Unigram", "vocab": [["a", -(2.0**30)]]},
    ],
)
def test_fragmenter_is_refused_if_a_tie_could_be_resolved_differently(
    model: dict[str, Any],
) -> None:
    assert fragmenter_for({"model": model}) is None


def test_cached_fragments_are_reused_for_other_words(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = load(str(trained / "workspace" / "tokenizers" / "unigram")).backend
    specification = json.loads(backend.to_str())
    names = [token["content"] for token in specification["added_tokens"]]
    vocab = [[piece, -1.0] for piece in [*names, "▁", "a", "b", "ab", "c"]]
    specification["model"]["vocab"] = vocab
    backend = Tokenizer.from_str(json.dumps(specification))
    rule, delimiter = unit_rule(specification), find_delimiter(specification)
    assert rule and delimiter
    asked: list[bytes] = []
    encode = UnitEncoder._encode_delimited

    def listen(encoder: UnitEncoder, pieces: Any) -> Lists:
        asked.extend(pieces.to_pylist())
        return encode(encoder, pieces)

    monkeypatch.setattr(UnitEncoder, "_encode_delimited", listen)
    encoder = UnitEncoder(backend, rule, delimiter, np.dtype(np.int32))
    numbers = {piece: len(names) + place for place, piece in enumerate(["▁", "a", "b", "ab", "c"])}
    for text, expected, new in (
        (b" abc", ["▁", "ab", "c"], [b" ", b"ab", b"c"]),
        (b" cab c", ["▁", "c", "ab", "▁", "c"], []),
        (b" ba", ["▁", "b", "a"], [b"b", b"a"]),
    ):
        asked.clear()
        assert encoder.encode(text, {}).tolist() == [numbers[piece] for piece in expected]
        assert asked == new
