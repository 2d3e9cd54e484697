"""Decodes bytes into lines and guesses encodings. U+2028 and the like end no line."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from typing import IO

from core.corpus.unpack import foreign_kind_of
from core.errors import ConfigError, CorpusError
from core.messages.values import byte_count

_READ_BYTES = 1 << 18
# The encoding that each file seems to have.
AUTO = "auto"
_DETECTED_BYTES = 1 << 24
_UTF8_BOM = b"\xef\xbb\xbf"
# UTF-32's marks begin with UTF-16's, so they come first.
_BOMS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_SAMPLE_BYTES = 1 << 16
_MOST_CHARACTER_BYTES = 4
_USUAL_CHARACTERS = " \n\t.,etaoinsr0123456789\u3002\uff0c"
_NO_ENCODINGS = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"}
_GUESSED = [
    "cp1252", "cp949", "cp932", "euc_jp", "gb18030", "big5", "cp1251", "koi8_r", "cp1250",
    "iso8859_2", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874",
]  # fmt: skip
_USUAL_BONUS = 0.25
_COHERENCE_WEIGHT = 0.3
_GUESSES_NAMED = 3
# With more invalid bytes, it is another encoding.
_INVALID_PER_VALID = 0.1
_FEW_INVALID = 3
_LEAST_USUAL = 0.03
_LEAST_NUL, _MOST_CONTROLS = 0.25, 0.02
_CONTROLS = re.compile(r"[\x01-\x08\x0e-\x1f\x7f]")
_LINE_END = re.compile(r"\r+\n?")


def _line_feeds(match: re.Match[str]) -> str:
    return "\n" if match[0].endswith("\n") else "\n" * len(match[0])


def encoding_named(name: str, *, field: str = "encoding") -> str:
    """Normalises an encoding's name, empty for UTF-8; raises ConfigError if it is unknown."""
    if not name.strip():
        return "utf-8"
    if name.strip().lower() == AUTO:
        return AUTO
    try:
        codec = codecs.lookup(name.strip())
    except (LookupError, ValueError, UnicodeError):
        codec = None
    is_text = codec is not None and getattr(codec, "_is_text_encoding", True)
    if codec is None or not is_text or codec.name.replace("-", "_") in _NO_ENCODINGS:
        raise ConfigError(
            "The character encoding is unknown", received=name,
            expected="a name such as utf-16, cp1252, cp949, cp932 or gb18030",
            fix=f"set ⟬{field}⟭ to one of these, or leave it empty for UTF-8", field=field,
        )  # fmt: skip
    return codec.name


