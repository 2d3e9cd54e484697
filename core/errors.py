"""Defines the errors that a user can act on.

Every message says what failed, what was expected, what was received and what to do. The library
raises them; `core.__main__` and `ui.present` show them.
"""

from __future__ import annotations

import re

# Text from a user's file, such as a column name, may be megabytes long.
_LONGEST_PART = 2_000
# Terminal escape sequences, and lone surrogates, which UTF-8 can't encode.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class StudioError(Exception):
    """A problem that a user can act on.

    Args:
        problem: The failure, in one sentence.
        expected: The valid value or state.
        received: The value or state that was found.
        fix: The action to take.
        field: The config field it concerns; the web app shows the error beside it.
    """

    exit_code = 1
    # The reason of a failed run, for errors that have an established name.
    reason = ""

    def __init__(
        self,
        problem: str,
        *,
        expected: str = "",
        received: str = "",
        fix: str = "",
        field: str = "",
    ) -> None:
        self.problem = _printable(problem)
        self.expected = _printable(expected)
        self.received = _printable(received)
        self.fix = _printable(fix)
        self.field = field
        super().__init__(self.describe())

    def to_dict(self) -> dict[str, str]:
        """Returns the constructor's arguments, as events, tables and answers store them."""
        return {
            "problem": self.problem,
            "expected": self.expected,
            "received": self.received,
            "fix": self.fix,
            "field": self.field,
        }

    def describe(self) -> str:
        """Returns the whole message on one line."""
        parts = [_sentence(self.problem)]
        if self.expected:
            parts.append(f"Expected: {_sentence(self.expected)}")
        if self.received:
            parts.append(f"Received: {_sentence(self.received)}")
        if self.fix:
            parts.append(f"What to do: {_sentence(self.fix)}")
        return " ".join(parts)


class ConfigError(StudioError):
    """A setting is missing, out of range, or contradicts another one."""

    exit_code = 2


class CorpusError(StudioError):
    """The corpus is empty or can't be read."""


class TokenizerError(StudioError):
    """A tokenizer can't be trained or loaded, or doesn't suit the task."""


class ShardError(StudioError):
    """Shards can't be written or read, or a record is damaged."""


class MissingDataError(ShardError):
    """A shard file is missing."""

    reason = "data_missing"


class DeviceError(StudioError):
    """The requested accelerator or backend isn't available."""


class RunError(StudioError):
    """A run can't be started, found, stopped or resumed."""


class LossNotFiniteError(RunError):
    """The loss or a weight is NaN or infinite."""

    reason = "loss_not_finite"


class ProcessLostError(RunError):
    """Another process of the same run has ended or can't be reached."""

    reason = "process_lost"


class CheckpointError(StudioError):
    """A checkpoint is missing, damaged or incompatible."""


class HubError(StudioError):
    """The Hugging Face Hub refused a request or can't be reached."""


def from_os_error(error: OSError) -> StudioError:
    """Converts an OSError, with its path and the system's message."""
    return StudioError(
        f"{error.filename or 'A file'} could not be read or written",
        expected="an existing path, access rights, and free disk space",
        received=error.strerror or str(error),
        fix="correct the cause, or choose another path",
    )


def _printable(text: str) -> str:
    """Shortens a long text in the middle and escapes unprintable characters."""
    if len(text) > _LONGEST_PART:
        half = _LONGEST_PART // 2
        text = f"{text[:half]} … {text[-half:]}"
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."
