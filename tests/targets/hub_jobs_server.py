"""A loopback server for Hugging Face Jobs and storage buckets that runs each job as a process.

It answers the stock `huggingface_hub` 2.4 and `hf_xet` 1.8. A job executes on this machine, without
an image; volumes, exposed ports and retries are refused. A request without a route gets a 501 and
is kept in `unknown_requests`, which a test should find empty.

`HfApi(endpoint=server.url, token=...)` runs jobs and lists buckets without further settings. Pass
`namespace=` to `list_jobs`: without it the client asks HF_ENDPOINT. To upload or download, `hf_xet`
reads its settings when its first session in a process opens, and keeps the session. So run that
client in a process with these variables, which `server.client_environment(home)` returns:

    HF_XET_XORB_COMPRESSION_POLICY   none; required: the server refuses compressed chunks
    HF_HOME                          a new folder; required: hf_xet caches chunks and shards in it
    HF_ENDPOINT                      server.url; huggingface_hub reads it when it is imported
    HF_XET_CLIENT_SHARD_API_VERSION  1; saves requests that are answered with 404
    HF_XET_TELEMETRY_ENABLED, HF_HUB_DISABLE_TELEMETRY, HF_HUB_DISABLE_PROGRESS_BARS

Unset HF_HUB_OFFLINE and HF_HUB_DISABLE_XET. A job sees none of the caller's variables: give it the
same settings through `server.extra_environment`; its HOME is new, so it needs no HF_HOME.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_server import read_body
from tests.targets.job_runner import Job, JobRunner
from tests.targets.xet_store import XetStore

TOKEN_SECONDS = 3600
# A client that doesn't follow a log reads until it is silent for 5 seconds.
KEEP_ALIVE_SECONDS = 30

# Name, CPU cores, memory in GB, GPU model, number of GPUs, GPU memory in GB, USD per hour.
_FLAVORS = (
    ("cpu-basic", 2, 16, "", 0, 0, 0.01),
    ("cpu-upgrade", 8, 32, "", 0, 0, 0.03),
    ("l4x1", 8, 30, "L4", 1, 24, 0.80),
    ("a100-large", 12, 142, "A100", 1, 80, 2.50),
    ("h200x8", 184, 2048, "H200", 8, 1128, 40.0),
)


@dataclass
class BucketFile:
    xet_hash: str
    mtime: datetime
    uploaded_at: datetime


@dataclass
class Bucket:
    id: str
    private: bool
    created_at: datetime
    files: dict[str, BucketFile] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        return self.id.split("/")[0]


@dataclass(frozen=True)
class Request:
    """A received request; the token in its headers is redacted."""

    method: str
    path: str
    query: str
    headers: dict[str, str]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class Failure:
    """A failure for the next requests that match: before or after they are carried out."""

    pattern: str
    status: int
    message: str
    times: int = 1
    carried_out: bool = False


class JobServer(JobRunner):
    """Serves jobs and buckets on a free loopback port, until closed.

    Args:
        extra_environment: Variables that each job gets beside its own.
        scheduling_seconds: How long a job stays in SCHEDULING.

    Attributes:
        url: The endpoint.
        buckets: Buckets by owner/name.
        requests: All requests so far.
        unknown_requests: The requests that no route answers.
    """

    def __init__(
        self,
        *,
        extra_environment: dict[str, str] | None = None,
        scheduling_seconds: float = 0.0,
    ) -> None:
        super().__init__(extra_environment or {}, scheduling_seconds)
        self.buckets: dict[str, Bucket] = {}
        self.store = XetStore()
        self.requests: list[Request] = []
        self.unknown_requests: list[str] = []
        self.xet_tokens: dict[str, str] = {}
        self.download_key = secrets.token_hex(8)
        self._users: dict[str, tuple[str, str]] = {}
        self._failures: list[Failure] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> JobServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops serving and kills all jobs."""
        self._server.shutdown()
        self._server.server_close()
        self.close_jobs()

    def client_environment(self, home: str | os.PathLike[str]) -> dict[str, str]:
        """Returns the variables that a client process needs; `home` becomes its HF_HOME."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": os.fspath(home),
            "HF_XET_XORB_COMPRESSION_POLICY": "none",
            "HF_XET_CLIENT_SHARD_API_VERSION": "1",
            "HF_XET_TELEMETRY_ENABLED": "false",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }

    def add_user(self, name: str, token: str, role: str = "write") -> None:
        """Adds a user's token with the role `write` or `read`."""
        self._users[token] = (name, role)

    def user(self, token: str) -> tuple[str, str] | None:
        """Returns the name and the role that belong to a token."""
        return self._users.get(token)

    def fail(self, pattern: str, status: int, message: str = "on purpose", times: int = 1) -> None:
        """Refuses the next requests whose "METHOD /path" matches; status 0 hangs up on them."""
        self._failures.append(Failure(pattern, status, message, times))

    def refuse_next_launch(self, status: int, message: str) -> None:
        """Refuses the next job, e.g. with 402 for lack of credit."""
        self.fail(r"POST /api/jobs/[^/]+$", status, message)

    def lose_reply(self, pattern: str) -> None:
        """Carries out the next request that matches, then hangs up instead of a reply."""
        self._failures.append(Failure(pattern, 0, "", carried_out=True))

    def next_failure(self, request: str) -> Failure | None:
        with self.changed:
            for failure in self._failures:
                if failure.times and re.search(failure.pattern, request):
                    failure.times -= 1
                    return failure
        return None

    def count(self, pattern: str) -> int:
        """Returns the number of requests whose "METHOD /path" matches."""
        return sum(bool(re.search(pattern, str(request))) for request in self.requests)

    def files(self, bucket: str) -> dict[str, bytes]:
        """Returns the contents of a bucket's files by path."""
        files = dict(self.buckets[bucket].files)
        return {path: self.store.content(file.xet_hash) for path, file in files.items()}


