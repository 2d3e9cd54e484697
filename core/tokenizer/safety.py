"""Checks a `tokenizer.json`: in native code, a few bytes can request gigabytes.

Unicode normalisation lengthens only rare characters, at most 18-fold.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from core.errors import TokenizerError
from core.foreign_files import check_regular, read_regular
from core.messages.values import byte_count
from core.processes.environment import TRUST_TOKENIZERS_VARIABLE

# Published files have up to 35 MB.
MOST_BYTES = 256 << 20
# Output bytes per input byte; published tokenizers stay below 110.
MOST_GROWTH = 256.0
_MOST_SPECIAL_TOKENS = 64
_MOST_STEPS = 256
_DEEPEST = 32
# WordPiece takes cubic time. Published limits are 100 or 200.
_LONGEST_WORDPIECE_WORD = 1000
# Published ones have some hundred bytes.
_LONGEST_TOKEN = 1 << 14
# Arrays are as long as the highest id.
_MOST_UNUSED_IDS = 1 << 20
_LONGEST_CHECKED_OBJECT = 64

# Unknown to Python's regexes, and zero-width assertions.
_PROPERTY = re.compile(r"\\[pP]\{[^}]*\}")
_ZERO_WIDTH = re.compile(r"\(\?(?:[=!]|<[=!])|\\[bBAzZGKy]")
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_CHILDREN = ("normalizers", "pretokenizers", "processors", "decoders")


def read_specification(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Reads a `tokenizer.json`; raises TokenizerError if it is damaged or excessive."""
    trusted = os.environ.get(TRUST_TOKENIZERS_VARIABLE, "0") not in ("", "0")
    size = check_regular(path, error=TokenizerError)
    if size > MOST_BYTES and not trusted:
        raise _refused(path, f"at most {byte_count(MOST_BYTES)}", byte_count(size))
    data = read_regular(path, max(size, MOST_BYTES), error=TokenizerError)
    try:
        specification = json.loads(data, object_pairs_hook=_object_of)
        _check_structure(specification)
    except (ValueError, RecursionError) as error:
        received = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise damaged(path, received) from error
    if not trusted:
        for expected, received in _excesses(specification):
            raise _refused(path, expected, received)
    return data, specification


def damaged(path: Path, received: str) -> TokenizerError:
    return TokenizerError(
        f"{path} is damaged",
        expected="a tokenizer.json written by the tokenizers library",
        received=received[:200],
        fix="train the tokenizer again, or restore the file",
        field="tokenizer",
    )


def _refused(path: Path, expected: str, received: str) -> TokenizerError:
    return TokenizerError(
        f"{path} exceeds a safety limit for tokenizers",
        expected=expected,
        received=received,
        fix="use another tokenizer; if you trust this file, set the environment variable "
        f"{TRUST_TOKENIZERS_VARIABLE}=1",
        field="tokenizer",
    )


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Rejects duplicate names: another reader may take the other value."""
    values = dict(pairs)
    if len(values) < len(pairs) <= _LONGEST_CHECKED_OBJECT:
        raise ValueError("an object with a duplicate key")
    return values


def _check_structure(specification: Any) -> None:
    if not isinstance(specification, dict):
        raise ValueError(f"JSON of type {type(specification).__name__}, not an object")
    if not isinstance(specification.get("model"), dict):
        raise ValueError("an object without the key model")
    added = specification.get("added_tokens") or []
    if not isinstance(added, list) or not all(map(_is_added_token, added)):
        raise ValueError("added_tokens that are not a list of tokens")
    for name in _PARTS:
        for number, (part, depth) in enumerate(_steps(specification.get(name))):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise ValueError(f"a {name} that is not an object with a type")
            if depth > _DEEPEST or number >= _MOST_STEPS:
                raise ValueError(f"a {name} of more than {_MOST_STEPS} steps")
            if part["type"] == "Precompiled" and _is_cut_off(part):
                raise ValueError(f"a {name} with a truncated precompiled_charsmap")


def _is_added_token(token: Any) -> bool:
    return (
        isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and isinstance(token.get("id"), int)
    )


def _steps(part: Any, depth: int = 0) -> Iterator[tuple[Any, int]]:
    if part is None and depth == 0:
        return
    yield part, depth
    if isinstance(part, dict) and depth <= _DEEPEST:
        for name in _CHILDREN:
            children = part.get(name)
            for child in children if isinstance(children, list) else ():
                yield from _steps(child, depth + 1)


def _excesses(specification: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _excessive_tokens(specification)
    longest = specification["model"].get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > _LONGEST_WORDPIECE_WORD:
        yield (
            f"a max_input_chars_per_word of at most {_LONGEST_WORDPIECE_WORD:,}",
            f"{longest:,}, with which a long word takes minutes to encode",
        )
    before = _growth(specification.get("normalizer")) * _growth(specification.get("pre_tokenizer"))
    for name, growth in (
        ("normalizer and pre_tokenizer", before),
        ("decoder", _growth(specification.get("decoder"))),
    ):
        if growth > MOST_GROWTH:
            yield (
                f"a {name} that lengthens a text at most {MOST_GROWTH:.0f} times",
                f"one that can lengthen it {growth:.3g} times",
            )
    special, copies = _special_tokens(specification.get("post_processor"))
    if special > _MOST_SPECIAL_TOKENS or copies > 1:
        yield (
            f"a post_processor that adds at most {_MOST_SPECIAL_TOKENS} special tokens and uses "
            "the text once",
            f"one that adds {special:,} special tokens and uses the text {copies:,} times",
        )


def _excessive_tokens(specification: dict[str, Any]) -> Iterator[tuple[str, str]]:
    vocabulary = specification["model"].get("vocab")
    added = specification.get("added_tokens") or []
    ids = [token["id"] for token in added]
    texts = [token["content"] for token in added]
    if isinstance(vocabulary, dict):
        ids += [number for number in vocabulary.values() if isinstance(number, int)]
        texts += vocabulary
    elif isinstance(vocabulary, list):
        texts += [entry[0] for entry in vocabulary if isinstance(entry, list) and entry]
    if (highest := max(ids, default=0)) > len(texts) + _MOST_UNUSED_IDS:
        yield f"ids up to about {len(texts):,}, the number of tokens", f"the id {highest:,}"
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    if longest > _LONGEST_TOKEN:
        yield (
            f"tokens of at most {_LONGEST_TOKEN:,} characters",
            (f"a token of {longest:,} characters"),
        )


def _growth(part: Any) -> float:
    """Returns the factor by which a part can lengthen UTF-8 text."""
    growth = 1.0
    for step, _ in _steps(part):
        if grow := _GROWTHS.get(step["type"]):
            growth = min(growth * grow(step), 1e30)
    return growth


def _length(text: Any) -> int:
    return len(text.encode("utf-8", "replace")) if isinstance(text, str) else 1


def _growth_of_replace(step: dict[str, Any]) -> float:
    content, pattern = _length(step.get("content")), step.get("pattern")
    literal = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(literal, str) and literal:
        return max(1.0, content / _length(literal))
    # A regex may match one byte, or nothing before each character.
    return max(1.0, float(content), 1.0 + content if _may_be_empty(pattern) else 0.0)


def _may_be_empty(pattern: Any) -> bool:
    """Assumes so if Python can't parse the regex."""
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    if not isinstance(regex, str) or _ZERO_WIDTH.search(regex):
        return True
    try:
        return re.fullmatch(_PROPERTY.sub(".", regex), "") is not None
    except (re.error, RecursionError, OverflowError):
        return True


