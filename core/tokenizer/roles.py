"""Finds special tokens' roles, and declares them to `transformers`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import StudioError
from core.foreign_files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Gemma's has 46 KB.
_MOST_CONFIG_BYTES = 16 << 20

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
FILES = (TOKENIZER_FILE, CONFIG_FILE, SPECIAL_TOKENS_FILE)

# transformers 4 and 5 know the first; 5 writes the second.
_CLASS = "PreTrainedTokenizerFast"
_NEWER_CLASS = "TokenizersBackend"

# transformers 5's classes that pass token type ids unless their files say otherwise.
_WITH_SEGMENTS = (
    "BertTokenizer", "CanineTokenizer", "ConvBertTokenizer", "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer", "ElectraTokenizer",
    "FNetTokenizer", "LayoutLMTokenizer", "LayoutLMv2Tokenizer", "LxmertTokenizer",
    "MarkupLMTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer", "TapasTokenizer",
)  # fmt: skip
_SEGMENTS = "token_type_ids"
_INPUTS = ["input_ids", _SEGMENTS, "attention_mask"]
_MODEL_CONFIG_FILE = "config.json"
# The class of a model whose files name none.
_CLASS_OF_MODEL = {"bert": "BertTokenizer"}
# transformers writes 1e30 for no limit.
_NO_LIMIT = 1e20
_LENGTHS = ("model_max_length", "max_len")

_FIRST_TOKENS = ("cls_token", "bos_token")
_LAST_TOKENS = ("sep_token", "eos_token")
_USUAL_NAMES = {
    "cls": (
        "[CLS]", "<s>", "<cls>", "<bos>", "<BOS>", "[BOS]", "<|bos|>", "<|begin_of_text|>",
        "<|startoftext|>",
    ),
    "sep": (
        "[SEP]", "</s>", "<sep>", "<eos>", "<EOS>", "[EOS]", "<|eos|>", "<|endoftext|>",
        "<|end_of_text|>", "<|im_end|>",
    ),
    "unk": ("<unk>", "[UNK]", "<UNK>", "<|unk|>"),
    "pad": ("<pad>", "[PAD]", "<PAD>", "<|pad|>", "<|padding|>"),
    "mask": ("[MASK]", "<mask>", "<MASK>", "<|mask|>"),
}  # fmt: skip
# Older files mark none as special.
_UNMARKED_NAMES = {
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "unk": ("<unk>", "[UNK]"),
    "pad": ("<pad>", "[PAD]"),
    "mask": ("[MASK]", "<mask>"),
}
# In `tokenizer_config.json`.
ENTRIES = {
    "cls": "bos_token", "sep": "eos_token", "unk": "unk_token", "pad": "pad_token",
    "mask": "mask_token",
}  # fmt: skip


@dataclass(frozen=True)
class Roles:
    """The special token of each role.

    Attributes:
        cls: Precedes a text; also transformers' bos.
        sep: Follows a text; also transformers' eos.
    """

    cls: str | None = None
    sep: str | None = None
    unk: str | None = None
    pad: str | None = None
    mask: str | None = None


def without_lone_surrogates(text: str) -> str:
    """Replaces lone surrogates with question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def parts_between(special_tokens: Sequence[str], text: str) -> list[str]:
    """Splits training text at special tokens, so no others read like them."""
    if not any(token in text for token in special_tokens):
        return [text]
    return re.split("|".join(map(re.escape, special_tokens)), text)


def name_class_for_all(path: Path) -> None:
    """Renames the class in `tokenizer_config.json` for transformers 4."""
    values = _read_json(path)
    if values.get("tokenizer_class") == _NEWER_CLASS:
        _write_json(path, {**values, "tokenizer_class": _CLASS})


def name_longest(path: Path, tokens: int) -> None:
    """Writes a model's maximum length, in tokens."""
    _write_json(path, {**_read_json(path), "model_max_length": tokens})


def name_start(folder: Path) -> None:
    """Makes transformers.js put the start token before a prompt."""
    path = folder / CONFIG_FILE
    _write_json(path, {**_read_json(path), "add_bos_token": True})


def read_longest(folder: Path) -> int | None:
    """Reads a model's maximum length in tokens, as transformers' tokenizer knows it."""
    values = _read_json(folder / CONFIG_FILE)
    length = next((values[name] for name in _LENGTHS if values.get(name) is not None), None)
    if isinstance(length, bool) or not isinstance(length, int | float):
        return None
    return int(length) if 1 <= length <= _NO_LIMIT else None


