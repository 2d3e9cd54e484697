"""Encoding: the ids are those that `tokenizers` gives whole documents, whatever the shortcut."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors

from core.errors import TokenizerError
from core.shards import distinct
from core.shards.encode import Batcher, DocumentEncoder, Part
from core.shards.units import find_delimiter, unit_rule
from core.tokenizer import StudioTokenizer, load
from tests.texts import WORDS

# Everything that tokenizers are known to treat in their own way.
PIECES = [
    *[" "] * 12, *["\n"] * 4, *WORDS[:10], *"abAB12.,!?é中안", "\t", "\r", "'", "`", "``", "''",
    "'s", "'re", "\xa0", "\u3000", "\u2028", "\u200b", "\x0b", "\x1c", "\x85", "\ufeff", "\0",
    "▁", "[SEP]", "[CLS]", "[MASK]", "<mask>", "<s>", "</s>", "<unk>", "<pad>", "\u0301", "´", "ﬁ",
    "İ", "½", "\ud800", "👩‍👧", "\u0600",
]  # fmt: skip


def documents(seed: int, count: int = 6) -> list[str]:
    generator = random.Random(seed)
    return ["".join(generator.choices(PIECES, k=generator.randrange(40))) for _ in range(count)]


def ids_of_whole_documents(backend: Tokenizer, texts: list[str]) -> list[int]:
    sound = [text.encode("utf-8", "replace").decode() for text in texts]
    return [number for text in sound for number in backend.encode(text).ids]


def check(backend: Tokenizer, seeds: range = range(60)) -> None:
    encoder = DocumentEncoder(backend, np.dtype("<u4"))
    for seed in seeds:
        texts = documents(seed)
        expected = ids_of_whole_documents(backend, texts)
        assert encoder.encode([Part(text) for text in texts]).tolist() == expected, texts


def check_cut(backend: Tokenizer, seeds: range = range(40)) -> int:
    """Encodes long documents in parts; returns how many parts there were."""
    encoder = DocumentEncoder(backend, np.dtype("<u4"))
    count = 0
    for seed in seeds:
        texts = [" ".join(documents(seed)), "short", "\n".join(documents(seed + 1))]
        expected = ids_of_whole_documents(backend, texts)
        for size in (1, 150):
            batcher = Batcher(encoder, batch_characters=size, part_characters=50)
            batches = [batch for text in texts for batch in batcher.add(text)]
            batches += batcher.finish()
            assert np.concatenate(list(map(encoder.encode, batches))).tolist() == expected
            count += sum(map(len, batches))
    return count


def test_the_ids_are_those_of_whole_documents(tokenizer: StudioTokenizer) -> None:
    check(tokenizer.backend)


def test_a_document_cut_into_parts_has_the_same_ids(tokenizer: StudioTokenizer) -> None:
    assert check_cut(tokenizer.backend) > 300


def test_our_own_tokenizers_take_the_short_way(tokenizer: StudioTokenizer) -> None:
    specification = json.loads(tokenizer.backend.to_str())
    assert unit_rule(specification)
    assert find_delimiter(specification)


def test_what_is_remembered_is_bounded_and_changes_nothing(
    tokenizer: StudioTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distinct, "_MOST_REMEMBERED", 20)
    check(tokenizer.backend)


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        pre_tokenizers.Metaspace(),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        pre_tokenizers.Metaspace(prepend_scheme="never"),
        pre_tokenizers.Metaspace(split=False),
        pre_tokenizers.BertPreTokenizer(),
        pre_tokenizers.Whitespace(),
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Punctuation(),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        normalizers.NFC(),
        normalizers.NFKC(),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        normalizers.Nmt(),
        normalizers.BertNormalizer(),
        normalizers.Strip(),
        normalizers.Replace(" a", "b"),
        normalizers.Prepend("▁"),
    ],
    ids=repr,
)
def test_tokenizers_of_other_kinds_are_encoded_right(
    trained: Path,
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    normalizer: normalizers.Normalizer | None,
) -> None:
    for name in ("unigram", "bpe"):
        backend = load(str(trained / "workspace" / "tokenizers" / name)).backend
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.pre_tokenizer = pre_tokenizer
        check(backend, range(12))
        check_cut(backend, range(4))


def test_truncation_and_padding_of_the_tokenizer_are_ignored(tokenizer: StudioTokenizer) -> None:
    expected = ids_of_whole_documents(tokenizer.backend, documents(1))
    tokenizer.backend.enable_truncation(5)
    tokenizer.backend.enable_padding(length=50)
    encoder = DocumentEncoder(tokenizer.backend, np.dtype("<u4"))
    assert encoder.encode([Part(text) for text in documents(1)]).tolist() == expected


def test_a_tokenizer_without_special_tokens_around_texts_works(tokenizer: StudioTokenizer) -> None:
    tokenizer.backend.post_processor = processors.ByteLevel()
    check(tokenizer.backend, range(10))


def test_a_post_processor_that_does_something_else_is_refused(trained: Path) -> None:
    backend = load(str(trained / "workspace" / "tokenizers" / "unigram")).backend
    special = [("[CLS]", backend.token_to_id("[CLS]"))]
    backend.post_processor = processors.TemplateProcessing(
        single="$A [CLS] $A", pair="$A $B", special_tokens=special
    )
    with pytest.raises(TokenizerError, match="can't be used to build shards"):
        DocumentEncoder(backend, np.dtype("<u4"))


def test_a_document_without_a_place_to_cut_stays_whole(tokenizer: StudioTokenizer) -> None:
    encoder = DocumentEncoder(tokenizer.backend, np.dtype("<u4"))
    batcher = Batcher(encoder, part_characters=50)
    assert list(batcher.add("한" * 500)) == []
    assert list(batcher.finish()) == [[Part("한" * 500)]]
