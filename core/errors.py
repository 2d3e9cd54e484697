"""Errors that a user can act on."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Self

from core.messages.mentions import render
from core.messages.system_errors import advice_for

# A user's file may have megabytes of text.
_LONGEST_PART = 2_000
# Terminal escape sequences and lone surrogates.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_LABELS = {"problem": "", "expected": "Expected: ", "received": "Received: ", "fix": "What to do: "}


class StudioError(Exception):
    """A problem that a user can act on.

    Made while an error of the system is handled, such as a full disk, it says what helps against
    that: advice about the file that was open would not.

    Args:
        field: Config field that shows the error.
        marked: Parts in which mentions of options are marked, in place of the plain ones.
        knows_cause: Whether the advice holds for the system's error as well.

    Attributes:
        texts: The four parts, in which mentions of options are marked; the attributes of these
            names hold plain text.
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
        marked: Mapping[str, str] | None = None,
        knows_cause: bool = False,
    ) -> None:
        advice = advice_for(sys.exc_info()[1])
        self.is_passing = advice is not None and advice.is_passing
        if advice:
            self.reason = self.reason or advice.reason
            if not knows_cause:
                expected, received, fix = advice.expected, advice.received, advice.fix
        texts = {"problem": problem, "expected": expected, "received": received, "fix": fix}
        self.texts = {part: _printable(text) for part, text in (texts | dict(marked or {})).items()}
        self.problem, self.expected, self.received, self.fix = self.rendered(render).values()
        self.field = field
        self.knows_cause = knows_cause
        super().__init__(self.describe())

    @classmethod
    def like(cls, error: StudioError, **parts: str) -> Self:
        """Makes an error with the parts of another one, except for those given."""
        texts: dict[str, Any] = {**error.texts, "field": error.field, **parts}
        return cls(**texts, knows_cause=error.knows_cause)

    def to_dict(self) -> dict[str, Any]:
        """Returns the constructor's arguments, with parts that mention options also marked."""
        plain = self.rendered(render)
        marked = {part: text for part, text in self.texts.items() if text != plain[part]}
        return {**plain, "field": self.field, **({"marked": marked} if marked else {})}

    def rendered(self, show: Callable[[str], str]) -> dict[str, str]:
        """Returns the four parts as a reader of marked texts shows them."""
        return {part: show(text) for part, text in self.texts.items()}

    def describe(self, show: Callable[[str], str] = render) -> str:
        """Returns the message on one line."""
        texts = self.rendered(show).items()
        return " ".join(f"{_LABELS[part]}{_sentence(text)}" for part, text in texts if text)


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