class Decoder:
    """Decodes one file; a UTF-8 byte order mark overrides `encoding`.

    Args:
        errors: strict, replace or ignore.
        max_bytes: Largest line or document.
        start: Offset of the stream in the file; a later one has no byte order mark.

    Attributes:
        replaced: Replacement characters so far, those that the file itself has included.
    """

    def __init__(
        self, shown: str, encoding: str, errors: str, max_bytes: int, start: int = 0
    ) -> None:
        self.shown = shown
        self.encoding = encoding
        self.replaced = 0
        self._errors = errors
        self.max_bytes = max_bytes
        self._start = start

    def lines(self, blocks: Iterable[str], *, ends_at_returns: bool | None = True) -> Iterator[str]:
        r"""Yields lines without their ends; raises CorpusError if one is too long.

        Args:
            ends_at_returns: Whether a lone `\r` ends a line; None: unless the first block has `\n`.
        """
        rest: list[str] = []
        size = 0
        for block in blocks:
            if ends_at_returns is None:
                ends_at_returns = "\r" in block and "\n" not in block
            if ends_at_returns and "\r" in block:
                block = block.replace("\r\n", "\n")  # faster than the pattern
                block = _LINE_END.sub(_line_feeds, block) if "\r" in block else block
            first, *lines = block.split("\n")
            if not lines:
                rest.append(first)
                size = self.counted(size, first)
                continue
            yield "".join([*rest, first]) if rest else first
            last = lines.pop()
            yield from lines
            rest, size = ([last], len(last)) if last else ([], 0)
        if rest:
            yield "".join(rest)

    def counted(self, size: int, text: str) -> int:
        """Adds a text's size; raises CorpusError above the limit."""
        size += len(text)
        if size > self.max_bytes:
            raise too_large(self.shown, self.max_bytes)
        return size

    def blocks(self, stream: IO[bytes]) -> Iterator[str]:
        r"""Yields text, never split between `\r` and `\n`; raises CorpusError at invalid data."""
        held = ""
        for block in self._decoded(stream):
            text = held + block if held else block
            whole = text.rstrip("\r") if text.endswith("\r") else text
            held = text[len(whole) :]
            self.counted(0, held)
            if whole:
                yield whole
        if held:
            yield held

    def _decoded(self, stream: IO[bytes]) -> Iterator[str]:
        data = stream.read(_READ_BYTES)
        offset = self._start
        if offset:
            pass
        elif data.startswith(_UTF8_BOM):
            self.encoding = "utf-8"
            offset, data = len(_UTF8_BOM), data[len(_UTF8_BOM) :]
        else:
            self.encoding = self._with_byte_order(data)
        is_first, previous = not offset, b""
        decoder = codecs.getincrementaldecoder(self.encoding)(self._errors)
        while True:
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeError as error:
                place = offset - pending + getattr(error, "start", 0)
                wrong = (previous[-pending:] if pending else b"") + data
                raise self._not_decoded(wrong, place, offset - pending, data or previous) from error
            if "\0" in text:
                text = self._without_nul(text, data)
            self.replaced += text.count("\ufffd")
            if is_first and text:
                # Codecs with a fixed byte order keep the mark.
                is_first, text = False, text.removeprefix("\ufeff")
            if text:
                yield text
            if not data:
                return
            offset += len(data)
            previous = data
            data = stream.read(_READ_BYTES)

    def _with_byte_order(self, data: bytes) -> str:
        if self.encoding not in ("utf-16", "utf-32") or not data or _bom_of(data):
            return self.encoding
        encoding = _byte_order(data[:_SAMPLE_BYTES], self.encoding)
        if not encoding:
            raise CorpusError(
                f"{self.shown} has no byte order mark",
                expected=f"{self.encoding.upper()} text with a byte order mark or a detectable "
                "byte order",
                received="text that is valid in both byte orders",
                fix=f"set ⟬encoding⟭ to {self.encoding}-le or {self.encoding}-be",
                field="encoding",
            )
        return encoding

    def _without_nul(self, text: str, data: bytes) -> str:
        if self._errors != "strict":
            return text.replace("\0", "\ufffd" if self._errors == "replace" else "")
        sample = data[:_SAMPLE_BYTES]
        name = "" if _is_narrow(sample, self.encoding) else _unmarked_wide(sample)
        kind = f"{name.upper()} without a byte order mark" if name else foreign_kind_of(data)
        raise CorpusError(
            f"{self.shown} is not text in {self.encoding.upper()}"
            + (f" but {kind}" if kind else ": it contains NUL characters"),
            expected="text without NUL characters",
            received=f"{data.count(0):,} NUL bytes in the first {len(data):,}"
            if data.count(0)
            else "NUL characters",
            fix=f"set ⟬encoding⟭ to {name}" if name
            else "exclude the file if it is not text; or set ⟬encoding_errors⟭ to ignore, which "
            "drops these characters, or to replace",
            field="encoding" if name else "path",
        )  # fmt: skip

    def _not_decoded(self, wrong: bytes, place: int, start: int, sample: bytes) -> CorpusError:
        byte = wrong[place - start : place - start + 1]
        cause, fix, field = _advice(sample[:_SAMPLE_BYTES], self.encoding, place)
        return CorpusError(
            f"{self.shown} is not {self.encoding.upper()}{cause}",
            expected=f"text in {self.encoding.upper()}",
            received=f"byte 0x{byte.hex()} at offset {place}" if byte else "the end of the data "
            f"at offset {place}",
            fix=fix, field=field,
        )  # fmt: skip


def too_large(shown: str, max_bytes: int) -> CorpusError:
    """Returns the error for an oversized document or row."""
    return CorpusError(
        f"A line, row or document of {shown} is too large",
        expected=f"at most {byte_count(max_bytes)} each",
        fix="set ⟬text_unit⟭ to line or paragraph if a file is one document; raise "
        "⟬max_document_mb⟭ if the text is what you expect",
        field="max_document_mb",
    )


def _advice(sample: bytes, encoding: str, place: int) -> tuple[str, str, str]:
    """Returns an invalid byte's cause, fix and config field."""
    if name := _bom_of(sample) if place < len(_UTF8_BOM) + 1 else "":
        return f" but {name.upper()}", f"set ⟬encoding⟭ to {name}", "encoding"
    if (kind := foreign_kind_of(sample)) == "Parquet":
        return f" but {kind}", "set ⟬file_format⟭ to parquet", "file_format"
    if kind:
        return f" but {kind}", "exclude the file, or choose a text version of it", "path"
    if name := _unmarked_wide(sample):
        kind = f" but {name.upper()} without a byte order mark"
        return kind, f"set ⟬encoding⟭ to {name}", "encoding"
    if encoding != "utf-8" and _is_utf8(sample):
        return " but UTF-8", "leave ⟬encoding⟭ empty", "encoding"
    drop = "set ⟬encoding_errors⟭ to replace (or ignore) to accept such bytes"
    valid, invalid = _count_utf8(sample)
    if encoding == "utf-8" and valid and invalid <= max(1, valid * _INVALID_PER_VALID):
        return ": a few bytes are invalid", drop, "encoding_errors"
    guesses = [name for name in guess_encodings(sample) if name != encoding]
    if not guesses:
        return "", f"set ⟬encoding⟭ to the encoding of the file; or {drop}", "encoding"
    named = f"set ⟬encoding⟭ to {guesses[0]}"
    if others := guesses[1:_GUESSES_NAMED]:
        named += f" (or {' or '.join(others)})"
    named += " and check that the letters look right"
    if encoding == "utf-8" and not valid and invalid <= _FEW_INVALID:
        return (
            ": a few bytes are invalid",
            f"{drop}; if these bytes are letters, {named}",
            "encoding_errors",
        )
    return f"; it looks like {guesses[0]}", named, "encoding"


