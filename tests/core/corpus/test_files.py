import csv
import errno
import gzip
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.config.corpus import CorpusConfig
from core.corpus import json_rows
from core.corpus.files import FilesSource
from core.corpus.finding import find_files
from core.errors import ConfigError, CorpusError


def read(path: Path | str, **settings: object) -> list[str]:
    config = CorpusConfig.parse({"source": "files", "path": str(path), **settings})
    return list(FilesSource(config).documents("train"))


def write_jsonl(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_each_line_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("one\r\n\n  two \nthrée\u2028still\n \nend".encode())
    assert read(tmp_path / "a.txt") == ["one", "", "  two ", "thrée\u2028still", " ", "end"]


def test_each_paragraph_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n\none\ntwo\r\n \t\n\nthree\n")
    assert read(tmp_path / "a.txt", text_unit="paragraph") == ["one\ntwo", "three"]


def test_documents_end_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(
        b"one\ntwo\n<|endoftext|>\nthree<|endoftext|>\r\n\n<|endoftext|>\n four\n\nfive<|end"
    )
    expected = ["one\ntwo", "three", "four\n\nfive<|end"]
    assert read(tmp_path / "a.txt", text_unit="mark") == expected


@pytest.mark.parametrize("target_bytes", [40, 300, 5000])
def test_parts_of_a_file_are_cut_after_marks(tmp_path: Path, target_bytes: int) -> None:
    path = tmp_path / "a.txt"
    documents = [f"Story {number}.\nIt has < and\n\nlines." for number in range(300)]
    path.write_text("".join(f"{one}\n<|endoftext|>\n" for one in documents), "utf-8")
    source = FilesSource(CorpusConfig(source="files", path=str(path), text_unit="mark"))
    parts = list(source.parts("train", target_bytes))
    assert len(parts) > 1
    found = [text for part in parts for text in part.source.documents("train")]
    assert found == documents


def test_each_file_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\n")
    (tmp_path / "b.text").write_bytes(b"")
    assert read(tmp_path, text_unit="file") == ["one\ntwo", ""]


def test_byte_order_mark_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo")
    assert read(tmp_path / "a.txt") == ["one", "\ufefftwo"]


def test_file_that_is_not_utf8_is_reported_with_the_offset(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_bytes(b"fine\nna\xefve\n")
    with pytest.raises(CorpusError, match=r"old\.txt is not UTF-8.*0xef at offset 7"):
        read(tmp_path / "old.txt")
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbfab\xff")
    with pytest.raises(CorpusError, match=r"0xff at offset 5"):
        read(tmp_path / "marked.txt")
    (tmp_path / "windows.txt").write_text("text", "utf-16")
    with pytest.raises(CorpusError, match=r"windows\.txt is not UTF-8 but UTF-16"):
        read(tmp_path / "windows.txt")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet"])
def test_gzipped_files_give_the_same_documents(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "a.txt":
        path.write_text("one\ntwo\n")
    elif name == "a.jsonl":
        write_jsonl(path, [{"text": "one"}, {"text": "two"}])
    elif name == "a.csv":
        path.write_text("text\none\ntwo\n")
    else:
        pq.write_table(pa.table({"text": ["one", "two"]}), path)
    packed = tmp_path / "packed" / f"{name}.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(path) == read(packed) == ["one", "two"]


def test_truncated_gzip_file_is_reported_by_name(tmp_path: Path) -> None:
    whole = gzip.compress(b"one\ntwo\n" * 1000)
    for name, data in (("torn", whole[:-20]), ("none", b"plain text")):
        (tmp_path / f"{name}.txt.gz").write_bytes(data)
        with pytest.raises(CorpusError, match=rf"{name}\.txt\.gz can't be read"):
            read(tmp_path / f"{name}.txt.gz")


def test_folder_is_read_recursively_in_order(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden/3.txt", ".4.txt", "README.md", "x.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(tmp_path) == ["a.txt", "b/1.txt", "b/2.txt"]
    assert read(f"{tmp_path}/**/*.txt") == ["a.txt", "b/1.txt", "b/2.txt"]
    assert read(f"{tmp_path}/*") == ["README.md", "a.txt"]
    assert read(tmp_path / "README.md") == ["README.md"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["diary.md", "travel/rome.md", "README.md"], ["diary.md", "travel/rome.md"]),
        (["diary.md", "diary-of-a-long-year.md", "settings.json"],
         ["diary-of-a-long-year.md", "diary.md"]),
        (["src/main.c", "src/main.h", "LICENSE.txt", "x.json", "notes.md"],
         ["src/main.c", "src/main.h"]),
        (["LICENSE.txt"], ["LICENSE.txt"]),
    ],
)  # fmt: skip
def test_folder_without_data_is_read_by_its_largest_kind_of_text(
    tmp_path: Path, names: list[str], expected: list[str]
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(tmp_path) == expected


def test_empty_file_of_unknown_kind_among_others_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("int main;")
    (tmp_path / "empty.c").touch()
    assert read(f"{tmp_path}/*.c") == ["int main;"]


@pytest.mark.parametrize("pattern", ["", "*.txt"])
def test_validation_file_is_excluded_from_training(tmp_path: Path, pattern: str) -> None:
    for name in ("a.txt", "validation.txt"):
        (tmp_path / name).write_text(name)
    folder = tmp_path / "linked"
    folder.symlink_to(tmp_path)
    for path in (tmp_path / "validation.txt", folder / "validation.txt"):
        assert read(tmp_path / pattern, validation_path=str(path)) == ["a.txt"]
    with pytest.raises(ConfigError, match=r"No training file remains.*2 files in path") as caught:
        read(tmp_path / pattern, validation_path=f"{tmp_path}/*.txt")
    assert caught.value.field == "validation_path"


def test_file_name_with_brackets_is_not_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("one")
    assert read(tmp_path / "a[1].txt") == ["one"]


def test_text_is_read_whatever_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text("one\ntwo\n")
    (tmp_path / "app.log.1.gz").write_bytes(gzip.compress(b"zero\n"))
    (tmp_path / "genes").write_text(">a\nACGT\n")
    (tmp_path / "data.bin").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "LICENSE").write_text("none")
    assert read(tmp_path / "app.log") == ["one", "two"]
    assert read(tmp_path / "app.log.1.gz") == ["zero"]
    assert read(tmp_path / "*.log*") == ["one", "two", "zero"]
    # In a folder, only if nothing has a suffix of text or tables.
    assert read(tmp_path) == ["one", "two", "zero", ">a", "ACGT"]
    with pytest.raises(CorpusError, match=r"data\.bin has an unsupported file type"):
        read(tmp_path / "data.bin")
    source = FilesSource(CorpusConfig(source="files", path=str(tmp_path)))
    assert {skipped.name for skipped in source.report.skipped} == {"LICENSE", "data.bin"}
    (tmp_path / "a.csv").write_text("text\nrow\n")
    assert read(tmp_path) == ["row"]
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        archive.write(tmp_path / "app.log", "logs/app.log")
        archive.write(tmp_path / "data.bin", "logs/data.bin")
    assert read(tmp_path / "logs.zip") == ["one", "two"]


def test_missing_or_unsupported_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"")
    (tmp_path / "a.docx").write_bytes(b"")
    for name, message in (
        ("missing.txt", "No file matches"),
        ("*.txt", "No file matches"),
        ("pictures", "contains no text files"),
        ("a.docx", "has an unsupported file type"),
    ):
        with pytest.raises(CorpusError, match=message) as caught:
            read(tmp_path / name)
        assert caught.value.field == "path"
    for name in ("", "gs://bucket/text"):
        with pytest.raises(ConfigError):
            read(name)
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(CorpusError) as caught:
        read(tmp_path / "a.txt", validation_path="missing.txt")
    assert caught.value.field == "validation_path"


def test_file_that_cannot_be_opened_is_reported_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("gone.txt")
    with pytest.raises(CorpusError, match=r"a\.txt can't be read.*No such file"):
        read(tmp_path)
    with pytest.raises(CorpusError, match=r"a\.txt can't be read"):
        _ = FilesSource(CorpusConfig(source="files", path=str(tmp_path))).identity


def test_path_without_permission_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "a.txt").write_text("one")
    monkeypatch.setattr(Path, "is_dir", refuse)
    for field in ("path", "validation_path"):
        with pytest.raises(CorpusError, match=r"a\.txt can't be accessed.*denied") as caught:
            find_files(str(tmp_path / "a.txt"), field=field)
        assert caught.value.field == field


