"""Tests of text from other programs: encodings, line endings, CSV dialects, JSON, archives."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import re
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.config.corpus import CorpusConfig
from core.corpus.files import FilesSource
from core.corpus.json_rows import _NumberCheck
from core.corpus.lines import detect_encoding
from core.corpus.reading import Corpus, open_corpus, preview
from core.errors import ConfigError, CorpusError, StudioError
from core.records.events import Reporter
from core.workspace.workspace import Workspace
from tests.core.corpus.test_files import read, write_jsonl
from tests.texts import sentences

KOREAN = "안녕하세요. 오늘은 날씨가 정말 좋습니다. 한국어 글을 읽고 있습니다."
JAPANESE = "今日は天気がとてもいいです。日本語の文章を読んでいます。"
CHINESE = "今天天气非常好，我正在读中文文章。"
FRENCH = "Le garçon a été très élégant, naïf et déjà là."


def refused(path: Path, **settings: object) -> StudioError:
    with pytest.raises(StudioError) as caught:
        read(path, **settings)
    return caught.value


def opened(path: Path, **settings: object) -> Corpus:
    values = {"source": "files", "path": str(path), "validation_percent": 5.0, **settings}
    return open_corpus(CorpusConfig.parse(values), Workspace(path.parent / "workspace"))


# Line endings.


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("unit", ["line", "paragraph", "file"])
def test_all_line_endings_give_the_same_documents(tmp_path: Path, end: str, unit: str) -> None:
    lines = ["one\u2028still one", "two\x85\x0b\x0ctoo", "", "three"]
    (tmp_path / "a.txt").write_bytes(end.join(lines).encode())
    expected = {
        "line": lines,
        "paragraph": ["\n".join(lines[:2]), "three"],
        "file": ["\n".join(lines)],
    }
    assert read(tmp_path / "a.txt", text_unit=unit) == expected[unit]


@pytest.mark.parametrize("end", ["\r", "\r\n", "\r\r\n"])
def test_line_endings_across_block_boundaries_are_found(tmp_path: Path, end: str) -> None:
    lines = ["x" * 7, "y" * 64, "z"] * 20_000
    (tmp_path / "a.txt").write_bytes(end.join(lines).encode())
    assert read(tmp_path / "a.txt") == lines


def test_json_lines_and_csv_with_carriage_return_line_endings_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\r{"text": "two"}\r')
    (tmp_path / "a.csv").write_bytes(b'id,text\r1,one\r2,"two\rlines, too"\r')
    assert read(tmp_path / "a.jsonl") == ["one", "two"]
    assert read(tmp_path / "a.csv") == ["one", "two\nlines, too"]


def test_fingerprint_changed_only_for_lines_that_end_in_a_lone_carriage_return(
    tmp_path: Path,
) -> None:
    def identity(data: bytes, **settings: object) -> list[object]:
        (tmp_path / "a.txt").write_bytes(data)
        config = CorpusConfig.parse({"path": str(tmp_path / "a.txt"), **settings})
        (one,) = FilesSource(config).identity["train"]
        return one[2:]

    for data in (b"one\ntwo\n", b"one\r\ntwo\r\n", b"one\r\r\ntwo\r"):
        assert len(identity(data)) == 1
    assert len(identity(b"one\rtwo\n", text_unit="file")) == 1
    assert len(identity(b"one\rtwo\n")) == 2


def test_fingerprints_of_earlier_versions_are_unchanged(tmp_path: Path) -> None:
    """The expected fingerprints predate the encoding and CSV options."""
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in sentences(50)))
    write_jsonl(tmp_path / "b.jsonl", [{"text": line} for line in sentences(20)])
    (tmp_path / "c.csv").write_text('id,text\n1,"one, two"\n2,three\n')
    (tmp_path / "d.tsv").write_text("id\ttext\n1\tone, two\n2\tthree\n")
    known = {
        "a.txt": "9838f68357b1b6f0",
        "b.jsonl": "9861683e36d9272e",
        "c.csv": "5cf9ad92aa2bbb64",
        "d.tsv": "53fd9928be69b7f8",
    }
    assert {name: opened(tmp_path / name).fingerprint for name in known} == known
    changed = {
        "encoding": "cp1252",
        "encoding_errors": "replace",
        "csv_header": "yes",
        "delimiter": "comma",
        "quoting": "yes",
    }
    for option, value in changed.items():
        assert opened(tmp_path / "c.csv", **{option: value}).fingerprint != known["c.csv"]
    assert opened(tmp_path / "c.csv", max_document_mb=1).fingerprint == known["c.csv"]
    assert (
        opened(tmp_path / "c.csv", encoding="utf8").fingerprint
        == opened(tmp_path / "c.csv", encoding="UTF-8").fingerprint
    )


# Encodings.


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (FRENCH, "utf-16"),
        (FRENCH, "utf-16-le"),
        (FRENCH, "utf-16-be"),
        (FRENCH, "utf-32"),
        (FRENCH, "utf-32-be"),
        (KOREAN, "utf-16-le"),
        (FRENCH, "cp1252"),
        (KOREAN, "cp949"),
        (JAPANESE, "cp932"),
        (JAPANESE, "euc_jp"),
        (CHINESE, "gb18030"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_advised_encoding_reads_the_file(
    tmp_path: Path, text: str, encoding: str, packed: bool
) -> None:
    data = "\n".join([text] * 30).encode(encoding)
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(data) if packed else data)
    error = refused(path)
    assert error.field == "encoding"
    named = re.search(r"set encoding to (\S+)", error.fix)
    assert named, error
    assert read(path, encoding=named[1].rstrip(",")) == [text] * 30


def test_utf_16_csv_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("id\ttext\r\n1\thello\r\n".encode("utf-16"))
    assert "UTF-16" in refused(tmp_path / "a.csv").problem
    assert read(tmp_path / "a.csv", encoding="utf-16") == ["hello"]


def test_invalid_utf_8_byte_can_be_replaced_or_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("né\nça\nbad \xff byte\n".encode() + b"bad \xff byte\n")
    error = refused(tmp_path / "a.txt")
    assert error.field == "encoding_errors"
    assert read(tmp_path / "a.txt", encoding_errors="replace")[-1] == "bad \ufffd byte"
    assert read(tmp_path / "a.txt", encoding_errors="ignore")[-1] == "bad  byte"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (KOREAN, "utf-8"),
        (KOREAN, "utf-16"),
        (KOREAN, "utf-16-le"),
        (KOREAN, "cp949"),
        (FRENCH, "cp1252"),
        (JAPANESE, "cp932"),
        (CHINESE, "gb18030"),
    ],
)
def test_each_file_is_read_in_the_encoding_that_it_seems_to_have(
    tmp_path: Path, text: str, encoding: str
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(f"{FRENCH}\n", "utf-8")
    # What isn't ASCII comes late.
    ascii_part = "" if encoding.startswith("utf-16") else "plain\n" * 60_000
    (folder / "b.txt").write_bytes((ascii_part + f"{text}\n" * 30).encode(encoding))
    expected = [FRENCH, *["plain"] * ascii_part.count("\n"), *[text] * 30]
    assert read(folder, encoding="auto") == expected
    source = FilesSource(CorpusConfig(source="files", path=str(folder), encoding="auto"))
    parts = list(source.parts("train", 100_000))
    assert [line for part in parts for line in part.source.documents("train")] == expected


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize(
    ("text", "encoding"),
    [(JAPANESE, "cp932"), (JAPANESE, "euc_jp"), (KOREAN, "cp949"), (CHINESE, "gb18030")],
)
def test_encoding_is_seen_wherever_the_sample_of_a_long_text_ends(
    text: str, encoding: str, shift: int
) -> None:
    for line_end in ("\n", ""):
        data = (f"{'a' * shift}\n" + f"{text}{line_end}" * 3000).encode(encoding)
        assert len(data) > 1 << 16
        assert detect_encoding(io.BytesIO(data)) == encoding


def test_characters_that_cannot_be_decoded_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("né ça è là\n".encode() * 50 + b"bad \xff and \xfe\n")
    (tmp_path / "b.csv").write_bytes(b"text\n" + "né ça\n".encode() * 50 + b"\xff\n")
    reading = {"encoding": "auto", "encoding_errors": "replace"}
    config = CorpusConfig.parse({"source": "files", "path": str(tmp_path), **reading})
    source = FilesSource(config)
    assert "bad \ufffd and \ufffd" in list(source.documents("train"))
    source.columns()
    [finding] = source.report.describe_findings()
    assert finding.startswith("3 characters are U+FFFD")


@pytest.mark.parametrize("separator", ["\0", "\0\n"])
def test_nul_characters_in_text_are_not_taken_for_utf_16(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(separator.join(["a plain line of text"] * 40))
    reading = {"encoding": "auto", "encoding_errors": "ignore"}
    assert "a plain line" in read(path, **reading)[0]


def test_nul_characters_are_refused_with_the_likely_cause(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("plain ascii\n".encode("utf-16-le"))
    assert "UTF-16-LE without a byte order mark" in refused(tmp_path / "a.txt").problem
    (tmp_path / "a.txt").write_bytes(b"\x00\x01\x02binary\x00\x00\x00\n" * 40)
    error = refused(tmp_path / "a.txt")
    assert "NUL characters" in error.problem
    assert "\0" not in "".join(read(tmp_path / "a.txt", encoding_errors="ignore"))


@pytest.mark.parametrize("text", ["ab\0 \n", "one\n\0two\n", "né\0 ça\n", "a line\0\n" * 900])
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_few_nul_characters_in_text_are_not_taken_for_utf_16(
    tmp_path: Path, text: str, encoding: str
) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    error = refused(tmp_path / "a.txt", encoding=encoding)
    assert "it contains NUL characters" in error.problem
    assert "encoding_errors to ignore" in error.fix


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("text", ["Сегодня хорошая погода.", "Σήμερα ο καιρός.", "a", "ā ē š"])
def test_unmarked_utf_16_of_short_texts_is_recognised(
    tmp_path: Path, text: str, encoding: str
) -> None:
    (tmp_path / "a.txt").write_bytes(f"{text}\n".encode(encoding))
    assert refused(tmp_path / "a.txt").fix == f"set encoding to {encoding}"


@pytest.mark.parametrize("name", ["latin-9000", "rot13", "hex", "unicode_escape", "idna"])
def test_unknown_encoding_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(ConfigError, match="character encoding is unknown") as caught:
        read(tmp_path / "a.txt", encoding=name)
    assert caught.value.field == "encoding"


def test_truncated_last_character_is_reported_with_its_offset(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(FRENCH.encode() + "\né".encode()[:-1])
    assert "at offset" in refused(tmp_path / "a.txt").received
    assert read(tmp_path / "a.txt", encoding_errors="replace") == [FRENCH, "\ufffd"]


# CSV and TSV.


def test_unbalanced_quotes_in_delimited_text_are_refused(tmp_path: Path) -> None:
    texts = [f'"{line}' if n % 3 == 0 else line for n, line in enumerate(sentences(90))]
    for name, mark in (("a.tsv", "\t"), ("a.csv", ";")):
        rows = [f"{n}{mark}{text}\n" for n, text in enumerate(texts)]
        (tmp_path / name).write_text(f"id{mark}text\n" + "".join(rows))
        assert refused(tmp_path / name).field == "quoting"
        assert read(tmp_path / name, quoting="no") == texts


def test_quotes_that_pair_across_rows_are_refused(tmp_path: Path) -> None:
    """Under RFC 4180, a quote at the start of a cell can be closed in a later row."""
    rows = ['1,"a text', "2,another", '3,in inches 5"', "4,last", '5,"quoted, with a comma"']
    (tmp_path / "a.csv").write_text("id,text\n" + "\n".join(rows) + "\n")
    error = refused(tmp_path / "a.csv")
    assert error.field == "quoting"
    assert "Lines 2 to 4" in error.problem
    assert len(read(tmp_path / "a.csv", quoting="yes")) == 3


def test_multi_line_cells_are_read_and_reported(tmp_path: Path) -> None:
    texts = [f"{one}\n{other}, too" for one, other in zip(sentences(9), sentences(9), strict=True)]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "text"], *enumerate(texts)])
    assert read(tmp_path / "a.csv") == texts
    config = CorpusConfig(source="files", path=str(tmp_path / "a.csv"))
    said = preview(config, Workspace(tmp_path)).reading
    assert any(
        "9 rows have cells that span several lines, first in line 2" in line for line in said
    )


def test_quoted_tsv_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('id\ttext\n1\t"a ""b""\tc"\n2\tplain "in" it\n')
    assert read(tmp_path / "a.tsv") == ['a "b"\tc', 'plain "in" it']


@pytest.mark.parametrize(
    ("first", "rows"),
    [
        ("0,The first text of them all.", "1,another text\n2,and one more\n"),
        ("The first text is a sentence.", "Another one.\nAnd one more.\n"),
        ("apple", "pear\nplum\nfig\n"),
    ],
)
def test_ambiguous_first_csv_row_is_refused(tmp_path: Path, first: str, rows: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{first}\n{rows}")
    assert refused(path).field == "csv_header"
    column = {"text_column": "2"} if "," in first else {}
    with_first = read(path, csv_header="no", **column)
    assert with_first[0] == first.split(",")[-1]
    assert len(read(path, csv_header="yes")) == len(with_first) - 1


@pytest.mark.parametrize(
    "header", ["text", "ID,Review", "n,reviewText", "label_1,phrase_text", "1,Satz"]
)
def test_first_row_of_column_names_is_detected_as_a_header(tmp_path: Path, header: str) -> None:
    number = "7," if "," in header else ""
    rows = "".join(f"{number}{text.replace(',', '')}\n" for text in sentences(20))
    (tmp_path / "a.csv").write_text(f"{header}\n{rows}")
    if header.startswith("1,"):
        assert refused(tmp_path / "a.csv").field == "csv_header"
    else:
        assert len(read(tmp_path / "a.csv")) == 20


@pytest.mark.parametrize(("mark", "name"), [(",", "comma"), (";", "semicolon"), ("|", "pipe")])
def test_delimiter_is_detected_or_set(tmp_path: Path, mark: str, name: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id{mark}text\n1{mark}one two\n")
    assert read(path) == ["one two"] == read(path, delimiter=name)


def test_ambiguous_delimiter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id;text,more\n1;one,two\n2;three,four\n")
    assert refused(path).field == "delimiter"
    assert read(path, delimiter="semicolon", text_column="text,more") == ["one,two", "three,four"]
    (tmp_path / "a.tsv").write_text("id,text\n1,one\n")
    assert refused(tmp_path / "a.tsv").field == "delimiter"


def test_rows_with_fewer_cells_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,one\n2\n3,three\n4\n")
    config = CorpusConfig(source="files", path=str(tmp_path / "a.csv"))
    said = preview(config, Workspace(tmp_path)).reading
    assert any("2 rows have fewer cells than the header, first in line 3" in one for one in said)


# JSON and nested columns.


@pytest.mark.parametrize("layout", ["array", "indented", "lines", "objects", "strings"])
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_every_json_layout_is_read(tmp_path: Path, layout: str, suffix: str) -> None:
    texts = [f"{line} é" for line in sentences(300)]
    rows = [{"id": n, "text": text, "more": {"a": [n, None]}} for n, text in enumerate(texts)]
    content = {
        "array": json.dumps(rows),
        "indented": json.dumps(rows, indent=1, ensure_ascii=False),
        "lines": "\n".join(map(json.dumps, rows)),
        "objects": "\n".join(json.dumps(row, indent=2) for row in rows),
        "strings": json.dumps(texts),
    }[layout]
    (tmp_path / f"a.{suffix}").write_text(content)
    assert read(tmp_path / f"a.{suffix}") == texts


@pytest.mark.parametrize("content", ['[{"text": "a"}, 3]', '[{"text": "a"},', "[[1]]", "3"])
def test_json_that_is_no_list_of_objects_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert "is not a JSON object" in refused(tmp_path / "a.json").problem


def test_advised_nested_column_is_read(tmp_path: Path) -> None:
    rows = [{"id": n, "meta": {"body": f"b{n}"}, "tags": [f"x{n}", "y"]} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    write_jsonl(tmp_path / "a.jsonl", rows)
    for name in ("a.parquet", "a.jsonl"):
        error = refused(tmp_path / name)
        assert "meta.body" in error.fix
        assert "tags[]" in error.fix
        assert read(tmp_path / name, text_column="meta.body") == ["b0", "b1", "b2"]
        assert read(tmp_path / name, text_column="tags[]") == ["x0\ny", "x1\ny", "x2\ny"]
        for column, within in (("meta", "meta.body"), ("tags", "tags[]")):
            assert within in refused(tmp_path / name, text_column=column).fix


def test_chats_and_other_lists_of_objects_are_read(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "bot", "content": None}]
    rows = [{"id": n, "messages": [*turns, {"role": "user", "content": f"m{n}"}]} for n in range(2)]
    rows.append({"id": 2, "messages": []})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    write_jsonl(tmp_path / "a.jsonl", rows)
    for name in ("a.parquet", "a.jsonl"):
        assert "messages[].content" in refused(tmp_path / name).fix
        texts = read(tmp_path / name, text_column="messages[].content")
        assert texts[:2] == ["hi\n\nm0", "hi\n\nm1"] and not any(texts[2:])
    nested = [{"data": [{"parts": ["a", "b"]}, {"parts": ["c"]}]}]
    write_jsonl(tmp_path / "b.jsonl", nested)
    assert read(tmp_path / "b.jsonl", text_column="data[].parts[]") == ["a\nb\nc"]


def test_bytes_of_parquet_files_are_text_if_they_are_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = [FRENCH.encode(), None, b"two"]
    for kind in (pa.binary(), pa.large_binary()):
        table = {"text": pa.array(values, kind), "name": ["a", "b", "c"]}
        pq.write_table(pa.table(table), path)
        assert read(path) == [FRENCH, "", "two"]
        pq.write_table(pa.table({"body": table["text"], "name": table["name"]}), path)
        assert read(path) == ["a", "b", "c"]
        assert read(path, text_column="body") == [FRENCH, "", "two"]
    pq.write_table(pa.table({"text": pa.array([b"\xff\xfe"], pa.binary())}), path)
    error = refused(path)
    assert "is not UTF-8" in error.problem and error.field == "text_column"


@pytest.mark.parametrize("kind", [pa.list_(pa.string(), 2), pa.list_(pa.binary(), 2)])
def test_lists_of_fixed_size_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    pairs = pa.array([["a", "b"], ["c", None]], pa.list_(pa.string(), 2)).cast(kind)
    pq.write_table(pa.table({"id": [1, 2], "pair": pairs}), tmp_path / "a.parquet")
    assert "pair[]" in refused(tmp_path / "a.parquet").fix
    assert read(tmp_path / "a.parquet", text_column="pair[]") == ["a\nb", "c\n"]


# Compression.


@pytest.mark.parametrize("suffix", ["gz", "zst", "xz", "bz2", "zip"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet"])
def test_compressed_files_are_read_whatever_their_suffix(
    tmp_path: Path, suffix: str, name: str
) -> None:
    plain, packed = tmp_path / name, tmp_path / "packed" / f"{name}.{suffix}"
    packed.parent.mkdir()
    if name == "a.parquet":
        pq.write_table(pa.table({"text": ["one", "two"]}), plain)
    else:
        plain.write_text({"a.txt": "", "a.jsonl": "", "a.csv": "text\n"}[name])
        with plain.open("a") as file:
            file.write('{"text":"one"}\n{"text":"two"}\n' if name == "a.jsonl" else "one\ntwo\n")
    data = plain.read_bytes()
    if suffix == "zip":
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(plain, name)
            archive.writestr("notes.docx", "no text")
    else:
        pack = {
            "gz": gzip.compress,
            "xz": lzma.compress,
            "bz2": bz2.compress,
            "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
        }[suffix]
        packed.write_bytes(pack(data))
    assert read(packed) == read(packed.parent) == ["one", "two"]
    if suffix != "zip":
        mislabelled = tmp_path / "mislabelled" / name
        mislabelled.parent.mkdir()
        mislabelled.write_bytes(packed.read_bytes())
        assert read(mislabelled) == ["one", "two"]


@pytest.mark.parametrize("suffix", ["zst", "xz", "bz2", "zip", "gz"])
def test_damaged_archives_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    for data in (b"\x28\xb5\x2f\xfd", b"PK\x03\x04 no zip", b"BZh91AY&SY...", b"plain text"):
        path.write_bytes(data)
        assert "can't be read" in refused(path).problem


def test_damaged_lzma_member_of_a_zip_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.txt", "".join(f"line {n}\n" for n in range(5000)))
    whole = path.read_bytes()
    (start, end) = (whole.index(b"a.txt") + 5, whole.rindex(b"PK\x01\x02"))
    for place in (start, start + 6, start + 9, (start + end) // 2, end - 60):
        data = bytearray(whole)
        data[place : place + 4] = b"\xff\xff\xff\xff"
        path.write_bytes(data)
        error = refused(path)
        assert "a.zip/a.txt can't be read" in error.problem, place


@pytest.mark.parametrize("size", [0, 4, 100, 5000])
@pytest.mark.parametrize("name", ["a.txt.zst", "a.txt"])
def test_zstd_file_with_a_skippable_frame_at_the_beginning_is_read(
    tmp_path: Path, size: int, name: str
) -> None:
    frame = b"\x5d\x2a\x4d\x18" + size.to_bytes(4, "little") + b"x" * size
    packed = pa.compress(b"one\ntwo\n", "zstd", asbytes=True)
    (tmp_path / name).write_bytes(frame + packed)
    assert read(tmp_path / name) == ["one", "two"]


def test_zstd_file_with_a_window_of_two_gigabytes_is_refused_with_the_command(
    tmp_path: Path,
) -> None:
    header, block = b"\x28\xb5\x2f\xfd\x00\xa8", b"\x21\x00\x00one\n"
    (tmp_path / "a.txt.zst").write_bytes(header + block)
    error = refused(tmp_path / "a.txt.zst")
    assert "needs too much memory" in error.problem
    assert "zstd -d --long=31 a.txt.zst" in error.fix


def test_members_of_a_zip_archive_are_read_in_order(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("b/2.txt", "a.txt", ".hidden.txt", "__MACOSX/a.txt", "image.png"):
            archive.writestr(name, name)
    assert read(tmp_path / "a.zip") == ["a.txt", "b/2.txt"]
    source = FilesSource(CorpusConfig(source="files", path=str(tmp_path / "a.zip")))
    assert "image.png" in source.report.describe_skipped()
    with zipfile.ZipFile(tmp_path / "office.zip", "w") as archive:
        archive.writestr("[Content_Types].xml", "<xml/>")
    assert "Office document" in refused(tmp_path / "office.zip").problem


# Folders and patterns.


def test_skipped_files_are_listed(tmp_path: Path) -> None:
    for name in ("a.txt", "b.json", "wiki_00", "c.docx", ".hidden.txt", "README.md", ".git/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")

    class Told(Reporter):
        def __init__(self) -> None:
            self.warnings: list[str] = []

        def warn(self, message: str, **fields: object) -> None:
            self.warnings.append(message)

    told = Told()
    config = CorpusConfig(source="files", path=str(tmp_path))
    corpus = open_corpus(config, Workspace(tmp_path / ".ws"), told)
    (warning,) = told.warnings
    for name in ("b.json", "wiki_00", "c.docx", ".hidden.txt", "README.md", ".git"):
        assert name in warning
    assert corpus.reading["skipped_count"] == 6
    assert any("Skipped" in line for line in preview(config, Workspace(tmp_path)).reading)
    (tmp_path / ".git" / "x.txt").unlink()
    assert read(f"{tmp_path}/wiki*", file_format="text") == ["one"]


def test_unreadable_files_are_refused_or_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "round.txt").symlink_to("round.txt")
    (tmp_path / "gone.txt").symlink_to("nowhere")
    assert "skip_unreadable" in refused(tmp_path).fix
    assert read(tmp_path, skip_unreadable=True) == ["one"]
    config = CorpusConfig(source="files", path=str(tmp_path), skip_unreadable=True)
    said = FilesSource(config).report.describe_skipped()
    assert all(name in said for name in ("pipe.txt", "round.txt", "gone.txt"))
    for name in ("pipe.txt", "round.txt"):
        assert "can't be read" in refused(tmp_path / name).problem
    assert "not a regular file" in refused(Path("/dev/zero")).received


def test_link_to_a_file_of_the_same_folder_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("one")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "c.txt").symlink_to("../b.txt")
    (tmp_path / "a.txt").symlink_to("b.txt")
    for path in (tmp_path, tmp_path / "*.txt", f"{tmp_path}/**/*.txt"):
        assert read(path) == ["one"]
    source = FilesSource(CorpusConfig(source="files", path=str(tmp_path)))
    assert "a link to b.txt, which is read once" in source.report.describe_skipped()
    assert read(tmp_path / "a.txt") == ["one"]


def test_brackets_in_folder_names_are_not_a_pattern(tmp_path: Path) -> None:
    for folder in ("data [2020]", "data 2", "more/[x] y"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.txt").write_text(folder)
    assert read(f"{tmp_path}/data [2020]/*.txt") == ["data [2020]"]
    assert read(f"{tmp_path}/data [2020]/**/*.txt") == ["data [2020]"]
    assert read(f"{tmp_path}/data [2020]") == ["data [2020]"]
    assert read(f"{tmp_path}/*/[[]x] y/*.txt") == ["more/[x] y"]
    assert read(f"{tmp_path}/*/[x] y/a.*") == ["more/[x] y"]
    assert read(f"{tmp_path}/data [0-9]/*.txt") == ["data 2"]


def test_format_and_column_are_reported_for_each_file(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": "one"}])
    (tmp_path / "b.csv").write_text("id;body\n1;two\n")
    config = CorpusConfig(source="files", path=str(tmp_path))
    said = "\n".join(preview(config, Workspace(tmp_path)).reading)
    assert re.search(r"a\.jsonl: jsonl, UTF-8, column text", said)
    assert re.search(r"b\.csv: csv, UTF-8, delimiter semicolon, first row .*body", said)


@pytest.mark.parametrize("digits, is_read", [(4300, True), (4301, False)])
def test_integer_of_more_digits_than_python_converts_is_refused(
    tmp_path: Path, digits: int, is_read: bool
) -> None:
    number = "1" * digits
    (tmp_path / "a.json").write_text(f'[\n{{"id": {number}, "text": "one"}}\n]\n')
    config = CorpusConfig(source="files", path=str(tmp_path / "a.json"))
    if is_read:
        assert list(FilesSource(config).documents("train")) == ["one"]
    else:
        with pytest.raises(CorpusError, match="a number of more than 4,300 digits"):
            list(FilesSource(config).documents("train"))


@pytest.mark.parametrize("size", [1, 2, 7, 4096, 1 << 20])
def test_long_digits_are_refused_outside_of_strings_only(size: int) -> None:
    long = "7" * 4301
    texts = {
        f'[{{"text": "{long}"}}]': True,
        f'[{{"text": "\\\\"}}, {{"text": "{long}"}}]': True,
        f'[{{"text": "\\"{long}"}}]': True,
        f'[{{"{long}": 1, "b": {long[:4300]}}}]': True,
        f'[{{"text": "\\\\", "b": {long}}}]': False,
        f'[{{"a": "\\"", "b": {long}}}]': False,
        f"[{long}]": False,
    }
    for text, is_allowed in texts.items():
        check, data = _NumberCheck(), text.encode()
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        with nullcontext() if is_allowed else pytest.raises(ValueError, match="digits"):
            for part in parts:
                check.check(part)


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_first_line_of_a_spreadsheet_names_the_delimiter(tmp_path: Path, mark: str) -> None:
    rows = ["id,x", "1,one, and"], ["2,y", "2,two, or"]
    lines = [f"id{mark}text", *(f"{row[0]}{mark}{row[1]}" for row in rows)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join([f"sep={mark}", *lines]) + "\n")
    assert read(path, text_column="text") == ["1,one, and", "2,two, or"]


def test_header_that_a_joined_file_repeats_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1,one two\nid,text\n2,three\nid,text\n")
    assert read(path) == ["one two", "three"]
    config = CorpusConfig(source="files", path=str(path))
    said = preview(config, Workspace(tmp_path)).reading
    assert any("2 rows repeat the header, first in line 3" in one for one in said), said
