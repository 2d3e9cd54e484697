"""Reduces tokenizers to what objectives and model families need."""

from __future__ import annotations

from core.architecture.family import Role
from core.errors import TokenizerError
from core.families import find_family, list_family_names
from core.objectives.objective import Vocabulary, advice_for, describe_undecided
from core.tokenizer.loading import StudioTokenizer
from core.tokenizer.roles import ENTRIES

_DESCRIPTIONS: dict[Role, str] = {
    "mask": "a mask token, such as <mask> or [MASK]",
    "pad": "a padding token, such as <pad> or [PAD]",
    "eos": "an end-of-text token, such as </s> or [SEP]",
    "sentinels": "sentinels <extra_id_0>, <extra_id_1> and so on",
}
_ROLES: dict[Role, str] = {"mask": "mask", "pad": "pad", "eos": "sep"}
_IDS = {"cls": "bos", "sep": "eos", "unk": "unk", "pad": "pad", "mask": "mask"}


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
    """Returns the model families that a tokenizer suits."""
    return tuple(name for name in list_family_names() if not missing_for(tokenizer, name))


def missing_for(tokenizer: StudioTokenizer, family: str) -> str:
    """Returns the family's tokens that a tokenizer lacks."""
    has: dict[Role, bool] = {
        "mask": tokenizer.mask_id is not None,
        "pad": tokenizer.pad_id is not None,
        "eos": tokenizer.sep_id is not None,
        "sentinels": len(tokenizer.sentinel_ids()) > 0,
    }
    needed = find_family(family).required_tokens
    return ", and ".join(_DESCRIPTIONS[need] for need in needed if not has[need])


def check_suits(tokenizer: StudioTokenizer, family: str) -> None:
    """Raises TokenizerError if a family's tokens are missing."""
    if missing := missing_for(tokenizer, family):
        suited = families_of(tokenizer)
        unclear = [
            (role, tokenizer.undecided[role])
            for need in find_family(family).required_tokens
            if (role := _ROLES.get(need)) in tokenizer.undecided
        ]
        raise TokenizerError(
            f"The tokenizer {tokenizer.reference} doesn't suit the family {family}",
            expected=missing,
            received="; ".join(describe_undecided(names) for _, names in unclear)
            or (
                f"a tokenizer for {', '.join(suited)}"
                if suited
                else "a tokenizer without these tokens"
            ),
            fix="".join(f"{advice_for(ENTRIES[role])}, or " for role, _ in unclear)
            + ("choose one of these families, or " if suited and not unclear else "")
            + f"train a tokenizer for {family} (⟬--family⟭ {family}) and build shards with it",
            field="family",
        )
