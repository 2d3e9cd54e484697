"""Names a tokenizer's splits as llama.cpp does, or tells why it can't represent the tokenizer.

Source: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp (regular expressions
by the name in `tokenizer.ggml.pre`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from core.errors import TokenizerError
from core.families import find_family
from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.pre_tokenizers import (
    CONTRACTIONS,
    PRE_TOKENIZATIONS,
    PUBLISHED_CONTRACTIONS,
    PreTokenization,
    describe,
)


def runs_decoder(family: str) -> bool:
    """Returns whether llama.cpp runs a family, which is a decoder."""
    known = find_family(family)
    return bool(known.gguf_architecture) and known.kind == "decoder"


def describe_misfit(tokenizer: StudioTokenizer, family: str) -> str:
    """Tells why llama.cpp can't run a decoder family with a tokenizer.

    Returns:
        A sentence without a period, in which mentions of options are marked; empty: it can, or
        doesn't run the family at all.
    """
    if not runs_decoder(family):
        return ""
    try:
        pre_tokenizer_name(tokenizer)
    except TokenizerError as error:
        return (
            f"llama.cpp needs {error.expected}, not {error.received}: for an export to GGUF, "
            f"{error.texts['fix']}"
        )
    return ""


def pre_tokenizer_name(tokenizer: StudioTokenizer) -> str:
    """Returns llama.cpp's name of a tokenizer's splits.

    Raises:
        TokenizerError: llama.cpp would give other ids.
    """
    specification = tokenizer.specification
    model = specification["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise _refused(tokenizer, "a byte-level BPE tokenizer", str(model.get("type")))
    if normalizer := specification.get("normalizer"):
        received = f"the normalizer {normalizer.get('type')}, which llama.cpp would leave out"
        raise _refused(tokenizer, "no normalizer", received)
    before, after = tokenizer.frame
    if len(before) > 1 or len(after) > 1:
        raise _refused(
            tokenizer,
            "at most one special token before and one after a text",
            f"{len(before)} before and {len(after)} after it",
        )
    steps = _steps(specification.get("pre_tokenizer"))
    for kind in PRE_TOKENIZATIONS.values():
        if steps == _steps_of(kind) and bool(model.get("ignore_merges")) == kind.ignores_merges:
            return kind.in_llama_cpp
    received = " and ".join(str(step.get("type")) for step in steps) or "none"
    if any(step.get("add_prefix_space") for step in steps):
        received += ", with a space before each text"
    names = ", ".join(kind.in_llama_cpp for kind in PRE_TOKENIZATIONS.values())
    raise _refused(tokenizer, f"a pre-tokenizer that llama.cpp knows ({names})", received)


def _steps_of(kind: PreTokenization) -> list[Mapping[str, Any]]:
    return _steps(describe(kind.pre_tokenizer()))


def _steps(component: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [step for child in component["pretokenizers"] for step in _steps(child)]
    return [_relevant(component)]


def _relevant(step: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in step.items() if name != "trim_offsets"}
    pattern = values.get("pattern")
    if isinstance(pattern, dict) and isinstance(regex := pattern.get("Regex"), str):
        values["pattern"] = {"Regex": regex.replace(PUBLISHED_CONTRACTIONS, CONTRACTIONS)}
    return values


def _refused(tokenizer: StudioTokenizer, expected: str, received: str) -> TokenizerError:
    specification = tokenizer.specification
    flags = "⟬--algorithm⟭ ⟬algorithm:byte_level_bpe⟭"
    if specification["model"].get("type") == "BPE":
        flags += f" ⟬--pre-tokenization⟭ {_nearest(_steps(specification.get('pre_tokenizer')))}"
    return TokenizerError(
        f"llama.cpp can't read the tokenizer {tokenizer.reference}",
        expected=expected,
        received=received,
        fix=f"train a tokenizer with {flags}, and the model with it",
        field="model",
    )


def _nearest(steps: Sequence[Mapping[str, Any]]) -> str:
    """Returns the name of the most similar pre-tokenization."""
    matcher = SequenceMatcher(None, "", json.dumps(steps), autojunk=False)

    def similarity(name: str) -> float:
        matcher.set_seq1(json.dumps(_steps_of(PRE_TOKENIZATIONS[name])))
        return matcher.ratio()

    return max(PRE_TOKENIZATIONS, key=similarity)
