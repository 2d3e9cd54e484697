"""Tells phone numbers from other rows of digits, with the numbering plans of `phonenumbers`."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

# Regions whose national numbers begin with no 0: in brackets an area code, and without.
_BRACKETED = (
    "US",
    "BR",
    "RU",
    "MX",
    "AR",
    "IN",
    "UA",
    "KZ",
    "BY",
    "CN",
    "CO",
    "TR",
    "PL",
    "CZ",
    "GR",
)
_PLAIN = ("US", "CN", "RU", "BY")
# Main regions of a language, with forms that are not searched in all texts.
_REGIONS = {
    "ar": ("EG", "SA", "AE", "MA"), "bg": ("BG",), "ca": ("ES",), "cs": ("CZ",), "da": ("DK",),
    "de": ("DE", "AT", "CH"), "el": ("GR",), "es": ("ES", "MX", "AR", "CO"), "et": ("EE",),
    "fa": ("IR",), "fi": ("FI",), "fr": ("FR", "BE", "CH", "CA"), "gl": ("ES",), "he": ("IL",),
    "hi": ("IN",), "hr": ("HR",), "hu": ("HU",), "id": ("ID",), "it": ("IT",), "ja": ("JP",),
    "ko": ("KR",), "lt": ("LT",), "lv": ("LV",), "nb": ("NO",), "nl": ("NL", "BE"), "nn": ("NO",),
    "no": ("NO",), "pl": ("PL",), "pt": ("BR", "PT"), "ro": ("RO",), "ru": ("RU", "KZ", "BY"),
    "sk": ("SK",), "sl": ("SI",), "sr": ("RS",), "sv": ("SE",), "th": ("TH",), "tr": ("TR",),
    "uk": ("UA",), "vi": ("VN",), "zh": ("CN", "TW", "HK"),
}  # fmt: skip
_GROUP = re.compile(r"\d+")
# Dates, ISBN and decimals.
_NOT_A_FORM = re.compile(
    r"(?<!\d)(?:\d{4}[-./]\d\d?[-./]\d\d?|\d\d?[-./]\d\d?[-./]\d{4})(?!\d)"
    r"|(?<!\d)97[89][- ]\d|^\d+\.\d+$"
)
_PHONE_WORD = re.compile(
    r"\b(?:tel|telefon\w*|teléfono\w*|telefone\w*|téléphone|tél|tfno|tlf|m[oó]vil|celular|cell?|mobile?|"
    r"mobil\w*|phone|call|fax|whatsapp|gsm|handy|puh|numer\w*|тел\w*|моб\w*|факс|τηλ\w*)\b\W*$"
    r"|(?:电话|電話|手机|전화|โทร|هاتف|טל)\W*$",
    re.IGNORECASE,
)
_LONGEST = 40
_FEWEST_DIGITS, _MOST_DIGITS = 7, 15
_FIRST_YEAR, _LAST_YEAR = 1500, 2100
_ROUND = 50


def is_plausible(number: str) -> bool:
    """Returns whether a number in the form of a phone number is one.

    With a country code or a 0 in front, the form is enough.
    """
    number = unicodedata.normalize("NFKC", number)
    if number.lstrip("( ").startswith(("+", "0")):
        return True
    if _is_series(number):
        return False
    return any(_is_valid(number, region) for region in (_BRACKETED if "(" in number else _PLAIN))


def regions_of(language: str) -> tuple[str, ...]:
    """Returns the regions of a language by ISO 639 code."""
    return _REGIONS.get(language, ())


def may_be_phone(text: str) -> bool:
    """Returns whether to look for the forms of single regions in a row of digits and separators."""
    if len(text) > _LONGEST or _NOT_A_FORM.search(text.strip(" .,-/()")):
        return False
    groups = _GROUP.findall(text)
    digits = sum(map(len, groups))
    is_joined = len(groups) == 1
    return not is_joined and _FEWEST_DIGITS <= digits <= _MOST_DIGITS and not _is_series(text)


def replace_national(
    text: str, before: str, regions: tuple[str, ...], replacement: str
) -> tuple[str, int]:
    """Replaces the national numbers of regions; returns the text and their number.

    Args:
        before: Text before it. Groups of three digits can be a quantity, unless it ends in
            a word such as phone.
    """
    if _may_be_quantity(text) and not _PHONE_WORD.search(before):
        return text, 0
    import phonenumbers

    for region in regions:
        matches = list(phonenumbers.PhoneNumberMatcher(text, region))
        for match in reversed(matches):
            text = text[: match.start] + replacement + text[match.end :]
        if matches:
            return text, len(matches)
    return text, 0


def _may_be_quantity(text: str) -> bool:
    first, *rest = [len(group) for group in _GROUP.findall(text)]
    return first <= 3 and all(digits == 3 for digits in rest)


def _is_series(number: str) -> bool:
    """Returns whether the groups are sizes, years or ranges: 256 512 1024, 2010-2015."""
    groups = [int(group) for group in _GROUP.findall(number)]
    last = groups[-2:]
    if (
        len(last) > 1
        and all(_FIRST_YEAR <= year <= _LAST_YEAR for year in last)
        and last[0] < last[1]
    ):
        return True
    if len(groups) < 3 or "(" in number:
        return False
    is_power = all(group and group & (group - 1) == 0 for group in groups)
    is_round = all(group and group % _ROUND == 0 for group in groups)
    steps = {after - before for before, after in pairwise(groups)}
    return is_power or is_round or len(steps) == 1


@lru_cache(maxsize=4096)
def _is_valid(number: str, region: str) -> bool:
    import phonenumbers

    try:
        return bool(phonenumbers.is_valid_number(phonenumbers.parse(number, region)))
    except phonenumbers.NumberParseException:
        return False
