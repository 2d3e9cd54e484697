"""Tests of the rule-based sentence splitter."""

from __future__ import annotations

import time

import pytest

from core.corpus.sentences import sentence_ends
from tests.texts import split_sentences

# A bar marks an expected sentence boundary.
TEXTS = {
    "marks": "The river runs.| Does it? |Yes!| It does… |Well.",
    "repeated marks": "No!!!| Why?!| Well... |It is so.",
    "quotes": 'He said "no."| Then he left.| (It was late.)| “Go!” |«Nei.» |Ja.',
    "speech goes on": '"What?" he asked. |"Go!" she said.',
    "titles": "Mr. Smith met Dr. Jones vs. Prof. Lee.| They spoke.",
    "initials": "J. R. R. Tolkien wrote it.| H.C. Andersen did not.",
    "acronyms": "The U.S. Army came at 9 a.m. on Monday.| It left.",
    "after I": "It was he, not I. |You know.",
    "before numbers": "See No. 5 of vol. 2 on Jan. 3.| He said no. |She said Jan.| Good.",
    "decimals": "It is 3.14 and v1.2.3 and example.com/a.b today.| Not 4.",
    "ordinals": "Den 17. mai er en dag.| Den 2. verdenskrig var lang.",
    "years": "It began in 1990.| The end came later.",
    "lists": "1. First things.| 2. Second things.| B. Third.",
    "small letters": "It was e.g. here, i.e. there, etc. and so on.",
    "the end of a list": "Apples, pears, etc.| Others came.",
    "norwegian": "Det er bl.a. Oslo og f.eks. Bergen, ca. 10 km unna.| Ola kom kl. 12. |Så?",
    "æøå": "Han gikk.| Ærlig talt! |Øya lå der. år etter år.",
    "korean": "영화가 재미있다.| 정말 좋았어요!| 3.5점 준다.| 또 볼까?",
    "korean without spaces": "재미있다.정말 좋다!|또 보자.".replace(".정", ".|정"),
    "wide marks": "これは本です。|それは何？|「はい！」|行く。",
    "lines": "A heading|\nThe text begins here.|\n\nMore of it",
    "wrapped lines": "A long line that\ngoes on in the next one.| Done.",
    "a blank line ends": "something|\n\nor other",
    "spaced marks": "The game ended . |It was 1 @.@ 5 long .",
    "a spaced quote at the end": 'She said : " The game ended . "',
    "signs before words": "... and so on.| -- No.",
    "one syllable": "재미있을 뿐.| 연기 좋다.",
    "a mark alone": "...",
    "no marks": "no marks at all",
}


def cut_at(bars: str) -> list[str]:
    """Splits at the bars; white space belongs to the following sentence."""
    pieces = bars.split("|")
    for place in range(len(pieces) - 1):
        bare = pieces[place].rstrip()
        pieces[place + 1] = pieces[place][len(bare) :] + pieces[place + 1]
        pieces[place] = bare
    return pieces


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_split_at_sentence_ends(name: str) -> None:
    assert split_sentences(TEXTS[name].replace("|", "")) == cut_at(TEXTS[name])


@pytest.mark.parametrize("name", TEXTS)
def test_no_character_is_lost_by_splitting(name: str) -> None:
    text = f"  {TEXTS[name]}\n "
    assert "".join(split_sentences(text)) == text
    ends = sentence_ends(text)
    assert ends == sorted(set(ends)) and ends[-1] == len(text)


@pytest.mark.parametrize("text", ["", " ", "\n\n\t"])
def test_blank_text_has_no_sentences(text: str) -> None:
    assert sentence_ends(text) == split_sentences(text) == []


@pytest.mark.parametrize("piece", [".", '!"', " ", "\n", "a. ", "。", "가.", ")", "a.b", "1. "])
def test_splitting_takes_linear_time(piece: str) -> None:
    def seconds(count: int) -> float:
        start = time.process_time()
        sentence_ends("x" + piece * count + "y")
        return time.process_time() - start

    small, large = min(seconds(20_000) for _ in range(3)), min(seconds(160_000) for _ in range(2))
    assert large < 0.01 + 32 * small  # quadratic time would be 64 times as long