def test_subfolder_without_permission_is_reported_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def refuse(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CorpusError, match=r"closed can't be accessed.*denied"):
        find_files(str(tmp_path), field="path")


def test_linked_folder_is_read_once_even_if_links_form_a_cycle(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.txt").write_text("one")
    (tmp_path / "near").mkdir()
    for name in ("first", "second"):
        (tmp_path / "near" / name).symlink_to(tmp_path / "far")
    (tmp_path / "far" / "round").symlink_to(tmp_path / "near")
    assert read(tmp_path / "near") == ["one"]


@pytest.mark.parametrize("pattern", ["", "*", "**/*"])
def test_text_in_an_unsupported_compression_format_is_refused(tmp_path: Path, pattern: str) -> None:
    for name in ("a.txt", "part.jsonl.lz4", "notes.pdf.xz", "a.txt.bz2", "README.md.zst"):
        (tmp_path / name).write_text("one")
    with pytest.raises(
        CorpusError, match=r"part\.jsonl\.lz4 has an unsupported compression"
    ) as caught:
        read(tmp_path / pattern)
    assert caught.value.received == "part.jsonl.lz4"
    (tmp_path / "part.jsonl.lz4").unlink()
    assert read(tmp_path / pattern) == ["one"]


def test_text_column_is_detected(tmp_path: Path) -> None:
    only = write_jsonl(tmp_path / "only.jsonl", [{"id": 1, "review": "one"}, {"review": "two"}])
    assert read(only) == ["one", "two"]
    named = write_jsonl(tmp_path / "named.jsonl", [{"title": "t", "text": "one"}])
    assert read(named) == ["one"]
    assert read(named, text_column="title") == ["t"]
    (tmp_path / "table.csv").write_text("Id,Title,Text\na,t,one\n")
    assert read(tmp_path / "table.csv") == ["one"]


def test_ambiguous_text_column_is_reported(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"title": "t", "body": "b", "n": 1}])
    with pytest.raises(ConfigError, match=r"title, body") as caught:
        read(path)
    assert caught.value.field == "text_column"
    with pytest.raises(ConfigError, match=r"no column 'x'.*title, body, n"):
        read(path, text_column="x")
    numbers = write_jsonl(tmp_path / "n.jsonl", [{"n": 1}])
    with pytest.raises(ConfigError, match="no string columns"):
        read(numbers)


