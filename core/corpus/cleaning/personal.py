"""Replaces e-mail addresses, phone numbers and IP addresses.

The replacements are reserved for examples: RFC 2606, RFC 5737, RFC 3849 and the numbers 555-01xx.

Letters of scripts that attach particles to words, or that have no spaces, may touch an address:
Korean 8.8.8.8로, Chinese 请发到foo@bar.com. Latin, Greek and Cyrillic letters may not.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from core.corpus.cleaning.language import identify_language
from core.corpus.cleaning.phones import (
    is_plausible,
    may_be_phone,
    regions_of,
    replace_national,
)

EMAIL, PHONE, IPV4, IPV6 = "name@example.com", "555-0100", "192.0.2.1", "2001:db8::1"

# Latin, Greek and Cyrillic letters, with combining accents.
_LETTERS = (
    r"A-Za-z\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0300-\u0373\u0376-\u0377"
    r"\u037b-\u037d\u037f\u0386\u0388-\u0481\u0483-\u052f\u1e00-\u1fff"
)
_WORD = rf"{_LETTERS}\d_"
_LOCAL = rf"[{_WORD}%+-]{{1,64}}"
_FILE_SUFFIX = r"(?:png|jpe?g|gif|webp|svg|avif)\b"
_LABEL = rf"[{_LETTERS}\d-]{{1,63}}"
_EMAIL = re.compile(
    rf"(?<![{_WORD}%+-])(?<![{_WORD}%+-]\.){_LOCAL}(?:[.']{_LOCAL}){{0,8}}"
    rf"[@\uff20](?:{_LABEL}\.){{1,8}}(?!{_FILE_SUFFIX})(?:xn--[a-z\d-]{{2,59}}|[{_LETTERS}]{{2,24}})"
    rf"(?!_*[{_LETTERS}\d])"
)
# Section numbers aren't addresses: 第1.2.3.4节, 제1.2.3.4항.
_IPV4 = re.compile(
    rf"\d(?<![{_WORD}.第제]\d)\d{{0,2}}\.\d{{1,3}}\.\d{{1,3}}\.\d{{1,3}}"
    rf"(?![{_WORD}章節节條条款項项版장절항]|\.\d)"
)
# Public addresses begin with 2 or 3, RFC 4291; a[1::2] isn't one.
_IPV6 = re.compile(
    rf"[23](?<![{_WORD}:.][23])[0-9A-Fa-f]{{3}}(?::[0-9A-Fa-f]{{0,4}}){{2,7}}(?![{_WORD}:]|\.\d)"
)
# The user of a remote shell or repository, git@host:path, and the one in an address.
_REMOTE = re.compile(r"(?:git|hg|svn)@|\S+@[^\s@]+:(?:[^\s\d,;.)]|/)", re.IGNORECASE)
_VERSION = re.compile(
    r"(?:\b(?:versions?|versi[oó]n|vers[aã]o|versione|ver|rev|revision|release|build|firmware|driver|"
    r"patch|update|rfc|section|chapter|clause)\b\.?|版本|バージョン|버전|верси\w{1,3}|[=~<>]=)[\s:#v]*$",
    re.IGNORECASE,
)
_VERSION_CHARACTERS = 24
# With the characters that prevent a line break, full-width ones, and the dashes of typesetters.
_DASHES, _SPACES = r"\-\u2010-\u2013\u2212\uff0d", r" \u00a0\u202f"
_OPEN, _CLOSE, _PLUS, _ZERO, _NOT_ZERO = (
    r"[(\uff08]", r"[)\uff09]", r"[+\uff0b]", r"[0\uff10]", r"[1-9\uff11-\uff19]"
)  # fmt: skip
_GAP = rf"[{_SPACES}.{_DASHES}]"
# Digits by group of national numbers with a 0 in front. No date or price has these.
_AREA_AND_NUMBER = ((2, 8), (3, 6), (3, 7), (3, 8), (4, 6), (4, 7), (4, 8), (5, 5), (5, 6))
_GROUPED = (
    (2, 3, 4), (2, 4, 4), (3, 3, 4), (3, 4, 3), (3, 4, 4), (4, 2, 4), (4, 3, 3), (4, 3, 4),
    (5, 3, 3), (2, 3, 2, 2), (3, 2, 2, 2), (3, 3, 2, 2), (4, 2, 2, 2), (4, 3, 2, 2),
)  # fmt: skip


def _national(groups: tuple[int, ...], gap: str) -> str:
    """Returns a pattern of a number such as 02-123-4567, (02) 123-4567, 02) 123-4567."""
    slash = "|/" if groups[0] > 2 else ""
    area = rf"{_ZERO}{_NOT_ZERO}\d{{{groups[0] - 2}}}"
    spaced_dash = rf"[{_SPACES}][{_DASHES}][{_SPACES}]"
    numbers = rf"(?:{_GAP}|{spaced_dash})".join(rf"\d{{{digits}}}" for digits in groups[1:])
    ends = rf"{_CLOSE}[{_SPACES}]?"
    return rf"(?:{_OPEN}{area}{ends}|{area}(?:{gap}|{spaced_dash}{slash}|{ends})){numbers}"


# What can be a phone number is found first, since it is rare.
_PHONE_LIKE = re.compile(rf"[\d+(\uff0b\uff08][\d()+.\uff08\uff09\uff0b/{_SPACES}{_DASHES}]{{6,}}+")
_NATIONAL = (
    *(_national(groups, _GAP) for groups in _GROUPED),
    *(_national(groups, rf"[{_SPACES}{_DASHES}]") for groups in _AREA_AND_NUMBER),
)
_PHONES = (
    # +47 22 33 44 55, +1 (212) 555-0123, 0047 22 33 44 55
    rf"(?:{_PLUS}[1-9]\d{{0,2}}{_GAP}?|{_OPEN}{_PLUS}[1-9]\d{{0,2}}{_CLOSE}{_GAP}?"
    rf"|00[1-9]\d{{0,2}}{_GAP})"
    rf"(?:{_OPEN}\d{{1,4}}{_CLOSE}{_GAP}?)?\d{{1,4}}(?:{_GAP}?\d{{2,4}}){{1,4}}",
    # (212) 555-0123, 212-555-0123, 1-800-555-0199
    rf"(?:1{_GAP})?(?:{_OPEN}\d{{3}}{_CLOSE}[{_SPACES}]?|\d{{3}}{_GAP})\d{{3}}{_GAP}\d{{4}}",
    # 138-1234-5678
    rf"1[3-9]\d[{_SPACES}{_DASHES}]\d{{4}}[{_SPACES}{_DASHES}]\d{{4}}",
    # 06 12 34 56 78, but no longer row of pairs
    rf"(?<!\d{_GAP}){_ZERO}{_NOT_ZERO}(?:{_GAP}\d\d){{4}}(?!{_GAP}\d)",
    # 8 (495) 123-45-67, 8-495-123-45-67, 8 800 123-45-67
    rf"8{_GAP}?(?:{_OPEN}\d{{3,5}}{_CLOSE}|\d{{3,5}}){_GAP}?\d{{1,3}}{_GAP}\d\d{_GAP}\d\d",
    # (11) 91234-5678, (495) 123-45-67
    rf"{_OPEN}\d{{2,5}}{_CLOSE}[{_SPACES}]?\d{{2,5}}(?:{_GAP}\d{{2,4}}){{1,3}}",
    # 010-1234-5678, (02) 1234-5678; 0171-1234567 has no full stop, as in 012.345678
    rf"(?={_OPEN}?{_ZERO}{_NOT_ZERO})(?:{'|'.join(_NATIONAL)})",
)
# An extension such as x45 may follow.
_PHONE = re.compile(
    rf"(?<![{_WORD}+\uff0b{_DASHES}])(?<!\d\.)(?<![^\d]/)(?:{'|'.join(_PHONES)})"
    rf"(?!(?!x\d)[{_WORD}]|/(?!{_ZERO}\d|{_PLUS}|{_OPEN})|\.\d|[{_DASHES}][{_WORD}])"
)
_DIGIT = re.compile(r"\d")
_JOINED = re.compile(rf"[{_WORD}/.{_DASHES}]")
# A word such as "phone" stands so close to a number.
_WORD_CHARACTERS = 20
_FEWEST_DIGITS, _FEWEST_AFTER_00, _MOST_DIGITS = 7, 11, 15


def replace_emails(text: str) -> tuple[str, int]:
    """Replaces e-mail addresses; returns the text and their number."""
    return _replace(_EMAIL, text, _email) if "@" in text or "\uff20" in text else (text, 0)


def replace_phones(text: str) -> tuple[str, int]:
    """Replaces phone numbers with country code or separators.

    Forms that only some countries have are looked for in texts of their languages.
    """
    count = 0
    regions: tuple[str, ...] | None = None

    def replace(match: re.Match[str]) -> str:
        nonlocal count, regions
        # With the characters around it, on which its boundaries depend.
        start, stop = max(0, match.start() - 2), match.end() + 2
        new, places = _replace(_PHONE, text[start:stop], _phone)
        new = new[match.start() - start : len(new) - len(text[match.end() : stop])]
        if not places and may_be_phone(match[0]) and not _touches_word(match):
            if regions is None:
                regions = regions_of(identify_language(text)[0])
            before = text[max(0, match.start() - _WORD_CHARACTERS) : match.start()]
            new, places = replace_national(match[0], before, regions, PHONE)
        count += places
        return new

    return _PHONE_LIKE.sub(replace, text), count


def _touches_word(match: re.Match[str]) -> bool:
    stop = match.start() + len(match[0].rstrip())
    after = match.string[stop : stop + 1]
    before = match.string[match.start() - 1 : match.start()]
    return any(map(_JOINED.fullmatch, filter(None, (before, after))))


def replace_ip_addresses(text: str) -> tuple[str, int]:
    """Replaces public IP addresses."""
    text, first = _replace(_IPV4, text, _address) if "." in text else (text, 0)
    text, second = _replace(_IPV6, text, _address) if ":" in text else (text, 0)
    return text, first + second


def _replace(
    pattern: re.Pattern[str], text: str, replacement: Callable[[re.Match[str]], str]
) -> tuple[str, int]:
    count = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        new = replacement(match)
        count += new != match[0]
        return new

    return pattern.sub(replace, text), count


def _email(match: re.Match[str]) -> str:
    is_in_address = match.string[max(0, match.start() - 2) : match.start()] == "//"
    is_remote = is_in_address or _REMOTE.match(match.string, match.start())
    return match[0] if is_remote else EMAIL


def _phone(match: re.Match[str]) -> str:
    digits = len(_DIGIT.findall(match[0]))
    fewest = _FEWEST_AFTER_00 if match[0].startswith("00") else _FEWEST_DIGITS
    is_phone = fewest <= digits <= _MOST_DIGITS and is_plausible(match[0])
    return PHONE if is_phone else match[0]


def _address(match: re.Match[str]) -> str:
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        return match[0]
    before = match.string[max(0, match.start() - _VERSION_CHARACTERS) : match.start()]
    if not address.is_global or _VERSION.search(before):
        return match[0]
    return IPV4 if address.version == 4 else IPV6
