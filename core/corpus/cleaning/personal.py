"""Replaces e-mail addresses, phone numbers and IP addresses.

The replacements are reserved for examples: RFC 2606, RFC 5737, RFC 3849 and the numbers 555-01xx.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

EMAIL, PHONE, IPV4, IPV6 = "name@example.com", "555-0100", "192.0.2.1", "2001:db8::1"

_EMAIL = re.compile(
    r"(?<![\w.+%-])[A-Za-z0-9_%+-]{1,64}(?:\.[A-Za-z0-9_%+-]{1,64}){0,8}"
    r"@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])"
)
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w]|\.\d)")
# Public addresses begin with 2 or 3, RFC 4291; a[1::2] isn't one.
_IPV6 = re.compile(r"(?<![\w:.])[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:]|\.\d)")
_PHONE = re.compile(
    r"(?<![\w.+/-])(?:"
    # +47 22 33 44 55, +1 (212) 555-0123
    r"\+[1-9]\d{0,2}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,4}(?:[ .-]?\d{2,4}){1,4}"
    # (212) 555-0123, 212-555-0123
    r"|(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"
    # 010-1234-5678, 02-123-4567
    r"|0\d{1,2}-\d{3,4}-\d{4}"
    r")(?![\w/-]|\.\d)"
)
_DIGIT = re.compile(r"\d")
_FEWEST_DIGITS, _MOST_DIGITS = 7, 15


def replace_emails(text: str) -> tuple[str, int]:
    """Replaces e-mail addresses; returns the text and their number."""
    return _EMAIL.subn(EMAIL, text) if "@" in text else (text, 0)


def replace_phones(text: str) -> tuple[str, int]:
    """Replaces phone numbers with country code or separators."""
    return _replace(_PHONE, text, _phone)


def replace_ip_addresses(text: str) -> tuple[str, int]:
    """Replaces public IP addresses."""
    text, first = _replace(_IPV4, text, _address) if "." in text else (text, 0)
    text, second = _replace(_IPV6, text, _address) if ":" in text else (text, 0)
    return text, first + second


def _replace(
    pattern: re.Pattern[str], text: str, replacement: Callable[[str], str]
) -> tuple[str, int]:
    count = 0

    def replace(found: re.Match[str]) -> str:
        nonlocal count
        new = replacement(found[0])
        count += new != found[0]
        return new

    return pattern.sub(replace, text), count


def _phone(number: str) -> str:
    digits = len(_DIGIT.findall(number))
    return PHONE if _FEWEST_DIGITS <= digits <= _MOST_DIGITS else number


def _address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if not address.is_global:
        return text
    return IPV4 if address.version == 4 else IPV6
