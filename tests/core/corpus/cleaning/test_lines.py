"""Lines that occur in many documents, and those that C4 doesn't keep."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from core.corpus.cleaning import lines
from core.corpus.cleaning.blocks import hash_words
from core.corpus.cleaning.lines import count_lines, frequent_lines
from core.corpus.cleaning.stage import clean
from core.workspace.workspace import Workspace
from tests.core.corpus.cleaning.support import (
    all_documents,
    clean_config,
    filtered,
    pages,
    removed_by,
    write_documents,
)

# Passes C4: five sentences on two lines.
KEPT = "This is a line of several words. It has two sentences.\nAnd here is one more line, too."


@pytest.mark.parametrize(
    "line",
    [
        "This line of many words has no final mark",
        "This line of many words ends in an ellipsis...",
        "Four words are few.",
        "This line has a word that is too long: " + "x" * 1001 + ".",
        "You must enable JavaScript to see this page.",
        "Please read and accept our Terms of Use before you go on.",
        "Please read and accept our privacy policy before you go on.",
        "This site needs its cookie policy to be accepted by you.",
        "This site uses cookies to make it a better one.",
        "We explain the use of cookies on a page below.",
        "We use cookies to make this site a better one.",
    ],
)
def test_c4_removes_the_line_and_keeps_the_others(line: str) -> None:
    first, second = KEPT.split("\n")
    kept, tally = filtered([f"{first}\n{line}\n\n{second}"], c4=True)
    assert kept == [KEPT]
    assert (tally.steps["c4"].changed, tally.steps["c4"].items) == (1, 1)


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("This line of many words has no final mark", {"c4_end_punctuation": False}),
        ("Four words are few.", {"c4_min_line_words": 4}),
        (f"This line has a long word: {'x' * 1001}.", {"c4_max_word_length": None}),
    ],
)
def test_c4_limits_are_options(line: str, option: dict[str, object]) -> None:
    assert filtered([f"{KEPT}\n{line}"], c4=True, **option)[0] == [f"{KEPT}\n{line}"]


def test_c4_removes_citations() -> None:
    text = KEPT.replace("words.", "words[12].").replace("too.", "too.[citation needed]")
    kept, tally = filtered([text, f"{text}\nNo mark"], c4=True)
    assert kept == [KEPT, KEPT]
    assert (tally.steps["c4"].changed, tally.steps["c4"].items) == (2, 1)


def test_document_without_remaining_lines_is_removed() -> None:
    kept, tally = filtered(["No mark\nat the end", KEPT], c4=True)
    assert kept == [KEPT] and removed_by(tally) == {0: "blank"}


@pytest.mark.parametrize("mark", [".", "!", "?", '"', "”", "。", "？"])
def test_c4_knows_final_marks_of_several_scripts(mark: str) -> None:
    line = f"These are words enough for a line{mark}"
    assert line in filtered([f"{KEPT}\n{line}"], c4=True)[0][0]


def test_lines_are_counted_once_per_document() -> None:
    texts = ["a\nb\na", "b\n c ", "\n\nc\n"]
    one = count_lines(texts)
    assert sorted(one[1].tolist()) == [1, 2, 2]


@pytest.mark.parametrize("bucket_lines", [1 << 24, 50])
def test_lines_are_counted_across_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket_lines: int
) -> None:
    monkeypatch.setattr(lines, "_BUCKET_LINES", bucket_lines)
    parts = [[f"{place}\n{place % 7}\n" for place in range(start, start + 100)]
             for start in (0, 50, 1000)]  # fmt: skip
    paths = []
    for number, texts in enumerate(parts):
        hashes, counts = count_lines(texts)
        paths.append(tmp_path / f"{number}.npy")
        np.save(paths[-1], np.stack([hashes, counts.astype(np.uint64)]))
    total = sum(len(set("\n".join(texts).split())) for texts in parts)
    expected: Counter[str] = Counter()
    for text in (text for texts in parts for text in texts):
        expected.update(set(text.split()))
    for least in (1, 2, 3, 40, 1000):
        wanted = [line for line, count in expected.items() if count >= least]
        found = frequent_lines(paths, total, least)
        assert found.tolist() == sorted(hash_words(wanted).tolist() if wanted else [])


def test_boilerplate_lines_are_removed_from_every_document(tmp_path: Path) -> None:
    texts = [f"Subscribe to our letter\n\n{text}\n  Share this page  " for text in pages(40)]
    path = write_documents(tmp_path / "a.jsonl", texts)
    corpus = clean(clean_config(path, boilerplate_lines=True), Workspace(tmp_path / "workspace"))
    assert sorted(all_documents(corpus)) == sorted(pages(40))
    step = corpus.manifest.counts["steps"]["boilerplate_lines"]
    assert (step["changed_documents"], step["changed_places"]) == (40, 80)


@pytest.mark.parametrize(
    ("option", "is_removed"),
    [
        ({"boilerplate_min_documents": 20}, True),
        ({"boilerplate_min_documents": 21}, False),
        ({"boilerplate_min_percent": 50.0}, True),
        ({"boilerplate_min_percent": 51.0}, False),
    ],
)
def test_boilerplate_needs_many_documents(
    tmp_path: Path, option: dict[str, object], is_removed: bool
) -> None:
    texts = [f"{text}\nShare" if place < 20 else text for place, text in enumerate(pages(40))]
    path = write_documents(tmp_path / "a.jsonl", texts)
    config = clean_config(path, boilerplate_lines=True, **option)
    documents = all_documents(clean(config, Workspace(tmp_path / "workspace")))
    assert sum("Share" in text for text in documents) == (0 if is_removed else 20)


def test_copies_of_a_document_make_no_boilerplate(tmp_path: Path) -> None:
    texts = [*pages(10), *[pages(1, seed=1)[0]] * 30]
    path = write_documents(tmp_path / "a.jsonl", texts)
    config = clean_config(path, boilerplate_lines=True)
    documents = all_documents(clean(config, Workspace(tmp_path / "workspace")))
    assert pages(1, seed=1)[0] in documents and len(documents) == 11
