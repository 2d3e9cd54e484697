import json
from pathlib import Path
from typing import Any

import pytest

from core.config.corpus import CorpusConfig
from core.corpus.parts import PartCounts
from core.corpus.reading import Corpus, open_corpus, preview
from core.errors import CorpusError
from core.records.events import Reporter, RunStopped
from core.workspace.workspace import Workspace
from tests.texts import sentences, write_sentences


def open_files(path: Path, **settings: object) -> Corpus:
    values = {"source": "files", "path": str(path), **settings}
    return open_corpus(CorpusConfig.parse(values), Workspace(path.parent / "workspace"))


def test_each_document_is_in_exactly_one_split(tmp_path: Path) -> None:
    lines = sentences(500)
    (tmp_path / "a.txt").write_text("\n".join(lines + lines[:200]))
    corpus = open_files(tmp_path / "a.txt", validation_percent=20)
    train, validation = list(corpus.documents("train")), list(corpus.documents("validation"))
    assert sorted(train + validation) == sorted(lines + lines[:200])
    assert not set(train) & set(validation)
    assert 0.1 < len(validation) / 700 < 0.3


def test_split_of_a_document_depends_only_on_its_content(tmp_path: Path) -> None:
    lines = sentences(300)
    (tmp_path / "a.txt").write_text("\n".join(lines))
    (tmp_path / "b.txt").write_text("\n".join(reversed(lines + sentences(300, seed=1))))
    one = set(open_files(tmp_path / "a.txt").documents("validation"))
    other = set(open_files(tmp_path / "b.txt").documents("validation"))
    assert one and one == other & set(lines)


def test_each_pass_gives_the_same_documents_in_the_same_order(tmp_path: Path) -> None:
    corpus = open_files(write_sentences(tmp_path / "a.txt"))
    for split in ("train", "validation"):
        assert list(corpus.documents(split)) == list(corpus.documents(split))
    labelled = list(corpus.labelled_documents())
    assert [text for split, text in labelled if split == "train"] == list(corpus.documents("train"))
    assert [text for split, text in labelled if split == "validation"] == list(
        corpus.documents("validation")
    )


def test_validation_path_is_used_completely(tmp_path: Path) -> None:
    train = write_sentences(tmp_path / "train.txt", 100)
    validation = write_sentences(tmp_path / "validation.txt", 30, seed=1)
    corpus = open_files(train, validation_path=str(validation))
    assert list(corpus.documents("train")) == sentences(100)
    assert list(corpus.documents("validation")) == sentences(30, seed=1)
    assert corpus.counts["documents"] == 130
    assert corpus.counts["validation_documents"] == 30
    assert [split for split, _ in corpus.labelled_documents()] == ["train"] * 100 + [
        "validation"
    ] * 30


def test_overlapping_validation_documents_are_dropped_on_request(tmp_path: Path) -> None:
    passage = " ".join(sentences(10))
    (tmp_path / "train.txt").write_text("\n".join([passage, *sentences(50)]))
    own = " ".join(sentences(10, seed=7))
    (tmp_path / "validation.txt").write_text("\n".join(["Before. " + passage, own, passage]))
    settings = {"validation_path": str(tmp_path / "validation.txt")}
    assert len(list(open_files(tmp_path / "train.txt", **settings).documents("validation"))) == 3
    dropping = open_files(tmp_path / "train.txt", drop_overlapping_validation=True, **settings)
    assert list(dropping.documents("validation")) == [own]
    assert dropping.counts["validation_dropped"] == 2
    again = open_files(tmp_path / "train.txt", drop_overlapping_validation=True, **settings)
    (tmp_path / "train.txt").unlink()
    assert list(again.documents("validation")) == [own], "the decision is in the cache"