def _growth_of_prepend(step: dict[str, Any]) -> float:
    return 1.0 + _length(step.get("prepend"))


def _growth_of_metaspace(step: dict[str, Any]) -> float:
    replacement = _length(step.get("replacement"))
    prepends = step.get("prepend_scheme", "always") != "never"
    # Without a split, few pieces are prefixed.
    return float(replacement + (replacement if prepends and step.get("split", True) else 0))


def _growth_of_byte_level(step: dict[str, Any]) -> float:
    # Bytes become characters of up to two bytes.
    return 4.0 if step.get("add_prefix_space") else 2.0


def _growth_of_charsmap(step: dict[str, Any]) -> float:
    """Source: https://github.com/google/sentencepiece/blob/master/src/normalizer.cc"""
    data = _charsmap(step)
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    # Most replaced characters have three bytes.
    return max(1.0, max(map(len, texts.split(b"\0")), default=0) / 3)


def _is_cut_off(step: dict[str, Any]) -> bool:
    """True if overstated: 4 GiB could be allocated."""
    data = _charsmap(step)
    return int.from_bytes(data[:4], "little") > max(0, len(data) - 4)


def _charsmap(step: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(step.get("precompiled_charsmap") or "")
    except (TypeError, ValueError):
        return b""


_GROWTHS: dict[str, Callable[[dict[str, Any]], float]] = {
    "Replace": _growth_of_replace,
    "Prepend": _growth_of_prepend,
    "Metaspace": _growth_of_metaspace,
    "ByteLevel": _growth_of_byte_level,
    "Precompiled": _growth_of_charsmap,
    "WordPiece": lambda step: 1.0 + _length(step.get("prefix")),
    "BPEDecoder": lambda step: 1.0 + _length(step.get("suffix")),
    "CTC": lambda step: 1.0 + _length(step.get("word_delimiter_token")),
}


def _special_tokens(part: Any) -> tuple[int, int]:
    special, copies = 0, 1
    for step, _ in _steps(part):
        if step["type"] in ("BertProcessing", "RobertaProcessing"):
            special += 2
        if step["type"] == "TemplateProcessing":
            added, replaced = _of_template(step, "single")
            added_to_pair, taken_in_pair = _of_template(step, "pair")
            copies *= max(1, replaced, -(-taken_in_pair // 2))
            special += max(added, added_to_pair)
    return special, copies


def _of_template(step: dict[str, Any], name: str) -> tuple[int, int]:
    pieces, tokens = step.get(name), step.get("special_tokens")
    special = replaced = 0
    for piece in pieces if isinstance(pieces, list) else ():
        token = piece.get("SpecialToken") if isinstance(piece, dict) else None
        replaced += token is None
        if isinstance(token, dict) and isinstance(tokens, dict):
            entry = tokens.get(str(token.get("id")))
            ids = entry.get("ids") if isinstance(entry, dict) else None
            special += len(ids) if isinstance(ids, list) else 1
    return special, replaced
