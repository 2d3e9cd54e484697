"""Answers one request with Kaggle's own client, as a child process of `kaggle_target`.

The client has no limits of time, prints what it likes and may exit, so each request gets a process.
It is read as JSON from the standard input, and answered on the standard output. The client finds
its login where it always does; nothing of it is passed on or answered.

Source: https://github.com/Kaggle/kaggle-cli (2.2.4)
"""

from __future__ import annotations

import importlib
import json
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

LOGIN = 401
MISSING = 404
UNREACHABLE = 0
REFUSED = 400
# A script's log is streamed from its beginning while it runs: a reading ends after a silence, and
# after a time in which the lines so far have arrived.
_FIRST_LINE_SECONDS, _SILENCE_SECONDS, _READING_SECONDS = 8.0, 1.0, 12.0
_MOST_LOG_CHARACTERS = 32 << 20
_POLL_SECONDS = 2.0
_MOST_KERNELS = 100
# A download may take so long, besides the time that its size takes.
_LEAST_SECONDS, _SLOWEST_BYTES_PER_SECOND = 600, 100_000
_ENDED = ("COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED")


class _NotLoggedInError(Exception):
    """The client found no login, or none that holds."""


class _SilenceError(Exception):
    """A log gives nothing more for now."""


def main() -> int:
    request = json.load(sys.stdin)
    answer_to, sys.stdout = sys.stdout, sys.stderr
    try:
        answer = {"answer": _REQUESTS[request["name"]](_log_in(), **request["values"])}
    except _NotLoggedInError:
        answer = {"status": LOGIN, "problem": "no login, or one that isn't valid any more"}
    except Exception as error:  # noqa: BLE001 -- the client raises whatever its parts do
        answer = {"status": _status_of(error), "problem": str(error)[:600]}
    json.dump(answer, answer_to)
    return 0


def _log_in() -> Any:
    api = importlib.import_module("kaggle").api
    if not getattr(api, "_authenticated", False):
        try:
            api.authenticate()
        except SystemExit as error:
            raise _NotLoggedInError from error
    return api


def _status_of(error: BaseException) -> int:
    """Returns an HTTP status; UNREACHABLE without an answer, REFUSED for the client's errors."""
    for cause in (error, error.__context__):
        response = getattr(cause, "response", None)
        if response is not None:
            return int(response.status_code)
    return UNREACHABLE if isinstance(error, OSError) else REFUSED


def _user(api: Any) -> str:
    return str(api.get_config_value("username") or "")


def _read_account(api: Any) -> dict[str, Any]:
    """Reads the user's name, the hours used and allowed per week, and when they are renewed."""
    response = api.quota_view()
    quotas = {"GPU": response.gpu_quota, "TPU": response.tpu_quota}
    return {
        "user": _user(api),
        "renewed": str(response.quota_refresh_time or "")[:16],
        "hours": {
            name: [
                time.total_seconds() / 3600 if time else 0.0
                for time in (quota.time_used, quota.total_time_allowed)
            ]
            for name, quota in quotas.items()
            if quota
        },
    }


def _upload(api: Any, folder: str, slug: str) -> str:
    """Makes a private dataset of a folder's files; one of this name has the same content.

    Returns when kernels can use it.
    """
    dataset = f"{_user(api)}/{slug}"
    metadata = {"id": dataset, "title": slug, "licenses": [{"name": "other"}]}
    Path(folder, "dataset-metadata.json").write_text(json.dumps(metadata))
    if not _dataset_status(api, dataset):
        response = api.dataset_create_new(folder, quiet=True, convert_to_csv=False)
        if response.error:
            raise ValueError(response.error)
    while (status := _dataset_status(api, dataset)) != "ready":
        if status == "failed":
            raise ValueError(f"the dataset {dataset} has the status {status}; delete it")
        time.sleep(_POLL_SECONDS)
    return dataset


def _dataset_status(api: Any, dataset: str) -> str:
    """Returns "" for a missing dataset, which Kaggle also calls forbidden."""
    try:
        status = str(api.dataset_status(dataset))
        return "" if status == "deleted" else status
    except Exception as error:
        if _status_of(error) in (403, MISSING):
            return ""
        raise


def _push(
    api: Any, folder: str, slug: str, datasets: list[str], accelerator: str, limit: int
) -> str:
    """Starts a session of a private script; returns the kernel's name."""
    kernel = f"{_user(api)}/{slug}"
    metadata = {
        "id": kernel,
        "title": slug,
        "code_file": "script.py",
        "language": "python",
        "kernel_type": "script",
        "is_private": True,
        "enable_gpu": accelerator.startswith("Nvidia"),
        "enable_tpu": accelerator.startswith("Tpu"),
        "enable_internet": True,
        "dataset_sources": datasets,
        # No docker_image: with a pinned one Kaggle silently computes on a CPU (kaggle-cli #1197).
    }
    Path(folder, "kernel-metadata.json").write_text(json.dumps(metadata))
    response = api.kernels_push(folder, str(limit), accelerator or None)
    if response.error:
        raise ValueError(response.error)
    if response.invalid_dataset_sources:
        api.kernels_delete(kernel, no_confirm=True)
        raise ValueError(f"Kaggle can't use {', '.join(response.invalid_dataset_sources)}")
    return kernel


