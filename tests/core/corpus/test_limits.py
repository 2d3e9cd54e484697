"""Tests of files that need far more memory or time than their size suggests."""

import gzip
import io
import json
import resource
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.config.corpus import CorpusConfig
from core.corpus import isolation, unpack
from core.corpus.files import FilesSource
from core.corpus.parquet_pages import page_sizes
from core.corpus.previewing import check_files, preview_apart
from core.errors import CorpusError
from core.workspace.workspace import Workspace

_READ = """
import resource, sys
from core.config import CorpusConfig
from core.corpus.files import FilesSource
from core.corpus.parquet_pages import page_sizes
from core.errors import StudioError
resource.setrlimit(resource.RLIMIT_AS, (3_500_000_000,) * 2)
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
said = "read"
try:
    for text in FilesSource(CorpusConfig(source="files", path=sys.argv[1])).documents("train"):
        pass
except StudioError as error:
    said = error.field
print(said, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) // 1024)
"""
# Four times the largest document: its bytes, its text and intermediate buffers.
_MOST_MEBIBYTES = 900


def read_apart(path: Path) -> tuple[str, int]:
    """Reads a file in a separate process; returns the outcome and the memory in MiB."""
    run = [sys.executable, "-c", _READ, str(path)]
    result = subprocess.run(run, capture_output=True, text=True, check=True, timeout=300)
    said, mebibytes = result.stdout.split()
    return said, int(mebibytes)


def gzip_of_one_line(path: Path, megabytes: int) -> Path:
    with gzip.open(path, "wb", compresslevel=6) as file:
        for _ in range(megabytes):
            file.write(b"a" * 1_000_000)
    return path


def parquet_of_one_value(path: Path, megabytes: int, rows: int) -> Path:
    """Writes a value once and references it from many rows: a few hundred bytes."""
    value = pa.array(["a" * (megabytes * 1_000_000)])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), value)
    pq.write_table(
        pa.table({"text": column}), path, compression="zstd", write_statistics=False,
        store_schema=False, dictionary_pagesize_limit=1 << 30,
    )  # fmt: skip
    return path


def csv_of_one_cell_of_many_lines(path: Path, lines: int) -> Path:
    with gzip.open(path, "wt") as file:
        file.write('text\n"' + "a\n" * lines + '"\nb\n')
    return path


@pytest.mark.slow(15)
@pytest.mark.long
def test_cell_of_millions_of_lines_is_read_within_the_memory_limit(tmp_path: Path) -> None:
    said, mebibytes = read_apart(csv_of_one_cell_of_many_lines(tmp_path / "a.csv.gz", 5_000_000))
    assert said == "quoting"
    assert mebibytes < 300


@pytest.mark.slow(15)
@pytest.mark.long
def test_decompression_bombs_are_refused_within_the_memory_limit(tmp_path: Path) -> None:
    bomb = parquet_of_one_value(tmp_path / "a.parquet", 4, 1000)
    assert bomb.stat().st_size < 1000
    line = gzip_of_one_line(tmp_path / "a.txt.gz", 400)
    assert line.stat().st_size < 1_500_000
    for path, field in ((bomb, "max_unpack_ratio"), (line, "max_document_mb")):
        said, mebibytes = read_apart(path)
        assert said == field
        assert mebibytes < _MOST_MEBIBYTES


def test_oversized_parquet_page_is_refused_before_decompression(tmp_path: Path) -> None:
    path = parquet_of_one_value(tmp_path / "a.parquet", 30, 2)
    config = CorpusConfig(source="files", path=str(path), max_document_mb=5)
    with pytest.raises(CorpusError, match=r"too large after decompression.*20 MB") as caught:
        next(FilesSource(config).documents("train"))
    assert caught.value.field == "max_document_mb"
    larger = config.model_copy(update={"max_document_mb": 40, "max_unpack_ratio": 100_000})
    assert sum(map(len, FilesSource(larger).documents("train"))) == 60_000_000


@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "csv"])
def test_document_above_the_size_limit_is_refused(tmp_path: Path, kind: str) -> None:
    text = "word " * 300_000
    content = {
        "txt": text,
        "jsonl": json.dumps({"text": text}),
        "json": json.dumps([{"text": text}]),
        "csv": f'text\n"{text}"\n',
    }[kind]
    path = tmp_path / f"a.{kind}"
    path.write_text(content)
    config = CorpusConfig(source="files", path=str(path), max_document_mb=1)
    with pytest.raises(CorpusError, match="too large") as caught:
        list(FilesSource(config).documents("train"))
    assert caught.value.field == "max_document_mb"
    raised = config.model_copy(update={"max_document_mb": 2})
    assert list(FilesSource(raised).documents("train")) == [text]


def test_lines_joined_into_a_document_above_the_size_limit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a line of text\n" * 100_000)
    for unit in ("file", "paragraph"):
        values = {"path": str(tmp_path / "a.txt"), "text_unit": unit, "max_document_mb": 1}
        with pytest.raises(CorpusError, match="too large"):
            list(FilesSource(CorpusConfig.parse(values)).documents("train"))


