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
    "address",
    [
        "o'brien@x.com",
        "a@mail.xn--p1ai",
        "bob@site.org",
        "bob.smith+news@mail.site.co.uk",
        "a_b%c-d@x-y.io",
    ],
)
def test_email_addresses_are_replaced(address: str) -> None:
    assert replace_emails(f"Write to <{address}>, please.") == (f"Write to <{EMAIL}>, please.", 1)


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("foo@bar.com으로 보내기", f"{EMAIL}으로 보내기"), ("메일foo@bar.com", f"메일{EMAIL}"),
        ("请发到foo@bar.com。", f"请发到{EMAIL}。"),
        ("邮箱foo@bar.com，或者", f"邮箱{EMAIL}，或者"),
        ("メールfoo@bar.co.jpへ", f"メール{EMAIL}へ"), ("ติดต่อfoo@bar.comค่ะ", f"ติดต่อ{EMAIL}ค่ะ"),
        ("foo＠bar.com", EMAIL), ("josé@example.org", EMAIL), ("иван@пример.рф", EMAIL),
        ("_foo@bar.com_", f"{EMAIL}_"), ("foo@bar.com-based", f"{EMAIL}-based"),
        ("...foo@bar.com...", f"...{EMAIL}..."),
    ],
)  # fmt: skip
def test_email_addresses_beside_letters_are_replaced(text: str, replaced: str) -> None:
    assert replace_emails(text) == (replaced, 1)


@pytest.mark.parametrize(
    "text",
    [
        "@decorator",
        "me @ home",
        "user@host",
        "a@b.c",
        "x = y@z",
        "img@2x.png",
        "git@github.com",
        "git@gitlab.example.com:group/name.git",
        "ssh://me@host.example.com/x",
        "scp notes.txt me@host.example.com:docs/",
        "rsync -a me@host.example.com:/data .",
    ],
)
def test_other_at_signs_stay(text: str) -> None:
    assert replace_emails(text) == (text, 0)


@pytest.mark.parametrize(
    "number",
    [
        "+47 22 33 44 55", "+1 (212) 867-5309", "+82-10-1234-5678", "+442079460123",
        "(212) 867-5309", "212-867-5309", "212.867.5309", "010-1234-5678", "02-123-4567",
        "(02) 1234-5678", "02) 123-4567", "0171-1234567", "0171/1234567", "1-800-867-5309",
        "1 (800) 867-5309", "06 12 34 56 78", "06.12.34.56.78",
        "06\u00a012\u00a034\u00a056\u00a078",
        "020 7946 0123", "07700 900123", "044 668 18 00", "0470 12 34 56", "0120-123-456",
        "010-12345678", "138-1234-5678", "0049 171 1234567", "０３－１２３４－５６７８",
        "(+82)10-1234-5678", "010–1234–5678", "０９０−１２３４−５６７８", "02 - 1234 - 5678",
        "8 (495) 123-45-67", "8-495-123-45-67", "8 800 555-35-35", "(11) 91234-5678",
        "(11) 3456-7890", "(495) 123-45-67",
    ],
)  # fmt: skip
def test_phone_numbers_are_replaced(number: str) -> None:
    assert replace_phones(f"Call {number}.") == (f"Call {PHONE}.", 1)


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("010-1234-5678로 전화", f"{PHONE}로 전화"), ("02-123-4567입니다", f"{PHONE}입니다"),
        ("전화010-1234-5678", f"전화{PHONE}"), ("电话010-12345678。", f"电话{PHONE}。"),
        ("090-1234-5678まで", f"{PHONE}まで"), ("Tel.010-1234-5678", f"Tel.{PHONE}"),
        ("010-1234-5678 20대", f"{PHONE} 20대"), ("212-867-5309x45", f"{PHONE}x45"),
    ],
)  # fmt: skip
def test_phone_numbers_beside_letters_are_replaced(text: str, replaced: str) -> None:
    assert replace_phones(text) == (replaced, 1)


