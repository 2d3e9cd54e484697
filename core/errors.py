"""The errors that a person can act on.

Every message says what failed, what was expected, what was received and what to do. The library
raises; the edges (the shell in `core.__main__`, the page in `ui.present`) translate.
"""

from __future__ import annotations

import re

# A text from somebody's file, such as a column's name, may be megabytes long.
_LONGEST_PART = 2_000
# Escape sequences that a terminal would obey, and halves of surrogate pairs, which aren't UTF-8.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class StudioError(Exception):
    """A problem that a person can act on.

    Args:
        problem: What failed, in one sentence.
        expected: What would have been right.
        received: What came instead.
        fix: What to do about it.
        field: The config field it concerns, so that the page can show it beside that field.
    """

    exit_code = 1
    # A word for the reason of a failed run, where the error has a name that people know.
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
    """The text can't be read, or there is none."""


class TokenizerError(StudioError):
    """A tokenizer can't be trained, loaded, or used for this purpose."""


class ShardError(StudioError):
    """Shards can't be written or read, or a record is damaged."""


class MissingDataError(ShardError):
    """A file of the shards is gone."""

    reason = "data_missing"


class DeviceError(StudioError):
    """The accelerator or engine that was asked for isn't there."""


class RunError(StudioError):
    """A run can't be started, found, stopped or resumed."""


class LossNotFiniteError(RunError):
    """The loss or a weight is no longer a finite number."""

    reason = "loss_not_finite"


class ProcessLostError(RunError):
    """Another process of the same run is gone, or can't be reached."""

    reason = "process_lost"


class CheckpointError(StudioError):
    """A checkpoint is missing, damaged, or doesn't fit."""


class HubError(StudioError):
    """The Hugging Face Hub refused, or can't be reached."""


def of_system(error: OSError) -> StudioError:
    """Returns what the operating system refused, with the path and the system's own words."""
    return StudioError(
        f"{error.filename or 'Something'} could not be read or written",
        expected="a path that is there, rights to it, and room on its disk",
        received=error.strerror or str(error),
        fix="mend that, or name another place",
    )


def _printable(text: str) -> str:
    """Returns a text that can be printed, stored and shown, cut in its middle if it is long."""
    if len(text) > _LONGEST_PART:
        half = _LONGEST_PART // 2
        text = f"{text[:half]} … {text[-half:]}"
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."
