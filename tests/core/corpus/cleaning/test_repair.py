"""Unicode normal forms and mojibake."""

from __future__ import annotations

import random

import ftfy
import pytest

from core.corpus.cleaning.repair import _repairs, fix_encoding
from core.corpus.cleaning.report import Tally
from core.corpus.cleaning.steps import normalize_texts
from tests.core.corpus.cleaning.support import batch_of, plain_config

COMPOSED, DECOMPOSED, LIGATURE = "é", "e\u0301", "ﬁ Ａ"


def normalized(text: str, **values: object) -> str:
    return normalize_texts(batch_of([text]), plain_config(**values), Tally()).texts[0]


def test_accents_are_composed() -> None:
    assert normalized(DECOMPOSED) == COMPOSED
    assert normalized(DECOMPOSED, unicode_form="none") == DECOMPOSED
    assert normalized("\u1112\u1161\u11ab") == "한"


def test_compatibility_characters_are_kept_unless_asked_for() -> None:
    assert normalized(LIGATURE) == LIGATURE
    assert normalized(LIGATURE, unicode_form="nfkc") == "fi A"


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        ("schÃ¶n", "schön"),
        ("doesnâ€™t", "doesn’t"),
        ("Tom &amp; Jerry", "Tom & Jerry"),
        ("a\x1b[36mb\x07", "ab"),
        ("\ufeffa", "a"),
    ],
)
def test_wrongly_decoded_text_is_repaired(broken: str, repaired: str) -> None:
    assert normalized(broken) == repaired
    assert normalized(broken, fix_encoding=False) == broken


@pytest.mark.parametrize("text", ["schön “quoted”", "한국어", "blåbærsyltetøy", "ﬁne\r\n", "a < b"])
def test_correct_text_is_unchanged(text: str) -> None:
    assert normalized(text) == text


def test_text_that_is_not_suspect_is_what_ftfy_leaves_alone() -> None:
    draw = random.Random(0)
    # fmt: off
    parts = ["plain ", "schÃ¶n", "é", "한국", "&lt;", "&", ";", "\x1b[1m", "\x85", "\ufeff", "<b>",
             "â€œ", "\u2028", "\u206a", "\x00", "\t", "\n", "😀", "\u200b", "\xad", "\ufffd"]
    # fmt: on
    for _ in range(2000):
        text = "".join(draw.choices(parts, k=draw.randint(1, 6)))
        assert fix_encoding(text) == ftfy.fix_text(text, _repairs()), ascii(text)


def test_changes_are_counted_with_an_example() -> None:
    tally = Tally()
    normalize_texts(batch_of(["plain", DECOMPOSED, "schÃ¶n"]), plain_config(), tally)
    assert {name: step.changed for name, step in tally.steps.items()} == {
        "fix_encoding": 1,
        "unicode_form": 1,
    }
    example = next(one for one in tally.examples if one.step == "fix_encoding")
    assert (example.document, example.before, example.after) == (3, "schÃ¶n", "schön")
