"""Fuzzing of corpus files: each yields documents or a StudioError."""

from __future__ import annotations

import gzip
import io
import json
import string
import zipfile
from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.fuzz import valid
from tests.fuzz.harness import Input, Worker, explore
from tests.fuzz.mutations import any_bytes, json_text, mutated
from tests.fuzz.sandbox import Entry, Fifo, Folder, Link

TEXTS = valid.texts()
PACKERS = valid.packers()
_COLUMNS = st.sampled_from(
    ("", "", "", "text", "text", "text", "id", "label", "nowhere", "\0", "a.b", "x" * 999)
)
_UNITS = st.sampled_from(("line", "paragraph", "file"))
_ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "latin-1", "cp1251", "shift_jis", "utf-7", "cp500")
# Contents of cells, keys and lines.
_PIECES = st.sampled_from(
    (
        *("a", "text", "id", "1", "2024-01-01", "", " ", ",", ";", "\t", "|", '"', '""', "'", "\\"),
        *("\n", "\r", "\r\n", "\u2028", "\x85", "\x0b", "\x0c", "\0", "\ufeff", "Ü", "\U0001f600"),
        *("\x1e\x04 end of the file \x04\x1e", "=1+1", "#", "null", "NaN", "x" * 5000),
    )
)
_LOOSE = st.lists(_PIECES, max_size=40).map(lambda pieces: "".join(pieces).encode())


def read(
    worker: Worker, name: str, kind: str, contents: SearchStrategy[bytes], share: float
) -> None:
    inputs = st.builds(
        lambda content, unit, column: Input(
            {f"text.{kind}": content}, {"name": f"text.{kind}", "unit": unit, "column": column}
        ),
        contents, _UNITS, _COLUMNS,
    )  # fmt: skip
    explore(worker, name, "corpus", inputs, share)


@pytest.mark.slow(4)
def test_arbitrary_plain_text_is_read_or_refused(worker: Worker, share: float) -> None:
    encoded = st.builds(
        lambda text, encoding: text.encode(encoding, "replace"),
        st.text(max_size=100), st.sampled_from(_ENCODINGS),
    )  # fmt: skip
    contents = st.one_of(mutated(TEXTS["txt"]), any_bytes(), _LOOSE, encoded)
    read(worker, "corpus text", "txt", contents, share)


def test_arbitrary_json_lines_are_read_or_refused(worker: Worker, share: float) -> None:
    rows = [json.loads(line) for line in TEXTS["jsonl"].splitlines()][:4]
    lines = st.lists(st.sampled_from(rows).flatmap(json_text), max_size=5).map(b"\n".join)
    contents = st.one_of(lines, lines, mutated(TEXTS["jsonl"]), any_bytes())
    read(worker, "corpus jsonl", "jsonl", contents, share)


def test_arbitrary_json_is_read_or_refused(worker: Worker, share: float) -> None:
    tree = json.loads(TEXTS["json"])[:4]
    nested = {"version": 1, "data": tree}
    contents = st.one_of(json_text(tree), json_text(nested), mutated(TEXTS["json"]), any_bytes())
    read(worker, "corpus json", "json", contents, share)


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_arbitrary_csv_or_tsv_is_read_or_refused(worker: Worker, share: float, kind: str) -> None:
    contents = st.one_of(mutated(TEXTS[kind]), _LOOSE, any_bytes())
    read(worker, f"corpus {kind}", kind, contents, share)


_TYPES = (
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.int8(), pa.float64(),
    pa.bool_(), pa.null(), pa.date32(), pa.timestamp("ns", "Europe/Oslo"), pa.decimal128(10, 2),
    pa.list_(pa.string()), pa.list_(pa.list_(pa.string())), pa.large_list(pa.string()),
    pa.struct([("text", pa.string())]), pa.struct([("a", pa.struct([("b", pa.string())]))]),
    pa.map_(pa.string(), pa.string()), pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()), pa.list_(pa.struct([("text", pa.string())])),
    pa.duration("s"), pa.uuid(),
)  # fmt: skip
_NAMES = ("text", "id", "content", "", "a.b", "text", "x" * 300, "\U0001f600", "list")


