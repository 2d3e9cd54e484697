"""Loads tokenizers by workspace name, folder or Hub id."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import regex

from core.corpus.scripts import WITHOUT_SPACES
from core.errors import ConfigError, HubError, TokenizerError
from core.foreign_files import check_inside
from core.hub.pull import pull_tokenizer
from core.tokenizer.framing import Frame, find_frame, without_end
from core.tokenizer.native import is_panic, native_calls
from core.tokenizer.roles import (
    CONFIG_FILE,
    FILES,
    TOKENIZER_FILE,
    Roles,
    keep_spaces_before,
    name_class_for_all,
    name_longest,
    read_longest,
    read_roles,
    without_lone_surrogates,
)
from core.tokenizer.safety import damaged, read_specification
from core.workspace.names import expand_path
from core.workspace.places import make_folder
from core.workspace.workspace import Workspace

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

# Old models have no owner.
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(@\w[\w.-]*)?")
_METASPACE = "▁"
_RARE_WITHOUT_SPACES = ("New_Tai_Lue", "Tai_Le", "Tai_Tham", "Tai_Viet")
_WITHOUT_SPACES = regex.compile(
    "[" + "".join(rf"\p{{{name}}}" for name in (*WITHOUT_SPACES, *_RARE_WITHOUT_SPACES)) + "]"
)
# The Han characters from U+4000 to U+9FFF have three bytes in UTF-8.
_FIRST_BYTES_OF_HAN = tuple(bytes([first]) for first in range(0xE4, 0xEA))


class StudioTokenizer:
    """A tokenizer in a folder; raises TokenizerError if it can't be read.

    Attributes:
        reference: The user's name for it.
        backend: Without truncation and padding.
        specification: The content of `tokenizer.json`.
        fingerprint: First 16 hex digits of `tokenizer.json`'s SHA-256.
        undecided: Roles with several candidates.
        vocab_size: Highest id plus one.
    """

    def __init__(self, folder: Path, reference: str = "") -> None:
        self.path = folder
        self.reference = reference or str(folder)
        file = _tokenizer_file(folder)
        data, self.specification = read_specification(file)
        self.backend = _parse(data, file)
        self.fingerprint = sha256(data).hexdigest()[:16]
        self._special = {
            token.content: number
            for number, token in self.backend.get_added_tokens_decoder().items()
            if token.special
        }
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self._ids = vocabulary
        self.roles: Roles
        self.roles, self.undecided = read_roles(folder, vocabulary, self._special, self._used_as)

    def __repr__(self) -> str:
        return f"StudioTokenizer({self.reference!r}, vocab_size={self.vocab_size})"

    @property
    def unk_token(self) -> str | None:
        return self.roles.unk

    @property
    def mask_token(self) -> str | None:
        return self.roles.mask

    @property
    def cls_id(self) -> int | None:
        return self._id_of(self.roles.cls)

    @property
    def sep_id(self) -> int | None:
        return self._id_of(self.roles.sep)

    @property
    def unk_id(self) -> int | None:
        return self._id_of(self.roles.unk)

    @property
    def pad_id(self) -> int | None:
        return self._id_of(self.roles.pad)

    @property
    def mask_id(self) -> int | None:
        return self._id_of(self.roles.mask)

    @cached_property
    def frame(self) -> Frame:
        """The ids around each text; raises TokenizerError if undetermined."""
        return find_frame(self.backend)

    @cached_property
    def longest(self) -> int | None:
        """The most tokens of a sequence, with special ones, if the files tell."""
        longest = read_longest(self.path)
        special = self.backend.num_special_tokens_to_add(is_pair=False)
        return longest if longest is not None and longest > special else None

    @cached_property
    def special_ids(self) -> npt.NDArray[np.int32]:
        """Ascending, int32 (special,)."""
        named = [self._id_of(text) for text in vars(self.roles).values()]
        ids = {*self._special.values(), *(number for number in named if number is not None)}
        return np.array(sorted(ids), np.int32)

    @property
    def tokens(self) -> dict[int, str]:
        """The tokens by id."""
        return {number: token for token, number in self._ids.items()}

    def encode(self, text: str, special: bool = True) -> npt.NDArray[np.int32]:
        """Encodes a text and special tokens written out in it, int32 (tokens,).

        Args:
            special: Whether to add more.
        """
        return np.array(self._encoding(text, special).ids, np.int32)

    def encode_beginning(self, text: str) -> npt.NDArray[np.int32]:
        """Encodes a text without special tokens after it."""
        ids = without_end(self._encoding(text)) or list(self.frame.before)
        return np.array(ids, np.int32)

    def _encoding(self, text: str, special: bool = True) -> Encoding:
        with native_calls():
            return self.backend.encode(without_lone_surrogates(text), add_special_tokens=special)

    def decode(self, ids: npt.ArrayLike, skip_special: bool = True) -> str:
        numbers = np.asarray(ids, np.int64).reshape(-1).tolist()
        with native_calls("The tokenizer can't decode these token ids"):
            return self.backend.decode(numbers, skip_special_tokens=skip_special)

    def word_starts(self) -> npt.NDArray[np.bool_]:
        """Marks tokens that always begin a word, bool (vocab_size,).

        In scripts without spaces, each token does.
        """
        begins = self._word_rule()
        starts = np.ones(self.vocab_size, bool)
        for token, number in self._ids.items():
            starts[number] = begins(token) or self._has_no_spaces(token, number)
        starts[self.special_ids] = True
        return starts

    def _has_no_spaces(self, token: str, number: int) -> bool:
        """Returns whether a token begins with a character of a script without spaces."""
        if token.isascii():
            return False
        # The first byte of a Han character that continues in the next token.
        is_cut = self._is_byte_level and _bytes_of(token)[:1] in _FIRST_BYTES_OF_HAN
        return is_cut or _WITHOUT_SPACES.match(self.readable(number)) is not None

    def sentinel_ids(self) -> npt.NDArray[np.int32]:
        """Returns the ids of `<extra_id_0>`, ..., int32 (sentinels,)."""
        names = (f"<extra_id_{number}>" for number in count())
        numbers = takewhile(lambda number: number is not None, map(self._ids.get, names))
        return np.array(list(numbers), np.int32)

    def readable(self, number: int) -> str:
        r"""Returns a token's text; invalid bytes as `\xf0`."""
        token = self.backend.id_to_token(number)
        if token is None or token in self._special:
            return token or ""
        if self._is_byte_level:
            return _bytes_of(token).decode("utf-8", "backslashreplace")
        if self._prefix:
            inner = token.removeprefix(self._prefix)
            return inner if inner != token else f" {token}"
        return token.replace(_METASPACE, " ")

    def copy_to(self, folder: Path, *, ends: bool = True, longest: int | None = None) -> None:
        """Copies the tokenizer's files into a folder.

        Args:
            ends: False for causal models, or pipelines continue after an end token; their mask
                token, which they don't use, leaves the space before it.
            longest: Length at which transformers truncates.
        """
        make_folder(folder)
        for name in FILES:
            if (self.path / name).is_file():
                source = check_inside(self.path / name, self.path, error=TokenizerError)
                shutil.copyfile(source, folder / name)
        name_class_for_all(folder / CONFIG_FILE)
        if longest is not None:
            name_longest(folder / CONFIG_FILE, longest)
        if not ends:
            self._write_without_end(folder / TOKENIZER_FILE)
            if self.mask_token and self._strips_before(self.mask_token):
                keep_spaces_before(self.mask_token, folder)

    def _write_without_end(self, path: Path) -> None:
        from tokenizers import Tokenizer, processors

        before, after = self.frame
        if not after:
            return
        backend = Tokenizer.from_file(str(path))
        tokens = [(str(backend.id_to_token(number)), number) for number in before]
        start = " ".join(token for token, _ in tokens)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{start} $A".strip(), pair=f"{start} $A $B".strip(), special_tokens=tokens
        )
        path.write_text(backend.to_str(pretty=True), "utf-8")

    def _strips_before(self, text: str) -> bool:
        tokens = self.backend.get_added_tokens_decoder().values()
        return any(token.lstrip for token in tokens if token.content == text)

    def _used_as(self, role: str) -> list[str]:
        if role == "unk":
            return [str(self.specification["model"].get("unk_token"))]
        if role not in ("cls", "sep"):
            return []
        try:
            ids = self.frame.before if role == "cls" else self.frame.after
        except TokenizerError:
            return []
        return [str(self.backend.id_to_token(number)) for number in ids]

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._ids.get(token)

    @cached_property
    def _is_byte_level(self) -> bool:
        return "ByteLevel" in _decoder_kinds(self.specification.get("decoder"))

    @cached_property
    def _prefix(self) -> str:
        return str(self.specification["model"].get("continuing_subword_prefix") or "")

    def _word_rule(self) -> Callable[[str], bool]:
        if self._is_byte_level:
            return lambda token: token[:1] in _BYTE_LEVEL_WHITESPACE
        if self._prefix:
            return lambda token: not token.startswith(self._prefix)
        if any(token.startswith(_METASPACE) for token in self._ids):
            return lambda token: token[:1] == _METASPACE or token[:1].isspace()
        return lambda token: True


