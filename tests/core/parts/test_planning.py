"""Tests that the parts of a corpus hold its documents, in the same order."""

from __future__ import annotations

import json
import pickle
import random
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core import CorpusConfig, NamedSource, Workspace
from core.corpus.part_steps import PartProgress, PartStep, run_step
from core.corpus.parts import CorpusPart, PartCounts, count_useful, plan_parts
from core.corpus.reading import open_corpus
from core.errors import CorpusError
from core.parts.pool import open_pool
from core.parts.store import PartStore
from core.records.events import Reporter


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace")


_PIECES = (
    "word", " ", "한국어", "\u2028", "\x85", "\ufeff", "a b", "\u3000", "\t", "é", "🙂", ",", '"q"',
)  # fmt: skip
_ENDS = ("\n", "\r\n", "\n\n", "\r", "\n\r\n", "\r\r\n", "\n \n", "\n\n\n")


def random_text(chance: random.Random, ends: tuple[str, ...] = _ENDS) -> str:
    parts = []
    for _ in range(chance.randrange(1, 200)):
        parts += chance.choices(_PIECES, k=chance.randrange(0, 6))
        parts.append(chance.choice(ends))
    return "".join(parts)


def whole_and_parts(
    config: CorpusConfig, workspace: Workspace, part_bytes: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], int]:
    corpus = open_corpus(config, workspace)
    whole = list(corpus.labelled_documents())
    # As in another process.
    parts = pickle.loads(pickle.dumps(corpus.parts(part_bytes)))  # noqa: S301
    assert [part.number for part in parts] == list(range(len(parts)))
    found = [
        (split, document.text) for part in parts for split, document in part.documents(PartCounts())
    ]
    return whole, found, len(parts)