def test_phone_numbers_on_both_sides_of_a_slash_are_replaced() -> None:
    text = "Fax. 02-1234-5678/02-9876-5432"
    assert replace_phones(text) == (f"Fax. {PHONE}/{PHONE}", 2)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Por favor, llame al teléfono {} para hablar con nosotros mañana.", "612 345 678"),
        ("Zadzwoń do nas jutro rano, do naszej szkoły, telefon: {}.", "512 345 678"),
        ("Ligue para o nosso escritório amanhã de manhã: {}, obrigado.", "21 98765-4321"),
        ("Можете позвонить мне завтра вечером по номеру {}, спасибо.", "495 123-45-67"),
        ("Ring oss på måndag om du vill veta mer om våra böcker: {}.", "08-123 456 78"),
    ],
)
def test_phone_numbers_in_the_forms_of_the_language_are_replaced(text: str, numbers: str) -> None:
    assert replace_phones(text.format(numbers)) == (text.format(PHONE), 1)


@pytest.mark.parametrize(
    "text",
    [
        "La ciudad de la costa tiene hoy 912 345 678 habitantes y muchas calles.",
        "De 1990-1995 y 2001-2010 vivieron en la casa de sus padres en Madrid.",
        "Las capas de la red tienen 600 700 800 unidades y 512 256 128 canales.",
        "Die Teile haben die Nummern 12-34-56-78-90-12-34 und kosten 12.345,67 Euro.",
    ],
)
def test_other_numbers_stay_in_all_languages(text: str) -> None:
    assert replace_phones(text) == (text, 0)


def test_each_of_successive_phone_numbers_is_replaced() -> None:
    text = "010 1234 5678 010 2222 3333, 212-867-5309 212-867-5310"
    assert replace_phones(text) == (f"{PHONE} {PHONE}, {PHONE} {PHONE}", 4)


@pytest.mark.parametrize(
    "text",
    [
        "2020-11-25", "1939-1945", "1,234,567 people", "ISBN 978-3-16-148410-0", "3.14159265",
        "+1", "version 1.2.3.4", "20201125", "1 + 2", "12:30:45", "1e+10", "$1 000 000",
        "2020-11-25년", "1939-1945年", "1,234,567명", "₩1,234,567", "1.234.567,89 €", "02-12-2024",
        "02.12.2024 12:30", "02/12/2024", "1.2.3.4.5", "ISBN 978-89-1234-567-8",
        "ISBN 0-306-40615-2", "ISBN 89-7012-345-6", "01 02 03 04 05 06 07", "052.520008",
        "0012345678", "10 000 000", "2010–2014", "100 - 200 - 3000", "2020/02-1234",
        "1588-1234", "제1234-5678호", "1 234 567 890", "2001:db8::1", "128 256 1024 units",
        "256 512 1024", "256-512-1024", "100-200-3000", "(12) 2010-2015", "800 600 2000",
        "64 128 256 512", "build 10.0.1904.1889", "1.2.345.6789", "population 912 345 678",
    ],
)  # fmt: skip
def test_other_numbers_stay(text: str) -> None:
    assert replace_phones(text) == (text, 0)


@pytest.mark.parametrize(
    ("address", "replacement"),
    [
        ("8.8.8.8", IPV4),
        ("서버8.8.8.8로", f"서버{IPV4}로"),
        ("地址8.8.8.8。", f"地址{IPV4}。"),
        ("为2606:4700:4700::1111的", f"为{IPV6}的"),
        ("93.184.216.34", IPV4),
        ("2606:4700:4700::1111", IPV6),
    ],
)
def test_public_ip_addresses_are_replaced(address: str, replacement: str) -> None:
    assert replace_ip_addresses(f"at {address}, now") == (f"at {replacement}, now", 1)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "192.168.1.20", "10.0.0.1", "::1", "fe80::1", "300.1.1.1", "1.2.3",
        "1.2.3.4.5", "std::vector", "12:30:45", "a[1::2]", "v8.8.8.8", IPV4, IPV6,
        "第1.2.3.4节", "제1.2.3.4항", "10.0.0.1로", "version 8.8.8.8", "Version: 91.0.44.124",
        "driver 31.0.15.2", "numpy==1.26.4.1", "版本 8.1.2.3", "release v12.3.4.5",
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


@pytest.mark.parametrize(
    "part", ["a@", "a.", "1-", "+1 ", "1.", "2:", "(1", "a@a.", "0123-", "(", "é@"]
)
def test_long_hostile_text_is_searched(part: str) -> None:
    """A search whose time grows with the square of the length would take hours."""
    text = part * 1_000_000
    for replace in (replace_emails, replace_phones, replace_ip_addresses):
        assert replace(text) == (text, 0)
