"""Describes a tokenizer in the metadata of a GGUF file.

Source: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp (regular expressions
by the name in `tokenizer.ggml.pre`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from core.architecture.architecture import Architecture
from core.errors import TokenizerError
from core.tokenizer.loading import StudioTokenizer

if TYPE_CHECKING:
    from gguf import GGUFWriter

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_SINGLE_DIGITS = {"type": "Digits", "individual_digits": True}
# The pre-tokenizers whose splits llama.cpp knows, by its names for them.
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_BYTE_LEVEL],
    "smollm": [_SINGLE_DIGITS, _BYTE_LEVEL],
}
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_RETRAIN = "train the tokenizer with --algorithm byte_level_bpe, and the model with it"


def pre_tokenizer_name(tokenizer: StudioTokenizer) -> str:
    """Returns llama.cpp's name of a tokenizer's splits; raises TokenizerError if it has none."""
    specification = tokenizer.specification
    model = specification["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise _refused(tokenizer, "a byte-level BPE tokenizer", str(model.get("type")), _RETRAIN)
    if normalizer := specification.get("normalizer"):
        received = f"the normalizer {normalizer.get('type')}, which llama.cpp would leave out"
        raise _refused(tokenizer, "no normalizer", received, _RETRAIN)
    steps = _steps(specification.get("pre_tokenizer"))
    for name, known in PRE_TOKENIZERS.items():
        if [_relevant(step) for step in steps] == known:
            return name
    expected = f"a pre-tokenizer that llama.cpp knows ({', '.join(PRE_TOKENIZERS)})"
    received = " and ".join(str(step.get("type")) for step in steps) or "none"
    if any(step.get("add_prefix_space") for step in steps):
        received += ", with a space before each text"
    raise _refused(tokenizer, expected, received, _RETRAIN)


def add_tokenizer(
    writer: GGUFWriter, tokenizer: StudioTokenizer, architecture: Architecture
) -> None:
    """Writes vocabulary, merges and special tokens; the model's further ids are unused tokens."""
    pre_tokenizer = pre_tokenizer_name(tokenizer)
    specification, tokens = tokenizer.specification, tokenizer.tokens
    is_special = {token["id"]: token["special"] for token in specification["added_tokens"]}
    texts, kinds = [], []
    for number in range(architecture.vocab_size):
        text = tokens.get(number)
        texts.append(f"[UNUSED{number}]" if text is None else text)
        kind = _UNUSED if text is None else _NORMAL
        if number in is_special:
            kind = _CONTROL if is_special[number] else _USER_DEFINED
        kinds.append(kind)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    merges = specification["model"]["merges"]
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    _add_special_tokens(writer, tokenizer, architecture)


def _add_special_tokens(
    writer: GGUFWriter, tokenizer: StudioTokenizer, architecture: Architecture
) -> None:
    before, after = tokenizer.frame
    if len(before) > 1 or len(after) > 1:
        raise _refused(
            tokenizer,
            "at most one special token before and one after a text",
            f"{len(before)} before and {len(after)} after it",
            _RETRAIN,
        )
    begin = before[0] if before else architecture.bos_token_id
    end = architecture.eos_token_id
    if end is None:
        end = after[0] if after else tokenizer.sep_id
    for add, number in (
        (writer.add_bos_token_id, end if begin is None else begin),
        (writer.add_eos_token_id, end),
        (writer.add_unk_token_id, tokenizer.unk_id),
        (writer.add_pad_token_id, tokenizer.pad_id),
        (writer.add_mask_token_id, tokenizer.mask_id),
    ):
        if number is not None:
            add(number)
    writer.add_add_bos_token(bool(before))
    writer.add_add_eos_token(bool(after))


def _steps(component: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [step for child in component["pretokenizers"] for step in _steps(child)]
    return [component]


def _relevant(step: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in step.items() if name != "trim_offsets"}


def _refused(tokenizer: StudioTokenizer, expected: str, received: str, fix: str) -> TokenizerError:
    return TokenizerError(
        f"llama.cpp can't read the tokenizer {tokenizer.reference}",
        expected=expected,
        received=received,
        fix=fix,
        field="model",
    )
