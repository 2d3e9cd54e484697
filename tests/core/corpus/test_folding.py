import json
import random
from pathlib import Path

import numpy as np
import pytest

from core.config.clean import CleanConfig
from core.config.corpus import CorpusConfig
from core.corpus.cleaning.duplicates import DuplicateGroups
from core.corpus.cleaning.steps import near_keys
from core.corpus.folding import fold
from core.corpus.reading import open_corpus
from core.workspace.workspace import Workspace


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ПОТОМ Straße ﬁn", "потом STRASSE fin"),
        ("don’t “stop” — a\u00a0b so\u00adft", 'don\'t "stop" - a b soft'),
        ("Ｈｅｌｌｏ　Ｗorld，１２", "hello world,12"),
        ("cafe\u0301 Å", "CAFÉ A\u030a"),
        ("ｶﾞｷﾞ ㌔", "ガギ キロ"),
        ("ΣΑΣ ΐ", "σας ΐ".upper()),
        ("ǰ İ ŉ", "ǰ İ ŉ".upper().casefold()),
        ("«да», нет…", "“да”, нет…"),
        ("ไทย\u200bไทย", "ไทยไทย"),
        ("가나다", "\u1100\u1161\u1102\u1161\u1103\u1161"),
    ],
)
def test_copies_in_other_characters_are_equal(one: str, other: str) -> None:
    assert fold(one).lower() == fold(other).lower()


def test_letters_and_symbols_stay_different() -> None:
    texts = ["a > b", "a < b", "x ≤ y", "x ≥ y", "resume", "résumé", "한글", "한굴", "か", "が"]
    assert len({fold(text) for text in texts}) == len(texts)
    assert fold("\ud800 \U000e0001\U00010400") == "? \U00010428".encode()


WORDS = "ποτάμι сад ÉTÉ geöffnet река 天气 don’t Straße ночь παράθυρο".split()


@pytest.mark.parametrize("length", [2, 120])
def test_near_duplicates_are_found_in_other_characters(length: int) -> None:
    draw = random.Random(length)
    texts = [" ".join(draw.choice(WORDS) for _ in range(length)) for _ in range(20)]
    copies = [text.upper().replace("’", "'").replace(" ", "\u00a0") for text in texts]
    keys = near_keys([*texts, *copies], CleanConfig())
    groups = DuplicateGroups(np.zeros(40, np.uint8))
    for column in keys:
        groups.join_equal(lambda column=column: iter([column]))
    firsts = groups.firsts().tolist()
    assert firsts[20:] == firsts[:20]
    if length > 2:
        assert firsts[:20] == list(range(20))


def test_overlap_with_validation_is_found_in_other_characters(tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choice(WORDS) + str(n) for _ in range(30)) for n in range(20)]
    for name, some in (("a", [*texts[:10], "another"]), ("b", [one.upper() for one in texts])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": one}) + "\n" for one in some))
    corpus = open_corpus(
        CorpusConfig(path=str(tmp_path / "a.jsonl"), validation_path=str(tmp_path / "b.jsonl"),
                     drop_overlapping_validation=True),
        Workspace(tmp_path / "workspace"),
    )  # fmt: skip
    assert list(corpus.documents("validation")) == [one.upper() for one in texts[10:]]
