"""Tests that an untrusted tokenizer.json gives a tokenizer or a StudioError, at little cost."""

from __future__ import annotations

import base64
import io
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex as Pattern
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from core.errors import StudioError, TokenizerError
from core.shards.encode import DocumentEncoder, Part
from core.tokenizer import safety
from core.tokenizer.loading import load
from core.tokenizer.native import native_calls
from core.tokenizer.scoring import scorecard

ROOT = Path(__file__).parents[3]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPLIT_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT_QWEN = SPLIT_LLAMA_3.replace("{1,3}", "")
SPLIT_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
SPLIT_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def specification(**parts: Any) -> dict[str, Any]:
    """Builds the content of a small tokenizer.json with some parts replaced."""
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    return {**json.loads(backend.to_str()), **parts}


def write(folder: Path, content: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "tokenizer.json").write_text(text, "utf-8")
    return folder


def sequence(kind: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: list(steps)}


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BYTE_LEVEL = {
    "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True,
}  # fmt: skip


def charsmap(text: str) -> str:
    """Builds a compiled SentencePiece map whose longest replacement is this text."""
    trie = b"\0" * 1024
    data = len(trie).to_bytes(4, "little") + trie + text.encode() + b"\0"
    return base64.b64encode(data).decode()


def template(*pieces: str, ids: int = 1) -> dict[str, Any]:
    made = [
        {"Sequence": {"id": piece[1:], "type_id": 0}}
        if piece.startswith("$")
        else {"SpecialToken": {"id": piece, "type_id": 0}}
        for piece in pieces
    ]
    tokens = {"[UNK]": {"id": "[UNK]", "ids": [2] * ids, "tokens": ["[UNK]"] * ids}}
    return {"type": "TemplateProcessing", "single": made, "pair": made, "special_tokens": tokens}


EXPLOSIVE: dict[str, dict[str, Any]] = {
    "replace": {"normalizer": replace({"String": "a"}, "b" * 1_000_000)},
    "replace of everything": {"normalizer": replace({"Regex": "."}, "b" * 10_000)},
    "replace of nothing": {"normalizer": replace({"Regex": "x*"}, "b" * 1_000)},
    "replace before each letter": {"normalizer": replace({"Regex": "(?=a)"}, "b" * 1_000)},
    "several replaces": {
        "normalizer": sequence(
            "normalizers", *[replace({"String": "a"}, "aaaaaaaaaa") for _ in range(8)]
        )
    },
    "nested sequences": {
        "normalizer": sequence(
            "normalizers",
            *[
                sequence("normalizers", replace({"String": "a"}, "aaaa"), {"type": "NFC"})
                for _ in range(20)
            ],
        )
    },
    "prepend": {"normalizer": {"type": "Prepend", "prepend": "x" * 1_000_000}},
    "many prepends": {
        "normalizer": sequence("normalizers", *[{"type": "Prepend", "prepend": "x"}] * 60)
    },
    "byte level of byte level": {"pre_tokenizer": sequence("pretokenizers", *[BYTE_LEVEL] * 20)},
    "metaspaces": {"pre_tokenizer": sequence("pretokenizers", *[METASPACE] * 20)},
    "normalizer and pre-tokenizer": {
        "normalizer": replace({"String": "a"}, "a" * 100),
        "pre_tokenizer": sequence("pretokenizers", *[BYTE_LEVEL] * 2),
    },
    "compiled map": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap("x" * 100_000)}
    },
    "decoder": {"decoder": replace({"String": "a"}, "b" * 1_000_000)},
    "decoders": {"decoder": sequence("decoders", *[replace({"String": "a"}, "aaaa")] * 9)},
    "template that repeats the text": {"post_processor": template(*["$A"] * 100_000)},
    "template with many special tokens": {"post_processor": template("[UNK]", "$A", ids=100_000)},
    "templates one after the other": {
        "post_processor": sequence("processors", *[template("$A", "$A")] * 30)
    },
    "high id": {
        "added_tokens": [
            {"id": 4_000_000_000, "content": "<x>", "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True}
        ]
    },
    "high id of the vocabulary": {
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 4_000_000_000}, "unk_token": "a"}
    },
    "long token": {
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b" * 100_000: 1}, "unk_token": "a"}
    },
    "long piece": {
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0], ["b" * 100_000, -1.0]]}
    },
    "word without a limit": {
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 1_000_000_000, "vocab": {"[UNK]": 0, "a": 1},
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("attack", EXPLOSIVE)
def test_tokenizer_with_excessive_resource_use_is_refused(attack: str, tmp_path: Path) -> None:
    write(tmp_path, specification(**EXPLOSIVE[attack]))
    with pytest.raises(TokenizerError, match="exceeds a safety limit") as told:
        load(str(tmp_path))
    assert safety.TRUST_TOKENIZERS_VARIABLE in told.value.fix


def test_trust_variable_lifts_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, specification(normalizer=replace({"String": "a"}, "b" * 2_000)))
    monkeypatch.setenv(safety.TRUST_TOKENIZERS_VARIABLE, "1")
    assert load(str(tmp_path)).encode("a").tolist() == [2]


