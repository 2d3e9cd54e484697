"""A host of a Cloud TPU node: its metadata server, and the processes of its startup script.

Source: https://cloud.google.com/compute/docs/metadata/overview
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import psutil

from tests.core.shards.bucket import BucketServer, QuietServer

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_KILLED_WITHIN_SECONDS = 20


class Host:
    """A machine of a node: a metadata server and the processes that its startup script starts.

    Attributes:
        address: host:port of the metadata server.
        folder: Holds the script, its output and its home.
        token: The access token that the metadata server gives.
    """

    def __init__(self, folder: Path, values: Mapping[str, str], server: BucketServer) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.values = values
        self.server = server
        self.token = f"token-of-{values['instance/name']}-{uuid4().hex}"
        handler = type("Handler", (_MetadataHandler,), {"host": self})
        self._server = QuietServer(("127.0.0.1", 0), handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def output(self) -> str:
        """Output of the startup script: stdout and stderr."""
        path = self.folder / "output"
        return path.read_text("utf-8", errors="replace") if path.exists() else ""

    @property
    def exit_code(self) -> int | None:
        """Exit code of the startup script, or minus the signal that ended it; None before."""
        if self._process is None or self._process.returncode is not None:
            return self._process and self._process.returncode
        # Until the host shuts down, the script keeps its process id: others are found by it.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        ended = os.waitid(os.P_PID, self._process.pid, flags)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def boot(self, extra_environment: Mapping[str, str]) -> None:
        """Starts the startup script, if there is one."""
        script = self.values.get("instance/attributes/startup-script")
        if script is None:
            return
        (self.folder / "startup-script").write_text(script, "utf-8")
        extra = {
            name: value.replace("{metadata_host}", self.address)
            for name, value in extra_environment.items()
        }
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "GCE_METADATA_HOST": self.address,
        }
        with (self.folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                ["bash", str(self.folder / "startup-script")],
                cwd=self.home,
                env=environment | extra,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Lists the processes that run here, also those that left the script's session."""
        found: dict[int, psutil.Process] = {}
        if self._process is None or self._process.returncode is not None:
            return []
        for process in psutil.process_iter(["ppid", "environ", "cwd", "status"]):
            info = process.info
            mine = (
                info["ppid"] in found
                or _session(process.pid) == self._process.pid
                or (info["environ"] or {}).get("GCE_METADATA_HOST") == self.address
                or Path(info["cwd"] or "/").is_relative_to(self.folder)
            )
            if mine and info["status"] not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found[process.pid] = process
        return list(found.values())

    def shut_down(self) -> None:
        """Kills all processes and stops the metadata server."""
        deadline = time.monotonic() + _KILLED_WITHIN_SECONDS
        while alive := self.processes():
            assert time.monotonic() < deadline, f"not killed: {alive}"
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.01)
        if self._process:
            self._process.wait()
        self._server.shutdown()
        self._server.server_close()


def _session(pid: int) -> int:
    with suppress(ProcessLookupError):
        return os.getsid(pid)
    return 0


class _MetadataHandler(BaseHTTPRequestHandler):
    """Answers requests for a host's metadata."""

    host: Host
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.host.server.requests.append(f"GET {parts.path}")
        path = parts.path.removeprefix("/computeMetadata/v1/")
        recursive = parse_qs(parts.query).get("recursive") == ["true"]
        values = self.host.values
        children = {
            name.removeprefix(path): value
            for name, value in values.items()
            if path.endswith("/") and name.startswith(path)
        }
        if parts.path == "/":
            self._answer(200, "computeMetadata/\n")
        elif self.headers.get("Metadata-Flavor") != "Google":
            self._answer(403, "Missing Metadata-Flavor:Google header.\n")
        elif path == "instance/service-accounts/default/token":
            self._answer_json(
                {"access_token": self.host.token, "expires_in": 3599, "token_type": "Bearer"}
            )
        elif path == "instance/service-accounts/default/" and recursive:
            self._answer_json(
                {"aliases": ["default"], "email": children["email"], "scopes": [SCOPE]}
            )
        elif path in values:
            self._answer(200, values[path])
        elif children and recursive:
            self._answer_json(children)
        elif children:
            self._answer(200, "\n".join(children))
        else:
            if not path.startswith("instance/attributes/"):
                self.host.server.unknown_requests.append(f"GET {parts.path}")
            self._answer(404, "Not Found\n")

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""

    def _answer_json(self, value: dict[str, Any]) -> None:
        self._answer(200, json.dumps(value), "application/json")

    def _answer(self, status: int, text: str, kind: str = "application/text") -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
