"""Splits text into sentences by rules for English, Norwegian, Korean and similar languages.

Cuts come before white space, so tokenizers that attach it to the next word give unchanged tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_CLOSING = r"[\"'”’»›)\]}」』〉》】）]*+"
_HANGUL = r"[가-힣ㄱ-ㅎㅏ-ㅣ]"
_CANDIDATE = re.compile(
    rf"(?<![.!?…])(?P<mark>[.!?…]++){_CLOSING}(?: [\"”»](?=\s*(?:\n|\Z)))?(?=\s|\Z)"
    rf"|(?P<wide>[。！？｡]++){_CLOSING}"
    rf"|(?<={_HANGUL})(?P<tight>[.!?…]++)(?={_HANGUL})"
    r"|(?P<line>(?<!\s)(?=\s*\n))"
)
_NEXT = re.compile(r"\s*[\"'“”‘«‹(\[{「『〈《【¿¡„_*-]*\s*(.?)", re.DOTALL)
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘«]*\Z")
_LIST_NUMBER = re.compile(r"\s*[(\[]?(?:\d{1,3}|[a-zA-Z])\Z")
_WITH_STOPS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]\Z")
_WORD = re.compile(r"\w")
_LONGEST_WORD = 32
_LOOKED_AHEAD = 200

# These mostly precede a word; others, such as `etc.`, may end a sentence.
_ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof st mt ft gen col maj capt cpt lt sgt cmdr adm gov sen rep rev hon pres supt
    messrs mme mlle vs cf viz approx est dept univ
    bl bl.a f.eks d.v.s p.g.a hr fr frk evt dvs jf jfr pga mht ift iht inkl ekskl tlf anm tidl vedr
    """.split()
)
# "no" and "red" end sentences, "No. 5" doesn't.
_BEFORE_NUMBERS = frozenset(
    """
    no nos fig figs eq eqs sec chap vol vols ed op pp p ca art
    jan feb mar apr jun jul aug sept sep oct nov dec
    nr kl kap pkt bd
    """.split()
)
# Can't begin a sentence.
_CONTINUES = frozenset(",;:)%]}»”")


def sentence_ends(text: str) -> list[int]:
    """Returns ascending end offsets in characters, up to the text's length.

    White space between sentences belongs to the second; blank text has none.
    """
    if not text or text.isspace():
        return []
    ends = list(_ends(text))
    if ends and not _WORD.search(text, ends[-1]):
        ends.pop()
    return [*ends, len(text)]


def _ends(text: str) -> Iterator[int]:
    start = seen = 0
    has_word = False
    for match in _CANDIDATE.finditer(text):
        has_word = has_word or bool(_WORD.search(text, seen, match.end()))
        seen = match.end()
        if has_word and _ends_sentence(text, start, match):
            start, has_word = seen, False
            yield start


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    if match["wide"] or match["tight"]:
        return True
    after = _NEXT.match(text, match.end())
    following = after[1] if after else ""
    if following.islower() and not _is_blank_line(text, match.end()):
        return False
    if match["line"] is not None:
        return True
    if following in _CONTINUES:
        return False
    alone = match[0] == "."
    return not (alone and _is_abbreviated(text, start, match.start(), following))


def _is_blank_line(text: str, place: int) -> bool:
    rest = text[place : place + _LOOKED_AHEAD]
    return rest[: len(rest) - len(rest.lstrip())].count("\n") > 1


def _is_abbreviated(text: str, start: int, stop: int, following: str) -> bool:
    """True if the full stop belongs to the word before it.

    Args:
        following: The character after white space and opening marks.
    """
    if stop - start < _LONGEST_WORD and _LIST_NUMBER.match(text[start:stop]):
        return True
    match = _LAST_WORD.search(text[max(start, stop - _LONGEST_WORD) : stop])
    word = match[0] if match else ""
    if _WITH_STOPS.match(word) or word.lower() in _ABBREVIATIONS:
        return True
    if word.lower() in _BEFORE_NUMBERS and following.isdigit():
        return True
    return len(word) == 1 and word.isupper() and word != "I"