def _find(api: Any, slug: str) -> str | None:
    kernel = f"{_user(api)}/{slug}"
    return kernel if _kernel_status(api, kernel) else None


def _look(api: Any, kernel: str) -> dict[str, str] | None:
    """Returns a session's status, message and log; None for a missing kernel."""
    response = _kernel_status(api, kernel)
    if response is None:
        return None
    status = response.status.name
    has_log = status not in ("QUEUED", "NEW_SCRIPT")
    return {
        "status": status,
        "message": str(response.failure_message or "")[:300],
        "log": _read_log(api, kernel, is_live=status not in _ENDED) if has_log else "",
    }


def _kernel_status(api: Any, kernel: str) -> Any:
    """Returns None for a missing kernel, which Kaggle also calls forbidden."""
    try:
        return api.kernels_status(kernel)
    except Exception as error:
        if _status_of(error) in (403, MISSING) and kernel not in _own_kernels(api, kernel):
            return None
        raise


def _own_kernels(api: Any, name: str) -> list[str]:
    search = name.rpartition("/")[2]
    kernels = api.kernels_list(mine=True, search=search, page_size=_MOST_KERNELS, sort_by="dateRun")
    return [str(kernel.ref).removeprefix("/code/") for kernel in kernels or ()]


def _read_log(api: Any, kernel: str, *, is_live: bool) -> str:
    def end(*_: object) -> None:
        raise _SilenceError

    parts: list[str] = []
    end_at = time.monotonic() + _READING_SECONDS
    signal.signal(signal.SIGALRM, end)
    with suppress(_SilenceError):
        signal.setitimer(signal.ITIMER_REAL, _FIRST_LINE_SECONDS if is_live else 0)
        for event in api.kernels_logs_stream(kernel):
            text = str(event.get("data") or "")
            parts.append(text if text.endswith("\n") else f"{text}\n")
            signal.setitimer(signal.ITIMER_REAL, _SILENCE_SECONDS if is_live else 0)
            if is_live and time.monotonic() > end_at:
                break
    signal.setitimer(signal.ITIMER_REAL, 0)
    return _cut("".join(parts))


def _cut(text: str, most: int = _MOST_LOG_CHARACTERS) -> str:
    """Empties the lines before a log's end, so that each line keeps its number."""
    dropped = max(0, len(text) - most)
    return "\n" * text.count("\n", 0, dropped) + text[dropped:]


def _fetch(api: Any, kernel: str, folder: str, pattern: str, most_bytes: int) -> None:
    """Downloads a session's output, of at most so many bytes.

    The client would save the page of an error as the output, and wait for any time.
    """
    requests: Any = importlib.import_module("requests")
    get = requests.get

    def end(*_: object) -> None:
        raise TimeoutError("the download takes too long")

    def get_checked(*arguments: Any, **values: Any) -> Any:
        response = get(*arguments, **values)
        response.raise_for_status()
        size = int(response.headers.get("Content-Length") or 0)
        if size > most_bytes:
            raise ValueError(f"an output of {size:,} bytes; at most {most_bytes:,} are copied")
        signal.alarm(_LEAST_SECONDS + size // _SLOWEST_BYTES_PER_SECOND)
        return response

    signal.signal(signal.SIGALRM, end)
    signal.alarm(_LEAST_SECONDS)
    requests.get = get_checked
    try:
        api.kernels_output(kernel, folder, file_pattern=pattern, force=True)
    finally:
        requests.get = get
        signal.alarm(0)


def _delete(api: Any, kernel: str, is_kept: bool) -> None:
    """Deletes a kernel, which ends its session, and the dataset of its name, unless they are gone.

    The client can't cancel a session: Kaggle tells nobody the session's id (kaggle-cli #1174).
    """
    if not is_kept and _kernel_status(api, kernel):
        api.kernels_delete(kernel, no_confirm=True)
    if _dataset_status(api, kernel):
        api.dataset_delete(*kernel.split("/"), no_confirm=True)


def _list_active(api: Any, prefix: str, pattern: str) -> dict[str, str]:
    """Returns the status of each own kernel of this pattern that has not ended, by name."""
    kernels = [
        name for name in _own_kernels(api, prefix) if re.fullmatch(pattern, name.partition("/")[2])
    ]
    statuses = {name: _kernel_status(api, name) for name in kernels}
    return {
        name: response.status.name
        for name, response in statuses.items()
        if response and response.status.name not in _ENDED
    }


_REQUESTS: dict[str, Callable[..., Any]] = {
    "account": _read_account,
    "upload": _upload,
    "push": _push,
    "find": _find,
    "look": _look,
    "fetch": _fetch,
    "delete": _delete,
    "list": _list_active,
}


if __name__ == "__main__":
    sys.exit(main())
