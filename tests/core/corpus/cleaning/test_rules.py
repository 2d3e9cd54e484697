"""Each published rule removes the documents that it should, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from core.corpus.cleaning.blocks import Block
from core.corpus.cleaning.lines import count_lines
from core.corpus.cleaning.report import Tally
from core.corpus.cleaning.rules import RULES, Measures, judge, lowered, rules_in_use
from core.corpus.cleaning.steps import filter_texts, near_keys, normalize_texts
from tests.core.corpus.cleaning.support import batch_of, filtered, pages, plain_config, removed_by

SETS = ("gopher", "gopher_repetition", "c4", "fineweb")
GOOD = pages(1)[0] + "\nThis is the text that we have to be with, and of which we know enough."
WORDS = GOOD.split()
LINES = GOOD.split("\n")


def of_words(*words: str) -> str:
    return " ".join(words)


def repeated_words(n: int, times: int, others: int) -> str:
    """A phrase of n words, repeated among different words."""
    phrase = [f"phrase{place}" for place in range(n)]
    fillers = [f"filler{place}" for place in range(others)]
    step = max(1, others // times)
    rows = [of_words(*fillers[place : place + step]) for place in range(0, others, step)]
    return (
        " ".join(f"{row} {of_words(*phrase)}" for row in rows[:times])
        + " "
        + " ".join(rows[times:])
    )


FAILING = {
    "gopher_min_words": of_words(*WORDS[:49]),
    "gopher_max_words": GOOD * 1000,
    "gopher_min_word_length": of_words(*["of to"] * 60),
    "gopher_max_word_length": of_words(*["incomprehensibility"] * 60, "the of"),
    "gopher_max_hashes": GOOD + " #" * 40,
    "gopher_max_ellipses": GOOD.replace(" ", "... ", 60),
    "gopher_max_bullet_lines": "\n".join(f"• {line}" for line in LINES),
    "gopher_max_ellipsis_lines": "\n".join([f"{line[:-1]}…" for line in LINES[:5]] + LINES[5:]),
    "gopher_min_alphabetic_words": GOOD + " 1234" * 200,
    "gopher_min_stop_words": of_words(*["mountain", "river"] * 30, "the"),
    "gopher_max_duplicate_lines": "\n".join([*LINES, *["Yes."] * 10]),
    "gopher_max_duplicate_paragraphs": "\n\n".join([GOOD, *["Yes.\nNo.", "No.\nYes."] * 3]),
    "gopher_max_duplicate_line_characters": "\n".join([*LINES, *LINES[:5]]),
    "gopher_max_duplicate_paragraph_characters": "\n\n".join(
        [*LINES, "\n".join(LINES), "\n".join(LINES)]
    ),
    "gopher_max_top_2_gram": repeated_words(2, 12, 60),
    "gopher_max_top_3_gram": repeated_words(3, 7, 80),
    "gopher_max_top_4_gram": repeated_words(4, 5, 88),
    "gopher_max_duplicate_5_gram": repeated_words(5, 4, 60),
    "gopher_max_duplicate_6_gram": repeated_words(6, 4, 80),
    "gopher_max_duplicate_7_gram": repeated_words(7, 3, 60),
    "gopher_max_duplicate_8_gram": repeated_words(8, 3, 75),
    "gopher_max_duplicate_9_gram": repeated_words(9, 3, 100),
    "gopher_max_duplicate_10_gram": repeated_words(10, 3, 120),
    "c4_lorem_ipsum": f"{GOOD}\nThis is a text with Lorem Ipsum in it.",
    "c4_curly_brackets": f"{GOOD}\nThis is a text with {{ in it.",
    "c4_min_sentences": "This document has only one line here. It has two sentences.",
    "fineweb_min_punctuated_lines": "\n".join(line[:-1] for line in LINES),
    "fineweb_max_short_lines": "\n".join([LINES[0], *[f"Line {place}." for place in range(9)]]),
    "fineweb_max_duplicate_line_characters": "\n".join([*LINES, LINES[0], LINES[1]]),
    "fineweb_max_lines_per_word": "\n".join(
        [f"Extraordinarily incomprehensible{place}." for place in range(9)]
    ),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.option)
def test_rule_removes_the_document_made_for_it(rule) -> None:
    config = plain_config(**{rule.step: True})
    documents = [GOOD, FAILING[rule.option], GOOD]
    found = judge(Block(documents), [rule], config)
    assert found[0] is None and found[2] is None
    failure = found[1]
    assert failure and failure.rule is rule
    assert failure.describe().count(":") == 1 and f"{failure.threshold:.6g}" in failure.describe()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.option)
def test_rule_can_be_switched_off(rule) -> None:
    config = plain_config(**{rule.step: True})
    is_switch = isinstance(getattr(config, rule.option), bool)
    off = plain_config(**{rule.step: True, rule.option: False if is_switch else None})
    assert judge(Block([FAILING[rule.option]]), [rule], off) == [None]
    assert not list(rules_in_use([rule], plain_config()))


def test_every_rule_has_a_document() -> None:
    assert {rule.option for rule in RULES} == FAILING.keys()


def test_good_document_passes_all_rules() -> None:
    kept, tally = filtered([GOOD], **dict.fromkeys(SETS, True))
    assert kept == [GOOD] and not tally.examples


@pytest.mark.parametrize("words", [49, 50, 51])
def test_threshold_itself_passes_in_gopher(words: int) -> None:
    text = of_words(*WORDS[:words])
    kept, _ = filtered([text], gopher=True, gopher_min_stop_words=None)
    assert bool(kept) == (words >= 50)


def test_threshold_itself_fails_in_fineweb() -> None:
    lines = [line[:-1] for line in LINES[:10]]
    for punctuated, passes in ((1, False), (2, True)):
        text = "\n".join([*LINES[:punctuated], *lines[punctuated:]])
        kept, _ = filtered([text], fineweb=True, fineweb_min_punctuated_lines=0.1)
        assert bool(kept) == passes


def test_measures_equal_those_of_plain_python() -> None:
    texts = [
        GOOD,
        *FAILING.values(),
        "  \n\n a b \n\n\n ... \n",
        "한국어 문장이다. 끝…\n둘째 줄！",
        "x",
    ]
    measures = Measures(Block(texts), plain_config())
    for number, text in enumerate(texts):
        words, lines = text.split(), [line.strip() for line in text.split("\n") if line.strip()]
        assert measures.characters[number] == len(text)
        assert measures.words[number] == len(words)
        assert measures.lines[number] == len(lines)
        assert measures.mean_word_length[number] == pytest.approx(np.mean([*map(len, words)]))
        alphabetic = sum(any(map(str.isalpha, word)) for word in words)
        assert measures.alphabetic_words[number] == pytest.approx(alphabetic / len(words))
        ellipses = text.count("...") + text.count("…")
        assert measures.ellipses_per_word[number] == pytest.approx(ellipses / len(words))
        ending = sum(line.endswith(("...", "…")) for line in lines)
        assert measures.ellipsis_lines[number] == pytest.approx(ending / len(lines))
        repeats = len(lines) - len(set(lines))
        assert measures.duplicate_lines[number] == pytest.approx(repeats / len(lines))
        assert measures.lines_per_word[number] == pytest.approx(text.count("\n") / len(words))


def repeated_share(words: list[str], n: int) -> float:
    """Characters of words in repeated n-grams, counted one by one."""
    seen, covered = set(), [False] * len(words)
    for place in range(len(words) - n + 1):
        gram = tuple(words[place : place + n])
        if gram in seen:
            covered[place : place + n] = [True] * n
        seen.add(gram)
    inside = sum(len(word) for word, is_in in zip(words, covered, strict=True) if is_in)
    return inside / sum(map(len, words))


def top_share(words: list[str], n: int) -> float:
    grams = [tuple(words[place : place + n]) for place in range(len(words) - n + 1)]
    counts = {gram: grams.count(gram) for gram in set(grams)}
    most = [count * sum(map(len, gram)) for gram, count in counts.items() if count > 1]
    return max(most, default=0) / sum(map(len, words))


def test_n_grams_equal_those_of_plain_python() -> None:
    generator = np.random.default_rng(0)
    texts = [
        of_words(*(f"w{place}" for place in generator.integers(0, vocabulary, 80)))
        for vocabulary in (1, 2, 3, 5, 9, 30, 1000)
    ]
    texts += ["one", "two words", *FAILING.values()]
    for start in (2, 5):  # Longer n-grams are searched among the shorter ones.
        measures = Measures(Block(texts), plain_config())
        for n in range(start, 11):
            top, repeated = measures.grams.top_shares(n), measures.grams.repeated_shares(n)
            for number, text in enumerate(texts):
                words = text.split()
                if len(words) > 1000:
                    continue
                assert repeated[number] == pytest.approx(repeated_share(words, n)), (n, text)
                assert top[number] == pytest.approx(top_share(words, n)), (n, text)


def test_documents_do_not_affect_each_other() -> None:
    texts = [GOOD, *FAILING.values()]
    config = plain_config(**dict.fromkeys(SETS, True))
    together = judge(Block(texts), RULES, config)
    alone = [judge(Block([text]), RULES, config)[0] for text in texts]
    assert together == alone


def test_first_rule_counts() -> None:
    _, tally = filtered(["Short.", GOOD], **dict.fromkeys(SETS, True))
    assert removed_by(tally) == {0: "gopher_min_words"}
    assert tally.steps["gopher"].removed == {"gopher_min_words": 1}


def test_stop_words_of_another_language_can_be_given() -> None:
    norwegian = " ".join(["Det er en by i Norge som ligger ved havet"] * 6)
    rules = {"gopher": True, "gopher_min_word_length": None}
    assert not filtered([norwegian], **rules)[0]
    assert filtered([norwegian], **rules, gopher_stop_words="er i som ved")[0]


def test_lower_case_keeps_the_length() -> None:
    text = "".join(map(chr, range(0x20, 0xD800)))
    assert len(lowered(text)) == len(text)


def test_documents_of_other_corpora_stay_unchanged() -> None:
    batch = batch_of(["Short."])
    batch.kinds[:] = 0
    config = plain_config(**dict.fromkeys(SETS, True))
    assert filter_texts(batch, config, np.zeros(0, np.uint64), Tally()).texts == ["Short."]


def test_arbitrary_unicode_is_cleaned() -> None:
    generator = np.random.default_rng(0)
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    usual = list(" \n\n .a{\u2028\x00\u0130…#•\t")
    config = plain_config(
        **dict.fromkeys(SETS, True), gopher_min_words=None, languages="en, ko", replace_emails=True,
        replace_phones=True, replace_ip_addresses=True, unicode_form="nfkc", min_characters=2,
    )  # fmt: skip
    for _ in range(30):
        places = generator.integers(0, len(characters), 400)
        drawn = [characters[place] if place % 2 else usual[place % len(usual)] for place in places]
        texts = ["".join(drawn[start : start + 20]) for start in range(0, 400, 20)]
        texts = [text for text in texts if text.strip()]
        tally = Tally(most_examples=None)
        batch = normalize_texts(batch_of(texts), config, tally)
        kept = filter_texts(batch, config, np.zeros(0, np.uint64), tally)
        assert near_keys(kept.texts, config).shape == (15, len(kept))
        assert len(kept) + len(removed_by(tally)) == len(texts)


def test_long_documents_are_measured_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(["\n\n".join(pages(4)), *pages(2), "word " * 300])
    config = plain_config(gopher=True, gopher_repetition=True, c4=True, fineweb=True)

    def values() -> list[list[float]]:
        measures = Measures(Block([text, "", text[50:]]), config)
        return [rule.measure(measures).tolist() for rule in RULES]

    whole = values(), count_lines([text])
    for size in (1, 7, 100):
        monkeypatch.setattr("core.corpus.cleaning.blocks._HASHED_ITEMS", size)
        cut = values(), count_lines([text])
        assert cut[0] == whole[0]
        np.testing.assert_array_equal(cut[1], whole[1])
