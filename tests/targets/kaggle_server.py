"""A loopback Kaggle that answers the stock client (2.2) and runs each script kernel as a process.

The client always asks https://api.kaggle.com, so this is a proxy that ends the encryption with a
certificate of its own: `server.client_environment(folder)` returns what a client needs. A kernel
runs on this machine, without an accelerator and without an image, below a folder with `input` and
`working`. A request without a route gets a 501 and is kept in `unknown_requests`.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import shutil
import ssl
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.hub_server import Failure, read_body
from tests.targets.job_runner import Job, JobRunner

HOST = "api.kaggle.com"
_STATUSES = {
    "SCHEDULING": "QUEUED",
    "RUNNING": "RUNNING",
    "COMPLETED": "COMPLETE",
    "ERROR": "ERROR",
    "CANCELED": "CANCEL_ACKNOWLEDGED",
}


@dataclass
class Kernel:
    """A kernel with its one session.

    Attributes:
        request: What the client has sent.
        keeps_output: Whether the output survives the end of the session.
    """

    request: dict[str, Any]
    root: Path
    job: Job
    keeps_output: bool = True

    @property
    def output(self) -> Path:
        return self.root / "working"

    @property
    def status(self) -> str:
        return _STATUSES[self.job.stage]


@dataclass
class Dataset:
    request: dict[str, Any]
    files: dict[str, bytes] = field(repr=False)


class KaggleServer(JobRunner):
    """Serves one account on a free loopback port, until closed.

    Args:
        python: The interpreter of the kernels.

    Attributes:
        hours: Used and allowed hours of this week, by kind.
        kernels, datasets: Those that exist, by owner/name.
        pushed: Each kernel that was ever pushed.
        requests: Names of all requests so far.
        tokens: Access tokens that hold.
    """

    def __init__(self, user: str, key: str, extra_environment: dict[str, str]) -> None:
        super().__init__(extra_environment, scheduling_seconds=0.0)
        self.user, self._key = user, key
        self.hours = {"gpuQuota": [0.0, 30.0], "tpuQuota": [0.0, 20.0]}
        self.renewed = datetime.now(UTC) + timedelta(days=3)
        self.kernels: dict[str, Kernel] = {}
        self.datasets: dict[str, Dataset] = {}
        self.pushed: list[Kernel] = []
        self.tokens: set[str] = set()
        self.requests: list[str] = []
        self.unknown_requests: list[str] = []
        self._uploads: dict[str, tuple[str, bytes]] = {}
        self._failures: list[Failure] = []
        self._folder = Path(tempfile.mkdtemp(prefix="kaggle-server-"))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certificate = self._folder / "certificate.pem"
        self.certificate.write_bytes(_make_certificate())
        self._context.load_cert_chain(self.certificate)
        handler = type("Handler", (_Handler,), {"kaggle": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> KaggleServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.close_jobs()
        shutil.rmtree(self._folder, ignore_errors=True)

    def client_environment(self) -> dict[str, str]:
        """Variables that lead a client here, without a login."""
        return {
            "HTTPS_PROXY": self.url,
            "NO_PROXY": "127.0.0.1,localhost",
            "REQUESTS_CA_BUNDLE": str(self.certificate),
        }

    def fail(self, pattern: str, status: int, *, times: int = 1) -> None:
        """Makes the next matching requests fail; status 0 drops the connection."""
        self._failures.append(Failure(pattern, status, times, {}))

    def next_failure(self, request: str) -> Failure | None:
        for failure in self._failures:
            if failure.times and re.search(failure.pattern, request):
                failure.times -= 1
                return failure
        return None

    def is_allowed(self, authorization: str) -> bool:
        kind, _, value = authorization.partition(" ")
        if kind == "Bearer":
            return value in self.tokens
        return base64.b64decode(value).decode() == f"{self.user}:{self._key}"

    def cut(self, kernel: Kernel, *, keeps_output: bool) -> None:
        """Kills a session, as at the limit of its time."""
        kernel.keeps_output = keeps_output
        self.kill_job(kernel.job.id, "Your session exceeded the limit of its time")

    # What the requests do; each returns the body of the answer, or a status.

    def answer(self, name: str, values: dict[str, Any]) -> dict[str, Any] | int:
        method = getattr(self, f"_{name}", None)
        if method is None:
            self.unknown_requests.append(name)
            return 501
        result: dict[str, Any] | int = method(values)
        return result

    def _IntrospectToken(self, values: dict[str, Any]) -> dict[str, Any]:
        is_valid = values["token"] in self.tokens
        return {"active": is_valid, "username": self.user if is_valid else ""}

    def _GetAcceleratorQuotaStatistics(self, _: dict[str, Any]) -> dict[str, Any]:
        quotas = {
            name: {"timeUsed": f"{used * 3600:.0f}s", "totalTimeAllowed": f"{most * 3600:.0f}s"}
            for name, (used, most) in self.hours.items()
        }
        return {"quotaRefreshTime": f"{self.renewed:%Y-%m-%dT%H:%M:%S}.000Z", **quotas}

    def _StartBlobUpload(self, values: dict[str, Any]) -> dict[str, Any]:
        token = secrets.token_hex(8)
        self._uploads[token] = values["name"], b""
        return {"token": token, "createUrl": f"{self.url}/upload/{token}"}

    def store(self, token: str, data: bytes) -> None:
        self._uploads[token] = self._uploads[token][0], data

    def _GetDatasetStatus(self, values: dict[str, Any]) -> dict[str, Any] | int:
        name = f"{values['ownerSlug']}/{values['datasetSlug']}"
        return {"status": "READY"} if name in self.datasets else 403

    def _CreateDataset(self, values: dict[str, Any]) -> dict[str, Any]:
        name = f"{values['ownerSlug']}/{values['slug']}"
        if name in self.datasets:
            return {"status": "error", "error": "The requested title is already in use"}
        files = dict(self._uploads[file["token"]] for file in values["files"])
        self.datasets[name] = Dataset(values, files)
        return {"ref": name, "status": "ok"}

    def _DeleteDataset(self, values: dict[str, Any]) -> dict[str, Any] | int:
        name = f"{values['ownerSlug']}/{values['datasetSlug']}"
        return {} if self.datasets.pop(name, None) else 404

    def _SaveKernel(self, values: dict[str, Any]) -> dict[str, Any]:
        name = values["slug"]
        if name in self.kernels:
            return {"error": "The requested title is already in use by a notebook"}
        kind = f"{values.get('machineShape', '')[:3].lower().replace('nvi', 'gpu')}Quota"
        used, most = self.hours.get(kind, (0.0, 1.0))
        if used >= most:
            return {"error": "Your weekly quota is used up"}
        sources = values.get("datasetDataSources", [])
        if unknown := [source for source in sources if source not in self.datasets]:
            return {"ref": name, "invalidDatasetSources": unknown}
        root = self._folder / secrets.token_hex(4)
        (root / "working").mkdir(parents=True)
        for source in sources:
            folder = root / "input" / source.partition("/")[2]
            folder.mkdir(parents=True)
            for file, data in self.datasets[source].files.items():
                (folder / file).write_bytes(data)
        script = root / "script.py"
        script.write_text(values["text"])
        home = {"STUDIO_KAGGLE_ROOT": str(root), "STUDIO_MACHINE_HOME": str(root / "home")}
        job = self.launch(
            self.user,
            {
                "command": [sys.executable, "-I", str(script)],
                "environment": home,
                "timeoutSeconds": values["sessionTimeoutSeconds"],
            },
        )
        self.kernels[name] = kernel = Kernel(values, root, job)
        self.pushed.append(kernel)
        return {"ref": name, "url": f"https://www.kaggle.com/code/{name}", "versionNumber": 1}

    def _kernel(self, values: dict[str, Any]) -> Kernel | None:
        return self.kernels.get(f"{values['userName']}/{values['kernelSlug']}")

    def _GetKernelSessionStatus(self, values: dict[str, Any]) -> dict[str, Any] | int:
        kernel = self._kernel(values)
        if kernel is None:
            return 403
        return {"status": kernel.status, "failureMessage": kernel.job.message}

    def _ListKernels(self, values: dict[str, Any]) -> dict[str, Any]:
        names = [name for name in self.kernels if values.get("search", "") in name]
        return {"kernels": [{"ref": name, "slug": name.partition("/")[2]} for name in names]}

    def _ListKernelSessionOutput(self, values: dict[str, Any]) -> dict[str, Any] | int:
        kernel = self._kernel(values)
        if kernel is None:
            return 403
        has_output = kernel.job.ended and kernel.keeps_output
        paths = [path for path in kernel.output.rglob("*") if path.is_file()] if has_output else []
        names = [path.relative_to(kernel.output).as_posix() for path in paths]
        at = f"{self.url}/output/{values['userName']}/{values['kernelSlug']}"
        return {
            "files": [{"fileName": name, "url": f"{at}/{quote(name)}"} for name in names],
            "log": json.dumps(_events(kernel)),
        }

    def _DeleteKernel(self, values: dict[str, Any]) -> dict[str, Any] | int:
        kernel = self.kernels.pop(f"{values['userName']}/{values['kernelSlug']}", None)
        if kernel is None:
            return 404
        self.end(kernel.job, "CANCELED", None)
        return {}


def _events(kernel: Kernel) -> list[dict[str, Any]]:
    return [
        {"stream_name": "stdout", "time": at.timestamp(), "data": f"{line}\n"}
        for at, line in [*kernel.job.log]
    ]


def _make_certificate() -> bytes:
    """Makes a key and its certificate, which signs itself, for the client's host."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)