def test_empty_validation_split_after_dropping_overlaps_is_reported(tmp_path: Path) -> None:
    passage = " ".join(sentences(10))
    (tmp_path / "a.txt").write_text(f"One {passage}\nTwo {passage}\n")
    corpus = open_files(tmp_path / "a.txt", drop_overlapping_validation=True)
    assert len(list(corpus.documents("train"))) == 1
    with pytest.raises(CorpusError, match="No document remains for validation"):
        list(corpus.documents("validation"))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_tiny_corpus_holds_out_one_document(tmp_path: Path, count: int) -> None:
    corpus = open_files(write_sentences(tmp_path / "a.txt", count))
    assert len(list(corpus.documents("validation"))) == 1
    assert len(list(corpus.documents("train"))) == count - 1


def test_single_document_is_used_for_training_and_validation_is_refused(tmp_path: Path) -> None:
    corpus = open_files(write_sentences(tmp_path / "a.txt"), text_unit="file")
    assert len(list(corpus.documents("train"))) == 1
    with pytest.raises(CorpusError, match="too few documents to hold some out") as caught:
        list(corpus.documents("validation"))
    assert caught.value.field == "text_unit"


@pytest.mark.parametrize("content", ["", "\n \n\t\n"])
def test_empty_corpus_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(CorpusError, match=r"a\.txt contains no text"):
        open_files(tmp_path / "a.txt")
    with pytest.raises(CorpusError, match="contains no text"):
        preview(CorpusConfig(source="files", path=str(tmp_path / "a.txt")), Workspace(tmp_path))
    write_sentences(tmp_path / "b.txt")
    with pytest.raises(CorpusError, match=r"a\.txt contains no text") as caught:
        open_files(tmp_path / "b.txt", validation_path=str(tmp_path / "a.txt"))
    assert caught.value.field == "validation_path"


def test_limit_counts_only_non_blank_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(f"{text}\n" for text in sentences(100)))
    corpus = open_files(tmp_path / "a.txt", limit=40)
    assert [text for _, text in corpus.labelled_documents()] == sentences(100)[:40]
    assert open_files(tmp_path / "a.txt", limit=4000).fingerprint != corpus.fingerprint