def test_huge_replacement_is_refused_within_the_memory_limit(tmp_path: Path) -> None:
    write(tmp_path, specification(normalizer=replace({"String": "a"}, "b" * 1_000_000)))
    code = (
        "import sys; from core.tokenizer import load\n"
        "from core.errors import StudioError\n"
        "try: load(sys.argv[1]).encode('a' * 5000)\n"
        "except StudioError as error: print('refused:', error)\n"
    )
    limit = 2 << 30
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
        timeout=60, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused:")


BROKEN: dict[str, str] = {
    "not JSON": "{",
    "another type": "[]",
    "a number": "1",
    "empty": "",
    "no model": "{}",
    "a model that is none": '{"model": []}',
    "deeply nested": '{"model": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "deeply nested normalizers": json.dumps(specification(normalizer=None)).replace(
        '"normalizer": null',
        '"normalizer": '
        + '{"type": "Sequence", "normalizers": [' * 60
        + '{"type": "NFC"}'
        + "]}" * 60,
    ),
    "thousands of steps": json.dumps(
        specification(normalizer=sequence("normalizers", *[{"type": "NFC"}] * 5000))
    ),
    "a name twice": json.dumps(specification(normalizer=None)).replace(
        '"normalizer": null', '"normalizer": {"type": "NFC"}, "normalizer": null'
    ),
    "a normalizer that is a list": json.dumps(specification(normalizer=[])),
    "a normalizer without a type": json.dumps(specification(normalizer={"normalizers": 3})),
    "an unknown normalizer": json.dumps(specification(normalizer={"type": "Nothing"})),
    "a step that is a number": json.dumps(
        specification(normalizer={"type": "Sequence", "normalizers": [3]})
    ),
    "added tokens that are numbers": json.dumps(specification(added_tokens=[1, 2])),
    "added tokens that are an object": json.dumps(specification(added_tokens={"a": 1})),
    "a regular expression that isn't one": json.dumps(
        specification(
            pre_tokenizer={
                "type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False,
            }
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_malformed_tokenizer_json_is_reported(kind: str, tmp_path: Path) -> None:
    write(tmp_path, BROKEN[kind])
    with pytest.raises(TokenizerError, match="is damaged"):
        load(str(tmp_path))


def test_tokenizer_json_that_is_not_utf_8_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe\x00{}")
    with pytest.raises(TokenizerError, match="is damaged"):
        load(str(tmp_path))


def test_oversized_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(safety.MOST_BYTES + 1)
    started = time.monotonic()
    with pytest.raises(TokenizerError, match="exceeds a safety limit"):
        load(str(tmp_path))
    assert time.monotonic() - started < 5


def test_pipe_in_place_of_the_file_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(StudioError):
        load(str(tmp_path))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_pipe_beside_the_file_is_ignored_without_blocking(name: str, tmp_path: Path) -> None:
    write(tmp_path, specification())
    os.mkfifo(tmp_path / name)
    code = "import sys; from core.tokenizer import load; print(load(sys.argv[1]).encode('a'))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout == "[0]\n", done.stderr


def test_deeply_nested_tokenizer_config_is_ignored(tmp_path: Path) -> None:
    write(tmp_path, specification())
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    assert load(str(tmp_path)).encode("a").tolist() == [0]


def panicking() -> Tokenizer:
    """Builds a tokenizer whose regular expression fails on repeated letters."""
    backend = Tokenizer(models.WordLevel({"x": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Pattern("(x+x+)+y"), "isolated")
    return backend


CALLS: dict[str, Callable[[Path, str], object]] = {
    "encode": lambda folder, text: load(str(folder)).encode(text),
    "beginning": lambda folder, text: load(str(folder)).encode_beginning(text),
    "scorecard": lambda folder, text: scorecard(load(str(folder)), [text]),
    "shards": lambda folder, text: DocumentEncoder(
        load(str(folder)).backend, np.dtype("<u2")
    ).encode([Part(text)]),
}


@pytest.mark.parametrize("call", CALLS)
def test_panic_in_native_code_becomes_a_tokenizer_error(call: str, tmp_path: Path) -> None:
    panicking().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="can't process this text"):
        CALLS[call](tmp_path, "x" * 200)


def test_other_exceptions_pass_through_native_calls() -> None:
    for error in (KeyboardInterrupt(), SystemExit(3), ValueError("own")):
        with pytest.raises(type(error)), native_calls():
            raise error


def published() -> dict[str, Tokenizer]:
    """Builds tokenizers with the steps of published ones and a small vocabulary."""
    found: dict[str, Tokenizer] = {}

    def new(name: str, **parts: Any) -> None:
        vocabulary = {"[UNK]": 0, "<s>": 1, "</s>": 2}
        vocabulary |= {letter: 3 + place for place, letter in enumerate(LETTERS + "▁Ġ ")}
        backend = Tokenizer(models.BPE(vocabulary, [], unk_token="[UNK]"))
        for part, value in parts.items():
            setattr(backend, part, value)
        found[name] = backend

    replaced, split = normalizers.Replace, pre_tokenizers.Split
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    frame = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 1), ("</s>", 2)],
    )  # fmt: skip
    llama_decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    new("gpt2", pre_tokenizer=pre_tokenizers.ByteLevel(), decoder=decoders.ByteLevel())
    new(
        "roberta",
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True),
        post_processor=processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
    )
    new(
        "bert",
        normalizer=normalizers.BertNormalizer(),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
        post_processor=frame,
    )
    new(
        "llama 2",
        decoder=llama_decoder,
        post_processor=frame,
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), replaced(" ", "▁")]),
    )
    new(
        "gemma",
        decoder=llama_decoder,
        normalizer=replaced(" ", "▁"),
        pre_tokenizer=split(" ", "merged_with_previous"),
    )
    for name, pattern in (("llama 3", SPLIT_LLAMA_3), ("qwen", SPLIT_QWEN), ("bloom", SPLIT_BLOOM)):
        new(
            name,
            pre_tokenizer=pre_tokenizers.Sequence(
                [split(Pattern(pattern), "isolated"), byte_level]
            ),
            post_processor=processors.Sequence([processors.ByteLevel(trim_offsets=False), frame]),
        )
    new(
        "whisper",
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
    )
    new(
        "clip",
        normalizer=normalizers.Sequence(
            [normalizers.NFC(), replaced(Pattern(r"\s+"), " "), normalizers.Lowercase()]
        ),
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                split(Pattern(SPLIT_CLIP), "removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        ),
    )
    new(
        "xlnet without its map",
        normalizer=normalizers.Sequence(
            [
                replaced("``", '"'),
                replaced("''", '"'),
                normalizers.NFKD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
                replaced(Pattern(" {2,}"), " "),
            ]
        ),
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        ),
    )
    new("wav2vec2", decoder=decoders.CTC("<s>", "|", False))
    return found  # fmt: skip


