"""Equal and similar documents: found at the theoretical rate, and the first one stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from core.corpus.cleaning import duplicates
from core.corpus.cleaning.duplicates import DuplicateGroups
from core.corpus.cleaning.minhash import NO_KEY, band_keys
from core.corpus.cleaning.stage import clean
from core.corpus.cleaning.steps import near_keys, text_keys
from core.workspace.workspace import Workspace
from tests.core.corpus.cleaning.support import (
    clean_config,
    documents_of,
    pages,
    plain_config,
    write_documents,
)

pytestmark = pytest.mark.long

COPIES, LENGTH, VOCABULARY = 3000, 200, 20_000
SOME = 2000


def groups_of(keys: np.ndarray, kinds: list[int] | None = None) -> list[int]:
    count = keys.shape[-1]
    groups = DuplicateGroups(np.array(kinds or [2] * count, np.uint8))
    for column in np.atleast_2d(keys):
        parts = [column[: count // 2], column[count // 2 :]]
        groups.join_equal(lambda parts=parts: iter(parts))
    return groups.firsts().tolist()


def test_first_document_of_equal_ones_stays() -> None:
    assert groups_of(np.array([5, 7, 5, 9, 7, 5], np.uint64)) == [0, 1, 0, 3, 1, 0]


def test_groups_are_joined_across_columns() -> None:
    keys = np.array([[1, 1, 2, 3, 4], [5, 6, 6, 7, 8], [9, 10, 11, 12, 12]], np.uint64)
    assert groups_of(keys) == [0, 0, 0, 3, 3]


def test_lower_kind_comes_first() -> None:
    assert groups_of(np.array([5, 5, 5, 5], np.uint64), [2, 2, 1, 0]) == [3, 3, 3, 3]


def test_documents_without_a_key_are_not_joined() -> None:
    assert groups_of(np.full(3, NO_KEY)) == [0, 1, 2]


def test_long_chains_are_joined() -> None:
    count = 5000
    order = np.random.default_rng(0).permutation(count)
    even, odd = np.empty(count, np.uint64), np.empty(count, np.uint64)
    even[order] = np.arange(count) // 2 + 1
    odd[order] = (np.arange(count) + 1) // 2 + 10_000
    assert set(groups_of(np.stack([even, odd]))) == {0}


def test_buckets_do_not_change_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.random.default_rng(0).integers(1, 500, 2000).astype(np.uint64) << np.uint64(55)
    whole = groups_of(keys)
    monkeypatch.setattr(duplicates, "_BUCKET_DOCUMENTS", 100)
    assert groups_of(keys) == whole
    assert len(set(whole)) == len(np.unique(keys))


def test_keys_do_not_depend_on_other_documents() -> None:
    unspaced = ["今天天气很好，我们去公园散步。" * 3, "acgt" * 500]
    texts = [*pages(5), "one", "two words", "  ", "x " * 100_000, *unspaced]
    config = plain_config()
    together = near_keys(texts, config)
    alone = np.concatenate([near_keys([text], config) for text in texts], axis=1)
    assert (together == alone).all()
    assert (together[:-1, 5:7] == NO_KEY).all() and (together[-1] != NO_KEY).all()
    assert (text_keys([text if text.strip() else "" for text in texts]) == together[-1]).all()


@pytest.fixture(scope="module")
def originals() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, (COPIES, LENGTH))


def texts_of(documents: np.ndarray) -> Iterator[bytes]:
    return (" ".join(f"w{word}" for word in row).encode() for row in documents.tolist())


def edited(documents: np.ndarray, words: int) -> np.ndarray:
    """Replaces so many words of each document."""
    generator = np.random.default_rng(words)
    copies = documents.copy()
    for row in copies:
        row[generator.choice(LENGTH, words, replace=False)] = generator.integers(
            VOCABULARY, VOCABULARY * 2, words
        )
    return copies


def common_share(one: np.ndarray, other: np.ndarray) -> float:
    """Jaccard similarity of the five-word windows."""
    windows = [{tuple(row[place : place + 5]) for place in range(len(row) - 4)}
               for row in (one.tolist(), other.tolist())]  # fmt: skip
    return len(windows[0] & windows[1]) / len(windows[0] | windows[1])


@pytest.mark.slow
@pytest.mark.parametrize("words", [0, 2, 6], ids=["exact", "light", "heavy"])
def test_planted_copies_are_found_at_the_theoretical_rate(
    originals: np.ndarray, words: int
) -> None:
    """3,000 copies of each kind; the standard error of the heavy ones is 0.8 %."""
    copies = edited(originals, words)
    similar = np.array([common_share(*pair) for pair in zip(originals, copies, strict=True)])
    theory = (1 - (1 - similar**8) ** 14).mean()
    both = [
        band_keys(texts_of(one), COPIES, bands=14, rows=8, words=5) for one in (originals, copies)
    ]
    found = (both[0] == both[1]).any(0).mean()
    assert found == pytest.approx(theory, abs=0.02)
    assert {0: theory == 1, 2: theory > 0.99, 6: 0.7 < theory < 0.85}[words]


@pytest.mark.slow
def test_no_near_miss_is_removed(originals: np.ndarray) -> None:
    """Each of 3,000 documents shares the first 50 of its 200 words with another."""
    others = np.random.default_rng(1).integers(0, VOCABULARY, originals.shape)
    misses = np.concatenate([originals[:, :50], others[:, 50:]], axis=1)
    share = np.mean([common_share(*pair) for pair in zip(originals, misses, strict=True)])
    assert 0.12 < share < 0.15
    texts = [text.decode() for documents in (originals, misses) for text in texts_of(documents)]
    assert groups_of(near_keys(texts, plain_config())) == list(range(2 * COPIES))


# Characters, length of a document, characters of a window and edits of each script.
UNSPACED = {
    "Han": (0x4E00, 0x9000, 300, 8, 5), "Thai": (0x0E01, 0x0E2F, 300, 8, 5),
    "DNA": (0, 4, 600, 20, 6)
}  # fmt: skip


def unspaced(documents: np.ndarray, script: str) -> list[str]:
    letters = "ACGT" if script == "DNA" else None
    return ["".join(letters[code] if letters else chr(code) for code in row)
            for row in documents.tolist()]  # fmt: skip


@pytest.mark.parametrize("script", list(UNSPACED))
def test_copies_without_spaces_are_found_at_the_theoretical_rate(script: str) -> None:
    low, high, length, window, edits = UNSPACED[script]
    generator = np.random.default_rng(3)
    originals = generator.integers(low, high, (SOME, length))
    copies = originals.copy()
    for row in copies:
        row[generator.choice(length, edits, replace=False)] = generator.integers(low, high, edits)
    texts = [unspaced(one, script) for one in (originals, copies)]
    similar = np.array([common_runs(*pair, window) for pair in zip(*texts, strict=True)])
    theory = (1 - (1 - similar**8) ** 14).mean()
    assert 0.6 < theory < 0.9
    keys = [near_keys(one, plain_config())[:-1] for one in texts]
    assert (keys[0] == keys[1]).any(0).mean() == pytest.approx(theory, abs=0.02)
    # Documents that share their first quarter only are no near duplicates.
    others = generator.integers(low, high, originals.shape)
    misses = np.concatenate([originals[:, : length // 4], others[:, length // 4 :]], axis=1)
    found = groups_of(near_keys([*texts[0], *unspaced(misses, script)], plain_config()))
    assert found == list(range(2 * SOME))


def common_runs(one: str, other: str, length: int) -> float:
    """Jaccard similarity of the runs of so many characters."""
    runs = [{text[place : place + length] for place in range(len(text) - length + 1)}
            for text in (one, other)]  # fmt: skip
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def test_more_bands_find_less_similar_documents(originals: np.ndarray) -> None:
    some = originals[:300]
    copies = edited(some, 20)

    def found(bands: int, rows: int) -> float:
        keys = [band_keys(texts_of(one), 300, bands=bands, rows=rows, words=5)
                for one in (some, copies)]  # fmt: skip
        return float((keys[0] == keys[1]).any(0).mean())

    assert found(14, 8) < 0.1 < 0.4 < found(14, 3) < found(50, 3)


def test_copies_across_files_are_removed(tmp_path: Path) -> None:
    texts = pages(60)
    write_documents(tmp_path / "a.jsonl", texts[:40])
    similar = texts[0].replace(texts[0].split()[7], "else", 1)
    write_documents(tmp_path / "b.jsonl", [*texts[40:], texts[5], similar])
    config = clean_config(tmp_path / "*.jsonl")
    corpus = clean(config, Workspace(tmp_path / "workspace"))
    kept = [*documents_of(corpus, "train"), *documents_of(corpus, "validation")]
    assert similar not in kept or texts[0] not in kept
    assert len(kept) == 60
    steps = corpus.manifest.counts["steps"]
    assert steps["exact_duplicates"]["removed_documents"] == 1
    assert steps["near_duplicates"]["removed_documents"] == 1


def test_copies_of_held_out_documents_leave_the_training_documents(tmp_path: Path) -> None:
    texts = pages(60)
    copies = [text.replace(text.split()[7], "else", 1) for text in texts[:10]]
    write_documents(tmp_path / "train.jsonl", [*copies, texts[11], *texts[20:]])
    write_documents(tmp_path / "held.jsonl", texts[:20])
    config = clean_config(
        tmp_path / "train.jsonl",
        corpus={"path": str(tmp_path / "train.jsonl"),
                "validation_path": str(tmp_path / "held.jsonl")},
    )  # fmt: skip
    corpus = clean(config, Workspace(tmp_path / "workspace"))
    assert documents_of(corpus, "train") == texts[20:]
    assert documents_of(corpus, "validation") == texts[:20]
    steps = corpus.manifest.counts["steps"]
    assert steps["near_duplicates"]["removed_by"] == {"of the held-out ones": 10}
    assert steps["exact_duplicates"]["removed_by"] == {"of the held-out ones": 1}


def test_documents_of_other_corpora_are_not_repeated(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    texts = pages(60)
    first = write_documents(tmp_path / "a.jsonl", texts[:30])
    clean(clean_config(first, name="first"), workspace)
    similar = texts[1].replace(texts[1].split()[7], "else", 1)
    second = write_documents(tmp_path / "b.jsonl", [*texts[20:], similar])
    corpus = clean(clean_config(second, name="second", against="first"), workspace)
    kept = [*documents_of(corpus, "train"), *documents_of(corpus, "validation")]
    assert sorted(kept) == sorted(texts[30:])
    counts = corpus.manifest.counts
    assert counts["read"]["documents"] == 41
    assert counts["steps"]["exact_duplicates"]["removed_by"] == {"of another corpus": 10}
    assert counts["steps"]["near_duplicates"]["removed_by"] == {"of another corpus": 1}


def test_duplicates_stay_if_switched_off(tmp_path: Path) -> None:
    texts = pages(20)
    path = write_documents(tmp_path / "a.jsonl", [*texts, *texts])
    config = clean_config(path, exact_duplicates=False, near_duplicates=False)
    corpus = clean(config, Workspace(tmp_path / "workspace"))
    kept = [*documents_of(corpus, "train"), *documents_of(corpus, "validation")]
    assert sorted(kept) == sorted([*texts, *texts])
    assert not corpus.manifest.counts["steps"].keys() & {"exact_duplicates", "near_duplicates"}