@pytest.mark.parametrize("unit", ["line", "paragraph"])
def test_parts_of_random_text_are_the_whole_text(
    unit: str, workspace: Workspace, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    numbers = set()
    for seed in range(60):
        chance = random.Random(seed)
        text = f"first {seed}\n\nsecond\n\n" + random_text(chance)
        encoding = chance.choice(["utf-8", "utf-8-sig", "utf-8", "utf-16", "cp949"])
        path.write_bytes(text.encode(encoding, "replace"))
        config = CorpusConfig(
            path=str(path), text_unit=unit, validation_percent=30,
            encoding="" if encoding.startswith("utf-8") else encoding,
        )  # fmt: skip
        whole, found, number = whole_and_parts(config, workspace, chance.randrange(20, 400))
        assert found == whole, seed
        numbers.add(number)
    assert max(numbers) > 5


def test_parts_of_json_lines_are_all_rows(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for seed in range(30):
        chance = random.Random(seed)
        rows = [
            {"id": n, "text": random_text(chance)[: chance.randrange(1, 300)]} for n in range(40)
        ]
        end = chance.choice(["\n", "\r\n", "\n\n"])
        mark = chance.choice(["", "\ufeff"])
        path.write_text(mark + end.join(map(json.dumps, rows)), "utf-8", newline="")
        config = CorpusConfig(path=str(path), text_column="text", validation_percent=30)
        whole, found, number = whole_and_parts(config, workspace, 500)
        assert found == whole and number > 3


@pytest.mark.parametrize("unit", ["line", "paragraph"])
@pytest.mark.parametrize(
    ("encoding", "is_cut"),
    [
        ("utf-8-sig", True), ("mac_roman", True), ("cp1252", True), ("cp949", True),
        ("cp932", True), ("utf-7", True), ("utf-16-le", False), ("iso2022_jp", False),
    ],
)  # fmt: skip
def test_text_in_other_encodings_has_the_same_documents_in_parts(
    workspace: Workspace, tmp_path: Path, encoding: str, unit: str, is_cut: bool
) -> None:
    path = tmp_path / "text.txt"
    sample = {"cp949": "한국어", "cp932": "日本語", "iso2022_jp": "日本語"}.get(encoding, "élève")
    text = "".join(f"{sample} {n}{_ENDS[n % len(_ENDS)]}" for n in range(300))
    path.write_bytes(text.encode(encoding))
    config = CorpusConfig(path=str(path), encoding=encoding, text_unit=unit, validation_percent=30)
    whole, found, number = whole_and_parts(config, workspace, 500)
    assert found == whole
    assert (number > 5) == is_cut
    assert whole[0][1].startswith(f"{sample} 0")


@pytest.mark.parametrize("blank", [" ", "\t", " \t \r", " " * 3000])
def test_paragraphs_between_lines_of_spaces_are_cut(
    workspace: Workspace, tmp_path: Path, blank: str
) -> None:
    path = tmp_path / "text.txt"
    text = f"\n{blank}\n".join(f"one {n}\n two" for n in range(300))
    path.write_text(text, "utf-8", newline="")
    config = CorpusConfig(path=str(path), text_unit="paragraph", validation_percent=30)
    whole, found, number = whole_and_parts(config, workspace, 4 * len(blank) + 300)
    assert found == whole and len(whole) == 300
    assert number > 5


def test_parts_of_tables_and_folders_are_all_rows(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    texts = [f"row {n} " + "x" * (n % 50) for n in range(500)]
    pq.write_table(pa.table({"text": texts}), folder / "a.parquet", row_group_size=37)
    (folder / "b.csv").write_text("text,n\n" + "".join(f'"a\n{n}",{n}\n' for n in range(300)))
    for n in range(20):
        (folder / f"c{n}.txt").write_text("".join(f"line {n} {k}\n" for k in range(30)))
    (folder / "d.json").write_text(json.dumps([{"text": f"item {n}"} for n in range(300)]))
    config = CorpusConfig(path=str(folder), validation_percent=30)
    whole, found, number = whole_and_parts(config, workspace, 2_000)
    assert found == whole and number > 8


def test_limit_of_documents_counts_from_the_first(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1000)))
    config = CorpusConfig(path=str(path), limit=300, validation_percent=30)
    whole, found, number = whole_and_parts(config, workspace, 500)
    assert found == whole and number == 1 and len(found) == 300


@pytest.mark.parametrize(("kilobytes", "expected"), [(90, 1), (150, 8), (400, 8), (1000, 10)])
def test_text_of_few_parts_is_divided_into_eight(
    workspace: Workspace, tmp_path: Path, kilobytes: int, expected: int
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a line of a text\n" * (kilobytes * 1000 // 17), "utf-8")
    corpus = open_corpus(CorpusConfig(path=str(path)), workspace)
    planned = plan_parts(corpus.parts, 100_000 / 2**20)
    assert len(planned) in (expected, expected + 1)
    assert [part.number for part in planned] == list(range(len(planned)))
    assert count_useful(99, 100_000 / 2**20, planned) == len(planned)
    if expected == 1:
        assert count_useful(None, 100_000 / 2**20, planned) == 1


def test_file_that_changed_after_planning_is_an_error(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1000)))
    parts = open_corpus(CorpusConfig(path=str(path)), workspace).parts(1_000)
    with path.open("a") as file:
        file.write("more\n")
    with pytest.raises(CorpusError, match="has changed while it was read"):
        list(parts[3].documents(PartCounts()))


