"""Streams documents from files; memory grows with the largest document."""

from __future__ import annotations

import copy
import csv
import itertools
import os
import re
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from core.config.corpus import CorpusConfig
from core.corpus.columns import choose_text_column, string_columns, texts_within, value_at
from core.corpus.csv_rows import (
    SAMPLED_LINES,
    check_distinct,
    check_header,
    find_delimiter,
    read_csv,
)
from core.corpus.finding import (
    Found,
    TextFile,
    find_files,
    is_tar_archive,
    is_text_passed_over,
    size_of,
)
from core.corpus.json_rows import (
    Absent,
    are_cuttable_lines,
    read_json,
    read_later_lines,
    texts_of,
)
from core.corpus.lines import AUTO, Decoder, detect_encoding, encoding_named
from core.corpus.parquet_rows import ArrowTexts, ParquetTexts
from core.corpus.passages import passages_of
from core.corpus.report import BLANK, NO_COLUMN, NO_VALUE, Facts, Findings, ReadingReport
from core.corpus.source import SourcePart
from core.corpus.stretches import (
    DOCUMENT_END,
    Range,
    Stretch,
    cut_groups,
    cut_lines,
    is_safe_to_cut,
    shorten,
)
from core.corpus.unpack import (
    SUFFIXES,
    UnpackMeter,
    compression_of,
    head_of,
    open_regular,
    unpacked,
)
from core.errors import ConfigError, CorpusError, StudioError
from core.messages.system_errors import in_temporary_folder
from core.workspace.names import expand_path

T = TypeVar("T")
# A file's real path, and its name within an archive.
Place = tuple[str, str]

_SAMPLED_ROWS = 200
_COLUMNAR = ("parquet", "arrow")
_REPLACED = "characters are U+FFFD, which stands for what can't be decoded"
# Larger files are identified by size, time and both ends.
_HASHED_BYTES = 1 << 30
_HASHED_END_BYTES = 1 << 20
_COPIED_BYTES = 1 << 20
_REASONS: dict[str | Absent | None, str] = {None: NO_VALUE, Absent.COLUMN: NO_COLUMN}
_DAMAGES = (OSError, EOFError, zlib.error, csv.Error)
# The first versions didn't end lines here.
_LONE_RETURN = re.compile(rb"\r[^\r\n]")


class Row(NamedTuple):
    """A JSON object and its place, for errors, with the metadata of a Parquet file's schema."""

    path: Path
    place: str
    values: dict[str, Any]
    metadata: dict[bytes, bytes] = {}


