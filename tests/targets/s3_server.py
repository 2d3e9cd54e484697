"""Runs moto's server for Amazon S3 in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.ports import free_port

BUCKET = "bucket"
_SECONDS = 60
_SERVE = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
application = DomainDispatcherApplication(create_backend_app)
run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)
"""


@contextmanager
def s3_server() -> Iterator[str]:
    """Yields the URL of a server with one empty bucket."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _create_bucket(f"{url}/{BUCKET}")
        yield url
    finally:
        server.terminate()
        server.wait()


def use_s3(url: str, patch: pytest.MonkeyPatch) -> None:
    """Lets S3's client connect to the server, with credentials of no account."""
    for name in [one for one in os.environ if one.startswith("AWS_")]:
        patch.delenv(name)
    patch.setenv("AWS_ENDPOINT_URL_S3", url)
    patch.setenv("AWS_ACCESS_KEY_ID", "test")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def _create_bucket(address: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            urlopen(Request(address, method="PUT"), timeout=5).close()
            return
        except (URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