class _Handler(BaseHTTPRequestHandler):
    kaggle: KaggleServer
    protocol_version = "HTTP/1.1"

    def do_CONNECT(self) -> None:
        if not self.path.startswith(f"{HOST}:"):
            self.kaggle.unknown_requests.append(f"CONNECT {self.path}")
            self.send_error(502)
            return
        self.send_response(200)
        self.end_headers()
        self.connection = self.kaggle._context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def do_POST(self) -> None:
        name = urlsplit(self.path).path.rpartition("/")[2]
        values = json.loads(read_body(self) or b"{}")
        self.kaggle.requests.append(name)
        if self._is_refused(name):
            return
        answer = self.kaggle.answer(name, values)
        if isinstance(answer, int):
            self._send(answer, {"code": answer, "message": f"Permission '{name}' was denied"})
        else:
            self._send(200, answer)

    def do_GET(self) -> None:
        kind, _, rest = self.path.partition("/logs/stream/")
        if rest:
            self.kaggle.requests.append("StreamLogs")
            if not self._is_refused("StreamLogs"):
                self._stream(unquote(rest))
            return
        _, kind, owner, slug, name = unquote(self.path).split("/", 4)
        kernel = self.kaggle.kernels.get(f"{owner}/{slug}")
        if kind != "output" or kernel is None:
            self._send(404, {})
            return
        if failure := self.kaggle.next_failure("output"):
            self._send_bytes(failure.status, b"<html>Try again later</html>", "text/html")
            return
        self._send_bytes(200, (kernel.output / name).read_bytes(), "application/octet-stream")

    def do_PUT(self) -> None:
        self.kaggle.store(self.path.rpartition("/")[2], read_body(self))
        self._send(200, {})

    def _is_refused(self, name: str) -> bool:
        failure = self.kaggle.next_failure(name)
        if failure and not failure.status:
            self.close_connection = True
        elif failure:
            self._send(failure.status, {"code": failure.status, "message": "by the test"})
        elif name != "IntrospectToken" and not self.kaggle.is_allowed(
            self.headers.get("Authorization", "Bearer ")
        ):
            failure = Failure(name, 401, 1, {})
            self._send(401, {"code": 401, "message": "Unauthenticated"})
        return failure is not None

    def _stream(self, name: str) -> None:
        """Sends a running session's log as it grows, and an ended one's at once."""
        kernel = self.kaggle.kernels.get(name)
        if kernel is None:
            self._send(403, {})
            return
        if kernel.job.ended:
            self._send_bytes(200, json.dumps(_events(kernel)).encode(), "application/json")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        sent = 0
        try:
            while True:
                is_last = kernel.job.ended
                for event in _events(kernel)[sent:]:
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                    sent += 1
                if is_last:
                    self.wfile.write(b"data: END_OF_LOG\n\n")
                    return
                time.sleep(0.05)
        except OSError:
            return

    def _send(self, status: int, body: dict[str, Any]) -> None:
        self._send_bytes(status, json.dumps(body).encode(), "application/json")

    def _send_bytes(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
