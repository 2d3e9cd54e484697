"""Files that ask for more memory or time than their size lets one expect."""

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

from core.config import CorpusConfig
from core.corpus import previewing, unpack
from core.corpus.files import FilesSource
from core.corpus.parquet_pages import page_sizes
from core.corpus.previewing import check_files, preview_apart
from core.errors import CorpusError
from core.workspace import Workspace

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
# Four times the largest document: its bytes, its text, and what is being put together.
_MOST_MEBIBYTES = 900


def read_apart(path: Path) -> tuple[str, int]:
    """Reads a file in a process of its own: what became of it, and the mebibytes that it took."""
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
    """Writes a value once and refers to it from many rows: some hundred bytes."""
    value = pa.array(["a" * (megabytes * 1_000_000)])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), value)
    pq.write_table(
        pa.table({"text": column}), path, compression="zstd", write_statistics=False,
        store_schema=False, dictionary_pagesize_limit=1 << 30,
    )  # fmt: skip
    return path


@pytest.mark.slow(15)
def test_small_files_do_not_unpack_to_gigabytes_in_memory(tmp_path: Path) -> None:
    bomb = parquet_of_one_value(tmp_path / "a.parquet", 4, 1000)
    assert bomb.stat().st_size < 1000
    line = gzip_of_one_line(tmp_path / "a.txt.gz", 400)
    assert line.stat().st_size < 1_500_000
    for path, field in ((bomb, "max_unpack_ratio"), (line, "max_document_mb")):
        said, mebibytes = read_apart(path)
        assert said == field
        assert mebibytes < _MOST_MEBIBYTES


def test_a_page_that_is_too_large_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = parquet_of_one_value(tmp_path / "a.parquet", 30, 2)
    config = CorpusConfig(source="files", path=str(path), max_document_mb=5)
    with pytest.raises(CorpusError, match=r"too large after decompression.*20 MB") as caught:
        next(FilesSource(config).documents("train"))
    assert caught.value.field == "max_document_mb"
    larger = config.model_copy(update={"max_document_mb": 40, "max_unpack_ratio": 100_000})
    assert sum(map(len, FilesSource(larger).documents("train"))) == 60_000_000


@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "csv"])
def test_a_document_beyond_the_limit_is_refused(tmp_path: Path, kind: str) -> None:
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


def test_lines_joined_to_a_document_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a line of text\n" * 100_000)
    for unit in ("file", "paragraph"):
        values = {"path": str(tmp_path / "a.txt"), "text_unit": unit, "max_document_mb": 1}
        with pytest.raises(CorpusError, match="too large"):
            list(FilesSource(CorpusConfig.parse(values)).documents("train"))


def test_text_that_unpacks_to_far_more_than_its_size_is_refused(
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


def test_a_zip_archive_of_too_many_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "one")
    data = bytearray(path.read_bytes())
    end = data.rfind(b"PK\x05\x06")
    data[end + 12 : end + 16] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(CorpusError, match="file list"):
        FilesSource(CorpusConfig(source="files", path=str(path)))


def test_a_preview_ends_with_its_limits_and_the_app_lives_on(tmp_path: Path) -> None:
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


def test_a_preview_that_dies_is_an_error_and_gets_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    assert "hush" not in previewing._environment().values()
    (tmp_path / "a.txt").write_text("one\n")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CorpusError, match="preview failed"):
        preview_apart(
            CorpusConfig(source="files", path=str(tmp_path / "a.txt")), Workspace(tmp_path)
        )


def test_files_are_checked_one_by_one(tmp_path: Path) -> None:
    for name, data in (("a.txt", b"fine\n"), ("b.txt", b"\xff\xfe\xff"), ("c.docx", b"")):
        (tmp_path / name).write_bytes(data)
    paths = sorted(tmp_path.iterdir())
    problems = check_files(paths, CorpusConfig(source="files"), Workspace(tmp_path))
    assert sorted(path.name for path in problems) == ["b.txt", "c.docx"]
    assert "set encoding to" in problems[tmp_path / "b.txt"]


# Paths of all levels would take gigabytes: 10 to 100 here.
DEEP = {
    "brackets": b"[" * 200_000,
    "long names": b"[" + (b'{"' + b"a" * 100_000 + b'":') * 900,
    "a long number": b'[{"text": "a", "more": ' + b"1" * 5000 + b"}]",
}


@pytest.mark.slow(9)
@pytest.mark.parametrize("name", DEEP)
def test_deeply_nested_json_is_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(DEEP[name])
    said, mebibytes = read_apart(path)
    assert said == "path"
    assert mebibytes < 400


@pytest.mark.parametrize("deep", ['{"a":' * 500 + '"b"' + "}" * 500, "[" * 500 + "]" * 500])
def test_a_column_beside_one_that_is_nested_deeply_is_read(tmp_path: Path, deep: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "Some words.", "more": {deep}}}\n')
    config = CorpusConfig(source="files", path=str(path))
    assert list(FilesSource(config).documents("train")) == ["Some words."]


@pytest.mark.parametrize(
    "header",
    [
        b"\x15\x00\x1c\x15\x02\x00\x15\x20\x00",  # A struct in place of a size.
        b"\x15\x00\x11\x15\x20\x00",  # A yes in place of a size.
        b"\x15\x00\x15" + b"\xff" * 4000,  # A number of 28,000 bits.
    ],
)
def test_page_headers_with_wrong_fields_are_a_value_error(header: bytes) -> None:
    with pytest.raises(ValueError, match="page header"):
        page_sizes(io.BytesIO(header + bytes(100)), 0, 100)
