"""Tests that the encoder gives the ids that `tokenizers` gives for whole documents."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors

from core.corpus.sentences import sentence_ends
from core.errors import TokenizerError
from core.shards import distinct
from core.shards.encode import Batcher, DocumentEncoder, Part
from core.shards.units import find_delimiter, unit_rule
from core.tokenizer.loading import StudioTokenizer, load
from tests.texts import WORDS

# Characters and strings that some tokenizers treat specially.
PIECES = [
    *[" "] * 12, *["\n"] * 4, *WORDS[:10], *"abAB12.,!?é中안", "\t", "\r", "'", "`", "``", "''",
    "'s", "'re", "\xa0", "\u3000", "\u2028", "\u200b", "\x0b", "\x1c", "\x85", "\ufeff", "\0",
    "▁", "[SEP]", "[CLS]", "[MASK]", "<mask>", "<s>", "</s>", "<unk>", "<pad>", "\u0301", "´", "ﬁ",
    "İ", "½", "\u00a8", "\ufffd", "\x01", "\x8f", "<extra_id_3>", "٣", "\ud800", "👩‍👧", "\u0600",
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
    """Checks long documents encoded in parts, and counts the parts."""
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


def test_encoder_gives_the_ids_of_tokenizers(tokenizer: StudioTokenizer) -> None:
    check(tokenizer.backend)


@pytest.mark.slow(4)
def test_document_split_into_parts_has_the_same_ids(tokenizer: StudioTokenizer) -> None:
    assert check_cut(tokenizer.backend) > 300


def test_our_tokenizers_use_the_fast_path(tokenizer: StudioTokenizer) -> None:
    specification = json.loads(tokenizer.backend.to_str())
    assert unit_rule(specification)
    assert find_delimiter(specification)


def test_small_cache_does_not_change_the_ids(
    tokenizer: StudioTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distinct, "_MOST_BYTES_REMEMBERED", 600)
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
def test_other_tokenizers_give_the_same_ids(
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


def test_tokenizers_truncation_and_padding_are_ignored(tokenizer: StudioTokenizer) -> None:
    expected = ids_of_whole_documents(tokenizer.backend, documents(1))
    tokenizer.backend.enable_truncation(5)
    tokenizer.backend.enable_padding(length=50)
    encoder = DocumentEncoder(tokenizer.backend, np.dtype("<u4"))
    assert encoder.encode([Part(text) for text in documents(1)]).tolist() == expected


def test_tokenizer_that_adds_no_special_tokens_is_supported(tokenizer: StudioTokenizer) -> None:
    tokenizer.backend.post_processor = processors.ByteLevel()
    check(tokenizer.backend, range(10))


def test_end_token_is_added_if_the_tokenizer_adds_none(
    tokenizer: StudioTokenizer,
) -> None:
    texts, end = documents(1), tokenizer.sep_id
    for parts in ([Part(text) for text in texts], [Part(text, ends=False) for text in texts]):
        own = DocumentEncoder(tokenizer.backend, np.dtype("<u4"))
        ended = DocumentEncoder(tokenizer.backend, np.dtype("<u4"), end_id=end)
        assert ended.encode(parts).tolist() == own.encode(parts).tolist()
    tokenizer.backend.post_processor = processors.ByteLevel()
    ended = DocumentEncoder(tokenizer.backend, np.dtype("<u4"), end_id=end)
    expected = [
        number
        for text in texts
        for number in [*ids_of_whole_documents(tokenizer.backend, [text]), end]
    ]
    assert ended.encode([Part(text) for text in texts]).tolist() == expected
    assert ended.suffix_length == 1


def test_unsupported_post_processor_is_refused(trained: Path) -> None:
    backend = load(str(trained / "workspace" / "tokenizers" / "unigram")).backend
    special = [("[CLS]", backend.token_to_id("[CLS]"))]
    backend.post_processor = processors.TemplateProcessing(
        single="$A [CLS] $A", pair="$A $B", special_tokens=special
    )
    with pytest.raises(TokenizerError, match="unsupported post-processor"):
        DocumentEncoder(backend, np.dtype("<u4"))


def test_document_without_a_split_point_stays_whole(tokenizer: StudioTokenizer) -> None:
    encoder = DocumentEncoder(tokenizer.backend, np.dtype("<u4"))
    batcher = Batcher(encoder, part_characters=50)
    assert list(batcher.add("한" * 500)) == []
    assert list(batcher.finish()) == [[Part("한" * 500)]]


MARKS = [
    "Dr. Ola ran. ",
    'She said "no." Then',
    "끝났다.다음은",
    "。",
    "！次",
    ".\n",
    ".\n\n",
    "…",
    "? ",
]


def marked_documents(seed: int) -> list[str]:
    generator = random.Random(seed)
    pieces = [*PIECES, *MARKS * 8, *WORDS]
    return ["".join(generator.choices(pieces, k=generator.randrange(60))) for _ in range(5)]


def check_marks(backend: Tokenizer, seeds: range = range(40)) -> None:
    """Checks the number of marks, and that removing them gives the unmarked ids."""
    mark = backend.get_vocab_size() + 5
    encoder = DocumentEncoder(backend, np.dtype("<u4"), mark_id=mark)
    for seed in seeds:
        texts = marked_documents(seed)
        for size, part_characters in ((1 << 22, 1 << 16), (1, 40)):
            batcher = Batcher(encoder, size, part_characters)
            batches = [batch for text in texts for batch in batcher.add(text)]
            ids = np.concatenate(
                [*map(encoder.encode, batches), *map(encoder.encode, batcher.finish())]
            )
            assert ids[ids != mark].tolist() == ids_of_whole_documents(backend, texts), texts
            assert np.count_nonzero(ids == mark) == sum(len(sentence_ends(t)) for t in texts), texts


@pytest.mark.slow(4)
def test_sentence_marks_match_the_sentence_count_and_change_no_other_token(
    tokenizer: StudioTokenizer,
) -> None:
    check_marks(tokenizer.backend)


def test_sentence_marks_follow_each_sentence(tokenizer: StudioTokenizer) -> None:
    mark = tokenizer.vocab_size
    encoder = DocumentEncoder(tokenizer.backend, np.dtype("<u4"), mark_id=mark)
    expected = ["The river runs.", "The house runs slowly.", "The bridge runs."]
    text = " ".join(expected)
    # The first document is encoded by units, the second as a whole.
    for document in (text, f"{text} The {tokenizer.roles.pad} runs."):
        batcher = Batcher(encoder)
        assert list(batcher.add(document)) == []
        (batch,) = batcher.finish()
        ids = encoder.encode(batch)
        parts = np.split(ids, np.flatnonzero(ids == mark))
        found = [tokenizer.decode(part[part != mark]).strip() for part in parts[:3]]
        assert found == expected


def test_sentence_marks_are_correct_for_other_tokenizers(trained: Path) -> None:
    for name in ("unigram", "bpe"):
        backend = load(str(trained / "workspace" / "tokenizers" / name)).backend
        for pre_tokenizer in (
            pre_tokenizers.Metaspace(),
            pre_tokenizers.BertPreTokenizer(),
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.ByteLevel(add_prefix_space=True),
        ):
            backend.pre_tokenizer = pre_tokenizer
            check_marks(backend, range(8))


def test_separator_follows_each_document(tokenizer: StudioTokenizer) -> None:
    separator = tokenizer.vocab_size
    encoder = DocumentEncoder(tokenizer.backend, np.dtype("<u4"), separator_id=separator)
    ids = encoder.encode([Part("the river"), Part("a <pad> house"), Part("")])
    lines = [tokenizer.encode(text).tolist() for text in ("the river", "a <pad> house", "")]
    assert ids.tolist() == [number for line in lines for number in [*line, separator]]
    assert encoder.suffix_length == 1