def passes_segments(folder: Path) -> bool:
    """Returns whether transformers passes token type ids to a model.

    Source: transformers 5, AutoTokenizer.from_pretrained
    """
    values = _read_json(folder / CONFIG_FILE)
    names = values.get("model_input_names")
    if isinstance(names, list):
        return _SEGMENTS in names
    model = _read_json(folder / _MODEL_CONFIG_FILE)
    default = _CLASS_OF_MODEL.get(str(model.get("model_type")), "")
    name = values.get("tokenizer_class") or model.get("tokenizer_class") or default
    return str(name).removesuffix("Fast") in _WITH_SEGMENTS


def name_segments(path: Path) -> None:
    """Makes transformers pass token type ids."""
    _write_json(path, {**_read_json(path), "model_input_names": _INPUTS})


def keep_spaces_before(token: str, folder: Path) -> None:
    """Makes a special token leave the spaces before it, as llama.cpp does."""

    def changed(values: dict[str, Any]) -> dict[str, Any]:
        is_token = values.get("content") == token and "lstrip" in values
        return {**values, "lstrip": False} if is_token else values

    for path in (folder / name for name in FILES if (folder / name).is_file()):
        # A file that can't be read names no token.
        with suppress(ValueError, RecursionError):
            _write_json(path, json.loads(path.read_text("utf-8"), object_hook=changed))


def write_files(folder: Path, backend: Tokenizer, roles: Roles) -> None:
    """Writes a tokenizer for transformers 4 and 5."""
    names = _transformers_names(roles)
    added = {
        str(number): {
            "content": token.content, "lstrip": token.lstrip, "normalized": token.normalized,
            "rstrip": token.rstrip, "single_word": token.single_word, "special": token.special,
        }
        for number, token in sorted(backend.get_added_tokens_decoder().items())
    }  # fmt: skip
    config = {
        "added_tokens_decoder": added,
        **names,
        "clean_up_tokenization_spaces": False,  # it would change decoded text
        "model_input_names": ["input_ids", "attention_mask"],
        "tokenizer_class": _CLASS,
    }
    by_text = {token["content"]: token for token in added.values()}
    special = {name: _special_entry(by_text[text]) for name, text in names.items()}
    (folder / TOKENIZER_FILE).write_text(backend.to_str(pretty=True), "utf-8")
    _write_json(folder / CONFIG_FILE, config)
    _write_json(folder / SPECIAL_TOKENS_FILE, special)


def read_roles(
    folder: Path,
    vocabulary: Iterable[str],
    special: Iterable[str] = (),
    used: Callable[[str], Iterable[str]] = lambda role: (),
) -> tuple[Roles, dict[str, tuple[str, ...]]]:
    """Finds the special token of each role, and undecided candidates.

    Args:
        vocabulary: Files' other tokens are ignored.
        used: Returns a role's tokens, to choose between usual names.
    """
    known, marked = set(vocabulary), set(special)
    sources = [_read_json(folder / CONFIG_FILE), _read_json(folder / SPECIAL_TOKENS_FILE)]
    entries = {
        "cls": _FIRST_TOKENS,
        "sep": _LAST_TOKENS,
        **{role: (f"{role}_token",) for role in ("unk", "pad", "mask")},
    }
    roles: dict[str, str | None] = {}
    undecided: dict[str, tuple[str, ...]] = {}
    for role, names in entries.items():
        candidates = [text for text in _named(sources, names) if text in known][:1]
        candidates = candidates or [text for text in _USUAL_NAMES[role] if text in marked]
        if len(candidates) > 1:
            candidates = [text for text in used(role) if text in candidates][:1] or candidates
        candidates = candidates or [text for text in _UNMARKED_NAMES[role] if text in known][:1]
        roles[role] = candidates[0] if len(candidates) == 1 else None
        if len(candidates) > 1:
            undecided[role] = tuple(candidates)
    return Roles(**roles), undecided


def _transformers_names(roles: Roles) -> dict[str, str]:
    names = {
        "bos_token": roles.cls,
        "cls_token": roles.cls,
        "eos_token": roles.sep,
        "sep_token": roles.sep,
        "unk_token": roles.unk,
        "pad_token": roles.pad,
        "mask_token": roles.mask,
    }
    return {name: text for name, text in names.items() if text is not None}


def _special_entry(token: dict[str, Any]) -> Any:
    if not any(token[flag] for flag in ("lstrip", "rstrip", "single_word")):
        return token["content"]
    return {name: value for name, value in token.items() if name != "special"}


def _named(sources: Sequence[Mapping[str, Any]], names: tuple[str, ...]) -> list[str]:
    values = [source.get(name) for name in names for source in sources]
    texts = [value.get("content") if isinstance(value, dict) else value for value in values]
    return [text for text in texts if isinstance(text, str)]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path, _MOST_CONFIG_BYTES)
    except StudioError:
        return {}
    return values if isinstance(values, dict) else {}


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