class _Server(ThreadingHTTPServer):
    # hf_xet opens many connections at once.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    hub: JobServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._route()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""

    def _route(self) -> None:
        self._body = read_body(self)
        url = urlsplit(self.path)
        self._query = parse_qs(url.query)
        path = unquote(url.path)
        request = Request(self.command, path, url.query, _redacted(self.headers))
        self.hub.requests.append(request)
        self._token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        failure = self.hub.next_failure(str(request))
        self._silent = failure is not None and failure.status == 0
        if failure is not None and not failure.carried_out:
            self._refuse(failure.status, failure.message)
            return
        for methods, pattern, check, answer in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in methods.split():
                arguments = match.groupdict()
                subject = getattr(self, f"_check_{check}")(arguments)
                if subject is not None:
                    getattr(self, answer)(subject, **arguments)
                return
        self.hub.unknown_requests.append(f"{self.command} {self.path}")
        self._refuse(501, "no such route here")

    # Access. A check returns the subject of the request, or refuses it and returns None.

    def _check_user(self, arguments: dict[str, Any]) -> tuple[str, str] | None:
        user = self.hub.user(self._token)
        if user is None:
            self._refuse(
                401,
                "Invalid username or password.",
                {"X-Error-Message": "Invalid credentials in Authorization header"},
            )
        return user

    def _check_namespace(self, arguments: dict[str, Any]) -> str | None:
        user = self._check_user(arguments)
        if user is None:
            return None
        namespace = arguments.pop("namespace")
        # The client's name for its user's own namespace, for a bucket without one.
        if namespace == "me" and "name" in arguments:
            namespace = user[0]
        if namespace != user[0] or (self.command == "POST" and user[1] != "write"):
            self._refuse(403, f"You don't have the rights to do this under {namespace}")
            return None
        return namespace

    def _check_job(self, arguments: dict[str, Any]) -> Job | None:
        namespace, job_id = self._check_namespace(arguments), arguments.pop("id")
        if namespace is None:
            return None
        job = self.hub.jobs.get(job_id)
        if job is None or job.owner != namespace:
            self._refuse(404, "Job not found")
            return None
        return job

    def _check_reader(self, arguments: dict[str, Any]) -> Bucket | None:
        bucket = self.hub.buckets.get(arguments.pop("bucket"))
        if self._token and self._check_user(arguments) is None:
            return None
        if bucket is None or (bucket.private and not self._owns(bucket)):
            status = 404 if self._token else 401
            self._refuse(status, "Repository not found", {"X-Error-Code": "RepoNotFound"})
            return None
        return bucket

    def _check_writer(self, arguments: dict[str, Any]) -> Bucket | None:
        bucket = self._check_reader(arguments)
        if bucket is None or self._check_user(arguments) is None:
            return None
        if not self._owns(bucket) or self.hub.user(self._token) != (bucket.owner, "write"):
            self._refuse(403, f"You don't have the rights to write to {bucket.id}")
            return None
        return bucket

    def _check_xet_token(self, arguments: dict[str, Any]) -> str | None:
        kind = self.hub.xet_tokens.get(self._token)
        if kind is None or (self.command == "POST" and kind != "write"):
            self._refuse(401 if kind is None else 403, "invalid Xet token")
            return None
        return kind

    def _check_download_key(self, arguments: dict[str, Any]) -> str | None:
        if self._query.get("key") != [self.hub.download_key]:
            self._refuse(403, "invalid signature")
            return None
        return self.hub.download_key

    def _check_nothing(self, arguments: dict[str, Any]) -> bool:
        return True

    def _owns(self, bucket: Bucket) -> bool:
        user = self.hub.user(self._token)
        return user is not None and user[0] == bucket.owner

    # Jobs.

    def whoami(self, user: tuple[str, str]) -> None:
        token = {"displayName": "a token", "role": user[1]}
        answer = {
            "type": "user",
            "id": _user_id(user[0]),
            "name": user[0],
            "fullname": user[0].title(),
            "canPay": True,
            "orgs": [],
            "auth": {"type": "access_token", "accessToken": token},
        }
        self._send(200, answer)

    def hardware(self, subject: bool) -> None:
        self._send(200, [_hardware(*flavor) for flavor in _FLAVORS])

    def launch(self, owner: str) -> None:
        spec = json.loads(self._body)
        if error := _error_of_spec(spec):
            self._refuse(400, error)
            return
        self._send(200, _job_info(self.hub.launch(owner, spec)))

    def list_jobs(self, owner: str) -> None:
        stages = self._query.get("stage", [])
        labels = [label.partition("=")[::2] for label in self._query.get("label", [])]
        found = [
            _job_info(job)
            for job in reversed(list(self.hub.jobs.values()))
            if job.owner == owner
            and (not stages or job.stage in stages)
            and all(job.spec.get("labels", {}).get(key) == value for key, value in labels)
        ]
        self._send(200, found)

    def inspect(self, job: Job) -> None:
        self._send(200, _job_info(job))

    def cancel(self, job: Job) -> None:
        self.hub.end(job, "CANCELED", None)
        self._send(200, _job_info(job))

    def logs(self, job: Job) -> None:
        """Streams the log as server-sent events until the job ends."""
        sent = max(0, len(job.log) - int(self._query.get("tail", [len(job.log)])[0]))
        self.close_connection = True
        self._send_headers(200, {"Content-Type": "text/event-stream", "Connection": "close"})
        while True:
            lines = self._lines_after(job, sent)
            if not lines and job.ended:
                return
            events = [{"timestamp": _stamp(when), "data": line} for when, line in lines]
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
            self.wfile.write((text or ": keep-alive\n\n").encode())
            sent += len(lines)

    def _lines_after(self, job: Job, sent: int) -> list[tuple[datetime, str]]:
        """Waits for lines of the log, or its end."""
        with self.hub.changed:
            self.hub.changed.wait_for(lambda: len(job.log) > sent or job.ended, KEEP_ALIVE_SECONDS)
            return job.log[sent:]

    # Buckets.

    def create_bucket(self, owner: str, name: str) -> None:
        bucket = f"{owner}/{name}"
        answer = {"url": f"{self.hub.url}/buckets/{bucket}", "name": bucket}
        with self.hub.changed:
            if bucket in self.hub.buckets:
                self._send(409, {**answer, "error": "You already created this bucket"})
                return
            private = json.loads(self._body or b"{}").get("visibility") == "private"
            self.hub.buckets[bucket] = Bucket(bucket, private, _now())
        self._send(200, answer)

    def bucket_info(self, bucket: Bucket) -> None:
        files = list(bucket.files.values())
        answer = {
            "id": bucket.id,
            "private": bucket.private,
            "createdAt": _stamp(bucket.created_at),
            "size": sum(self.hub.store.size(file.xet_hash) for file in files),
            "totalFiles": len(files),
        }
        self._send(200, answer)

    def tree(self, bucket: Bucket, prefix: str | None) -> None:
        folder = f"{prefix.strip('/')}/" if prefix else ""
        recursive = self._query.get("recursive", ["false"])[0].lower() == "true"
        entries = {}
        for path, file in sorted(dict(bucket.files).items()):
            first, _, rest = path.removeprefix(folder).partition("/")
            if not path.startswith(folder):
                continue
            if rest and not recursive:
                name, when = folder + first, _stamp(file.uploaded_at)
                entries[name] = {"type": "directory", "path": name, "uploadedAt": when}
            else:
                entries[path] = self._entry(path, file)
        self._send(200, list(entries.values()))

    def paths_info(self, bucket: Bucket) -> None:
        paths = json.loads(self._body)["paths"]
        files = dict(bucket.files)
        self._send(200, [self._entry(path, files[path]) for path in paths if path in files])

    def _entry(self, path: str, file: BucketFile) -> dict[str, Any]:
        return {
            "type": "file",
            "path": path,
            "size": self.hub.store.size(file.xet_hash),
            "xetHash": file.xet_hash,
            "mtime": _stamp(file.mtime),
            "uploadedAt": _stamp(file.uploaded_at),
        }

    def batch(self, bucket: Bucket) -> None:
        operations = [json.loads(line) for line in self._body.splitlines() if line.strip()]
        failed = []
        for one in operations:
            path, xet_hash = one["path"], one.get("xetHash")
            with self.hub.changed:
                is_known = xet_hash in self.hub.store
                if one["type"] == "copyFile":
                    source = self.hub.buckets.get(one["sourceRepoId"])
                    is_known = one["sourceRepoType"] == "bucket" and source is bucket
                    is_known &= any(file.xet_hash == xet_hash for file in bucket.files.values())
                if one["type"] in ("addFile", "copyFile") and is_known:
                    mtime = datetime.fromtimestamp(one["mtime"] / 1000, UTC)
                    bucket.files[path] = BucketFile(xet_hash, mtime, _now())
                elif one["type"] == "deleteFile" and path in bucket.files:
                    del bucket.files[path]
                else:
                    failed.append({"path": path, "error": f"{one['type']} is not possible"})
        succeeded = len(operations) - len(failed)
        answer = {"success": not failed, "processed": len(operations), "succeeded": succeeded}
        self._send(422 if failed and not succeeded else 200, {**answer, "failed": failed})

    def resolve(self, bucket: Bucket, path: str) -> None:
        file = bucket.files.get(path)
        if file is None:
            self._refuse(404, "Entry not found", {"X-Error-Code": "EntryNotFound"})
            return
        content = self.hub.store.content(file.xet_hash)
        refresh = f"{self.hub.url}/api/buckets/{bucket.id}/xet-read-token"
        headers = {
            "ETag": f'"{file.xet_hash}"',
            "X-Xet-Hash": file.xet_hash,
            "X-Linked-Size": str(len(content)),
            "Link": f'<{refresh}>; rel="xet-auth"',
        }
        self._send_range(content, headers)

    def xet_read_token(self, bucket: Bucket) -> None:
        self._send_xet_token("read")

    def xet_write_token(self, bucket: Bucket) -> None:
        self._send_xet_token("write")

    def _send_xet_token(self, kind: str) -> None:
        token, expires = secrets.token_hex(16), int(time.time()) + TOKEN_SECONDS
        self.hub.xet_tokens[token] = kind
        headers = {
            "Content-Type": "application/json",
            "X-Xet-Cas-Url": self.hub.url,
            "X-Xet-Access-Token": token,
            "X-Xet-Token-Expiration": str(expires),
        }
        answer = {"casUrl": self.hub.url, "exp": expires, "accessToken": token}
        self._send(200, answer, headers)

    # The content-addressed store of hf_xet.

    def put_xorb(self, kind: str, hash: str) -> None:
        try:
            self.hub.store.add_xorb(hash, self._body)
        except ValueError as error:
            self._refuse(400, str(error))
            return
        self._send(200, {"was_inserted": True})

    def put_shard(self, kind: str) -> None:
        try:
            self.hub.store.add_shard(self._body)
        except ValueError as error:
            self._refuse(400, str(error))
            return
        self._send(200, {"result": 1})

    def reconstruction(self, kind: str, hash: str) -> None:
        if hash not in self.hub.store:
            self._refuse(404, "file not found")
            return
        wanted = _requested_range(self.headers.get("Range"), self.hub.store.size(hash))
        if not wanted:
            self._refuse(416, "the range begins after the end of the file")
            return
        url = f"{self.hub.url}/xorb-storage/{{hash}}?key={self.hub.download_key}"
        self._send(200, self.hub.store.reconstruct(hash, wanted, url))

    def get_xorb(self, key: str, hash: str) -> None:
        self._send_range(self.hub.store.xorb(hash), {})

    def not_offered(self, subject: bool) -> None:
        """Declines an optional API; hf_xet falls back to another."""
        self._refuse(404, "not offered")

    def nothing(self, subject: bool) -> None:
        """Answers a daily request of huggingface_hub."""
        self._send(200, {})

    # Replies.

    def _refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        text = message.encode("ascii", "replace").decode()
        headers = {"X-Error-Message": text, **(headers or {})}
        self._send(status, {"error": message}, {"Content-Type": "application/json", **headers})

    def _send_range(self, content: bytes, headers: dict[str, str]) -> None:
        headers = {**headers, "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        header = self.headers.get("Range") or ""
        wanted = _requested_range(header, len(content))
        if not _RANGE.fullmatch(header):
            self._send(200, content, headers)
        elif not wanted:
            self._send(416, b"", {**headers, "Content-Range": f"bytes */{len(content)}"})
        else:
            place = f"bytes {wanted.start}-{wanted.stop - 1}/{len(content)}"
            part = content[wanted.start : wanted.stop]
            self._send(206, part, {**headers, "Content-Range": place})

    def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        if self._silent:
            self.close_connection = True
            return
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = headers or {"Content-Type": "application/json"}
        self._send_headers(status, {**headers, "Content-Length": str(len(data))})
        if self.command != "HEAD":
            self.wfile.write(data)

    def _send_headers(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


_NAMESPACE = r"(?P<namespace>[\w.-]+)"
_JOB = rf"/api/jobs/{_NAMESPACE}/(?P<id>[0-9a-f]{{24}})"
_BUCKET = r"/api/buckets/(?P<bucket>[\w.-]+/[\w.-]+)"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_HASH = r"(?P<hash>[0-9a-f]{64})"
# Methods, path, check of access, answer.
_ROUTES = [
    ("GET", r"/api/whoami-v2", "user", "whoami"),
    ("GET", r"/api/jobs/hardware", "nothing", "hardware"),
    ("POST", rf"/api/jobs/{_NAMESPACE}", "namespace", "launch"),
    ("GET", rf"/api/jobs/{_NAMESPACE}", "namespace", "list_jobs"),
    ("GET", _JOB, "job", "inspect"),
    ("POST", rf"{_JOB}/cancel", "job", "cancel"),
    ("GET", rf"{_JOB}/logs", "job", "logs"),
    ("POST", rf"/api/buckets/{_NAMESPACE}/(?P<name>[\w.-]+)", "namespace", "create_bucket"),
    ("GET", _BUCKET, "reader", "bucket_info"),
    ("GET", rf"{_BUCKET}/tree(?:/(?P<prefix>.*))?", "reader", "tree"),
    ("POST", rf"{_BUCKET}/paths-info", "reader", "paths_info"),
    ("POST", rf"{_BUCKET}/batch", "writer", "batch"),
    ("GET", rf"{_BUCKET}/xet-read-token", "reader", "xet_read_token"),
    ("GET", rf"{_BUCKET}/xet-write-token", "writer", "xet_write_token"),
    ("GET HEAD", rf"{_BUCKET.removeprefix('/api')}/resolve/(?P<path>.+)", "reader", "resolve"),
    ("POST", rf"/v1/xorbs/default/{_HASH}", "xet_token", "put_xorb"),
    ("POST", r"/v1/shards", "xet_token", "put_shard"),
    ("GET", rf"/v1/reconstructions/{_HASH}", "xet_token", "reconstruction"),
    ("GET", rf"/xorb-storage/{_HASH}", "download_key", "get_xorb"),
    ("GET POST", r"/v1/(?:chunks|xorb-grants)/.*|/v2/.*", "nothing", "not_offered"),
    ("GET", r"/api/agent-harnesses", "nothing", "nothing"),
]


def _now() -> datetime:
    return datetime.now(UTC)


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"


def _redacted(headers: Message) -> dict[str, str]:
    hidden = {"authorization": "Bearer ***"}
    return {name.lower(): hidden.get(name.lower(), value) for name, value in headers.items()}


def _user_id(name: str) -> str:
    return name.encode().hex()[:24].ljust(24, "0")


def _hardware(
    name: str, cores: int, memory: int, model: str, gpus: int, gpu_memory: int, hourly_usd: float
) -> dict[str, Any]:
    micro_usd = round(hourly_usd / 60 * 1e6)
    gpu = {
        "type": "gpu",
        "model": model,
        "quantity": str(gpus),
        "vram": f"{gpu_memory} GB",
        "manufacturer": "Nvidia",
    }
    return {
        "name": name,
        "prettyName": f"{gpus}x Nvidia {model}" if gpus else name.replace("-", " ").title(),
        "cpu": f"{cores} vCPU",
        "ram": f"{memory} GB",
        "ephemeralStorage": "50 GB",
        "accelerator": gpu if gpus else None,
        "unitCostMicroUSD": micro_usd,
        "unitCostUSD": micro_usd / 1e6,
        "unitLabel": "minute",
    }


def _error_of_spec(spec: dict[str, Any]) -> str:
    """Returns the reason to refuse a job, or an empty string."""
    flavors = [flavor[0] for flavor in _FLAVORS]
    words = [word for label in spec.get("labels", {}).items() for word in label]
    if not spec.get("command"):
        return "command: expected a list with at least one string"
    if spec.get("flavor") not in flavors:
        return f"flavor: expected one of {flavors}. Received: {spec.get('flavor')}"
    if ("dockerImage" in spec) == ("spaceId" in spec):
        return "expected exactly one of dockerImage and spaceId"
    if any(not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", word) for word in words):
        return f"labels: expected letters, digits, - and _. Received: {spec['labels']}"
    if spec.get("attempts", 1) != 1 or set(spec) & {"volumes", "expose", "ssh", "network"}:
        return "this server runs a job once, without volumes, ports, ssh and networks"
    return ""


def _job_info(job: Job) -> dict[str, Any]:
    owner = {"id": _user_id(job.owner), "name": job.owner, "type": "user"}
    end = job.finished_at or _now()
    started = job.started_at
    durations = {
        "schedulingSecs": int((started - job.created_at).total_seconds()) if started else None,
        "runningSecs": int((end - started).total_seconds()) if started else None,
        "totalSecs": int((end - job.created_at).total_seconds()),
    }
    kept = ("command", "arguments", "environment", "flavor", "dockerImage", "spaceId", "labels")
    return {
        "id": job.id,
        "createdAt": _stamp(job.created_at),
        "startedAt": _stamp(started) if started else None,
        "finishedAt": _stamp(job.finished_at) if job.finished_at else None,
        **{key: job.spec[key] for key in kept if key in job.spec},
        "secrets": dict.fromkeys(job.spec.get("secrets", {}), ""),
        "status": {"stage": job.stage, "message": job.message},
        "durations": durations,
        "owner": owner,
        "initiator": owner,
    }


def _requested_range(header: str | None, size: int) -> range:
    """Returns the bytes that a Range header names, all without one."""
    match = _RANGE.fullmatch(header or "")
    if match is None:
        return range(size)
    return range(int(match[1]), min(int(match[2] or size) + 1, size))
