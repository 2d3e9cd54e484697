"""Wraps the Hub client: authentication, retries and error messages."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from core.errors import HubError, StudioError
from core.messages.redaction import HIDDEN, redact
from core.messages.system_errors import is_disk_full
from core.network.hub import guard_hub
from core.network.hub_ids import flaw_of_hub_id
from core.records.events import RunStopped

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")

LOG_IN = "create a token with write access at https://huggingface.co/settings/tokens, then run "
LOG_IN += "`hf auth login`, or set HF_TOKEN"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*")
# huggingface_hub retries all others itself.
_ASKED_ONCE = re.compile(
    r"/api/(whoami-v2|repos/create|validate-yaml)|/commit/|/variables|/branch/|/settings$"
)
# Not retried offline, where the cache is used.
_LOOKED_UP = re.compile(r"/api/models/.*/revision/")
_TRANSIENT = (429, 500, 502, 503, 504)
_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 60.0
# Signed storage URLs grant access.
_URL = re.compile(r"https?://[^\s'\"]+")
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Account:
    """The token's owner; `can_write` is True if unknown."""

    name: str
    can_write: bool


def connect() -> HfApi:
    """Returns a quiet Hub client."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    guard_hub()
    for name in ("huggingface_hub.utils._http", "huggingface_hub.hf_api"):
        logger = logging.getLogger(name)
        if _blot_out not in logger.filters:
            logger.addFilter(_blot_out)
    # huggingface_hub reads HF_ENDPOINT only at import.
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)


def is_signed_in() -> bool:
    """Returns whether a token exists, offline."""
    from huggingface_hub import get_token

    return bool(get_token())


def sign_in(attempts: int = _ATTEMPTS) -> Account:
    """Returns the token's account; raises HubError."""
    if not is_signed_in():
        raise HubError(
            "You are not signed in to the Hugging Face Hub",
            expected="a token in HF_TOKEN, or the login of `hf auth login`",
            received="no token and no login",
            fix=LOG_IN,
        )
    problem = "The Hub didn't identify the owner of the token"
    answer = ask(problem, connect().whoami, attempts=attempts)
    with explaining(problem):
        role = answer.get("auth", {}).get("accessToken", {}).get("role", "")
        return Account(str(answer["name"]), role != "read")


def parse_hub_id(reference: str) -> tuple[str, str] | None:
    """Splits `owner/name[@revision]`; None if invalid."""
    name, _, revision = reference.partition("@")
    if not _HUB_ID.fullmatch(name) or ("@" in reference and not _REVISION.fullmatch(revision)):
        return None
    if flaw_of_hub_id(name):
        return None
    return name, revision or "main"


def hub_id(name: str, branch: str = "") -> str:
    """Formats an id for `parse_hub_id`."""
    return f"{name}@{branch}" if branch else name


def ask(
    what: str,
    call: Callable[..., T],
    *arguments: Any,
    field: str = "",
    attempts: int = _ATTEMPTS,
    **named: Any,
) -> T:
    """Calls a client method with retries; raises HubError.

    Args:
        what: Beginning of the error message.
    """
    for attempt in range(attempts):
        try:
            with explaining(what, field=field):
                return call(*arguments, **named)
        except HubError as error:
            pause = _pause_seconds(error.__cause__, attempt)
            if pause is None or attempt + 1 == attempts:
                raise
            time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def explaining(what: str, *, field: str = "") -> Iterator[None]:
    """Converts the Hub client's exceptions into HubError."""
    from huggingface_hub.errors import HfHubHTTPError

    # Depends on huggingface_hub's version.
    client_error: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        yield
    except (StudioError, RunStopped):
        raise
    except (OSError, ValueError, RuntimeError, client_error, *_NO_ANSWER) as error:
        if is_disk_full(error):
            raise
        raise _explained(what, error, field) from error


def without_secrets(text: str) -> str:
    """Redacts secrets and URL signatures."""
    from huggingface_hub import get_token

    token = get_token()
    hidden = text.replace(token, HIDDEN) if token else text
    return redact(_URL.sub(lambda url_match: url_match[0].partition("?")[0], hidden))


def _explained(what: str, error: Exception, field: str) -> HubError:
    root = _root(error)
    status = _status(root)
    expected, fix = _advice(root, status)
    return HubError(what, expected=expected, received=_reason(root, status), fix=fix, field=field)