@pytest.mark.parametrize("name", published())
def test_common_published_tokenizers_are_accepted(name: str, tmp_path: Path) -> None:
    backend = published()[name]
    backend.save(str(tmp_path / "tokenizer.json"))
    text = "  some text, \n and more "
    tokenizer = load(str(tmp_path))
    assert tokenizer.encode(text).tolist() == backend.encode(text).ids


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nmt_nfkc_cf", "nfkc"])
def test_compiled_maps_of_sentencepiece_are_accepted(rule: str, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["some words of a text"] * 20), model_writer=model, vocab_size=30,
        normalization_rule_name=rule, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    encoded = base64.b64encode(_charsmap_of(model.getvalue())).decode()
    # The steps of XLM-RoBERTa and ALBERT.
    steps = [
        replace({"String": "``"}, '"'), {"type": "NFKD"}, {"type": "StripAccents"},
        {"type": "Precompiled", "precompiled_charsmap": encoded},
        replace({"Regex": " {2,}"}, "▁"),
    ]  # fmt: skip
    content = specification(normalizer=sequence("normalizers", *steps), pre_tokenizer=METASPACE)
    write(tmp_path, content)
    assert len(load(str(tmp_path)).encode("ab ﷺ"))


def _charsmap_of(model: bytes) -> bytes:
    """Extracts the compiled map of a model: field 2 of the normalizer settings (field 3).

    Source: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
    """

    def fields(data: bytes) -> dict[int, bytes]:
        found, place = {}, 0

        def number() -> int:
            nonlocal place
            value = shift = 0
            while True:
                byte = data[place]
                place += 1
                value |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    return value

        while place < len(data):
            key = number()
            if key & 7 == 2:
                size = number()
                found[key >> 3] = data[place : place + size]
                place += size
            elif key & 7 == 0:
                number()
            else:
                place += 4 if key & 7 == 5 else 8
        return found

    return fields(fields(model)[3])[2]


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff\xf0\0\0\0", b"\xff\xff\xff\x7f", b"\x08\0\0\0abc"]
)
def test_truncated_compiled_map_is_refused(tmp_path: Path, data: bytes) -> None:
    step = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}
    for normalizer in (step, sequence("normalizers", {"type": "NFC"}, step)):
        folder = write(tmp_path / "one", specification(normalizer=normalizer))
        # If it were accepted, allocating memory for it would abort the process.
        with pytest.raises(TokenizerError, match="truncated"):
            safety.read_specification(folder / "tokenizer.json")
