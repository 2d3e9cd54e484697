"""Streams the texts of Parquet files, with limited unpacked page size, and of Arrow files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, ClassVar

from core.corpus.columns import JOINED, USUAL_NAME, decode_text, value_at
from core.corpus.json_rows import wrong_value
from core.corpus.parquet_pages import PageSizes, page_sizes
from core.errors import CorpusError
from core.messages.values import byte_count

_MOST_ROWS_AT_ONCE = 1024
_BATCH_BYTES = 256_000_000
_DOCUMENTS_PER_PAGE = 4
_BUFFER_BYTES = 1 << 20
_ARROW_MAGIC = b"ARROW1"


class _ColumnTexts:
    """An open file of columns.

    Attributes:
        within: Nested text columns.
        metadata: Metadata of the Arrow schema, untrusted.
    """

    kind: ClassVar[str]

    def __init__(self, shown: str, schema: Any) -> None:
        self._shown = shown
        self.columns: list[str] = schema.names
        self.metadata: dict[bytes, bytes] = schema.metadata or {}
        self._texts = [field.name for field in schema if _is_text(field.type)]
        strings = [field.name for field in schema if _is_string(field.type)]
        # Bytes can be anything, so they are text only if their name or the user says so.
        self.strings = [
            name for name in self._texts if name in strings or name == USUAL_NAME or not strings
        ]
        self.within = [
            name for field in schema for name in texts_within_type(field.name, field.type)
        ]
        self._kinds = {field.name: field.type for field in schema}

    def texts(self, column: str) -> Iterator[str | None]:
        """Yields a column's values.

        Raises:
            CorpusError: Not text, too large a page, or damage.
        """
        if column in self._kinds and column not in self._texts:
            kind = self._kinds[column]
            within = texts_within_type(column, kind)
            raise wrong_value(self._shown, "its type", column, str(kind), within)
        name = column if column in self._kinds else column.partition(JOINED)[0]
        with explaining_damage(self._shown, self.kind):
            for batch in self._batches([name]):
                if column in self._kinds:
                    values = batch.column(name).to_pylist()
                else:
                    values = [value_at(row, column)[1] for row in batch.to_pylist()]
                for value in values:
                    yield decode_text(value, column, self._shown) if value else value

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields whole rows; raises CorpusError for too large a page, or damage."""
        with explaining_damage(self._shown, self.kind):
            for batch in self._batches(self.columns):
                yield from batch.to_pylist()

    def _batches(self, names: list[str]) -> Iterator[Any]:
        raise NotImplementedError


class ArrowTexts(_ColumnTexts):
    """An open Arrow file, in the format of streams or of files.

    Args:
        stream: Must be seekable.
    """

    kind = "Arrow"

    def __init__(self, shown: str, stream: IO[bytes]) -> None:
        import pyarrow as pa

        with explaining_damage(shown, self.kind):
            is_file = stream.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
            stream.seek(0)
            if is_file:
                file = pa.ipc.open_file(stream)
                schema = file.schema
                batches = (file.get_batch(number) for number in range(file.num_record_batches))
            else:
                batches = reader = pa.ipc.open_stream(stream)
                schema = reader.schema
            super().__init__(shown, schema)
            filled = (batch for batch in batches if batch.num_rows)
            first = next(filled, None)
        self.has_rows = first is not None
        self._filled = itertools.chain([first], filled) if first is not None else filled

    def _batches(self, names: list[str]) -> Iterator[Any]:
        for batch in self._filled:
            whole = {name if name in self._kinds else name.partition(".")[0] for name in names}
            chosen = batch.select([name for name in self.columns if name in whole])
            # Otherwise wrong offsets would read other memory.
            chosen.validate(full=True)
            for start in range(0, chosen.num_rows, _MOST_ROWS_AT_ONCE):
                yield chosen.slice(start, _MOST_ROWS_AT_ONCE)


