"""E-mail addresses, phone numbers and IP addresses are replaced; similar text isn't."""

from __future__ import annotations

import pytest

from core.corpus.cleaning.personal import (
    EMAIL,
    IPV4,
    IPV6,
    PHONE,
    replace_emails,
    replace_ip_addresses,
    replace_phones,
)
from tests.core.corpus.cleaning.support import filtered


@pytest.mark.parametrize(
    "address", ["bob@site.org", "bob.smith+news@mail.site.co.uk", "a_b%c-d@x-y.io"]
)
def test_email_addresses_are_replaced(address: str) -> None:
    assert replace_emails(f"Write to <{address}>, please.") == (f"Write to <{EMAIL}>, please.", 1)


@pytest.mark.parametrize("text", ["@decorator", "me @ home", "user@host", "a@b.c", "x = y@z"])
def test_other_at_signs_stay(text: str) -> None:
    assert replace_emails(text) == (text, 0)


@pytest.mark.parametrize(
    "number",
    [
        "+47 22 33 44 55", "+1 (212) 867-5309", "+82-10-1234-5678", "+442079460123",
        "(212) 867-5309", "212-867-5309", "212.867.5309", "010-1234-5678", "02-123-4567",
    ],
)  # fmt: skip
def test_phone_numbers_are_replaced(number: str) -> None:
    assert replace_phones(f"Call {number}.") == (f"Call {PHONE}.", 1)


@pytest.mark.parametrize(
    "text",
    [
        "2020-11-25", "1939-1945", "1,234,567 people", "ISBN 978-3-16-148410-0", "3.14159265",
        "+1", "version 1.2.3.4", "20201125", "1 + 2", "12:30:45", "1e+10", "$1 000 000",
    ],
)  # fmt: skip
def test_other_numbers_stay(text: str) -> None:
    assert replace_phones(text) == (text, 0)


@pytest.mark.parametrize(
    ("address", "replacement"),
    [("8.8.8.8", IPV4), ("93.184.216.34", IPV4), ("2606:4700:4700::1111", IPV6)],
)
def test_public_ip_addresses_are_replaced(address: str, replacement: str) -> None:
    assert replace_ip_addresses(f"at {address}, now") == (f"at {replacement}, now", 1)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "192.168.1.20", "10.0.0.1", "::1", "fe80::1", "300.1.1.1", "1.2.3",
        "1.2.3.4.5", "std::vector", "12:30:45", "a[1::2]", "v8.8.8.8", IPV4, IPV6,
    ],
)  # fmt: skip
def test_local_addresses_and_other_text_stay(text: str) -> None:
    assert replace_ip_addresses(f"at {text} now") == (f"at {text} now", 0)


def test_each_replacement_is_switched_on_separately() -> None:
    text = "bob@site.org, +47 22 33 44 55, 8.8.8.8"
    for option, expected in (
        ("replace_emails", f"{EMAIL}, +47 22 33 44 55, 8.8.8.8"),
        ("replace_phones", f"bob@site.org, {PHONE}, 8.8.8.8"),
        ("replace_ip_addresses", f"bob@site.org, +47 22 33 44 55, {IPV4}"),
    ):
        kept, tally = filtered([text], **{option: True})
        assert kept == [expected]
        assert (tally.steps[option].changed, tally.steps[option].items) == (1, 1)
    assert filtered([text])[0] == [text]


@pytest.mark.parametrize("part", ["a@", "a.", "1-", "+1 ", "1.", "2:", "(1", "a@a.", "0123-"])
def test_long_hostile_text_is_searched(part: str) -> None:
    """A search whose time grows with the square of the length would take hours."""
    text = part * 1_000_000
    for replace in (replace_emails, replace_phones, replace_ip_addresses):
        assert replace(text) == (text, 0)