class FilesSource:
    """Documents of the files that a config names.

    Args:
        keep_unreadable: Whether a file that can't be opened is an error only when it is read.
        by_split: Whether names such as validation.jsonl and test-00000-of-00001.parquet put files
            into splits.

    Raises:
        ConfigError: There is no path, or all files are held out.
        CorpusError: A file is missing or of an unknown type.
    """

    def __init__(
        self, config: CorpusConfig, *, keep_unreadable: bool = False, by_split: bool = False
    ) -> None:
        self._config = config
        self._keep_unreadable = keep_unreadable
        self._skips_bad_lines = False
        # A byte order mark of UTF-8 is always recognised.
        self._encoding = encoding_named(config.encoding).replace("utf-8-sig", "utf-8")
        self._detected: dict[Place, str] = {}
        self.report = ReadingReport()
        self._hashes: dict[Path, list[str]] = {}
        self._with_lone_returns: set[Path] = set()
        matching = self._find(config.path, "path", by_split=by_split)
        self._files = {"train": matching.files}
        if config.validation_path:
            validation = self._find(config.validation_path, "validation_path").files
            self._files["validation"] = validation
            self._files["train"] = _without(matching.files, set(map(_place_of, validation)))
        elif matching.validation:
            self._files["validation"] = matching.validation
            self.report.splits = {split: len(files) for split, files in self._files.items()}
        self.has_validation = "validation" in self._files
        self.report.file_count = sum(map(len, self._files.values()))

    def _find(self, pattern: str, field: str, *, by_split: bool = False) -> Found:
        config = self._config
        matching = find_files(
            pattern, field=field, file_format=config.file_format,
            skip_unreadable=config.skip_unreadable, keep_unreadable=self._keep_unreadable,
            by_split=by_split, max_unpack_ratio=config.max_unpack_ratio,
        )  # fmt: skip
        known = self.report.skipped
        known += [skipped for skipped in matching.skipped if skipped not in known]
        return matching

    @property
    def validation_places(self) -> set[Place]:
        """The files held out by `validation_path`."""
        return set(map(_place_of, self._files.get("validation", [])))

    def leave_out(self, held_out: Collection[Place]) -> int:
        """Removes training files that any source holds out; returns their number.

        Raises ConfigError if none is left.
        """
        before = self._files["train"]
        self._files["train"] = _without(before, held_out)
        left_out = len(before) - len(self._files["train"])
        self.report.file_count -= left_out
        return left_out

    @property
    def detected_encodings(self) -> list[str]:
        """The encodings that files seem to have, of those that were opened with `auto`."""
        return sorted(set(self._detected.values()))

    @property
    def stored_bytes(self) -> int:
        """Size of the files of the training split."""
        return sum({file.path: _size(file) for file in self._files["train"]}.values())

    def unread_text(self) -> tuple[str, int]:
        """Returns the largest file of a folder with an unread suffix, and the bytes of all such.

        They have the suffix with most bytes, if that is text; otherwise the name is empty.
        """
        folder = expand_path(self._config.path, field="path")
        if not folder.is_dir() or not self.report.skipped:
            return "", 0
        sizes = {skipped.name: size_of(folder / skipped.name) for skipped in self.report.skipped}
        by_suffix: Counter[str] = Counter()
        for name, size in sizes.items():
            by_suffix[Path(name).suffix] += size
        suffix, size = by_suffix.most_common(1)[0]
        name = max((name for name in sizes if Path(name).suffix == suffix), key=sizes.__getitem__)
        return (name, size) if is_text_passed_over(folder / name) else ("", 0)

    @property
    def paths(self) -> list[Path]:
        """The files of the training split; those of an archive have one path."""
        return list(dict.fromkeys(file.path for file in self._files["train"]))

    @cached_property
    def identity(self) -> Any:
        by_content = sum(map(_size, itertools.chain(*self._files.values()))) <= _HASHED_BYTES
        return {
            split: [self._identity(file, by_content) for file in files]
            for split, files in self._files.items()
        }

    def column_names(self) -> list[str]:
        """Returns the columns of the first table with rows."""
        return self._of_first_table(lambda table: table.columns) or []

    def columns(self) -> tuple[list[str], str]:
        """Returns the first table's columns, and the text column."""
        return self._of_first_table(lambda table: (table.columns, table.text_column())) or ([], "")

    def _of_first_table(self, read: Callable[[_Table], T]) -> T | None:
        for file in self._files["train"]:
            if file.format != "text" and not file.problem:
                with _naming(file), self._table(file) as table:
                    if table.has_rows:
                        return read(table)
        return None

    def documents(self, split: str) -> Iterator[str]:
        for _, texts in self.documents_by_file(split):
            yield from texts

    def parts(self, split: str, target_bytes: int) -> Iterator[SourcePart]:
        for stretches in self._grouped(split, target_bytes):
            names = [stretch.describe() for stretch in stretches]
            shown = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            size = sum(stretch.bytes for stretch in stretches)
            yield SourcePart(self._limited_to(stretches, split), shown, size)

    def beginning(self, split: str, target_bytes: int) -> SourcePart | None:
        """Returns the beginning of a stretch of lines, of about so many bytes; None if it isn't."""
        [*others, last] = self._files[split]
        if others or not isinstance(last, Stretch) or not last.is_cut or last.format == "parquet":
            return None
        with _naming(last):
            unit = self._config.text_unit if last.format == "text" else "line"
            short = shorten(last, "line" if unit == "file" else unit, target_bytes)
        return SourcePart(self._limited_to([short], split), short.describe(), short.bytes)

    def apart(self, split: str) -> list[FilesSource]:
        """Returns a source for each file of a split."""
        return [self._limited_to([_stretch(file)], split) for file in self._files[split]]

    def without(self, split: str, failing: Collection[int]) -> FilesSource:
        """Returns a source of a split's other files.

        Args:
            failing: Indices in `apart`.
        """
        files = [_stretch(file) for number, file in enumerate(self._files[split])
                 if number not in failing]  # fmt: skip
        return self._limited_to(files, split)

    def _grouped(self, split: str, target_bytes: int) -> Iterator[list[Stretch]]:
        """Groups a split's files into about equal amounts of text, and cuts the large ones."""
        group: list[Stretch] = []
        size = 0
        members = Counter(file.path for file in self._files[split])
        for file in self._files[split]:
            whole = Stretch.whole(file, members[file.path])
            for stretch in self._cut_readable(whole, target_bytes):
                # Each process unpacks a whole tar archive.
                is_same = bool(group) and stretch.path == group[-1].path
                is_kept = is_same and bool(stretch.member) and is_tar_archive(stretch.path)
                if group and size + stretch.bytes > target_bytes and not is_kept:
                    yield group
                    group, size = [], 0
                group.append(stretch)
                size += stretch.bytes
        if group:
            yield group

    def _limited_to(self, stretches: Sequence[Stretch], split: str) -> FilesSource:
        limited = copy.copy(self)
        limited._files = {split: list(stretches)}
        limited._hashes, limited._with_lone_returns = {}, set()
        limited.report = ReadingReport(file_count=len(stretches))
        limited.__dict__.pop("identity", None)
        return limited

    def _cut_readable(self, whole: Stretch, target_bytes: int) -> list[Stretch]:
        """Cuts a file; one that can't be read stays whole, and its reader reports the error."""
        try:
            return [whole] if whole.problem else list(self._cut(whole, target_bytes))
        except (*_DAMAGES, CorpusError, ConfigError):
            return [whole]

    def _cut(self, whole: Stretch, target_bytes: int) -> Iterator[Stretch]:
        if whole.bytes <= target_bytes or whole.member:
            return iter([whole])
        if compression_of(head_of(whole.packed)):
            return iter([whole])
        if whole.format == "parquet":
            return self._cut_groups(whole, target_bytes)
        unit = self._config.text_unit
        if not is_safe_to_cut(self._encoding_of(whole), self._config.encoding_errors):
            return iter([whole])
        if whole.format == "text" and unit != "file":
            return cut_lines(whole, unit, self._encoding_of(whole), target_bytes)
        if whole.format == "jsonl":
            return self._cut_json(whole, target_bytes)
        return iter([whole])

    def _cut_groups(self, whole: Stretch, target_bytes: int) -> Iterator[Stretch]:
        with open_regular(whole.path) as stream:
            table = ParquetTexts(whole.shown, stream, self._config.max_document_mb)
            return cut_groups(whole, table.group_bytes, target_bytes)

    def _cut_json(self, whole: Stretch, target_bytes: int) -> Iterator[Stretch]:
        chosen = self._lenient()._find_lines_of_json(whole)
        if chosen is None:
            yield whole
            return
        column, columns = chosen
        for stretch in cut_lines(whole, "line", self._encoding_of(whole), target_bytes):
            yield replace(stretch, column=column, columns=columns) if stretch.start else stretch

    def _lenient(self) -> FilesSource:
        """Returns a copy for planning, which invalid bytes and rows must not hinder."""
        lenient = copy.copy(self)
        lenient._skips_bad_lines = True
        lenient._config = self._config.model_copy(update={"encoding_errors": "replace"})
        return lenient

    def _find_lines_of_json(self, whole: Stretch) -> tuple[str, tuple[str, ...]] | None:
        """Returns the text column and all columns; None if the file can't be cut."""
        with open_regular(whole.path) as stream:
            if not are_cuttable_lines(self._decoder(whole).blocks(stream)):
                return None
        with self._table(whole) as table:
            column, columns = table.text_column(), tuple(table.columns)
            # Whether later rows have it is known at the end of the file.
            return (column, columns) if table.has(column) else None

    @contextmanager
    def _opened(self, file: TextFile) -> Iterator[tuple[IO[bytes], str]]:
        """Yields a file's stream, unpacked, and its compression."""
        if not isinstance(file, Stretch):
            with self._unpacked(file) as opened:
                yield opened
            return
        file.check_unchanged()
        with _range_of(file) if file.is_cut else self._unpacked(file) as opened:
            yield opened
        file.check_unchanged()

    def _unpacked(self, file: TextFile) -> AbstractContextManager[tuple[IO[bytes], str]]:
        return unpacked(file.packed, self._config.max_unpack_ratio)

    def documents_by_file(self, split: str) -> Iterator[tuple[str, Iterator[str]]]:
        """Yields each file's name and documents."""
        for file in self._files[split]:
            texts = self._documents_of(file)
            longest = self._config.max_document_characters
            yield file.shown, texts if longest is None else passages_of(texts, longest)

    def rows(self, split: str) -> Iterator[Row]:
        """Yields the objects of JSON files; raises CorpusError for other formats."""
        for file in self._files[split]:
            with _naming(file):
                yield from self._rows_of(file)

    def table_rows(self, split: str, *, quotes_in_tsv: bool = True) -> Iterator[Row]:
        """Yields the rows of tables of any format; raises CorpusError for plain text.

        Args:
            quotes_in_tsv: Whether automatic quoting holds for TSV files; no: marks are text.
        """
        for file in self._files[split]:
            with _naming(file):
                if file.format in ("csv", "tsv", *_COLUMNAR):
                    yield from self._rows_of_table(file, quotes_in_tsv)
                else:
                    yield from self._rows_of(file)

    def _rows_of_table(self, file: TextFile, quotes_in_tsv: bool) -> Iterator[Row]:
        config = self._config
        if file.format == "tsv" and config.quoting == "auto" and not quotes_in_tsv:
            config = config.model_copy(update={"quoting": "no"})
        with unpacked(file.packed, config.max_unpack_ratio) as (stream, compression):
            if file.format in _COLUMNAR:
                with _seekable(stream, compression) as seekable:
                    table = self._columns_of(file, seekable)
                    yield from _numbered(file, table.rows(), table.metadata)
                return
            decoder = self._decoder(file)
            lines = decoder.lines(decoder.blocks(stream))
            rows = read_csv(
                file.shown, lines, config, is_tsv=file.format == "tsv", count=Findings().count
            )
            check_distinct(file.shown, rows.columns)
            cells = itertools.chain(rows.sample, rows.rows)
            pairs = (dict(zip(rows.columns, row, strict=False)) for row in cells if any(row))
            yield from _numbered(file, pairs)

    def _rows_of(self, file: TextFile) -> Iterator[Row]:
        if file.format not in ("json", "jsonl"):
            raise CorpusError(
                f"{file.shown} has the wrong format",
                expected="JSON lines, one object per line",
                received=file.format,
                fix="export the file as JSON lines, with the suffix .jsonl",
                field="path",
            )
        with unpacked(file.packed, self._config.max_unpack_ratio) as (stream, compression):
            decoder = self._decoder(file)
            unit, rows = read_json(file.shown, decoder.blocks(stream), decoder)
            for number, values in rows:
                yield Row(file.path, f"{unit.capitalize()} {number} of {file.shown}", values)
            self.report.add(file.shown, Facts(file.format, compression, decoder.encoding))

    def _documents_of(self, file: TextFile) -> Iterator[str]:
        with _naming(file):
            if file.problem:
                raise OSError(0, file.problem)
            if file.format == "text":
                yield from self._text_documents(file)
                return
            with self._table(file) as table:
                if table.has_rows:
                    yield from self._texts_of(file, table, table.text_column())
                else:
                    findings = Findings()
                    findings.count("files have no rows", file.shown)
                    self.report.add(file.shown, Facts(file.format), findings)

    def _texts_of(self, file: TextFile, table: _Table, column: str) -> Iterator[str]:
        """Yields a table's texts, and counts the rows without any."""
        findings = Findings()
        rows = 0
        try:
            for value in table.texts(column):
                rows += 1
                if isinstance(value, str) and value and not value.isspace():
                    yield value
                    continue
                reason = _REASONS.get(value, BLANK)
                findings.skip(reason, column, f"row {rows:,} of {table.shown}")
                yield value if isinstance(value, str) else ""
        finally:
            findings.rows["rows"], findings.columns = rows, table.columns
            if table.decoder:
                self._count_replaced(file, table.decoder, findings)
            self.report.add_findings(file.shown, findings)
        if not (isinstance(file, Stretch) and file.is_cut):
            findings.check_rows(file.shown, column)

    def _text_documents(self, file: TextFile) -> Iterator[str]:
        with self._opened(file) as (stream, compression):
            decoder = self._decoder(file)
            lines = decoder.lines(decoder.blocks(stream))
            first = next(lines, None)
            self.report.add(file.shown, Facts("text", compression, decoder.encoding))
            lines = itertools.chain([first] if first is not None else [], lines)
            unit = self._config.text_unit
            if unit == "line":
                yield from lines
            elif unit == "paragraph":
                yield from _paragraphs(lines, decoder)
            elif unit == "mark":
                yield from _up_to_marks(lines, decoder)
            else:
                yield _joined(lines, decoder)
            findings = Findings()
            self._count_replaced(file, decoder, findings)
            self.report.add_findings(file.shown, findings)

    def _decoder(self, file: TextFile) -> Decoder:
        config = self._config
        most = config.max_document_mb * 1_000_000
        start = file.start if isinstance(file, Stretch) else 0
        encoding = file.encoding if isinstance(file, Stretch) and start else self._encoding_of(file)
        return Decoder(file.shown, encoding, config.encoding_errors, most, start)

    def _encoding_of(self, file: TextFile) -> str:
        if self._encoding != AUTO:
            return self._encoding
        place = _place_of(file)
        if place not in self._detected:
            with self._unpacked(file) as (stream, _):
                self._detected[place] = detect_encoding(stream)
        return self._detected[place]

    @contextmanager
    def _table(self, file: TextFile) -> Iterator[_Table]:
        with self._opened(file) as (stream, compression):
            if file.format in _COLUMNAR:
                with _seekable(stream, compression) as seekable:
                    yield self._columnar(file, seekable, compression)
                return
            decoder = self._decoder(file)
            blocks = decoder.blocks(stream)
            if file.format in ("json", "jsonl"):
                yield self._json(file, decoder, blocks, compression)
            else:
                yield self._csv(file, decoder, blocks, compression)

    def _count_replaced(self, file: TextFile, decoder: Decoder, findings: Findings) -> None:
        if decoder.replaced and self._config.encoding_errors == "replace":
            findings.count(_REPLACED, file.shown, decoder.replaced)

    def _json(
        self, file: TextFile, decoder: Decoder, blocks: Iterator[str], compression: str
    ) -> _Table:
        if isinstance(file, Stretch) and file.start:
            return self._later_json(file, decoder, blocks)
        unit, rows = read_json(file.shown, blocks, decoder, skips_bad_lines=self._skips_bad_lines)
        sample, rows = _sampled(rows)
        strings, columns = string_columns(row for _, row in sample)
        within = [
            name
            for column, value in (sample[0][1].items() if sample else ())
            for name in texts_within(column, value)
        ]

        def choose() -> str:
            # Later rows may have the requested column.
            return self._config.text_column or choose_text_column(
                "", strings, columns, file.shown, within
            )

        def texts(column: str) -> Iterator[str | Absent | None]:
            facts = Facts(file.format, compression, decoder.encoding, column=column)
            self.report.add(file.shown, facts)
            rows_again = itertools.chain(sample, rows)
            return texts_of(file.shown, rows_again, unit, column, columns)

        def has(column: str) -> bool:
            return any(column in row or value_at(row, column)[0] for _, row in sample)

        return _Table(file.shown, columns, bool(sample), choose, texts, has, decoder)

    def _later_json(self, stretch: Stretch, decoder: Decoder, blocks: Iterator[str]) -> _Table:
        columns = list(stretch.columns)

        def texts(column: str) -> Iterator[str | Absent | None]:
            facts = Facts(stretch.format, encoding=decoder.encoding, column=column)
            self.report.add(stretch.shown, facts)
            shown = stretch.describe()
            rows = read_later_lines(shown, blocks, decoder)
            # An earlier stretch may have had the column.
            return texts_of(shown, rows, "line", column, columns, is_met=True)

        return _Table(
            stretch.describe(), columns, True, lambda: stretch.column, texts, decoder=decoder
        )

    def _csv(
        self, file: TextFile, decoder: Decoder, blocks: Iterator[str], compression: str
    ) -> _Table:
        config = self._config

        findings = Findings()
        table = read_csv(
            file.shown,
            decoder.lines(blocks),
            config,
            is_tsv=file.format == "tsv",
            count=findings.count,
        )

        def choose() -> str:
            check_header(file.shown, table, config)
            wanted = config.text_column
            return choose_text_column(wanted, table.strings, table.columns, file.shown)

        def texts(column: str) -> Iterator[str]:
            facts = Facts(
                file.format, compression, delimiter=table.delimiter, header=table.has_header,
                quoting=table.has_quotes, column=column,
            )  # fmt: skip
            self.report.add(file.shown, replace(facts, encoding=decoder.encoding), findings)
            return table.values(column)

        return _Table(file.shown, table.columns, bool(table.sample), choose, texts, decoder=decoder)

    def _columns_of(self, file: TextFile, stream: IO[bytes]) -> ArrowTexts | ParquetTexts:
        if file.format == "arrow":
            return ArrowTexts(file.shown, stream)
        return ParquetTexts(file.shown, stream, self._config.max_document_mb)

    def _columnar(self, file: TextFile, stream: IO[bytes], compression: str) -> _Table:
        config = self._config
        table = self._columns_of(file, stream)
        shown = file.shown
        if isinstance(file, Stretch) and file.is_cut and isinstance(table, ParquetTexts):
            table.limit_to(file.start, file.stop)
            shown = file.describe()
        meter = UnpackMeter(file.shown, _size(file), config.max_unpack_ratio)

        def choose() -> str:
            wanted = config.text_column
            return choose_text_column(
                wanted, table.strings, table.columns, file.shown, table.within
            )

        def texts(column: str) -> Iterator[str | None]:
            self.report.add(file.shown, Facts(file.format, compression, column=column))
            for text in table.texts(column):
                meter.add(len(text or ""))
                yield text

        return _Table(shown, table.columns, table.has_rows, choose, texts)

    def _identity(self, file: TextFile, by_content: bool) -> list[Any]:
        if file.problem:
            return [file.format, file.problem]
        size = _size(file)
        with _naming(file):
            times = [] if by_content else [file.path.stat().st_mtime_ns]
            hashes = self._hashes_of(file, size, by_content)
            member = [file.member] if file.member else []
            return [file.format, size, *times, *hashes, *member, *self._known_departures(file)]

    def _hashes_of(self, file: TextFile, size: int, by_content: bool) -> list[str]:
        if file.path not in self._hashes:
            ends = [(0, _HASHED_END_BYTES), (size - _HASHED_END_BYTES, size)]
            parts = [(0, size)] if by_content else ends
            hashes = [_hash(file.path, start, stop) for start, stop in parts]
            self._hashes[file.path] = [piece.hex for piece in hashes]
            if any(piece.has_lone_return for piece in hashes):
                self._with_lone_returns.add(file.path)
        return self._hashes[file.path]

    def _known_departures(self, file: TextFile) -> list[str]:
        try:
            return self._departures(file)
        except (*_DAMAGES, StudioError):
            return []  # The reader reports the error, or skips the part.

    def _departures(self, file: TextFile) -> list[str]:
        """Lists departures from the first versions; files without any keep their identity."""
        if file.format == "text" and self._config.text_unit != "file":
            return ["lone returns"] * self._has_lone_return(file)
        if file.format == "csv" and self._config.delimiter == "auto":
            with unpacked(file.packed, self._config.max_unpack_ratio) as (stream, _):
                decoder = self._lenient()._decoder(file)
                lines = list(itertools.islice(decoder.lines(decoder.blocks(stream)), SAMPLED_LINES))
            delimiter = find_delimiter(file.shown, lines, self._config, is_tsv=False)
            return [delimiter] if delimiter != _first_delimiter(lines) else []
        return []

    def _has_lone_return(self, file: TextFile) -> bool:
        with unpacked(file.packed, self._config.max_unpack_ratio) as (stream, compression):
            if not compression:
                return file.path in self._with_lone_returns
            return _has_lone_return(stream.read(_HASHED_END_BYTES))


