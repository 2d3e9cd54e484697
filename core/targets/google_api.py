"""Calls a REST API of Google Cloud with the user's application default credentials."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from core.errors import ConfigError
from core.network.outbound import check_url
from core.targets.errors import TargetError, UnavailableError

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_SECONDS = (10.0, 60.0)
_MOST_ANSWER_BYTES = 64 << 20
_LOGIN = "log in with: gcloud auth application-default login"


class GoogleError(TargetError):
    """Google refused a request.

    Attributes:
        code: HTTP status.
        status: Google's name of the error, such as NOT_FOUND.
        message: Google's words.
    """

    def __init__(self, code: int, status: str, message: str) -> None:
        self.code = code
        self.status = status
        self.message = message
        super().__init__(
            "Google Cloud refused the request",
            expected="an answer to a request that this account may make",
            received=f"{code} {status}: {message}"[:1000],
            fix=_advice(code, status, message),
            field="target",
        )


class GoogleApi:
    """A REST API; credentials are read at the first call.

    Args:
        endpoint: Its address, such as https://tpu.googleapis.com.
    """

    def __init__(self, endpoint: str) -> None:
        check_url(endpoint)
        self.endpoint = endpoint.rstrip("/")
        self._session: Any = None
        self._project = ""

    @property
    def project(self) -> str:
        """The project of the credentials or of gcloud's configuration; "" if there is none."""
        self._connect()
        return self._project

    def call(
        self, method: str, path: str, *, query: dict[str, str] | None = None, body: Any = None
    ) -> dict[str, Any]:
        """Makes a request and returns the JSON object of the answer.

        Raises:
            GoogleError: Google refused it.
            UnavailableError: Google can't be reached, or is overloaded; the request may have been
                carried out.
        """
        import requests
        from google.auth.exceptions import GoogleAuthError, TransportError

        session = self._connect()
        try:
            with session.request(
                method,
                f"{self.endpoint}/{quote(path)}",
                params=query,
                json=body,
                timeout=_SECONDS,
                allow_redirects=False,
                stream=True,
            ) as answer:
                code = int(answer.status_code)
                data = _read(answer)
        except (requests.RequestException, TransportError, OSError) as error:
            raise self._unavailable(f"{type(error).__name__}: {error}") from error
        except GoogleAuthError as error:
            if error.retryable:
                raise self._unavailable(str(error)) from error
            raise _bad_credentials(str(error)) from error
        values = _parse(data)
        if code == 200 and values is not None:
            return values
        error_values = (values or {}).get("error")
        described = error_values if isinstance(error_values, dict) else {}
        status, message = (str(described.get(name, "")) for name in ("status", "message"))
        is_overloaded = code == 429 and method != "POST"
        if code >= 500 or code in (200, 408) or code < 400 or is_overloaded:
            raise self._unavailable(f"{code} {status}: {message or 'no JSON'}")
        raise GoogleError(code, status, message or data[:200].decode("utf-8", "replace"))

    def _connect(self) -> Any:
        if self._session is not None:
            return self._session
        try:
            import google.auth
            from google.auth.exceptions import GoogleAuthError
            from google.auth.transport.requests import AuthorizedSession
        except ImportError as error:
            raise ConfigError(
                "Google's authentication library is missing",
                expected="the package google-auth",
                received=str(error),
                fix="install it: pip install -r requirements-cloud.txt -c constraints.txt",
                field="target",
            ) from error
        try:
            credentials, project = google.auth.default(scopes=[_SCOPE])
        except (GoogleAuthError, OSError, ValueError) as error:
            raise _bad_credentials(str(error)) from error
        self._project = project or ""
        self._session = AuthorizedSession(credentials)
        return self._session

    def _unavailable(self, received: str) -> UnavailableError:
        return UnavailableError(
            f"{self.endpoint} gives no answer",
            expected="an answer to a request",
            received=received[:500],
            fix="check the network; it is tried again",
        )


def _bad_credentials(received: str) -> TargetError:
    return TargetError(
        "There are no valid credentials for Google Cloud",
        expected="application default credentials",
        received=received[:500],
        fix=_LOGIN,
        field="target",
    )


def _read(answer: Any) -> bytes:
    """Reads an answer; too long a one is cut off, and is no JSON then."""
    data = bytearray()
    for chunk in answer.iter_content(1 << 16):
        data += chunk
        if len(data) > _MOST_ANSWER_BYTES:
            break
    return bytes(data)


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _advice(code: int, status: str, message: str) -> str:
    words = message.lower()
    if "quota" in words or status == "RESOURCE_EXHAUSTED":
        return (
            "ask for quota in the console (IAM & Admin, Quotas, tpu.googleapis.com), or take "
            "another zone, a smaller type, or spot=1, whose quota is counted apart"
        )
    if code == 401:
        return _LOGIN
    if code == 403 and ("has not been used" in words or "disabled" in words):
        return "enable the API: gcloud services enable tpu.googleapis.com"
    if code == 403:
        return (
            "check project and zone; the account needs the roles TPU Admin and Service Account User"
        )
    if code == 404:
        return "check project, zone and type"
    if code == 409:
        return "another request is being carried out: try again in a minute"
    return "check type, zone, runtime and network in the target's address"
