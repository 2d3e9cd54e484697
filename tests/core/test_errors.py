"""Errors can be printed, stored and shown, whatever a file contains."""

from core.errors import ConfigError


def test_long_part_is_shortened_in_its_middle() -> None:
    error = ConfigError("A column is missing", received="a" * 5_000_000 + "z", fix="name another")
    assert len(str(error)) < 3_000
    assert "a … a" in error.received and error.received.endswith("z")


def test_unprintable_characters_are_escaped() -> None:
    error = ConfigError("No \x1b[31m\ud800\x00\x9b", expected="a\nb\tc", fix="é 東 \U0001f600")
    assert error.problem == "No \\x1b[31m\\ud800\\x00\\x9b"
    assert (error.expected, error.fix) == ("a\nb\tc", "é 東 \U0001f600")
    str(error).encode("utf-8")