def test_lone_surrogate_is_replaced(tmp_path: Path) -> None:
    lines = ['{"text": "bad \\ud800 half"}', '{"text": "fine \\ud83d\\ude00"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    texts = {text for _, text in open_files(tmp_path / "a.jsonl").labelled_documents()}
    assert texts == {"bad � half", "fine 😀"}


def test_line_endings_inside_documents_become_newlines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one\\r\\ntwo\\rthree\\n"}')
    assert list(open_files(tmp_path / "a.jsonl").documents("train")) == ["one\ntwo\nthree\n"]


def test_counts_are_known_after_a_pass_and_cached(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("é one\n\n \ntwo\nthree\n")
    corpus = open_files(tmp_path / "a.txt")
    assert corpus.counts == {}
    list(corpus.documents("train"))
    expected = {
        "documents": 3,
        "bytes": 14,
        "characters": 13,
        "longest_characters": 5,
        "blank_skipped": 2,
    }
    assert expected.items() <= corpus.counts.items()
    assert corpus.counts["train_documents"] + corpus.counts["validation_documents"] == 3
    assert open_files(tmp_path / "a.txt").counts == corpus.counts


def test_unread_split_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("three\n")
    corpus = open_files(tmp_path / "a.txt", validation_path=str(tmp_path / "b.txt"))
    list(corpus.documents("train"))
    assert corpus.counts["train_documents"] == 2
    assert "validation_documents" not in corpus.counts
    list(corpus.documents("validation"))
    assert corpus.counts["validation_documents"] == 1


def test_incomplete_pass_gives_no_counts(tmp_path: Path) -> None:
    corpus = open_files(write_sentences(tmp_path / "a.txt"))
    next(corpus.documents("train"))
    assert corpus.counts == {}


def test_damaged_cache_is_rebuilt(tmp_path: Path) -> None:
    corpus = open_files(write_sentences(tmp_path / "a.txt"))
    list(corpus.documents("train"))
    (path,) = (tmp_path / "workspace" / "cache" / "corpora-2").glob("*.json")
    counts = json.loads(path.read_text())
    path.write_text('{"tr')
    list(open_files(tmp_path / "a.txt").documents("train"))
    assert json.loads(path.read_text()) == counts
    settings = {"drop_overlapping_validation": True}
    validation = list(open_files(tmp_path / "a.txt", **settings).documents("validation"))
    (path,) = (tmp_path / "workspace" / "cache" / "corpora-2").glob("*.npy")
    path.write_bytes(b"torn")
    again = open_files(tmp_path / "a.txt", **settings)
    assert list(again.documents("validation")) == validation


def test_fingerprint_depends_only_on_relevant_settings(tmp_path: Path) -> None:
    path = write_sentences(tmp_path / "a.txt")
    other = write_sentences(tmp_path / "b.txt", 30, seed=1)
    plain = open_files(path).fingerprint
    assert plain == open_files(path, dataset_name="other/name", train_split="x").fingerprint
    for change in (
        {"text_unit": "file"},
        {"validation_percent": 6},
        {"limit": 10},
        {"drop_overlapping_validation": True},
        {"validation_path": str(other)},
    ):
        assert open_files(path, **change).fingerprint != plain, change


def test_overlap_search_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping(Reporter):
        def stop_requested(self):  # type: ignore[no-untyped-def]
            return "abort"

    monkeypatch.setattr("core.corpus.reading._DOCUMENTS_BETWEEN_REPORTS", 10)
    path = tmp_path / "a.txt"
    path.write_text("\n".join(" ".join(sentences(10, seed=n)) for n in range(100)))
    values = {"source": "files", "path": str(path), "drop_overlapping_validation": True}
    corpus = open_corpus(CorpusConfig.parse(values), Workspace(tmp_path), Stopping())
    with pytest.raises(RunStopped):
        list(corpus.documents("validation"))


def test_preview_shows_documents_and_counts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(
            json.dumps({"id": n, "review": text}) + "\n" for n, text in enumerate(["", "é", "b b"])
        )
    )
    workspace = Workspace(tmp_path)
    config = CorpusConfig(source="files", path=str(tmp_path / "a.jsonl"))
    seen = preview(config, workspace, documents=1)
    assert seen.samples == ["é"]
    assert (seen.documents, seen.bytes, seen.characters, seen.longest_characters) == (2, 5, 4, 3)
    assert (seen.blank_skipped, seen.complete) == (1, True)
    assert (seen.columns, seen.text_column) == (["id", "review"], "review")
    assert not preview(config, workspace, scan_limit=1).complete
    limited = CorpusConfig(source="files", path=str(tmp_path / "a.jsonl"), limit=1)
    assert preview(limited, workspace).complete


@pytest.mark.parametrize("most_bytes", [1 << 10, 1 << 20])
def test_documents_are_counted_by_reason_and_most_rows_need_the_column(
    tmp_path: Path, most_bytes: int
) -> None:
    def told(rows: list[dict[str, str | None]]) -> tuple[list[str], dict[str, Any]]:
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines: list[str] = []
        reporter = Reporter()
        reporter.note = lambda line, **_: lines.append(line)  # type: ignore[method-assign]
        corpus = open_corpus(CorpusConfig(path=str(path)), Workspace(tmp_path / "ws"), reporter)
        counts = []
        for part in corpus.parts(most_bytes):
            counts.append((part.split, PartCounts()))
            list(part.documents(counts[-1][1]))
        corpus.record_parts(counts)
        return lines, corpus.reading["documents"]["train"]

    texts: list[dict[str, str | None]] = [{"text": f"{n} {line}"}
                                          for n, line in enumerate(sentences(50))]  # fmt: skip
    others: list[dict[str, str | None]] = [{"content": line} for line in sentences(30)]
    lines, counts = told([*texts, *others, {"text": None}, {"text": " "}])
    assert counts == {
        "read": 82, "kept": 50, "skipped": {"no column": 30, "no value": 1, "blank": 1}
    }  # fmt: skip
    assert any("30 rows have no column text and are skipped" in line for line in lines)
    assert any("skipped 32 (no column 30, no value 1, blank 1)" in line for line in lines)
    with pytest.raises(CorpusError, match="60 of 110 rows"):
        told([*texts, *others, *others])
