"""Which special token plays which part, and the files that tell `transformers` so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import StudioError
from core.foreign_files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Older files list every added token in the config; that of Gemma has 46 KB.
_MOST_CONFIG_BYTES = 16 << 20

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
FILES = (TOKENIZER_FILE, CONFIG_FILE, SPECIAL_TOKENS_FILE)

# What `tokenizer_config.json` names, so that transformers 4 and 5 both know it, and what 5 writes.
_CLASS = "PreTrainedTokenizerFast"
_NEWER_CLASS = "TokenizersBackend"

_FIRST_TOKENS = ("cls_token", "bos_token")
_LAST_TOKENS = ("sep_token", "eos_token")
# Names of special tokens, for a tokenizer without a file that says which is which.
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
# These are found where they aren't marked as special, too: older files mark none.
_UNMARKED_NAMES = {
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "unk": ("<unk>", "[UNK]"),
    "pad": ("<pad>", "[PAD]"),
    "mask": ("[MASK]", "<mask>"),
}
# The entry of `tokenizer_config.json` that says which token plays a part.
ENTRIES = {
    "cls": "bos_token", "sep": "eos_token", "unk": "unk_token", "pad": "pad_token",
    "mask": "mask_token",
}  # fmt: skip


@dataclass(frozen=True)
class Roles:
    """The texts of the special tokens by what they are for; None where there is none.

    Attributes:
        cls: Stands before a text; also what `transformers` calls the beginning of a sequence.
        sep: Stands after a text; also the end of a sequence.
        unk: Stands for what isn't in the vocabulary.
        pad: Fills rows up.
        mask: Stands for what is to be predicted.
    """

    cls: str | None = None
    sep: str | None = None
    unk: str | None = None
    pad: str | None = None
    mask: str | None = None


def without_halves(text: str) -> str:
    """Returns a text with a question mark for each half of a surrogate pair, which is no letter."""
    return text.encode("utf-8", "replace").decode("utf-8")


def parts_between(special_tokens: Sequence[str], text: str) -> list[str]:
    """Returns the parts of a text between special tokens that are written out in it.

    A tokenizer is trained on these: no piece of its own must read like a special token.
    """
    if not any(token in text for token in special_tokens):
        return [text]
    return re.split("|".join(map(re.escape, special_tokens)), text)


def name_class_for_all(path: Path) -> None:
    """Names the class in a `tokenizer_config.json` so that transformers 4 knows it, too."""
    values = _read_json(path)
    if values.get("tokenizer_class") == _NEWER_CLASS:
        _write_json(path, {**values, "tokenizer_class": _CLASS})


def name_longest(path: Path, tokens: int) -> None:
    """Writes into a `tokenizer_config.json` how long a text may be for the model beside it."""
    _write_json(path, {**_read_json(path), "model_max_length": tokens})


def write_files(folder: Path, backend: Tokenizer, roles: Roles) -> None:
    """Writes a tokenizer so that `AutoTokenizer.from_pretrained` of transformers 4 and 5 loads it.

    The class is named `PreTrainedTokenizerFast`: transformers 5 writes another, which 4 refuses.
    """
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
        "clean_up_tokenization_spaces": False,  # it would change what is decoded
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
    """Finds out which special token is which.

    `tokenizer_config.json` decides, else `special_tokens_map.json`, else the usual names among the
    tokens that are marked as special, else some of these names among all tokens.

    Args:
        folder: Where the files lie; both may be missing.
        vocabulary: All tokens; a file's entry that names another one is left out.
        special: The tokens that are marked as special.
        used: Gives the tokens that the tokenizer itself uses for a part, to choose between several
            usual names.

    Returns:
        The parts, and for each one that remains undecided the tokens that have a usual name for it.
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
        found = [text for text in _named(sources, names) if text in known][:1]
        found = found or [text for text in _USUAL_NAMES[role] if text in marked]
        if len(found) > 1:
            found = [text for text in used(role) if text in found][:1] or found
        found = found or [text for text in _UNMARKED_NAMES[role] if text in known][:1]
        roles[role] = found[0] if len(found) == 1 else None
        if len(found) > 1:
            undecided[role] = tuple(found)
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
    """Returns a token's text alone, unless there is more to say."""
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
