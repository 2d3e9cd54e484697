"""Where sentences end, by rules alone: nothing is downloaded and nothing is learned.

A sentence ends after `.`, `!`, `?`, `…` (and closing quotes and brackets) before white space, after
`。`, `！`, `？` anywhere, after such a mark between two Hangul syllables, and at the end of a line,
unless the next line goes on in lower case. A full stop doesn't end one after an abbreviation, an
initial, a number that counts list items, or before a small letter. Between letters and digits it
never does. Signs alone are no sentence. The rules are for English, Norwegian and Korean; other
languages that are written like them fare well.

Every cut comes before white space, so that a tokenizer that puts a space to the word after it
gives the same tokens as for the uncut text. Objectives that move sentences about want a padding
token at each place in the stored row; `core.shards.encode` puts it there. No text is needed then to
find the sentences again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_CLOSING = r"[\"'”’»›)\]}」』〉》】）]*+"
_HANGUL = r"[가-힣ㄱ-ㅎㅏ-ㅣ]"
# What follows is looked at, not taken.
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

# Those that mostly stand before what they belong to. Others, such as `etc.`, may end a sentence.
_ABBREVIATIONS = frozenset(
    """
    mr mrs ms dr prof st mt ft gen col maj capt cpt lt sgt cmdr adm gov sen rep rev hon pres supt
    messrs mme mlle vs cf viz approx est dept univ
    bl bl.a f.eks d.v.s p.g.a hr fr frk evt dvs jf jfr pga mht ift iht inkl ekskl tlf anm tidl vedr
    """.split()
)
# Those that are one only before a number: "no" and "red" end sentences, "No. 5" doesn't.
_BEFORE_NUMBERS = frozenset(
    """
    no nos fig figs eq eqs sec chap vol vols ed op pp p ca art
    jan feb mar apr jun jul aug sept sep oct nov dec
    nr kl kap pkt bd
    """.split()
)
# Signs that no sentence begins with.
_CONTINUES = frozenset(",;:)%]}»”")


def split_sentences(text: str) -> list[str]:
    """Splits a text into its sentences; together they are the text.

    White space between two sentences is the beginning of the second.

    Args:
        text: Any text.
    """
    ends = sentence_ends(text)
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def sentence_ends(text: str) -> list[int]:
    """Returns where sentences end, in characters, ascending; the last is the text's length.

    White space at the text's end belongs to the last sentence. A blank text has none.
    """
    if not text or text.isspace():
        return []
    ends = list(_ends(text))
    if ends and not _WORD.search(text, ends[-1]):
        ends.pop()  # what is left is no sentence
    return [*ends, len(text)]


def _ends(text: str) -> Iterator[int]:
    start = seen = 0
    has_word = False
    for found in _CANDIDATE.finditer(text):
        has_word = has_word or bool(_WORD.search(text, seen, found.end()))
        seen = found.end()
        if has_word and _ends_sentence(text, start, found):
            start, has_word = seen, False
            yield start


def _ends_sentence(text: str, start: int, found: re.Match[str]) -> bool:
    """Returns whether a sentence that began at `start` ends at a candidate."""
    if found["wide"] or found["tight"]:
        return True
    after = _NEXT.match(text, found.end())
    following = after[1] if after else ""
    if following.islower() and not _is_blank_line(text, found.end()):
        return False
    if found["line"] is not None:
        return True
    if following in _CONTINUES:
        return False
    alone = found[0] == "."
    return not (alone and _is_abbreviated(text, start, found.start(), following))


def _is_blank_line(text: str, place: int) -> bool:
    """Returns whether a blank line comes at a place."""
    rest = text[place : place + _LOOKED_AHEAD]
    return rest[: len(rest) - len(rest.lstrip())].count("\n") > 1


def _is_abbreviated(text: str, start: int, stop: int, following: str) -> bool:
    """Returns whether the full stop at `stop` belongs to the word before it.

    Args:
        text: The text.
        start: Where the sentence begins.
        stop: Where the full stop is.
        following: The first character after it that isn't white space or an opening sign.
    """
    if stop - start < _LONGEST_WORD and _LIST_NUMBER.match(text[start:stop]):
        return True
    found = _LAST_WORD.search(text[max(start, stop - _LONGEST_WORD) : stop])
    word = found[0] if found else ""
    if _WITH_STOPS.match(word) or word.lower() in _ABBREVIATIONS:
        return True
    if word.lower() in _BEFORE_NUMBERS and following.isdigit():
        return True
    return len(word) == 1 and word.isupper() and word != "I"
