"""Documents from files: plain text, JSON lines, CSV, Parquet, each also gzipped.

Files are read as streams: memory grows with the largest document, not with the file. Text is
UTF-8, with or without a byte order mark; line ends become newlines.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import itertools
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Literal

import orjson

from core.config import CorpusConfig
from core.corpus.columns import choose_text_column, no_such_column, string_columns
from core.errors import ConfigError, CorpusError
from core.workspace import expand_path

Format = Literal["text", "jsonl", "csv", "tsv", "parquet"]

_FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_NOT_IN_FOLDERS = {".md"}  # a README among the data isn't data
_KNOWN = ", ".join(_FORMATS) + ", each also with .gz"
_KNOWN_IN_FOLDERS = ", ".join(sorted(_FORMATS.keys() - _NOT_IN_FOLDERS)) + ", each also with .gz"

# Of these, text is not unpacked; it shall not be passed over without a word either.
_PACKED = (".zst", ".xz", ".bz2", ".zip", ".lz4")
_SAMPLED_ROWS = 200
# JSON lines may leave a column out of many rows, but not of so many at the beginning.
_MOST_ROWS_WITHOUT = 100_000
_ROWS_AT_ONCE = 1024
_CSV_FIELD_LIMIT = 2**31 - 1
_BOM = b"\xef\xbb\xbf"
_PARQUET_BUFFER_BYTES = 1 << 20
# Comes behind a CSV's last line: where it isn't a row of its own, a quotation mark is open.
_END = "\x1e\x04 end of the file \x04\x1e"
# Up to this much text is identified by its content, more by sizes, times and the files' ends.
_HASHED_BYTES = 1 << 30
_HASHED_END_BYTES = 1 << 20
_NUMBER_OR_DATE = re.compile(r"\s*(\d{4}-\d\d-\d\d.*|true|false)?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class TextFile:
    """A file of documents.

    Attributes:
        path: Where it is.
        format: What it holds.
        gzipped: Whether it is compressed.
    """

    path: Path
    format: Format
    gzipped: bool


class FilesSource:
    """Documents of the files that a config names.

    Raises:
        ConfigError: No path is given, or all its files are to validate on.
        CorpusError: There is no such file, or it is of an unknown kind.
    """

    def __init__(self, config: CorpusConfig) -> None:
        self._config = config
        self._files = {"train": find_files(config.path, field="path")}
        self.has_validation = bool(config.validation_path)
        if self.has_validation:
            validation = find_files(config.validation_path, field="validation_path")
            train = _without(self._files["train"], validation)
            self._files = {"train": train, "validation": validation}

    @property
    def identity(self) -> Any:
        by_content = sum(map(_size, itertools.chain(*self._files.values()))) <= _HASHED_BYTES
        parts = self._files.items()
        return {part: [_identity(file, by_content) for file in files] for part, files in parts}

    def columns(self) -> tuple[list[str], str]:
        """Returns the columns of the first table with rows, and the one that holds the text."""
        for file in self._files["train"]:
            if file.format != "text":
                with _naming(file), _table(file) as table:
                    if table.has_rows:
                        return table.columns, table.text_column(self._config.text_column, file)
        return [], ""

    def documents(self, part: str) -> Iterator[str]:
        for file in self._files[part]:
            with _naming(file):
                if file.format == "text":
                    yield from _text_documents(file, self._config.text_unit)
                    continue
                with _table(file) as table:
                    if table.has_rows:
                        column = table.text_column(self._config.text_column, file)
                        yield from table.texts(column)


def find_files(pattern: str, *, field: str) -> list[TextFile]:
    """Finds the files that a path names: a file, a folder with all below it, or a pattern.

    Args:
        pattern: The path; `*`, `?`, `[...]` and `**` are understood unless such a file exists.
        field: The config field that it comes from.

    Raises:
        ConfigError: It is empty, or an address.
        CorpusError: Nothing is there, nothing of a known kind, or this account may not look.
    """
    _check_pattern(pattern, field)
    path = expand_path(pattern, field=field)
    try:
        if path.is_dir():
            return _folder_files(path, field)
        paths = _matches(path)
    except OSError as error:
        raise CorpusError(
            f"{error.filename or path} can't be looked up",
            expected="a path that this account may read",
            received=error.strerror or str(error), field=field,
            fix="name another one, or let this account read that folder",
        ) from error  # fmt: skip
    if not paths:
        raise CorpusError(
            f"There is no file {pattern}",
            expected="a file, a folder or a pattern like data/*.txt",
            received=f"{path.absolute()}, which matches nothing",
            fix="check the path; it is relative to the folder the program was started in",
            field=field,
        )
    if len(paths) > 1:
        _refuse_packed(paths, field)
        paths = [path for path in paths if _kind(path)] or paths
    return [_text_file(path, field) for path in paths]


def _matches(path: Path) -> list[Path]:
    """Returns the files that a path or pattern means, folders aside."""
    paths = [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))
    return [path for path in paths if not path.is_dir()]


def _without(files: list[TextFile], held_out: list[TextFile]) -> list[TextFile]:
    """Returns the files that aren't also held out, by whichever path.

    Raises:
        ConfigError: None is left.
    """
    taken = {os.path.realpath(file.path) for file in held_out}
    left = [file for file in files if os.path.realpath(file.path) not in taken]
    if not left:
        raise ConfigError(
            "No file is left to train on", expected="files in path that validation_path leaves out",
            received=f"{len(files)} in path, each of them in validation_path too",
            fix="name other files in validation_path; or leave it empty, and documents are held "
            "out of those in path", field="validation_path",
        )  # fmt: skip
    return left


def _check_pattern(pattern: str, field: str) -> None:
    if not pattern.strip():
        raise ConfigError(
            "No text was named", expected="a file, a folder or a pattern like data/*.txt",
            received="nothing", fix=f"set {field}, or choose another source", field=field,
        )  # fmt: skip
    if "://" in pattern:
        raise ConfigError(
            "Text is read from this machine's files", expected="a path on this machine",
            received=pattern, field=field,
            fix="download it first, or choose source=hub for a dataset on the Hub",
        )  # fmt: skip


def _folder_files(folder: Path, field: str) -> list[TextFile]:
    visible = list(_visible_files(folder))
    _refuse_packed(visible, field)
    paths = sorted(path for path in visible if _kind(path))
    files = [_text_file(path, field) for path in paths if _kind(path) not in _NOT_IN_FOLDERS]
    if not files:
        raise CorpusError(
            f"The folder {folder} holds no text",
            expected=f"files that end in {_KNOWN_IN_FOLDERS}",
            received=f"{len(visible)} files, none of these",
            fix="name another folder, rename the files, or name .md files by a pattern: "
            f"{folder}/*.md", field=field,
        )  # fmt: skip
    return files


def _visible_files(folder: Path) -> Iterator[Path]:
    """Yields the files below a folder, linked folders among them, each folder once.

    Raises:
        OSError: This account may not look into one of them.
    """
    seen = set()
    for parent, children, names in os.walk(folder, onerror=_raise, followlinks=True):
        place = os.path.realpath(parent)
        if place in seen:
            children.clear()
            continue
        seen.add(place)
        children[:] = sorted(child for child in children if not _is_passed_over(child))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


def _is_passed_over(folder: str) -> bool:
    # The second is the file system's own, and root's.
    return folder.startswith(".") or folder == "lost+found"


def _raise(error: OSError) -> None:
    raise error


def _refuse_packed(paths: list[Path], field: str) -> None:
    """Refuses to leave out text because it is packed in a way that isn't read.

    Raises:
        CorpusError: There is a file like text.jsonl.zst, without the text beside it.
    """
    there = set(paths)
    packed = [path for path in paths if path.suffix.lower() in _PACKED]
    texts = {path: path.with_suffix("") for path in packed}
    missed = [
        path
        for path, text in texts.items()
        if _kind(text) not in ("", *_NOT_IN_FOLDERS)
        and not there & {text, text.with_name(f"{text.name}.gz")}
    ]
    if missed:
        raise CorpusError(
            f"Text is packed in a way that isn't read: {missed[0]}",
            expected="files as they are, or with .gz",
            received=", ".join(path.name for path in missed[:3])
            + (f" and {len(missed) - 3} more" if len(missed) > 3 else ""),
            fix="unpack them, or name only the others by a pattern like data/*.txt",
            field=field,
        )


def _kind(path: Path) -> str:
    """Returns a file's suffix where it is a known one, without .gz."""
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    return suffix if suffix in _FORMATS else ""


