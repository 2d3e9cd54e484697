"""A small server that speaks the part of the Hugging Face Hub's HTTP that reading needs.

The stock clients talk to it (`HF_ENDPOINT`). It answers only the routes that are written here;
whatever else is asked for is noted in `unknown_requests`, which a test should find empty. The Xet
route isn't spoken: set `HF_HUB_DISABLE_XET=1`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Repository:
    """A repository of files.

    Attributes:
        kind: models or datasets.
        name: owner/name.
        files: Contents by path.
        gated: Whether its files are for those who were granted access.
    """

    kind: str
    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    gated: bool = False

    @property
    def sha(self) -> str:
        digest = sha1(self.name.encode())
        for path, content in sorted(self.files.items()):
            digest.update(path.encode() + b"\0" + content)
        return digest.hexdigest()


class HubServer:
    """Serves repositories on a free local port, until closed.

    Attributes:
        url: What to set HF_ENDPOINT to.
        requests: Method and path of each request so far.
        unknown_requests: Those that no route answers.
    """

    def __init__(self) -> None:
        self._repositories: dict[tuple[str, str], Repository] = {}
        self._renamed: dict[tuple[str, str], str] = {}
        self.requests: list[str] = []
        self.unknown_requests: list[str] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(
        self, kind: str, name: str, files: dict[str, bytes], *, gated: bool = False
    ) -> Repository:
        """Adds a repository of models or datasets."""
        repository = Repository(kind, name, files, gated)
        self._repositories[kind, name] = repository
        return repository

    def rename(self, kind: str, old: str, new: str) -> None:
        """Answers an old name with a redirection, as the Hub does after a move."""
        self._renamed[kind, old] = new

    def find(self, kind: str, name: str) -> Repository | None:
        return self._repositories.get((kind, name))

    def new_name(self, kind: str, name: str) -> str | None:
        return self._renamed.get((kind, name))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._route()

    def do_HEAD(self) -> None:
        self._route()

    def do_POST(self) -> None:
        self._route()

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps quiet."""

    def _route(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self._body = self.rfile.read(length)
        url = urlsplit(self.path)
        self._query = parse_qs(url.query)
        path = unquote(url.path)
        self.hub.requests.append(f"{self.command} {path}")
        for method, pattern, answer in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in method:
                self._answer_for_repository(answer, **match.groupdict())
                return
        if path == "/api/agent-harnesses":  # asked by huggingface_hub itself, once a day
            self._send(200, {})
            return
        self.hub.unknown_requests.append(f"{self.command} {self.path}")
        self._send(501, {"error": "no such route here"})

    def _answer_for_repository(
        self, answer: Callable[..., None], kind: str | None, name: str, **rest: str | None
    ) -> None:
        kind = (kind or "models").rstrip("/")
        if new_name := self.hub.new_name(kind, name):
            location = self.path.replace(f"/{name}", f"/{new_name}", 1)
            self._send(307, b"", {"Location": location})
            return
        repository = self.hub.find(kind, name)
        if repository is None:
            self._refuse(401 if kind == "datasets" else 404, "RepoNotFound")
        elif rest.get("revision") not in (None, "main", repository.sha):
            self._refuse(404, "RevisionNotFound")
        else:
            rest.pop("revision", None)
            answer(self, repository, **rest)

    def info(self, repository: Repository) -> None:
        siblings = [{"rfilename": path} for path in sorted(repository.files)]
        self._send(
            200,
            {
                "_id": "0" * 24,
                "id": repository.name,
                "sha": repository.sha,
                "siblings": siblings,
                "private": False,
                "gated": "manual" if repository.gated else False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "lastModified": "2025-01-01T00:00:00.000Z",
            },
        )

    def tree(self, repository: Repository, path: str | None = None) -> None:
        folder = f"{path.strip('/')}/" if path and path.strip("/") else ""
        inside = [name for name in sorted(repository.files) if name.startswith(folder)]
        recursive = self._query.get("recursive", ["false"])[0].lower() == "true"
        entries = {}
        for name in inside:
            first, _, more = name[len(folder) :].partition("/")
            if more and not recursive:
                entries[first] = _folder_entry(folder + first)
            else:
                entries[name] = _file_entry(repository, name)
        if folder and not inside:
            self._refuse(404, "EntryNotFound")
            return
        self._send(200, list(entries.values()))

    def paths_info(self, repository: Repository) -> None:
        if "json" in self.headers.get("Content-Type", ""):
            paths = json.loads(self._body)["paths"]
        else:
            paths = parse_qs(self._body.decode())["paths"]
        entries = []
        for path in paths:
            if path in repository.files:
                entries.append(_file_entry(repository, path))
            elif any(name.startswith(f"{path}/") for name in repository.files):
                entries.append(_folder_entry(path))
        self._send(200, entries)

    def resolve(self, repository: Repository, path: str) -> None:
        if repository.gated:
            self._refuse(401, "GatedRepo")
            return
        if path not in repository.files:
            self._refuse(404, "EntryNotFound", {"X-Repo-Commit": repository.sha})
            return
        content = repository.files[path]
        headers = {
            "ETag": f'"{_oid(content)}"',
            "X-Repo-Commit": repository.sha,
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            self._send(200, content, headers)
            return
        start, stop = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self._send(206, content[start:stop], headers)

    def _refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        message = {"X-Error-Code": code, "X-Error-Message": code}
        self._send(status, {"error": code}, {**message, **(headers or {})})

    def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {"Content-Type": "application/json"}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


_KIND = r"/api/(?P<kind>models|datasets)/"
_NAME = r"(?P<name>[\w.-]+/[\w.-]+?|[\w.-]+?)"
_REVISION = r"(?P<revision>[\w.-]+)"
_ROUTES: list[tuple[tuple[str, ...], str, Callable[..., None]]] = [
    (("GET",), rf"{_KIND}{_NAME}/tree/{_REVISION}(?P<path>/.*)?", _Handler.tree),
    (("POST",), rf"{_KIND}{_NAME}/paths-info/{_REVISION}", _Handler.paths_info),
    (("GET",), rf"{_KIND}{_NAME}/revision/{_REVISION}", _Handler.info),
    (("GET",), rf"{_KIND}{_NAME}", _Handler.info),
    (
        ("GET", "HEAD"),
        rf"/(?P<kind>datasets/)?{_NAME}/resolve/{_REVISION}/(?P<path>.+)",
        _Handler.resolve,
    ),
]


def _file_entry(repository: Repository, path: str) -> dict[str, Any]:
    content = repository.files[path]
    return {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}


def _folder_entry(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "size": 0, "oid": _oid(path.encode())}


def _oid(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()