def test_compression_ratio_above_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "RATIO_FREE_BYTES", 1_000_000)
    with gzip.open(tmp_path / "a.txt.gz", "wb") as file:
        for _ in range(5):
            file.write(b"the same line again and again\n" * 40_000)
    config = CorpusConfig(source="files", path=str(tmp_path / "a.txt.gz"), text_unit="line")
    with pytest.raises(CorpusError, match="too large after decompression") as caught:
        for _ in FilesSource(config).documents("train"):
            pass
    assert caught.value.field == "max_unpack_ratio"


def test_zip_archive_with_too_many_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "one")
    data = bytearray(path.read_bytes())
    end = data.rfind(b"PK\x05\x06")
    data[end + 12 : end + 16] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(CorpusError, match="file list"):
        FilesSource(CorpusConfig(source="files", path=str(path)))


def test_preview_stops_at_its_memory_and_time_limits(tmp_path: Path) -> None:
    path = parquet_of_one_value(tmp_path / "a.parquet", 60, 4)
    config = CorpusConfig(source="files", path=str(path))
    workspace = Workspace(tmp_path / "workspace")
    with pytest.raises(CorpusError, match="too much memory"):
        preview_apart(config, workspace, memory_bytes=150_000_000)
    before = time.monotonic()
    with pytest.raises(CorpusError, match="took too long"):
        preview_apart(config, workspace, timeout_seconds=0.05)
    assert time.monotonic() - before < 10
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (tmp_path / "fine.txt").write_text("one\ntwo\n")
    fine = preview_apart(CorpusConfig(source="files", path=str(tmp_path / "fine.txt")), workspace)
    assert fine.samples == ["one", "two"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - own < 50_000


def test_preview_process_that_dies_is_reported_and_gets_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    assert "hush" not in isolation.child_environment().values()
    (tmp_path / "a.txt").write_text("one\n")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CorpusError, match="preview failed"):
        preview_apart(
            CorpusConfig(source="files", path=str(tmp_path / "a.txt")), Workspace(tmp_path)
        )


def test_each_file_is_checked_separately(tmp_path: Path) -> None:
    for name, data in (("a.txt", b"fine\n"), ("b.txt", b"\xff\xfe\xff"), ("c.docx", b"")):
        (tmp_path / name).write_bytes(data)
    paths = sorted(tmp_path.iterdir())
    problems = check_files(paths, CorpusConfig(source="files"), Workspace(tmp_path)).problems
    assert sorted(path.name for path in problems) == ["b.txt", "c.docx"]
    assert "set encoding to" in problems[tmp_path / "b.txt"].fix


@pytest.mark.slow(4)
def test_columns_come_from_the_first_readable_table(tmp_path: Path) -> None:
    for name, text in (("a.txt", "fine\n"), ("b.csv", "text,label\nfine,1\n"), ("c.docx", "")):
        (tmp_path / name).write_text(text)
    paths, config = sorted(tmp_path.iterdir()), CorpusConfig(source="files")
    assert check_files(paths, config, Workspace(tmp_path)).columns == ["text", "label"]
    # A table whose text column isn't clear can't be read, but its columns are offered.
    (tmp_path / "d.csv").write_text("title,body\nfine,fine too\n")
    found = check_files([tmp_path / "d.csv"], config, Workspace(tmp_path))
    assert list(found.problems) == [tmp_path / "d.csv"]
    assert found.columns == ["title", "body"]
    assert check_files([tmp_path / "a.txt"], config, Workspace(tmp_path)).columns == []


# Storing the path of each nesting level would take 10 to 100 GB.
DEEP = {
    "brackets": b"[" * 200_000,
    "long names": b"[" + (b'{"' + b"a" * 100_000 + b'":') * 900,
    "a long number": b'[{"text": "a", "more": ' + b"1" * 5000 + b"}]",
}


@pytest.mark.slow(9)
@pytest.mark.long
@pytest.mark.parametrize("name", DEEP)
def test_deeply_nested_json_is_refused_within_the_memory_limit(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(DEEP[name])
    said, mebibytes = read_apart(path)
    assert said == "path"
    assert mebibytes < 400


@pytest.mark.parametrize("deep", ['{"a":' * 500 + '"b"' + "}" * 500, "[" * 500 + "]" * 500])
def test_column_beside_a_deeply_nested_column_is_read(tmp_path: Path, deep: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "Some words.", "more": {deep}}}\n')
    config = CorpusConfig(source="files", path=str(path))
    assert list(FilesSource(config).documents("train")) == ["Some words."]


@pytest.mark.parametrize(
    "header",
    [
        b"\x15\x00\x1c\x15\x02\x00\x15\x20\x00",  # A struct in place of a size.
        b"\x15\x00\x11\x15\x20\x00",  # A boolean in place of a size.
        b"\x15\x00\x15" + b"\xff" * 4000,  # A number of 28,000 bits.
    ],
)
def test_page_header_with_wrong_field_types_raises_value_error(header: bytes) -> None:
    with pytest.raises(ValueError, match="page header"):
        page_sizes(io.BytesIO(header + bytes(100)), 0, 100)