def test_table_without_rows_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    (tmp_path / "b.csv").write_text("")
    (tmp_path / "c.csv").write_text("id,title\n\n")
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "d.parquet")
    assert read(tmp_path, text_column="body") == []
    (tmp_path / "e.csv").write_text("title,body\nt,one\n")
    assert read(tmp_path, text_column="body") == ["one"]
    config = CorpusConfig(path=str(tmp_path), text_column="body")
    assert FilesSource(config).columns() == (["title", "body"], "body")
    assert read(tmp_path / "a.jsonl") == []


def test_column_that_appears_late_in_json_lines_is_read(tmp_path: Path) -> None:
    rows: list[object] = [{"id": number} for number in range(300)]
    path = write_jsonl(tmp_path / "a.jsonl", [*rows, *[{"body": "one"}] * 300])
    assert read(path, text_column="body") == [""] * 300 + ["one"] * 300


@pytest.mark.parametrize("kind", ["missing.jsonl", "null.jsonl", "null.parquet", "null.arrow"])
def test_file_in_which_most_rows_lack_the_column_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    texts = ["one"] * 10 + [None] * 11
    rows = [{"text": text, "content": "x"} for text in texts]
    if kind == "missing.jsonl":
        rows = [row if row["text"] else {"content": "x"} for row in rows]
    write_table(path, rows)
    with pytest.raises(CorpusError, match=r"11 of 21 rows .* no text .*'text'.*content") as caught:
        read(path)
    assert caught.value.field == "text_column"
    write_table(path, rows[:-1])
    assert read(path) == ["one"] * 10 + [""] * 10


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".jsonl":
        write_jsonl(path, list(rows))
    elif path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)


def test_json_lines_file_without_the_column_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"body": "one"}])
    path = write_jsonl(tmp_path / "b.jsonl", [{"id": number} for number in range(300)])
    with pytest.raises(ConfigError, match=r"b\.jsonl has no column 'body'.*columns id") as caught:
        read(tmp_path, text_column="body")
    assert caught.value.field == "text_column"
    # The search stops before the end of a long file.
    monkeypatch.setattr(json_rows, "MOST_ROWS_WITHOUT", 250)
    path.write_text(path.read_text() + "no JSON\n")
    with pytest.raises(ConfigError, match="has no column 'body'"):
        read(path, text_column="body")


