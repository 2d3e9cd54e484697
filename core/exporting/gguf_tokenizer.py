"""Describes a tokenizer in the metadata of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.architecture.architecture import Architecture
from core.tokenizer.llama_cpp import pre_tokenizer_name
from core.tokenizer.loading import StudioTokenizer

if TYPE_CHECKING:
    from gguf import GGUFWriter

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5


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
