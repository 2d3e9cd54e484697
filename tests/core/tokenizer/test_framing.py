"""Tests of the detection of special tokens around a text, for tokenizers of any script."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from core import CorpusConfig, ShardConfig, Workspace, build_shards
from core.errors import TokenizerError
from core.shards.encode import DocumentEncoder, Part
from core.shards.read import open_shards
from core.tokenizer.framing import find_frame
from core.tokenizer.loading import load

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP = 2, 3
ALPHABETS = {
    "thai": "กขคงจฉชซญฎฏฐ",
    "korean": "가나다라마바사아자차카타",
    "georgian": "აბგდევზთიკლმ",
    "capitals": "QWXZ",
    "emoji": "🙂🙃😀😁😂🤣😃😄",
    "punctuation": "!?;:",
}


def text_of(alphabet: str, words: int = 400) -> str:
    draw = random.Random(7)
    sizes = [draw.randint(1, 5) for _ in range(words)]
    return " ".join("".join(draw.choices(alphabet, k=size)) for size in sizes)


def tokenizer_of(alphabet: str, *, pieces: bool = True) -> Tokenizer:
    """Trains a BPE on the characters of one alphabet, without an unknown token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    size = len(SPECIAL) + len(alphabet) + 20 * pieces
    trainer = BpeTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator([text_of(alphabet)], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )  # fmt: skip
    return backend


def save(backend: Tokenizer, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("script", ALPHABETS)
def test_special_tokens_surround_documents_of_any_script(script: str, tmp_path: Path) -> None:
    backend = tokenizer_of(ALPHABETS[script])
    assert not backend.encode("a", add_special_tokens=False).ids, "it knows no Latin letter"
    assert find_frame(backend) == ((CLS,), (SEP,))
    texts = [text_of(ALPHABETS[script], 5), text_of(ALPHABETS[script], 9)]
    expected = [number for text in texts for number in backend.encode(text).ids]
    encoder = DocumentEncoder(backend, np.dtype("<u2"))
    assert encoder.encode([Part(text) for text in texts]).tolist() == expected


def test_thai_shards_have_special_tokens_around_each_document(tmp_path: Path) -> None:
    folder = save(tokenizer_of(ALPHABETS["thai"]), tmp_path / "tokenizer")
    (tmp_path / "a.txt").write_text(
        "\n".join(text_of(ALPHABETS["thai"], 3 + number) for number in range(200)), "utf-8"
    )
    workspace = Workspace(tmp_path / "workspace")
    corpus = CorpusConfig(source="files", path=str(tmp_path / "a.txt"))
    config = ShardConfig(corpus=corpus, tokenizer=str(folder), max_seq_length=16, name="rows")
    build_shards(config, workspace)
    rows = open_shards("rows", workspace).train
    ids = rows.take(np.arange(len(rows))).reshape(-1)
    assert ids[0] == CLS
    assert not np.any((ids[:-1] == CLS) & (ids[1:] == SEP)), "no document is empty"
    assert np.array_equal(np.flatnonzero(ids[:-1] == SEP) + 1, np.flatnonzero(ids == CLS)[1:])


def test_copy_without_an_end_token_keeps_the_start_token(tmp_path: Path) -> None:
    tokenizer = load(str(save(tokenizer_of(ALPHABETS["thai"]), tmp_path / "a")))
    tokenizer.copy_to(tmp_path / "b", ends=False)
    copy = load(str(tmp_path / "b"))
    bare = tokenizer.encode("กข", special=False).tolist()
    assert bare
    assert copy.encode("กข").tolist() == [CLS, *bare]
    assert tokenizer.encode_beginning("กข").tolist() == [CLS, *bare]


def test_text_without_tokens_still_begins_with_the_start_token(tmp_path: Path) -> None:
    tokenizer = load(str(save(tokenizer_of(ALPHABETS["korean"]), tmp_path)))
    assert tokenizer.encode("abc").tolist() == [CLS, SEP]
    assert tokenizer.encode_beginning("abc").tolist() == [CLS]


def test_special_token_in_the_text_is_kept(tmp_path: Path) -> None:
    tokenizer = load(str(save(tokenizer_of(ALPHABETS["thai"]), tmp_path)))
    assert tokenizer.encode_beginning("[SEP] ก[SEP]").tolist()[-1] == SEP
    assert tokenizer.encode_beginning("[CLS]").tolist() == [CLS, CLS]


def test_all_post_processors_are_detected_without_latin_letters() -> None:
    backend = tokenizer_of(ALPHABETS["georgian"])
    for processor, frame in (
        (processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS)), ((CLS,), (SEP,))),
        (processors.RobertaProcessing(("[SEP]", SEP), ("[CLS]", CLS)), ((CLS,), (SEP,))),
        (None, ((), ())),
        (
            processors.TemplateProcessing(
                single="[CLS] [CLS] $A", pair="$A $B", special_tokens=[("[CLS]", CLS)]
            ),
            ((CLS, CLS), ()),
        ),
    ):
        changed = Tokenizer.from_str(backend.to_str())
        if processor:
            changed.post_processor = processor
        else:
            changed = Tokenizer(backend.model)
        assert find_frame(changed) == frame


def test_special_tokens_are_detected_with_byte_fallback() -> None:
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"ก": 256, "[CLS]": 257}
    backend = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="$A $B", special_tokens=[("[CLS]", 257)]
    )
    assert find_frame(backend) == ((257,), ())


def test_tokenizer_that_gives_no_tokens_is_refused() -> None:
    backend = tokenizer_of(ALPHABETS["thai"])
    backend.normalizer = normalizers.Replace(pattern=_everything(), content="")
    with pytest.raises(TokenizerError, match="returns no tokens for any text"):
        DocumentEncoder(_without_added_tokens(backend), np.dtype("<u2"))


def test_post_processor_that_repeats_the_text_is_refused() -> None:
    backend = tokenizer_of(ALPHABETS["thai"])
    backend.post_processor = processors.TemplateProcessing(
        single="$A [CLS] $A", pair="$A $B", special_tokens=[("[CLS]", CLS)]
    )
    with pytest.raises(TokenizerError, match="changes the tokens in another way"):
        find_frame(backend)


def test_document_without_tokens_is_not_split() -> None:
    encoder = DocumentEncoder(tokenizer_of(ALPHABETS["thai"]), np.dtype("<u2"))
    assert not encoder.can_cut("x" * 3000 + "\n" + "y" * 3000, 3000)


def _everything() -> object:
    from tokenizers import Regex

    return Regex(r"(?m).")


def _without_added_tokens(backend: Tokenizer) -> Tokenizer:
    plain = Tokenizer(backend.model)
    plain.normalizer = backend.normalizer
    plain.post_processor = backend.post_processor
    return plain