class ParquetTexts(_ColumnTexts):
    """An open Parquet file.

    Args:
        stream: Must be seekable.
    """

    kind = "Parquet"

    def __init__(self, shown: str, stream: IO[bytes], max_document_mb: int) -> None:
        import pyarrow.parquet as pq

        self._stream = stream
        self._max_document_mb = max_document_mb
        with explaining_damage(shown, self.kind):
            # With a buffer, pyarrow reads large row groups in small parts.
            self._file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER_BYTES)
            super().__init__(shown, self._file.schema_arrow)
        self.has_rows: bool = self._file.metadata.num_rows > 0
        self._groups = range(self._file.metadata.num_row_groups)

    @property
    def group_bytes(self) -> list[int]:
        """Unpacked bytes of each row group, as its metadata say."""
        metadata = self._file.metadata
        return [max(0, metadata.row_group(group).total_byte_size) for group in self._groups]

    def limit_to(self, start: int, stop: int | None) -> None:
        """Limits the texts to some row groups."""
        self._groups = self._groups[start:stop]

    def _batches(self, names: list[str]) -> Iterator[Any]:
        for group in self._groups:
            rows = min((self._rows_at_once(group, name) for name in names), default=1)
            yield from self._file.iter_batches(rows, row_groups=[group], columns=names)

    def _rows_at_once(self, group: int, name: str) -> int:
        most = self._max_document_mb * 1_000_000 * _DOCUMENTS_PER_PAGE
        metadata = self._file.metadata.row_group(group)
        chunks = [metadata.column(number) for number in range(metadata.num_columns)]
        wanted = [
            chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(f"{name}.")
        ]  # fmt: skip
        rows = _MOST_ROWS_AT_ONCE
        for chunk in wanted:
            sizes = self._sizes(chunk)
            if sizes.largest_bytes > most:
                raise CorpusError(
                    f"A page of {self._shown} is too large after decompression",
                    expected=f"at most {byte_count(most)}, {_DOCUMENTS_PER_PAGE} times "
                    "⟬max_document_mb⟭",
                    received=byte_count(sizes.largest_bytes),
                    fix="raise ⟬max_document_mb⟭ if the file is what you expect",
                    field="max_document_mb",
                )
            per_row = max(1.0, chunk.num_values / max(1, metadata.num_rows))
            per_row *= max(sizes.dictionary_bytes, sizes.bytes_per_value, 1)
            rows = min(rows, max(1, int(_BATCH_BYTES / per_row)))
        return rows

    def _sizes(self, chunk: Any) -> PageSizes:
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            start = min(start, chunk.dictionary_page_offset)
        try:
            return page_sizes(self._stream, start, start + chunk.total_compressed_size)
        except ValueError as error:
            raise _damaged(self._shown, self.kind, error) from error


@contextmanager
def explaining_damage(shown: str, kind: str) -> Iterator[None]:
    """Raises CorpusError for damaged columns."""
    import pyarrow as pa

    try:
        yield
    except MemoryError:  # pyarrow's is also an ArrowException
        raise
    except (pa.ArrowException, UnicodeDecodeError, OverflowError, KeyError) as error:
        raise _damaged(shown, kind, error) from error


def _damaged(shown: str, kind: str, error: Exception) -> CorpusError:
    return CorpusError(
        f"{shown} can't be read as {kind}", expected=f"a complete {kind} file",
        received=str(error)[:200], fix="export or download the file again", field="path",
    )  # fmt: skip


def _is_string(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return _is_string(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_text(kind: Any) -> bool:
    """Returns whether values are strings, or bytes that can be UTF-8."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(is_bytes or _is_string(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow.types as types

    is_fixed = types.is_fixed_size_list(kind)
    is_view = types.is_list_view(kind) or types.is_large_list_view(kind)
    return bool(types.is_list(kind) or types.is_large_list(kind) or is_fixed or is_view)


def texts_within_type(name: str, kind: Any) -> list[str]:
    """Lists the column names of nested texts of an Arrow type."""
    import pyarrow.types as types

    if _is_list(kind):
        if types.is_struct(kind.value_type):
            return texts_within_type(name + JOINED, kind.value_type)
        return [name + JOINED] if _is_text(kind.value_type) else []
    if not types.is_struct(kind):
        return []
    fields = [kind.field(number) for number in range(kind.num_fields)]
    texts = [f"{name}.{field.name}" for field in fields if _is_text(field.type)]
    return [
        *texts,
        *(nested for f in fields for nested in texts_within_type(f"{name}.{f.name}", f.type)),
    ]