def detect_encoding(stream: IO[bytes]) -> str:
    """Returns the likeliest encoding of a text: UTF-8, perhaps with a few invalid bytes, if it can.

    Reads up to the first invalid byte, or 16 MB.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    data = stream.read(_READ_BYTES)
    head = data[:_SAMPLE_BYTES]
    wide = "" if _is_narrow(head, "utf-8") else _unmarked_wide(head)
    if name := _bom_of(data) or wide:
        return name
    is_ascii = True
    for _ in range(_DETECTED_BYTES // _READ_BYTES):
        try:
            is_ascii = decoder.decode(data, final=not data).isascii() and is_ascii
        except UnicodeDecodeError as error:
            valid, invalid = _count_utf8(data)
            if not is_ascii or (valid and invalid <= max(1, valid * _INVALID_PER_VALID)):
                return "utf-8"
            start = data.rfind(b"\n", 0, error.start) + 1
            sample = (data[start:] + stream.read(_SAMPLE_BYTES))[:_SAMPLE_BYTES]
            return next(iter(guess_encodings(sample)), "utf-8")
        if not data:
            break
        data = stream.read(_READ_BYTES)
    return "utf-8"


def guess_encodings(sample: bytes) -> list[str]:
    """Returns possible encodings, most likely first."""
    if len(sample) < _SAMPLE_BYTES:
        return _guess_encodings(sample)
    # A sample is cut within a line, and perhaps within a character, which is no text then.
    sample = sample[: sample.rfind(b"\n") + 1] or sample
    ends = range(len(sample), len(sample) - _MOST_CHARACTER_BYTES, -1)
    return next(filter(None, (_guess_encodings(sample[:end]) for end in ends)), [])


def _guess_encodings(sample: bytes) -> list[str]:
    from charset_normalizer import from_bytes

    matches = from_bytes(sample, cp_isolation=_GUESSED, enable_fallback=False)
    scores: dict[str, float] = {}
    for match in matches:
        # charset_normalizer groups encodings that decode alike.
        for name in {match.encoding, *match.could_be_from_charset} & set(_GUESSED):
            bonus = _USUAL_BONUS if name == _GUESSED[0] else 0
            scores[name] = match.chaos - _COHERENCE_WEIGHT * match.coherence - bonus
    return sorted(scores, key=lambda name: (round(scores[name], 2), _GUESSED.index(name)))


def _bom_of(data: bytes) -> str:
    return next((name for mark, name in _BOMS if data.startswith(mark)), "")


def _unmarked_wide(sample: bytes) -> str:
    if b"\0" not in sample:
        return ""
    for encoding in ("utf-32", "utf-16"):
        if marked := _byte_order(sample, encoding):
            return marked
    return ""


def _is_narrow(sample: bytes, encoding: str) -> bool:
    """Returns whether a sample with NUL bytes is text in an encoding, apart from these bytes.

    UTF-16 and UTF-32 differ: in Latin text, a quarter or more of the bytes are NUL; in other
    alphabets, many bytes are control characters; Chinese, Japanese and Korean are seldom valid.
    """
    if sample.count(0) >= len(sample) * _LEAST_NUL:
        return False
    rest = sample.replace(b"\0", b"")
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(rest)
    except UnicodeError:
        return False
    return len(_CONTROLS.findall(text)) <= len(text) * _MOST_CONTROLS


def _byte_order(sample: bytes, encoding: str) -> str:
    """Chooses the order with more usual characters; empty if unclear."""
    width = 4 if encoding == "utf-32" else 2
    whole = sample[: len(sample) // width * width]
    counts: dict[str, int] = {}
    for name in (f"{encoding}-le", f"{encoding}-be"):
        try:
            text = codecs.getincrementaldecoder(name)().decode(whole)
        except UnicodeError:
            continue
        if "\0" not in text:
            counts[name] = sum(text.count(mark) for mark in _USUAL_CHARACTERS)
    best = max(counts, key=lambda name: counts[name], default="")
    is_clear = best and counts[best] >= len(whole) / width * _LEAST_USUAL
    return best if is_clear and list(counts.values()).count(counts[best]) == 1 else ""


def _is_utf8(sample: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeError:
        return False
    return True


def _count_utf8(sample: bytes) -> tuple[int, int]:
    text = sample.decode("utf-8", "replace")
    invalid = text.count("\ufffd") - sample.count(b"\xef\xbf\xbd")
    return sum(character > "\x7f" for character in text) - text.count("\ufffd"), invalid
