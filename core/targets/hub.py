"""Asks the Hugging Face Hub for buckets and jobs, with time limits, and explains its refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.errors import StudioError
from core.hub.client import LOG_IN, without_secrets
from core.messages.system_errors import is_disk_full
from core.network.http import limiting_hub_requests
from core.targets.errors import TargetError, UnavailableError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

OWNER = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
# The client tries most requests six times.
_SECONDS_PER_REQUEST = 20.0
_TEMPORARY = (408, 425, 429)
# hf_xet reports statuses in its texts only.
_STATUS = re.compile(r"HTTP status \w+ error \((\d{3})\b")
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Account:
    """The owner of the token.

    Attributes:
        names: The user's name and those of the organizations.
        can_write: True if the Hub doesn't say.
    """

    name: str
    names: frozenset[str]
    can_write: bool


def read_account(api: HfApi, problem: str) -> Account:
    """Asks for the token's owner; raises TargetError without a valid token."""
    from huggingface_hub import get_token

    if not get_token():
        raise TargetError(
            problem,
            expected="a token in HF_TOKEN, or the login of `hf auth login`",
            received="no token and no login",
            fix=LOG_IN,
        )
    with asking_hub(problem):
        answer = api.whoami()
        organizations = [str(organization["name"]) for organization in answer.get("orgs") or []]
        role = (answer.get("auth") or {}).get("accessToken", {}).get("role", "")
        name = str(answer["name"])
    return Account(name, frozenset([name, *organizations]), role != "read")


@contextmanager
def asking_hub(problem: str, *, subject: str = "resource") -> Iterator[None]:
    """Turns errors of the Hub's clients into TargetError, or UnavailableError if they may pass.

    Args:
        problem: The beginning of the message.
        subject: The resource that the requests name, such as "bucket".
    """
    try:
        with limiting_hub_requests(_SECONDS_PER_REQUEST):
            yield
    except StudioError:
        raise
    except Exception as error:  # hf_xet and the HTTP client have errors of their own.
        if is_disk_full(error):
            raise
        status = status_of(error)
        advice = None if status is None else _advice(status, subject)
        if advice is None:
            raise UnavailableError(
                problem,
                expected="an answer of the Hub",
                received=reason_of(error),
                fix="check the network and HF_ENDPOINT; it is tried again",
            ) from error
        expected, fix = advice
        raise TargetError(problem, expected=expected, received=reason_of(error), fix=fix) from error


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status behind an error; None if there was no answer."""
    response = getattr(error, "response", None)
    if response is not None:
        return int(response.status_code)
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def reason_of(error: BaseException) -> str:
    """Returns the Hub's words on one line, without secrets."""
    status, words = status_of(error), getattr(error, "server_message", None) or str(error)
    line = " ".join(without_secrets(str(words or type(error).__name__)).split())[:_LONGEST_REASON]
    return f"{status}: {line}" if status else line


def is_missing(error: BaseException, code: str = "") -> bool:
    """Checks for a 404, with the Hub's own error code if given."""
    response: Any = getattr(error, "response", None)
    if response is None or response.status_code != 404:
        return False
    return not code or response.headers.get("X-Error-Code") == code


def _advice(status: int, subject: str) -> tuple[str, str] | None:
    """Returns the expectation and the fix for a refusal; None if it may pass."""
    if status in _TEMPORARY or status >= 500:
        return None
    known = {
        401: ("a valid token of the Hub", f"check `hf auth whoami`; {LOG_IN}"),
        402: (
            "an account with enough credit",
            "add credit at https://huggingface.co/settings/billing, or use another namespace",
        ),
        403: (
            f"a token with write access to the {subject}'s owner",
            "use a namespace of your own, or a token with more rights: "
            "https://huggingface.co/settings/tokens",
        ),
        404: (
            f"a {subject} that exists and that your token can read",
            f"check the spelling, and `hf auth whoami`; {LOG_IN}",
        ),
    }
    return known.get(
        status, ("a request that the Hub accepts", "follow the Hub's words, or try again later")
    )