@dataclass(frozen=True)
class _Table:
    shown: str
    columns: list[str]
    has_rows: bool
    text_column: Callable[[], str]
    texts: Callable[[str], Iterator[str | Absent | None]]
    has: Callable[[str], bool] = lambda _: True
    decoder: Decoder | None = None


def _sampled(rows: Iterator[T]) -> tuple[list[T], Iterator[T]]:
    """Returns the first rows, and all others; a bad row ends the first ones, and is read last.

    Raises CorpusError if the first row is bad.
    """
    sample: list[T] = []
    try:
        sample.extend(itertools.islice(rows, _SAMPLED_ROWS))
    except CorpusError as error:
        if not sample:
            raise
        return sample, _raising(error)
    return sample, rows


def _raising(error: CorpusError) -> Iterator[Any]:
    yield from ()
    raise error


def _numbered(
    file: TextFile, rows: Iterable[dict[str, Any]], metadata: dict[bytes, bytes] | None = None
) -> Iterator[Row]:
    known = metadata or {}
    for number, values in enumerate(rows, 1):
        yield Row(file.path, f"Row {number} of {file.shown}", values, known)


def _place_of(file: TextFile) -> Place:
    return os.path.realpath(file.path), file.member


def _without(files: list[TextFile], held_out: Collection[Place]) -> list[TextFile]:
    left = [file for file in files if _place_of(file) not in held_out]
    if not left:
        raise ConfigError(
            "No training file remains",
            expected="at least one file in ⟬path⟭ that is not in ⟬validation_path⟭",
            received=f"{len(files)} files in ⟬path⟭, all of them also in ⟬validation_path⟭",
            fix="set ⟬validation_path⟭ to other files, or leave it empty: documents from ⟬path⟭ "
            "are then held out", field="validation_path",
        )  # fmt: skip
    return left