def test_nulls_and_missing_values_are_blank(tmp_path: Path) -> None:
    rows = [{"text": None}, {"text": "one"}, {"other": 1}, {"text": ""}]
    assert read(write_jsonl(tmp_path / "a.jsonl", rows)) == ["", "one", "", ""]
    pq.write_table(pa.table({"text": ["one", None]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == ["one", ""]


def test_json_extensions_written_by_python_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = ['{"score": NaN, "text": "one"}', '{"n": 1e999, "text": "tw\\ud83d"}']
    lines += ['{"n": 123456789012345678901234567890, "text": "\\u00e9"}']
    path.write_text("\n".join(lines) + "\n")
    assert read(path) == ["one", "tw\ud83d", "é"]


def test_line_that_is_no_json_object_is_reported_by_number(tmp_path: Path) -> None:
    for line in ('{"text": "tw', '["one"]', '"one"'):
        (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n' + line + "\n")
        with pytest.raises(CorpusError, match=r"Line 3 of .*a\.jsonl is not a JSON object"):
            read(tmp_path / "a.jsonl")


def test_value_that_is_no_string_is_reported(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "one"}, {"text": ["two"]}])
    with pytest.raises(CorpusError, match=r"doesn't contain text \(line 2\)"):
        read(path, text_column="text")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match="doesn't contain text"):
        read(tmp_path / "a.parquet", text_column="n")


def test_csv_is_read_with_quotes_newlines_and_large_fields(tmp_path: Path) -> None:
    long = "word " * 100_000
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(
            [["id", "date", "review"], [1, "2024-01-01", 'a "b",\r\nc'], [], [2, "", long], [3]]
        )
    assert read(tmp_path / "a.csv") == ['a "b",\nc', long, ""]


def test_malformed_csv_row_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for text, problem in (
        ("text\nfine\nHello, world\n", "Line 3 .* has more cells than the header"),
        ('id,text\n1,"two\nlines"\n2,"open\n3,x\n4,y', "line 4 .* is never closed"),
        ('text\n"open\n', "line 2 .* is never closed"),
    ):
        path.write_text(text)
        with pytest.raises(CorpusError, match=problem):
            read(path)
    path.write_text('id,text\n1,one,\n2\n3,"a ""b"""')
    assert read(path) == ["one", "", 'a "b"']


def test_csv_delimited_by_semicolons_or_tabs_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;text\n1;one, two\n")
    (tmp_path / "a.tsv").write_text("id\ttext\n1\tone; two\n")
    assert read(tmp_path / "a.csv") == ["one, two"]
    assert read(tmp_path / "a.tsv") == ["one; two"]


def test_every_parquet_string_type_is_read(tmp_path: Path) -> None:
    values = ["one", None, "drei"]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        table = pa.table({"n": [1, 2, 3], "review": pa.array(values).cast(kind)})
        pq.write_table(table, tmp_path / "a.parquet")
        assert read(tmp_path / "a.parquet") == ["one", "", "drei"]


def test_damaged_parquet_file_is_reported_by_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["one"] * 1000}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    for damaged in (data[:-30], b"", b"PAR1 and no more PAR1"):
        (tmp_path / "a.parquet").write_bytes(damaged)
        with pytest.raises(CorpusError, match=r"a\.parquet can't be read"):
            read(tmp_path / "a.parquet")


def test_identity_depends_on_content_and_not_on_path(tmp_path: Path) -> None:
    def identity(path: Path) -> object:
        return FilesSource(CorpusConfig(source="files", path=str(path))).identity

    (tmp_path / "a.txt").write_text("one\n" * 100)
    before = identity(tmp_path / "a.txt")
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    os.utime(tmp_path / "b.txt", (0, 0))
    assert identity(tmp_path / "b.txt") == before
    (tmp_path / "b.txt").write_text("One\n" * 100)
    assert identity(tmp_path / "b.txt") != before


def test_files_are_found_without_reading_their_content(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff")
    assert [file.format for file in find_files(str(tmp_path), field="path").files] == ["text"]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.parquet"])
def test_memory_does_not_grow_with_the_file_size(tmp_path: Path, name: str) -> None:
    line = "a line of some length that is written many times " * 4
    path = tmp_path / name
    if name == "a.parquet":
        schema = pa.schema([("text", pa.string())])
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for _ in range(40):
                writer.write_table(pa.table({"text": [line] * 20_000}, schema))
    else:
        row = {"a.txt": line, "a.csv": line, "a.jsonl": json.dumps({"text": line})}[name]
        with path.open("w") as file:
            file.write("text\n" if name == "a.csv" else "")
            for _ in range(400):
                file.write((row + "\n") * 2_000)
    assert path.stat().st_size > 150e6
    code = f"""
import resource, sys
from core.config import CorpusConfig
from core.corpus.files import FilesSource
source = FilesSource(CorpusConfig(source="files", path={str(path)!r}))
documents = source.documents("train")
next(documents)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = 1 + sum(1 for _ in documents)
print(count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    run = [sys.executable, "-c", code]
    result = subprocess.run(run, capture_output=True, text=True, check=True)
    count, grown_mebibytes = map(int, result.stdout.split())
    assert count == 800_000
    assert grown_mebibytes < 40