def load(reference: str, workspace: Workspace | None = None) -> StudioTokenizer:
    """Loads a tokenizer.

    Raises:
        ConfigError: The reference is empty.
        TokenizerError: `tokenizer.json` is damaged.
        HubError: The Hub lacks it, too.
    """
    if not reference:
        raise ConfigError(
            "No tokenizer was given",
            expected="a tokenizer's name in the workspace, its folder, or its Hub id",
            field="tokenizer",
            fix="train a tokenizer first, or set ⟬tokenizer⟭ to an existing one",
        )  # fmt: skip
    workspace = Workspace.of(workspace)
    for folder in (workspace.folder("tokenizer") / reference, expand_path(reference)):
        if folder.is_dir():
            return StudioTokenizer(folder, reference)
    return StudioTokenizer(_fetch(reference, workspace), reference)


def _tokenizer_file(folder: Path) -> Path:
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise TokenizerError(
            f"{folder} contains no tokenizer", expected=f"a folder with the file {TOKENIZER_FILE}",
            field="tokenizer",
            fix="choose another folder; convert a tokenizer in an older format with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
        )  # fmt: skip
    return path


def _parse(data: bytes, path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        backend = Tokenizer.from_buffer(data)
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise damaged(path, str(error)) from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _fetch(reference: str, workspace: Workspace) -> Path:
    if not _HUB_ID.fullmatch(reference):
        raise _not_found(reference, workspace, "it is not a valid Hub id")
    try:
        return pull_tokenizer(reference, FILES)
    except HubError as error:
        raise _not_found(
            reference, workspace, error.texts["received"], error.texts["fix"]
        ) from error


def _not_found(reference: str, workspace: Workspace, received: str, fix: str = "") -> HubError:
    names = ", ".join(artifact.name for artifact in workspace.list("tokenizer")[:10])
    return HubError(
        f"The tokenizer {reference!r} was not found",
        expected=f"a name in the workspace ({names or 'it has none yet'}), a folder, or a Hub id",
        received=f"{reference!r}, which is not in the workspace and not a folder; {received[:200]}",
        fix=f"{fix or 'check the spelling'}, or train a tokenizer first",
        field="tokenizer",
    )


def _decoder_kinds(part: dict[str, Any] | None) -> set[str]:
    if not part:
        return set()
    inner = [kind for child in part.get("decoders", []) for kind in _decoder_kinds(child)]
    return {str(part.get("type")), *inner}


def _byte_characters() -> dict[str, int]:
    """Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py (bytes_to_unicode)"""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(256 + place): byte for place, byte in enumerate(others)},
    }


_BYTES = _byte_characters()
_BYTE_LEVEL_WHITESPACE = {
    character for character, byte in _BYTES.items() if chr(byte) in " \t\n\r\v\f"
}


def _bytes_of(token: str) -> bytes:
    if any(character not in _BYTES for character in token):
        return token.encode("utf-8")
    return bytes(_BYTES[character] for character in token)