def _text_file(path: Path, field: str) -> TextFile:
    kind = _kind(path)
    if not kind:
        raise CorpusError(
            f"{path} is of a kind that isn't read", expected=f"a file that ends in {_KNOWN}",
            received=path.suffix or path.name, field=field,
            fix="rename it to .txt if it is plain text, to .jsonl if it is one JSON object a line",
        )  # fmt: skip
    return TextFile(path, _FORMATS[kind], gzipped=path.name.lower().endswith(".gz"))


def _identity(file: TextFile, by_content: bool) -> list[Any]:
    size = _size(file)
    with _naming(file):
        if by_content:
            return [file.format, size, _hash(file.path, 0, size)]
        ends = [(0, _HASHED_END_BYTES), (size - _HASHED_END_BYTES, size)]
        hashes = [_hash(file.path, start, stop) for start, stop in ends]
        return [file.format, size, file.path.stat().st_mtime_ns, *hashes]


def _size(file: TextFile) -> int:
    with _naming(file):
        return file.path.stat().st_size


def _hash(path: Path, start: int, stop: int) -> str:
    digest = blake2b(digest_size=8)
    with _opened(path) as file:
        file.seek(max(0, start))
        while block := file.read(min(1 << 20, max(0, stop - file.tell()))):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _naming(file: TextFile) -> Iterator[None]:
    """Turns what reading can raise into an error that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        kind = "a whole gzip file" if file.gzipped else f"a {file.format} file"
        raise CorpusError(
            f"{file.path} can't be read", expected=f"{kind} that this user may read",
            received=getattr(error, "strerror", None) or str(error) or type(error).__name__,
            fix="mend it or leave it out", field="path",
        ) from error  # fmt: skip


def _opened(path: Path) -> IO[bytes]:
    return path.open("rb")


@contextmanager
def _unpacked(file: TextFile) -> Iterator[IO[bytes]]:
    with _opened(file.path) as packed:
        if not file.gzipped:
            yield packed
            return
        with gzip.open(packed) as stream, io.BufferedReader(stream) as buffered:
            yield buffered


def _text_documents(file: TextFile, unit: str) -> Iterator[str]:
    with _unpacked(file) as stream:
        lines = (line.rstrip("\r\n") for line in _lines(stream, file.path))
        if unit == "line":
            yield from lines
        elif unit == "paragraph":
            yield from _paragraphs(lines)
        else:
            yield "\n".join(lines)


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    for blank, group in itertools.groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            yield "\n".join(group)


def _lines(stream: IO[bytes], path: Path) -> Iterator[str]:
    """Decodes a stream line by line; they keep their ends.

    Raises:
        CorpusError: It isn't UTF-8; with the offset of the first wrong byte.
    """
    offset = 0
    for line in stream:
        start = len(_BOM) if offset == 0 and line.startswith(_BOM) else 0
        try:
            yield line[start:].decode("utf-8") if start else line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, line, offset, offset + start + error.start) from error
        offset += len(line)


def _not_utf8(path: Path, line: bytes, offset: int, wrong: int) -> CorpusError:
    utf16 = offset == 0 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
    encoding = "UTF-16" if utf16 else "OLD-ENCODING"
    return CorpusError(
        f"{path} is not UTF-8" + (" but UTF-16" if utf16 else ""),
        expected="text in UTF-8",
        received=f"byte 0x{line[wrong - offset]:02x} at offset {wrong}",
        fix=f"convert it: iconv -f {encoding} -t UTF-8 {path.name} > new.txt",
        field="path",
    )


@dataclass(frozen=True)
class _Table:
    """A table being read.

    Attributes:
        columns: Its columns; of JSON lines, those of the first rows.
        strings: Those that hold strings.
        has_rows: Whether there is more than the columns' names.
        texts: Gives a column's values, null as nothing.
    """

    columns: list[str]
    strings: list[str]
    has_rows: bool
    texts: Callable[[str], Iterator[str]]

    def text_column(self, wanted: str, file: TextFile) -> str:
        if wanted and file.format == "jsonl":
            return wanted  # rows that come later may have it
        return choose_text_column(wanted, self.strings, self.columns, str(file.path))


@contextmanager
def _table(file: TextFile) -> Iterator[_Table]:
    if file.format == "parquet":
        with _parquet(file) as table:
            yield table
        return
    with _unpacked(file) as stream:
        lines = _lines(stream, file.path)
        yield _jsonl(file, lines) if file.format == "jsonl" else _csv(file, lines)


def _jsonl(file: TextFile, lines: Iterator[str]) -> _Table:
    rows = _json_rows(file, lines)
    sample = list(itertools.islice(rows, _SAMPLED_ROWS))
    strings, columns = string_columns(row for _, row in sample)

    def texts(column: str) -> Iterator[str]:
        is_met = False
        for number, row in itertools.chain(sample, rows):
            is_met = is_met or column in row
            if not is_met and number > _MOST_ROWS_WITHOUT:
                break
            value = row.get(column)
            if value is not None and not isinstance(value, str):
                raise _wrong_value(file, f"line {number}", column, value)
            yield value or ""
        if not is_met:
            raise no_such_column(column, columns, str(file.path))

    return _Table(columns, strings, bool(sample), texts)


def _json_rows(file: TextFile, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _parse_json(line)
        except (ValueError, RecursionError) as error:
            raise _not_json(file, number, str(error)) from error
        if not isinstance(row, dict):
            raise _not_json(file, number, f"a {type(row).__name__}")
        yield number, row


def _parse_json(line: str) -> Any:
    """Returns what a line of JSON says.

    orjson takes a third of the time. It refuses what Python writes beside the standard, such as NaN
    and halves of a surrogate pair, and doesn't word errors as Python does.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