def _paragraphs(lines: Iterator[str], decoder: Decoder) -> Iterator[str]:
    for blank, group in itertools.groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            yield _joined(group, decoder)


def _up_to_marks(lines: Iterator[str], decoder: Decoder) -> Iterator[str]:
    waiting: list[str] = []
    size = 0
    for line in lines:
        *ended, rest = line.split(DOCUMENT_END)
        for part in ended:
            text = "\n".join([*waiting, part]).strip()
            if text:
                yield text
            waiting, size = [], 0
        size = decoder.counted(size, rest) + 1
        waiting.append(rest)
    if text := "\n".join(waiting).strip():
        yield text


def _joined(lines: Iterator[str], decoder: Decoder) -> str:
    texts: list[str] = []
    size = 0
    for line in lines:
        size = decoder.counted(size, line) + 1
        texts.append(line)
    return "\n".join(texts)


@contextmanager
def _seekable(stream: IO[bytes], compression: str) -> Iterator[IO[bytes]]:
    """Unpacks compressed data to a temporary file."""
    if not compression:
        yield stream
        return
    with in_temporary_folder() as folder, tempfile.TemporaryFile(dir=folder) as copy:
        shutil.copyfileobj(stream, copy, _COPIED_BYTES)
        copy.seek(0)
        yield copy