def _advice(error: BaseException, status: int | None) -> tuple[str, str]:
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalTokenNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, _NO_ANSWER):
        return "a valid answer of the Hub", "check HF_ENDPOINT, or try again later"
    if isinstance(error, LocalTokenNotFoundError):
        return "a login to the Hub", LOG_IN
    if isinstance(error, GatedRepoError):
        page = "request access on the repository's page, then sign in: hf auth login"
        return "a repository that your login can access", page
    if isinstance(error, RevisionNotFoundError):
        return "an existing branch, tag or commit", "check the revision after the @"
    if status is None and isinstance(error, ValueError) and not isinstance(error, OSError):
        return "a request that the Hub accepts", "correct the value that the Hub names"
    known = {
        400: ("a request that the Hub accepts", "correct the value that the Hub names"),
        401: ("a valid token with read access to the repository", _CHECK_TOKEN),
        402: (
            "an account with this feature",
            "read the requirements on the page that the Hub names",
        ),
        403: ("a token with write access to the repository", _CHECK_RIGHTS),
        404: ("an existing repository that your token can read", _CHECK_NAME),
        409: ("a repository without other changes in progress", "wait a moment, then try again"),
        429: ("fewer requests than the Hub's rate limit", "wait a few minutes, then try again"),
    }
    if status in known:
        return known[status]
    if status is not None and status >= 500:
        return "a working Hub", "try again later; see https://status.huggingface.co"
    return (
        "a connection to the Hub (or to HF_ENDPOINT)",
        "check that this machine is online, then try again",
    )


# The Hub's client raises these for unexpected answers.
_NO_ANSWER = (TypeError, KeyError, IndexError, AttributeError, AssertionError)
_CHECK_TOKEN = f"check whether the token has expired (`hf auth whoami`); if so, {LOG_IN}"
_CHECK_RIGHTS = (
    "choose a repository of your own (an id without an owner is yours), or use a token with "
    "write access to this one"
)
_CHECK_NAME = "check the spelling; for a private repository, sign in first: hf auth login"


def _root(error: BaseException) -> BaseException:
    from huggingface_hub.errors import LocalEntryNotFoundError

    wrapped = isinstance(error, LocalEntryNotFoundError) or type(error) is RuntimeError
    return error.__cause__ if wrapped and error.__cause__ is not None else error


def _status(error: BaseException | None) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _reason(error: BaseException, status: int | None) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, _NO_ANSWER):
        return f"an invalid answer ({type(error).__name__}: {str(error)[:100]})"
    words = getattr(error, "server_message", None) or str(error) or type(error).__name__
    if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
        words = "no such repository, or no access with your token"
    line = " ".join(without_secrets(str(words)).split())
    if len(line) > _LONGEST_REASON:
        line = line[:_LONGEST_REASON] + "…"
    if status:
        return f"{status}: {line}"
    return f"the Hub can't be reached ({line})" if _is_unreachable(error) else line


def _address(error: BaseException | None) -> str:
    response = getattr(error, "response", None)
    try:
        request = response.request if response is not None else getattr(error, "request", None)
    except RuntimeError:  # Raised by errors without a request.
        return ""
    return str(getattr(request, "url", ""))


def _is_unreachable(error: BaseException) -> bool:
    from huggingface_hub.errors import HfHubHTTPError

    return isinstance(error, (HfHubHTTPError.__bases__[0], ConnectionError))


def _pause_seconds(error: BaseException | None, attempt: int) -> float | None:
    """Returns the pause before a retry; None: don't retry."""
    from huggingface_hub.errors import HfHubHTTPError

    root = _root(error) if error else None
    address = _address(root)
    answered = isinstance(root, HfHubHTTPError)
    if not _ASKED_ONCE.search(address) and not (answered and _LOOKED_UP.search(address)):
        return None
    if answered and _status(root) not in _TRANSIENT:
        return None
    pause = _FIRST_PAUSE_SECONDS * 2**attempt
    response = getattr(root, "response", None)
    retry_after = response.headers.get("Retry-After", "") if response is not None else ""
    return min(float(retry_after) if retry_after.isdecimal() else pause, _LONGEST_PAUSE_SECONDS)


def _blot_out(record: logging.LogRecord) -> bool:
    record.msg, record.args = without_secrets(record.getMessage()), ()
    return True
