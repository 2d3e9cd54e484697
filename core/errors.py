"""Errors that a user can act on."""

from __future__ import annotations

import re
import sys

from core.messages.system_errors import advice_for

# A user's file may have megabytes of text.
_LONGEST_PART = 2_000
# Terminal escape sequences and lone surrogates.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


# An error about rights or space gives its own advice.
_KNOWS_THE_CAUSE = re.compile(r"\b(rights?|permissions?|may write|writable|space)\b")


class StudioError(Exception):
    """A problem that a user can act on.

    Made while an error of the system is handled, such as a full disk, it says what helps against
    that: advice about the file that was open would not.

    Args:
        field: Config field that shows the error.

    Attributes:
        is_passing: Whether the cause has nothing to do with the data.
    """

    exit_code = 1
    # A failed run's reason, if established.
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
        advice = advice_for(sys.exc_info()[1])
        self.is_passing = advice is not None and advice.is_passing
        if advice:
            self.reason = self.reason or advice.reason
            if not _KNOWS_THE_CAUSE.search(f"{expected} {fix}"):
                expected, received, fix = advice.expected, advice.received, advice.fix
        self.problem = _printable(problem)
        self.expected = _printable(expected)
        self.received = _printable(received)
        self.fix = _printable(fix)
        self.field = field
        super().__init__(self.describe())

    def to_dict(self) -> dict[str, str]:
        """Returns the constructor's arguments."""
        return {
            "problem": self.problem,
            "expected": self.expected,
            "received": self.received,
            "fix": self.fix,
            "field": self.field,
        }

    def describe(self) -> str:
        """Returns the message on one line."""
        parts = [_sentence(self.problem)]
        if self.expected:
            parts.append(f"Expected: {_sentence(self.expected)}")
        if self.received:
            parts.append(f"Received: {_sentence(self.received)}")
        if self.fix:
            parts.append(f"What to do: {_sentence(self.fix)}")
        return " ".join(parts)


class ConfigError(StudioError):
    """A setting is missing, invalid or contradictory."""

    exit_code = 2


class CorpusError(StudioError):
    """The corpus is empty or unreadable."""


class TokenizerError(StudioError):
    """A tokenizer can't be trained, loaded or used."""


class ShardError(StudioError):
    """Shards can't be written or read."""


class MissingDataError(ShardError):
    """A shard file is missing."""

    reason = "data_missing"


class DeviceError(StudioError):
    """The requested accelerator or backend isn't available."""


class RunError(StudioError):
    """A run can't be started, found, stopped or resumed."""


class LossNotFiniteError(RunError):
    """The loss or a weight isn't finite."""

    reason = "loss_not_finite"


class ProcessLostError(RunError):
    """Another process of the run is lost."""

    reason = "process_lost"


class CheckpointError(StudioError):
    """A checkpoint is missing, damaged or incompatible."""


class HubError(StudioError):
    """The Hub refused a request or is unreachable."""


def from_os_error(error: OSError) -> StudioError:
    """Converts an OSError with its path and message."""
    return StudioError(
        f"{error.filename or 'A file'} could not be read or written",
        expected="an existing path, access rights, and free disk space",
        received=error.strerror or str(error),
        fix="correct the cause, or choose another path",
    )


def _printable(text: str) -> str:
    if len(text) > _LONGEST_PART:
        half = _LONGEST_PART // 2
        text = f"{text[:half]} … {text[-half:]}"
    return escape_controls(text)


def escape_controls(text: str) -> str:
    """Escapes terminal control characters and lone surrogates; line ends stay."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."
