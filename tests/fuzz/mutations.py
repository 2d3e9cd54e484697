"""Structured mutations of bytes, JSON, names and paths.

Each mutation draws only a few numbers, since each draw costs Hypothesis time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

_CORNERS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1)
_NUMBERS = st.integers(0, (1 << 32) - 1)

# JSON fragments that a reader may not expect.
FRAGMENTS: tuple[str, ...] = (
    *("null", "true", "false", "0", "1", "-1", "2", "0.5", "-0.0", "1e308", "1e999", "-1e999"),
    *("NaN", "Infinity", "-Infinity", "1" * 30, "9" * 400, "1" * 5000, "1000000", "4294967296"),
    *("2147483648", "9223372036854775808", "-9223372036854775809", "1.5", '"1"', '"0"', '"NaN"'),
    *('""', '" "', '"a"', '"\\u0000"', '"\\ud800"', '"\\udfff x"', '"\\ud83d\\ude00"', '"\\n\\r"'),
    *('"\\u202e\\u0007\\u001b[31m"', json.dumps("x" * 300), json.dumps("x" * 100_000)),
    *(
        "[]",
        "{}",
        "[[]]",
        "[{}]",
        "[null]",
        "[1,2,3]",
        '{"a":1}',
        '{"":{}}',
        '["a","b"]',
        "[[1],[2]]",
    ),
    *("[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500),
    *("[" * 200_000 + "]" * 200_000, "[" * 200_000, '{"a":' * 100_000 + "1" + "}" * 100_000),
    "[" + "0," * 50_000 + "0]",
)


def paths_of(canary: str, trap: str) -> tuple[str, ...]:
    """Returns names that lead out of their folder.

    Args:
        canary: A folder of files that no reader may open.
        trap: An address that nothing may connect to.
    """
    return (
        "../canary/secret.txt", "../../canary/secret.txt", "../../../canary/secret.txt",
        f"{canary}/secret.txt", f"{canary}/model.safetensors", f"{canary}/dataset-0-1.tfrecord",
        f"{canary}/", canary, "..", ".", "/", "", "../x", "../../../x", "0/../../../../x",
        "x/../../y", "..\\..\\x", "a/b/c", "/etc/passwd", "/proc/self/environ", "/dev/zero",
        f"file://{canary}/secret.txt", f"{trap}/x.bin", f"hf://datasets/{trap}", "~", "~root/x",
        "a\0b", "x" * 300, "x/" * 3000, "con", " ", "\u202ename", "*.safetensors", "[ab]", "-rf",
        "${HOME}", "%2e%2e/x", "model.safetensors", "step-1", "\n", "\ud800", "//host/share",
    )  # fmt: skip


@st.composite
def mutated(draw: DrawFn, valid: bytes, most: int = 4) -> bytes:
    """Draws the bytes of a file after some mutations."""
    data = valid
    for _ in range(draw(st.integers(1, most))):
        operation = draw(st.sampled_from(_OPERATIONS))
        data = operation(data, draw(_NUMBERS), draw(_NUMBERS))
    return data


def _place(data: bytes, number: int) -> int:
    # Headers are at the beginning or at the end: half of the positions are there.
    size = len(data) + 1
    region = number & 3
    if region == 0:
        return (number >> 2) % min(size, 64)
    if region == 1:
        return size - 1 - (number >> 2) % min(size, 64)
    return (number >> 2) % size


def _flip(data: bytes, one: int, other: int) -> bytes:
    if not data:
        return data
    place = min(_place(data, one), len(data) - 1)
    return data[:place] + bytes([data[place] ^ (1 << other % 8)]) + data[place + 1 :]


def _replace(data: bytes, one: int, other: int) -> bytes:
    place = _place(data, one)
    return data[:place] + bytes([other & 0xFF]) + data[place + 1 :]


def _cut(data: bytes, one: int, other: int) -> bytes:
    return data[: _place(data, one)]


def _cut_start(data: bytes, one: int, other: int) -> bytes:
    return data[_place(data, one) :]


def _remove(data: bytes, one: int, other: int) -> bytes:
    place = _place(data, one)
    return data[:place] + data[place + 1 + other % 64 :]


def _insert(data: bytes, one: int, other: int) -> bytes:
    place = _place(data, one)
    inserted = _INSERTED[other % len(_INSERTED)]
    return data[:place] + inserted + data[place:]


def _splice(data: bytes, one: int, other: int) -> bytes:
    start, place = _place(data, one), _place(data, other)
    return data[:place] + data[start : start + 200] + data[place:]


def _number(data: bytes, one: int, other: int) -> bytes:
    """Overwrites what may be a length with a corner case."""
    place = _place(data, one)
    value = _CORNERS[other % len(_CORNERS)]
    form = ("<B", "<H", "<I", "<Q", ">H", ">I", ">Q")[(other >> 8) % 7]
    size = struct.calcsize(form)
    return data[:place] + struct.pack(form, value & (1 << 8 * size) - 1) + data[place + size :]


def _repeat(data: bytes, one: int, other: int) -> bytes:
    place = _place(data, one)
    return data[:place] + data[place : place + 16] * (1 + other % 1000) + data[place + 16 :]


def _twice(data: bytes, one: int, other: int) -> bytes:
    return data + data


_INSERTED = (
    b"\0", b"\xff" * 8, b"\r", b"\n", b"\r\n", b'"', b"'", b",", b"\t", b"\\", b"\xef\xbb\xbf",
    b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\xf8\x88\x80\x80\x80", b"\x1f\x8b\x08",
    b"PK\x03\x04",
    b"\0" * 4096, b"a" * 70_000, b'"' * 1001, b"\xf0\x9f\x98\x80", b"{", b"}" * 9, b"[" * 3000,
    b"\x1e\x04", b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zXZ\0", b"version https://git-lfs", b"NaN",
)  # fmt: skip
_OPERATIONS: tuple[Callable[[bytes, int, int], bytes], ...] = (
    *(_flip, _flip, _replace, _replace, _cut, _cut_start, _remove, _insert, _insert),
    *(_splice, _number, _number, _number, _repeat, _twice),
)


class Raw(str):
    """JSON text that is written verbatim."""


@st.composite
def json_text(
    draw: DrawFn, valid: Any, extra: Sequence[str] = (), most: int = 4, names: Sequence[str] = ()
) -> bytes:
    """Draws the text of a JSON value after some changes to its tree.

    Args:
        valid: The value.
        extra: JSON fragments to insert in addition to `FRAGMENTS`, such as paths.
        most: The maximum number of changes.
        names: Keys to add to objects.
    """
    fragments = (*FRAGMENTS, *extra)
    value = valid
    for _ in range(draw(st.integers(1, most))):
        places = list(_places(value, ()))
        place = places[draw(_NUMBERS) % len(places)]
        operation = draw(st.integers(0, 7))
        fragment = Raw(fragments[draw(_NUMBERS) % len(fragments)])
        key = names[draw(_NUMBERS) % len(names)] if names else "x"
        value = _changed(value, place, operation, fragment, key)
    return text_of(value).encode("utf-8", "surrogatepass")


def quoted(texts: Sequence[str]) -> tuple[str, ...]:
    """Returns texts as JSON fragments."""
    return tuple(json.dumps(text) for text in texts)


def _places(value: Any, place: tuple[Any, ...]) -> Any:
    yield place
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value[:50])
    for key, child in children:
        yield from _places(child, (*place, key))


def _changed(value: Any, place: tuple[Any, ...], operation: int, fragment: Raw, key: str) -> Any:
    if place:
        first, rest = place[0], place[1:]
        if not rest and operation == 4:
            return _without(value, first)
        if not rest and operation == 5:
            return _renamed(value, first, key)
        child = _changed(value[first], rest, operation, fragment, key)
        return _with(value, first, child)
    if operation in (0, 1, 2, 3):
        return fragment
    if operation == 6:
        return Raw(f"[{text_of(value)}]")
    if isinstance(value, dict):
        return {**value, key: fragment}
    if isinstance(value, list):
        return [*value, fragment]
    return fragment


def _without(value: Any, key: Any) -> Any:
    if isinstance(value, dict):
        return {name: child for name, child in value.items() if name != key}
    return [child for place, child in enumerate(value) if place != key]


def _with(value: Any, key: Any, child: Any) -> Any:
    if isinstance(value, dict):
        return {**value, key: child}
    return [child if place == key else one for place, one in enumerate(value)]


def _renamed(value: Any, key: Any, new: str) -> Any:
    if isinstance(value, dict):
        return {new if name == key else name: child for name, child in value.items()}
    return [*value, value[key]]


def text_of(value: Any) -> str:
    """Returns a JSON value as text, with `Raw` parts verbatim."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        inside = (f"{json.dumps(name)}: {text_of(child)}" for name, child in value.items())
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text_of, value)) + "]"
    return json.dumps(value)


def any_bytes(most: int = 200) -> SearchStrategy[bytes]:
    """Draws any bytes, some with the magic number of a known format."""
    return st.builds(
        lambda head, rest: head + rest,
        st.sampled_from((b"", b"", *_INSERTED, b"\x89HDF\r\n\x1a\n", b"PAR1", b"\x93NUMPY\x01\0")),
        st.binary(max_size=most),
    )


def changed_json_file(
    valid: bytes, extra: Sequence[str] = (), names: Sequence[str] = ()
) -> SearchStrategy[bytes]:
    """Draws a JSON file after changes to its tree or its bytes."""
    value = json.loads(valid)
    trees = json_text(value, extra, names=names)
    return st.one_of(trees, trees, trees, mutated(valid), any_bytes())