def test_invalid_byte_is_reported_at_its_place_in_the_file(
    workspace: Workspace, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    data = bytearray("".join(f"line {n}\n" for n in range(60_000)).encode())
    data[500_003] = 0xFF
    path.write_bytes(data)
    parts = open_corpus(CorpusConfig(path=str(path)), workspace).parts(100_000)
    bad = [part for part in parts if fails(part)]
    assert [part.number for part in bad] == [4]
    assert "text.txt (bytes 400,0" in bad[0].describe()
    with pytest.raises(CorpusError, match="offset 500003"):
        list(bad[0].documents(PartCounts()))


def fails(part: CorpusPart) -> bool:
    try:
        list(part.documents(PartCounts()))
    except CorpusError:
        return True
    return False


def test_members_of_an_archive_share_parts(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "texts.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(50):
            archive.writestr(f"{n:02}.txt", "".join(f"line {n} {k}\n" for k in range(30)))
    config = CorpusConfig(path=str(path), validation_percent=30)
    whole, found, number = whole_and_parts(config, workspace, path.stat().st_size // 4)
    assert found == whole and 4 <= number <= 6
    total = sum(part.bytes for part in open_corpus(config, workspace).parts(1_000))
    assert abs(total - path.stat().st_size) < 50


def test_only_the_splits_that_are_needed_are_planned(workspace: Workspace, tmp_path: Path) -> None:
    for name in ("train", "validation"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {n}\n" for n in range(100)))
    paths = {name: str(tmp_path / f"{name}.txt") for name in ("train", "validation")}
    config = CorpusConfig(path=paths["train"], validation_path=paths["validation"])
    corpus = open_corpus(config, workspace)
    assert {part.split for part in corpus.parts(500, ("train",))} == {"train"}
    assert {part.split for part in corpus.parts(500)} == {"train", "validation"}


def test_counts_of_a_corpus_with_skipped_parts_are_not_kept(
    workspace: Workspace, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1000)))
    corpus = open_corpus(CorpusConfig(path=str(path)), workspace)
    part = corpus.parts(1_000)[1]
    counts = PartCounts()
    list(part.documents(counts))
    corpus.record_parts([(part.split, counts)], are_all=False)
    assert corpus.counts["documents"] == counts.documents < 1000
    assert not open_corpus(CorpusConfig(path=str(path)), workspace).counts
    list(corpus.labelled_documents())
    assert corpus.counts["documents"] == 1000


@pytest.mark.parametrize("limit", [None, 990])
def test_file_that_changes_while_its_only_part_is_read_is_an_error(
    workspace: Workspace, tmp_path: Path, limit: int | None
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1000)))
    (part,) = open_corpus(CorpusConfig(path=str(path), limit=limit), workspace).parts()
    if limit:
        path.write_text("other\n" * 1000)
    documents = part.documents(PartCounts())
    with pytest.raises(CorpusError, match="has changed while it was read"):
        next(documents)
        path.write_text("other\n" * 1000)
        list(documents)


def refuse(part: CorpusPart, folder: Path) -> dict[str, Any]:
    raise CorpusError("It is broken", expected="text", received="noise", fix="repair it")


def test_step_of_which_all_parts_are_skipped_ends_with_the_first_error(
    workspace: Workspace, tmp_path: Path
) -> None:
    for name in ("good", "bad"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {n}\n" for n in range(300)))
    sources = [
        NamedSource(name=name, path=str(tmp_path / f"{name}.txt")) for name in ("good", "bad")
    ]
    parts = open_corpus(CorpusConfig(sources=sources), workspace).parts(1_000)
    store = PartStore(tmp_path / "store", "recipe")
    for part in parts:
        if part.source == "good":
            with store.writing(part.number) as attempt:
                store.finish(part.number, attempt, {})
    finished = store.finished_numbers()
    reporter = Reporter()
    pool = partial(open_pool, 1, reporter)
    step = PartStep(refuse, store, skip_failing=True)
    with pytest.raises(CorpusError, match="The source bad has no training document: all") as caught:
        list(run_step(step, parts, pool, reporter))
    assert "It is broken" in caught.value.received and caught.value.fix == "repair it"
    assert 0 < len(finished) < len(parts) and finished == store.finished_numbers()


class Sizes(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def progress(self, *values: Any, **fields: Any) -> None:
        self.notes.append(values[3])


def test_progress_of_little_text_is_in_kilobytes(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a line of a text\n" * 3000)
    parts = open_corpus(CorpusConfig(path=str(path)), workspace).parts(30_000)
    reporter = Sizes()
    PartProgress(parts, (), reporter).report(1)
    assert reporter.notes == ["30 kB of 51 kB"]
