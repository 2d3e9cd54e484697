"""Tokenizers that llama.cpp can represent; tests/core/exporting compares the ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import TokenizerError
from core.records.events import Reporter
from core.tokenizer.bpe import ROLES, train_byte_level_bpe
from core.tokenizer.llama_cpp import pre_tokenizer_name
from core.tokenizer.loading import load
from core.tokenizer.roles import write_files
from tests.texts import sentences

# As Qwen2's and Llama 3's files write them.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def name_of(folder: Path, words: str, **changes: Any) -> str:
    """llama.cpp's name of a tokenizer whose file has a published regular expression."""
    backend = train_byte_level_bpe(sentences(50), 300, 2, Reporter())
    write_files(folder, backend, ROLES)
    file = folder / "tokenizer.json"
    specification = json.loads(file.read_text("utf-8"))
    split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
    bytes_only = {**specification["pre_tokenizer"], "trim_offsets": False, "use_regex": False}
    specification["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_only]}
    specification["model"]["ignore_merges"] = changes.pop("ignore_merges", False)
    file.write_text(json.dumps({**specification, **changes}), "utf-8")
    return pre_tokenizer_name(load(str(folder)))


def test_published_splits_are_recognised(tmp_path: Path) -> None:
    assert name_of(tmp_path, WORDS % "") == "qwen2"
    assert name_of(tmp_path, WORDS % "{1,3}", ignore_merges=True) == "llama-bpe"


@pytest.mark.parametrize(
    ("words", "changes", "received", "nearest"),
    [
        (WORDS % "", {"normalizer": {"type": "NFC"}}, "the normalizer NFC", "qwen2"),
        (WORDS % "{1,3}", {"ignore_merges": False}, "Split and ByteLevel", "llama3"),
        (WORDS % "{1,2}", {}, "Split and ByteLevel", "llama3"),
    ],
)
def test_others_are_refused_with_the_nearest_choice(
    tmp_path: Path, words: str, changes: dict[str, Any], received: str, nearest: str
) -> None:
    with pytest.raises(TokenizerError, match=received) as raised:
        name_of(tmp_path, words, **changes)
    assert f"--algorithm byte_level_bpe --pre-tokenization {nearest}, " in raised.value.fix