@st.composite
def tables(draw: DrawFn) -> bytes:
    """Draws a Parquet file: columns of any types, perhaps of the same name."""
    columns = draw(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), max_size=4))
    rows = draw(st.integers(0, 5))
    names = [_NAMES[name % len(_NAMES)] for name, _ in columns]
    kinds = [_TYPES[kind % len(_TYPES)] for _, kind in columns]
    arrays = [_values(kind, rows) for kind in kinds]
    schema = pa.schema([pa.field(*one) for one in zip(names, kinds, strict=True)])
    content = io.BytesIO()
    options = draw(st.integers(0, 999))
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema), content,
        compression=("none", "snappy", "gzip", "zstd", "brotli", "lz4")[options % 6],
        use_dictionary=bool(options % 2), row_group_size=1 + options % 3,
        data_page_version=("1.0", "2.0")[options % 2], store_schema=bool(options % 5),
    )  # fmt: skip
    return content.getvalue()


def _values(kind: pa.DataType, rows: int) -> pa.Array:
    try:
        plain = pa.array(["Some words.", None, "é", "", "x"][:rows], pa.string())
        return plain.cast(kind)
    except (pa.ArrowException, ValueError):
        return pa.nulls(rows, kind)


def _bomb(values: int, length: int, dictionary: bool) -> bytes:
    """Returns a Parquet file whose rows are all the same long text."""
    content = io.BytesIO()
    text = pa.array(["a" * length])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * values, pa.int32()), text)
    table = pa.table({"text": column if dictionary else column.cast(pa.string())})
    pq.write_table(table, content, compression="zstd", row_group_size=values)
    return content.getvalue()


BOMBS = {
    "parquet": [
        _bomb(2_000, 100_000, True),
        _bomb(3_000, 1_000_000, True),
        _bomb(50, 400_000, False),
        _bomb(1, 9_000_000, False),
    ],
    "jsonl": [b'{"text": "' + b"a" * 20_000_000 + b'"}\n', b"{}\n" * 500_000],
    "txt": [b"a" * 30_000_000, b"\n" * 500_000, b"a b " * 5_000_000],
    "csv": [b'text\n"' + b"a\n" * 5_000_000 + b'"\n', b"text\n" + b"," * 5_000_000],
    "json": [b"[" + b'{"text":"' + b"a" * 20_000_000 + b'"}]', b"[" + b"0," * 500_000 + b"0]"],
    "tsv": [b"text\t" * 500_000 + b"\n"],
}


# Files of some hundred kilobytes with one line, cell or value of hundreds of megabytes.
_MEGABYTE = gzip.compress(b"a" * (1 << 20))
_BEGINNINGS = {
    "txt": b"",
    "jsonl": b'{"text": "',
    "json": b'[{"text": "',
    "csv": b'text\n"',
    "tsv": b"a\tb\n",
}
GZIP_BOMBS = {
    kind: gzip.compress(beginning) + _MEGABYTE * 600 for kind, beginning in _BEGINNINGS.items()
} | {"parquet": gzip.compress(b"PAR1") + _MEGABYTE * 1500}


def test_arbitrary_parquet_file_is_read_or_refused(worker: Worker, share: float) -> None:
    made = tables()
    contents = st.one_of(
        made, made, mutated(TEXTS["parquet"]), mutated(TEXTS["parquet"], 2),
        made.flatmap(lambda data: mutated(data, 1)), any_bytes(), st.sampled_from(BOMBS["parquet"]),
    )  # fmt: skip
    read(worker, "corpus parquet", "parquet", contents, share)


