"""Reduces a tokenizer to the ids and flags that objectives and model families need."""

from __future__ import annotations

from core.errors import TokenizerError
from core.objectives.objective import Vocabulary, advice_for, describe_undecided
from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.roles import ENTRIES

_MASK = "a mask token, such as <mask> or [MASK]"
_PAD = "a padding token, such as <pad> or [PAD]"
_END = "a token that ends a text, such as </s> or [SEP]"
_SENTINELS = "sentinels, <extra_id_0> and so on"
_ROLES = {_MASK: "mask", _PAD: "pad", _END: "sep"}
_IDS = {"cls": "bos", "sep": "eos", "unk": "unk", "pad": "pad", "mask": "mask"}
# Tokens that each family requires.
_NEEDS = {
    "roberta": (_MASK, _PAD),
    "bert": (_MASK, _PAD),
    "modernbert": (_MASK, _PAD),
    "gpt2": (_END,),
    "t5": (_SENTINELS, _PAD, _END),
    "bart": (_MASK, _PAD, _END),
}


def vocabulary_of(tokenizer: StudioTokenizer) -> Vocabulary:
    return Vocabulary(
        size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.cls_id,
        eos_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
        sentinel_ids=tokenizer.sentinel_ids(),
        word_starts=tokenizer.word_starts(),
        undecided={f"{_IDS[role]}_id": names for role, names in tokenizer.undecided.items()},
    )


def families_of(tokenizer: StudioTokenizer) -> tuple[str, ...]:
    """Returns the model families that a tokenizer suits, by transformers' names."""
    return tuple(family for family in _NEEDS if not missing_for(tokenizer, family))


def missing_for(tokenizer: StudioTokenizer, family: str) -> str:
    """Returns the tokens that a family needs and a tokenizer lacks, or an empty string."""
    has = {
        _MASK: tokenizer.mask_id is not None,
        _PAD: tokenizer.pad_id is not None,
        _END: tokenizer.sep_id is not None,
        _SENTINELS: len(tokenizer.sentinel_ids()) > 0,
    }
    return ", and ".join(need for need in _NEEDS[family] if not has[need])


def check_suits(tokenizer: StudioTokenizer, family: str) -> None:
    """Raises TokenizerError if a tokenizer lacks tokens that a family needs."""
    if missing := missing_for(tokenizer, family):
        suited = families_of(tokenizer)
        unclear = [
            (role, tokenizer.undecided[role])
            for need in _NEEDS[family]
            if (role := _ROLES.get(need)) in tokenizer.undecided
        ]
        raise TokenizerError(
            f"The tokenizer {tokenizer.reference} doesn't suit the family {family}",
            expected=missing,
            received="; ".join(describe_undecided(names) for _, names in unclear)
            or (f"a tokenizer for {', '.join(suited)}" if suited else "none of these"),
            fix="".join(f"{advice_for(ENTRIES[role])}, or " for role, _ in unclear)
            + ("choose one of these families, or " if suited and not unclear else "")
            + f"train a tokenizer for {family} (--family {family}) and build shards with it",
            field="family",
        )