def _not_json(file: TextFile, number: int, received: str) -> CorpusError:
    return CorpusError(
        f"Line {number} of {file.path} is not a JSON object",
        expected='one object a line, as in {"text": "..."}', received=received,
        fix="mend that line, or write the file again as JSON lines", field="path",
    )  # fmt: skip


def _wrong_value(file: TextFile, where: str, column: str, value: Any) -> CorpusError:
    return CorpusError(
        f"The column {column!r} of {file.path} doesn't hold text ({where})",
        expected="a string or null", received=f"{type(value).__name__} {str(value)[:80]}",
        fix="set text_column to the column that holds the text", field="text_column",
    )  # fmt: skip


def _csv(file: TextFile, lines: Iterator[str]) -> _Table:
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    first = next(lines, "")
    delimiter = "\t" if file.format == "tsv" else _delimiter(first)
    reader = csv.reader(itertools.chain([first], lines, [_END]), delimiter=delimiter)
    columns = [name.strip() for name in next(reader, [])]
    rows = _csv_rows(file, reader, len(columns))
    sample = list(itertools.islice(rows, _SAMPLED_ROWS))

    def texts(column: str) -> Iterator[str]:
        place = columns.index(column)
        for row in itertools.chain(sample, rows):
            yield row[place].replace("\r\n", "\n") if place < len(row) else ""

    strings = [name for place, name in enumerate(columns) if _holds_words(sample, place)]
    return _Table(columns, strings, bool(sample), texts)