def _archive(members: Sequence[tuple[str, bytes]]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in dict(members).items():
            archive.writestr(zipfile.ZipInfo(name or "x"), data)
    return content.getvalue()


@cache
def _packed_bomb(packer: str, kind: str, number: int) -> bytes:
    return PACKERS[packer](BOMBS[kind][number])


@st.composite
def compressed(draw: DrawFn) -> Input:
    """Draws a compressed file: of any content, mutated outside or inside, or a bomb."""
    kind = draw(st.sampled_from(sorted(TEXTS)))
    packer = draw(st.sampled_from(sorted(PACKERS)))
    form = draw(st.integers(0, 9))
    inside = TEXTS[kind]
    if form < 3:
        inside = draw(mutated(inside))
    elif form == 3:
        inside = draw(any_bytes())
    elif form == 4 and draw(st.integers(0, 9)) == 0:
        name = f"text.{kind}.gz"
        return Input({name: GZIP_BOMBS[kind]}, {"name": name, "unit": draw(_UNITS), "column": ""})
    elif form == 4 and draw(st.integers(0, 9)) == 0:
        packer = draw(st.sampled_from(("gz", "zip")))  # The others take seconds to write.
        name, number = f"text.{kind}.{packer}", draw(st.integers(0, len(BOMBS[kind]) - 1))
        arguments = {"name": name, "unit": draw(_UNITS), "column": ""}
        return Input({name: _packed_bomb(packer, kind, number)}, arguments)
    if packer == "zip" and form > 6:
        names = st.sampled_from(
            (
                f"a.{kind}",
                "../x.txt",
                "/etc/passwd",
                "a/",
                "a\\b.txt",
                "b.zip",
                "\u202e.txt",
                "a" * 300,
            )
        )
        members = draw(st.lists(st.tuples(names, st.just(inside)), max_size=3))
        data = _archive(members)
    else:
        data = PACKERS[packer](inside)
    if form in (5, 6):
        data = draw(mutated(data))
    elif form == 7:
        data = PACKERS[packer](data)
    elif form == 8:
        data = data + data
    name = f"text.{kind}.{packer}" if packer != "zip" or form % 2 else "text.zip"
    arguments = {"name": name, "unit": draw(_UNITS), "column": draw(_COLUMNS)}
    return Input({name: data}, arguments)


def test_arbitrary_compressed_text_is_read_or_refused(worker: Worker, share: float) -> None:
    explore(worker, "corpus compressed", "corpus", compressed(), share)


@st.composite
def folders(draw: DrawFn, canary: str) -> Input:
    """Draws a folder with files, links, pipes and folders, or a pattern."""
    stems = ("a", "b", "a[1]", "c d", ".hidden", "lost+found", "Ü", "-x", "*", "a?", string.digits)
    kinds = [*TEXTS, *(f"{kind}.gz" for kind in TEXTS), "md", "exe", "zip", "xz", "TXT", "bin"]
    files: dict[str, Entry] = {}
    special: tuple[Entry, ...] = (
        Fifo(), Folder(), Link("."), Link(".."), Link("a.txt"), Link("nowhere"), Link("/dev/zero"),
        Link(f"{canary}/secret.txt"), Link(f"{canary}"), b"", b"\xff\xfe",
    )  # fmt: skip
    for number in draw(st.lists(st.integers(0, 1 << 24), min_size=1, max_size=4)):
        stem, kind = stems[number % len(stems)], kinds[(number >> 4) % len(kinds)]
        name = f"{stem}.{kind}" if number & (1 << 20) else f"in/{stem}.{kind}"
        plain = TEXTS.get(kind.removesuffix(".gz"), b"x")
        content = gzip.compress(plain) if kind.endswith(".gz") else plain
        chosen = special[(number >> 8) % len(special)] if number & (1 << 22) else content
        files[name] = chosen
    files.setdefault("z.txt", b"Some words.\n")
    names = ("", ".", "*", "*.txt", "**", "**/*.jsonl", "[", "a[1].txt", "in", *files)
    name = draw(st.sampled_from(names))
    validation = draw(st.sampled_from(("", "", "z.txt")))
    more: dict[str, Any] = {"validation_path": f"@/{validation}"} if validation else {}
    return Input(files, {"name": name, "unit": draw(_UNITS), **more})


def test_arbitrary_folder_of_text_is_read_or_refused(worker: Worker, share: float) -> None:
    # A user's own link may lead anywhere, so the links lead to the home folder, not to the canary.
    inputs = folders(str(worker.sandbox.home))
    explore(worker, "corpus folder", "corpus", inputs, share)
