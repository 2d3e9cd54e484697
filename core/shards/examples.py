"""Example sentences for a model, from the validation split that it was measured on."""

from __future__ import annotations

import re
from collections.abc import Callable

from core.errors import StudioError
from core.shards.read import is_remote, open_shards
from core.shards.sentences import validation_sentences
from core.tokenizer.loading import load
from core.workspace.workspace import Workspace

HOLE = "{mask}"
_SENTENCES_TRIED = 60
# No part of a compound or of a name in code: neither z-loss nor utf_8.
_WORD = re.compile(r"(?<![\w\-/.@:'’=])[^\W\d_]+(?![\w\-/@:=(\[]|[.'’]\w)")
_PLAIN_WORD = re.compile(r"[\"'“‘«(]*[^\W\d_]+(?:[-'’][^\W\d_]+)*[.,;:!?…)\"'”’»。、！？」]*")
_INNER_CAPITAL = re.compile(r"[^\W\d_A-Z][A-Z]|[A-Z]{2}")
_FEWEST_WORDS = 5
_SHORTEST_WORD = 3


def example_sentences(
    shards: str, workspace: Workspace, cut: Callable[[str], str], most: int
) -> list[str]:
    """Returns sentences, fluent ones first; [] if the shards aren't here or can't be read.

    Args:
        cut: Makes an example of a sentence, such as `with_hole`; "" leaves it out.
    """
    try:
        if is_remote(shards, workspace):
            return []
        opened = open_shards(shards, workspace)
        tokenizer = load(str(opened.tokenizer_folder), workspace)
        sentences = validation_sentences(opened, tokenizer, _SENTENCES_TRIED)
    except StudioError:
        return []
    # Each kind in its order.
    ordered = sorted(
        (sentence for sentence in sentences if HOLE not in sentence),
        key=lambda sentence: not is_fluent(sentence),
    )
    return list(filter(None, map(cut, ordered)))[:most]


def is_fluent(sentence: str) -> bool:
    """Returns whether a sentence reads like prose, unlike names, code and figures."""
    words = sentence.split()
    if not all(map(_PLAIN_WORD.fullmatch, words)) or _INNER_CAPITAL.search(sentence):
        return False
    # Scripts without spaces have few and long words.
    return len(words) >= _FEWEST_WORDS or any(ord(character) >= 0x2E80 for character in sentence)


def with_hole(sentence: str) -> str:
    """Masks a word in the middle; "" if there is none."""
    words = [match for match in _WORD.finditer(sentence) if len(match[0]) >= _SHORTEST_WORD]
    # Outer words say least about themselves.
    inner = words[1:-1] or words
    middle = len(sentence) / 2
    if len(inner) > 1 or (inner and " " in sentence):
        chosen = min(inner, key=lambda match: abs((match.start() + match.end()) / 2 - middle))
        return f"{sentence[: chosen.start()]}{HOLE}{sentence[chosen.end() :]}"
    if not words or " " in sentence:
        return ""
    # No spaces: mask one character.
    longest = max(words, key=lambda match: len(match[0]))
    index = (longest.start() + longest.end()) // 2
    return f"{sentence[:index]}{HOLE}{sentence[index + 1 :]}"