def _csv_rows(file: TextFile, reader: Any, count: int) -> Iterator[list[str]]:
    """Yields the rows that aren't empty.

    Raises:
        CorpusError: One has more cells than the header, or a quotation mark is never closed: text
            would be lost, or rows be taken for one text.
    """
    line = reader.line_num
    for row in reader:
        began, line = line + 1, reader.line_num
        if row and row[-1].endswith(_END):
            if row == [_END]:
                return
            raise CorpusError(
                f"A quotation mark in line {began} of {file.path} is never closed",
                expected="an even number of quotation marks in each cell that begins with one",
                received="the end of the file", fix='double those that are text (""), or write '
                "the file as JSON lines", field="path",
            )  # fmt: skip
        if any(row[count:]):
            raise CorpusError(
                f"Line {began} of {file.path} has more cells than the header",
                expected=f"{count} cells, as the header has", received=f"{len(row)}",
                fix="put quotation marks around text that holds the delimiter, or write the file "
                "as JSON lines", field="path",
            )  # fmt: skip
        if row:
            yield row


def _delimiter(header: str) -> str:
    """Returns the comma, unless the header has none but another usual delimiter."""
    others = (mark for mark in (";", "\t") if mark in header)
    return "," if "," in header else next(others, ",")


def _holds_words(rows: list[list[str]], place: int) -> bool:
    """Tells whether a CSV column holds more than numbers, dates and truth values."""
    values = (row[place] for row in rows if place < len(row))
    return any(not _is_number(value) and not _NUMBER_OR_DATE.fullmatch(value) for value in values)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


@contextmanager
def _parquet(file: TextFile) -> Iterator[_Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _seekable(file) as stream:
        try:
            # With a buffer, a column is read bit by bit, however large its row groups are.
            parquet = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES)
        except pa.ArrowException as error:
            raise _not_parquet(file, error) from error
        schema = parquet.schema_arrow

        def texts(column: str) -> Iterator[str]:
            if not _is_string(schema.field(column).type):
                raise _wrong_value(file, "its type", column, schema.field(column).type)
            try:
                for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=[column]):
                    yield from (value or "" for value in batch.column(0).to_pylist())
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise _not_parquet(file, error) from error

        strings = [field.name for field in schema if _is_string(field.type)]
        yield _Table(schema.names, strings, parquet.metadata.num_rows > 0, texts)


def _is_string(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return _is_string(kind.value_type)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


@contextmanager
def _seekable(file: TextFile) -> Iterator[IO[bytes]]:
    """Opens a Parquet file, which is read from its end; a gzipped one is unpacked to the disk."""
    with _unpacked(file) as stream:
        if not file.gzipped:
            yield stream
            return
        with tempfile.TemporaryFile() as unpacked:
            shutil.copyfileobj(stream, unpacked, 1 << 20)
            yield unpacked


def _not_parquet(file: TextFile, error: Exception) -> CorpusError:
    return CorpusError(
        f"{file.path} can't be read as Parquet", expected="a whole Parquet file",
        received=str(error)[:200], fix="write or download it again", field="path",
    )  # fmt: skip