@dataclass(frozen=True)
class _Hash:
    hex: str
    has_lone_return: bool


def _stretch(file: TextFile) -> Stretch:
    return file if isinstance(file, Stretch) else Stretch.whole(file)


def _size(file: TextFile) -> int:
    if file.problem:
        return 0
    with _naming(file):
        return file.path.stat().st_size


def _hash(path: Path, start: int, stop: int) -> _Hash:
    digest = blake2b(digest_size=8)
    has_lone_return = False
    last = b""
    with open_regular(path) as file:
        file.seek(max(0, start))
        while block := file.read(min(_COPIED_BYTES, max(0, stop - file.tell()))):
            digest.update(block)
            has_lone_return = has_lone_return or _has_lone_return(last + block)
            last = b"\r" if block.endswith(b"\r") else b""
    return _Hash(digest.hexdigest(), has_lone_return)


def _has_lone_return(data: bytes) -> bool:
    returns = data.count(b"\r") if b"\r" in data else 0
    return returns > data.count(b"\r\n") and bool(_LONE_RETURN.search(data))


def _first_delimiter(lines: list[str]) -> str:
    header = lines[0] if lines else ""
    others = (mark for mark in (";", "\t") if mark in header)
    return "," if "," in header else next(others, ",")


@contextmanager
def _range_of(stretch: Stretch) -> Iterator[tuple[IO[bytes], str]]:
    with open_regular(stretch.path) as stream:
        is_groups = stretch.format == "parquet"
        yield stream if is_groups else Range.of(stream, stretch.start, stretch.stop), ""


@contextmanager
def _naming(file: TextFile) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        is_packed = file.path.suffix.lower() in SUFFIXES
        received = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CorpusError(
            f"{file.shown} can't be read",
            expected=f"a complete {file.path.suffix if is_packed else file.format} file that this "
            "account can read",
            received=received, field="path",
            fix="repair the file or exclude it; if it isn't compressed, remove the suffix "
            f"{file.path.suffix} from its name" if is_packed else "repair the file or exclude it",
        ) from error  # fmt: skip
