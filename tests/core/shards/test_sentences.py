"""Tests of the example sentences that are decoded from validation shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.api import build_shards as build
from core.config.corpus import CorpusConfig
from core.config.shards import ShardConfig
from core.config.tokenizer import TokenizerConfig
from core.shards.examples import is_fluent, with_hole
from core.shards.read import open_shards
from core.shards.sentences import validation_sentences
from core.tokenizer.loading import load
from core.tokenizer.training import train
from core.workspace.workspace import Workspace
from tests.texts import sentences

NAMES = ("Dr. Stone", "Mr. Silver", "the captain", "Ms. Green")


def documents(count: int) -> list[str]:
    """Builds one-line documents of several sentences, some with abbreviations."""
    plain = sentences(count * 5)
    return [
        " ".join([*plain[5 * one : 5 * one + 5], f"Then {NAMES[one % 4]} always opens the window."])
        for one in range(count)
    ]


def shown(folder: Path, lines: list[str], objective: str, **settings: object) -> list[str]:
    """Builds shards of a corpus and decodes their example sentences."""
    (folder / "text.txt").write_text("\n".join(lines) + "\n", "utf-8")
    workspace = Workspace(folder / "workspace")
    corpus = CorpusConfig(source="files", path=str(folder / "text.txt"))
    values = {"vocab_size": 290, "corpus": corpus, **settings}
    train(TokenizerConfig.parse({**values, "name": "words"}), workspace)
    build(
        ShardConfig.parse({
            "corpus": corpus, "tokenizer": "words", "name": "rows", "objective": objective,
            "max_seq_length": 16,
        }),
        workspace,
    )  # fmt: skip
    shards = open_shards("rows", workspace)
    return validation_sentences(shards, load(str(shards.tokenizer_folder), workspace), 8)


@pytest.mark.slow(3)
@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["wordpiece", "byte_level_bpe", "unigram"])
@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_examples_are_complete_sentences_of_the_documents(
    tmp_path: Path, algorithm: str, objective: str
) -> None:
    lines = documents(300)
    whole = {*sentences(1500), *(f"Then {name} always opens the window." for name in NAMES)}
    found = shown(tmp_path, lines, objective, algorithm=algorithm)
    assert len(found) >= 4
    assert [one for one in found if one not in whole] == []


@pytest.mark.slow(4)
@pytest.mark.long
def test_sentences_are_found_in_lower_case_text(tmp_path: Path) -> None:
    whole = {one.lower() for one in sentences(1500)}
    whole |= {f"then {name.lower()} always opens the window." for name in NAMES}
    lines = [one.lower() for one in documents(300)]
    found = shown(tmp_path, lines, "mlm", algorithm="byte_level_bpe")
    assert len(found) >= 4 and set(found) <= whole


@pytest.mark.slow(4)
@pytest.mark.long
def test_lines_are_returned_for_text_without_punctuation(tmp_path: Path) -> None:
    lines = [one.rstrip(".") for one in sentences(600)]
    found = shown(tmp_path, lines, "mlm", algorithm="unigram")
    assert len(found) >= 4 and set(found) <= set(lines)


@pytest.mark.slow(4)
@pytest.mark.long
def test_sentences_of_a_script_without_spaces_are_found(tmp_path: Path) -> None:
    words = "山 川 花 月 風 雪 海 空 鳥 魚 森 石 水 火 木 金 土 日 星 雲".split()
    whole = [
        "".join(words[(one * 7 + part * part) % 20] for part in range(8)) + "。"
        for one in range(900)
    ]
    lines = ["".join(whole[start : start + 3]) for start in range(0, 900, 3)]
    found = shown(tmp_path, lines, "mlm", algorithm="unigram", vocab_size=120)
    assert len(found) >= 2 and set(found) <= set(whole)
    holes = [with_hole(one) for one in found]
    assert all(one.count("{mask}") == 1 and one.endswith("。") for one in holes)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The small captain never reads the letter.", "The small captain {mask} reads the letter."),
        ("Old ships, however, sleep.", "Old ships, {mask}, sleep."),
        ("a = b + c", ""),
        ("The router z-loss keeps utf_8 names.", "The router z-loss {mask} utf_8 names."),
        ("", ""),
    ],
)
def test_mask_replaces_one_word_of_the_sentence(sentence: str, expected: str) -> None:
    assert with_hole(sentence) == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The small captain never reads the letter.", True),
        ("Han bor i Oslo, og hun reiser hjem.", True),
        ("고양이는 집에서 잠을 잔다.", True),
        ("山川花月風雪海空。", True),
        ("Returns the router z_loss of a batch.", False),
        ("See utils/io.py for the details here.", False),
        ("Call getItem before the next step begins.", False),
        ("Only three words.", False),
    ],
)
def test_prose_is_told_from_names_and_code(sentence: str, expected: bool) -> None:
    assert is_fluent(sentence) is expected
