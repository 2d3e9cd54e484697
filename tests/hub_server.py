"""A small server for the part of the Hugging Face Hub's HTTP API that reading and writing need.

The stock clients talk to it (`HF_ENDPOINT`). Requests without a route are recorded in
`unknown_requests`, which a test should find empty. Xet is not supported: set
`HF_HUB_DISABLE_XET=1`.

Public repositories are read without a token. Writing needs a token that was registered with
`add_user`, for the repository's owner and with the role `write`.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

Files = dict[str, bytes]
ROOT = Path(__file__).parent.parent

# The Hub stores these files in LFS, by suffix or by size.
_LFS_ENDS = (".safetensors", ".tfrecord", ".npy", ".png", ".h5", ".msgpack")
_LFS_BYTES = 1 << 20
# Some of the identifiers at https://huggingface.co/docs/hub/repositories-licenses.
_LICENSES = {"apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "cc0-1.0", "gpl-3.0", "other"}


def run_with_hub(url: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own: the Hub's client reads HF_ENDPOINT on import.

    Args:
        folder: Holds the client's cache.
    """
    home = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env={**os.environ, **home}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@dataclass
class Repository:
    """A repository of files.

    Attributes:
        kind: models, datasets or spaces.
        name: owner/name.
        files: Contents by path, on the main branch.
        gated: Its files need granted access.
        private: Only its owner sees it.
        settings: The request that created it.
        variables: Variables of a Space.
        branches: Contents by path, by branch, for all branches but main.
        history: Contents by path, by commit, for earlier commits.
        messages: Commit messages.
    """

    kind: str
    name: str
    files: Files = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    branches: dict[str, Files] = field(default_factory=dict)
    history: dict[str, Files] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    @property
    def owner(self) -> str:
        return self.name.split("/")[0]

    @property
    def sha(self) -> str:
        return self.sha_of(self.files)

    def sha_of(self, files: Files) -> str:
        digest = sha1(self.name.encode())
        for path, content in sorted(files.items()):
            digest.update(path.encode() + b"\0" + content)
        return digest.hexdigest()

    def at(self, revision: str | None) -> Files | None:
        """Returns the files of a branch or commit; None if it doesn't exist."""
        if revision in (None, "main", self.sha):
            return self.files
        known = {self.sha_of(files): files for files in self.branches.values()}
        return {**self.history, **known, **self.branches}.get(str(revision))

    def commit(self, branch: str, changes: Files, deleted: list[str], message: str) -> str:
        """Makes a commit and returns its id."""
        before = self.at(branch) or {}
        self.history[self.sha_of(before)] = before
        gone = {
            path for path in before for name in deleted if path == name or path.startswith(name)
        }
        files = {path: data for path, data in before.items() if path not in gone} | changes
        if branch == "main":
            self.files = files
        else:
            self.branches[branch] = files
        self.messages.append(message)
        return self.sha_of(files)


@dataclass
class Failure:
    """A failure of the next matching requests; status 0 drops the connection."""

    pattern: str
    status: int
    times: int
    headers: dict[str, str]


class HubServer:
    """Serves repositories on a free local port, until closed.

    Attributes:
        url: The value for HF_ENDPOINT.
        requests: Method and path of each request so far.
        unknown_requests: Requests without a route.
        objects: Large files by their SHA-256.
    """

    def __init__(self) -> None:
        self._repositories: dict[tuple[str, str], Repository] = {}
        self._renamed: dict[tuple[str, str], str] = {}
        self._users: dict[str, tuple[str, str]] = {}
        self._failures: list[Failure] = []
        self._lock = threading.Lock()
        self.requests: list[str] = []
        self.unknown_requests: list[str] = []
        self.objects: dict[str, bytes] = {}
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def add(
        self,
        kind: str,
        name: str,
        files: Files,
        *,
        gated: bool = False,
        private: bool = False,
    ) -> Repository:
        repository = Repository(kind, name, files, gated, private)
        self._repositories[kind, name] = repository
        return repository

    def add_user(self, name: str, token: str, role: str = "write") -> None:
        """Registers a token with the role `write` or `read`."""
        self._users[token] = (name, role)

    def fail(
        self,
        pattern: str,
        status: int,
        *,
        times: int = 1,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Makes the next matching "METHOD /path" requests fail; status 0 drops the connection."""
        self._failures.append(Failure(pattern, status, times, headers or {}))

    def rename(self, kind: str, old: str, new: str) -> None:
        """Redirects an old name, as the Hub does after a rename."""
        self._renamed[kind, old] = new

    def find(self, kind: str, name: str) -> Repository | None:
        return self._repositories.get((kind, name))

    def new_name(self, kind: str, name: str) -> str | None:
        return self._renamed.get((kind, name))

    def user(self, authorization: str | None) -> tuple[str, str] | None:
        """Returns the user and the role of a token."""
        return self._users.get((authorization or "").removeprefix("Bearer "))

    def count(self, pattern: str) -> int:
        """Counts the requests whose "METHOD /path" matches."""
        return sum(bool(re.search(pattern, request)) for request in self.requests)

    def next_failure(self, request: str) -> Failure | None:
        with self._lock:
            for failure in self._failures:
                if failure.times and re.search(failure.pattern, request):
                    failure.times -= 1
                    return failure
        return None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def read_body(handler: BaseHTTPRequestHandler) -> bytes:
    """Reads a request's body, chunked or of a stated length."""
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    parts = []
    while size := int(handler.rfile.readline(), 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(parts)


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._route()

    def do_HEAD(self) -> None:
        self._route()

    def do_POST(self) -> None:
        self._route()

    def do_PUT(self) -> None:
        self._route()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""

    def _route(self) -> None:
        self._body = read_body(self)
        url = urlsplit(self.path)
        self._query = parse_qs(url.query)
        path = unquote(url.path)
        request = f"{self.command} {path}"
        self.hub.requests.append(request)
        if failure := self.hub.next_failure(request):
            self._fail(failure)
            return
        for method, pattern, answer in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in method:
                self._answer_for_repository(answer, **match.groupdict())
                return
        for method, pattern, answer in _OTHER_ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in method:
                answer(self, **match.groupdict())
                return
        self.hub.unknown_requests.append(f"{self.command} {self.path}")
        self._send(501, {"error": "no such route here"})

    def _fail(self, failure: Failure) -> None:
        if failure.status == 0:
            self.close_connection = True
            return
        code = {"X-Error-Code": "RepoNotFound"} if failure.status == 404 else {}
        self._send(failure.status, {"error": "on purpose"}, {**code, **failure.headers})

    def _answer_for_repository(
        self, answer: Callable[..., None], kind: str | None, name: str, **rest: str | None
    ) -> None:
        kind = (kind or "models").rstrip("/")
        if new_name := self.hub.new_name(kind, name):
            location = self.path.replace(f"/{name}", f"/{new_name}", 1)
            self._send(307, b"", {"Location": location})
            return
        repository = self.hub.find(kind, name)
        if repository is None or not self._may_see(repository):
            self._refuse(401 if kind == "datasets" else 404, "RepoNotFound")
        elif answer in _WRITING and not self._may_write(repository):
            self._send(
                403,
                {"error": "You don't have the required permissions"},
                {"X-Error-Message": "Forbidden: pass a token with the right to write"},
            )
        elif "revision" in rest and repository.at(rest["revision"]) is None:
            self._refuse(404, "RevisionNotFound")
        else:
            self._revision = rest.pop("revision", None) or "main"
            self._files = repository.at(self._revision) or {}
            answer(self, repository, **rest)

    def _may_see(self, repository: Repository) -> bool:
        user = self.hub.user(self.headers.get("Authorization"))
        return not repository.private or (user is not None and user[0] == repository.owner)

    def _may_write(self, repository: Repository) -> bool:
        return self.hub.user(self.headers.get("Authorization")) == (repository.owner, "write")

    # Reading.

    def info(self, repository: Repository) -> None:
        siblings = [{"rfilename": path} for path in sorted(self._files)]
        self._send(
            200,
            {
                "_id": "0" * 24,
                "id": repository.name,
                "sha": repository.sha_of(self._files),
                "siblings": siblings,
                "private": repository.private,
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
        inside = [name for name in sorted(self._files) if name.startswith(folder)]
        recursive = self._query.get("recursive", ["false"])[0].lower() == "true"
        entries = {}
        for name in inside:
            first, _, more = name[len(folder) :].partition("/")
            if more and not recursive:
                entries[first] = _folder_entry(folder + first)
            else:
                entries[name] = _file_entry(self._files, name)
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
            if path in self._files:
                entries.append(_file_entry(self._files, path))
            elif any(name.startswith(f"{path}/") for name in self._files):
                entries.append(_folder_entry(path))
        self._send(200, entries)

    def resolve(self, repository: Repository, path: str) -> None:
        sha = repository.sha_of(self._files)
        if repository.gated:
            self._refuse(401, "GatedRepo")
            return
        if path not in self._files:
            self._refuse(404, "EntryNotFound", {"X-Repo-Commit": sha})
            return
        content = self._files[path]
        headers = {
            "ETag": f'"{_oid(content)}"',
            "X-Repo-Commit": sha,
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if _is_large(path, len(content)):
            headers["X-Linked-Etag"] = f'"{sha256(content).hexdigest()}"'
            headers["X-Linked-Size"] = str(len(content))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            self._send(200, content, headers)
            return
        start, stop = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self._send(206, content[start:stop], headers)

    # Writing.

    def preupload(self, repository: Repository) -> None:
        answers = []
        for file in json.loads(self._body)["files"]:
            path, there = file["path"], self._files.get(file["path"])
            large = _is_large(path, file["size"])
            answers.append(
                {
                    "path": path,
                    "uploadMode": "lfs" if large else "regular",
                    "shouldIgnore": False,
                    "oid": _remote_oid(there, large),
                }
            )
        self._send(200, {"files": answers})

    def lfs_batch(self, repository: Repository) -> None:
        objects, prefix = [], _prefix(repository)
        for one in json.loads(self._body)["objects"]:
            entry = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.hub.objects:
                entry["actions"] = {
                    "upload": {"href": f"{self.hub.url}/lfs-storage/{one['oid']}"},
                    "verify": {
                        "href": f"{self.hub.url}/{prefix}{repository.name}.git/info/lfs/verify"
                    },
                }
            objects.append(entry)
        self._send(200, {"transfer": "basic", "objects": objects})

    def lfs_verify(self, repository: Repository) -> None:
        wanted = json.loads(self._body)
        there = self.hub.objects.get(wanted["oid"])
        self._send(200 if there is not None and len(there) == wanted["size"] else 404, {})

    def lfs_put(self, oid: str) -> None:
        if sha256(self._body).hexdigest() != oid:
            self._send(400, {"error": "the content is not what its name says"})
            return
        self.hub.objects[oid] = self._body
        self._send(200, b"", {"ETag": f'"{oid}"'})

    def commit(self, repository: Repository) -> None:
        changes: Files = {}
        deleted: list[str] = []
        message = ""
        for line in self._body.splitlines():
            item = json.loads(line)
            key, value = item["key"], item["value"]
            if key == "header":
                message = value["summary"]
            elif key == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile" and value["oid"] in self.hub.objects:
                changes[value["path"]] = self.hub.objects[value["oid"]]
            elif key in ("deletedFile", "deletedFolder"):
                deleted.append(value["path"])
            else:
                self._send(400, {"error": f"{key} can't be committed: {value}"})
                return
        oid = repository.commit(self._revision, changes, deleted, message)
        url = f"{self.hub.url}/{_prefix(repository)}{repository.name}/commit/{oid}"
        self._send(200, {"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})

    def branch(self, repository: Repository, branch: str) -> None:
        if branch == "main" or branch in repository.branches:
            self._send(409, {"error": "Reference already exists"})
            return
        repository.branches[branch] = dict(repository.files)
        self._send(200, {})

    def settings(self, repository: Repository) -> None:
        wanted = json.loads(self._body)
        if "visibility" in wanted:
            repository.private = wanted["visibility"] == "private"
        self._send(200, {"private": repository.private})

    def variables(self, repository: Repository) -> None:
        if self.command == "POST":
            value = json.loads(self._body)
            repository.variables[value["key"]] = value["value"]
        now = "2025-01-01T00:00:00.000Z"
        answer = {
            key: {"key": key, "value": value, "updatedAt": now}
            for key, value in repository.variables.items()
        }
        self._send(200, answer)

    # Routes that need no existing repository.

    def whoami(self) -> None:
        user = self.hub.user(self.headers.get("Authorization"))
        if user is None:
            message = {"X-Error-Message": "Invalid credentials in Authorization header"}
            self._send(401, {"error": "Invalid user token"}, message)
            return
        access = {"displayName": "a token", "role": user[1]}
        self._send(
            200,
            {
                "type": "user",
                "name": user[0],
                "fullname": user[0].title(),
                "orgs": [],
                "auth": {"type": "access_token", "accessToken": access},
            },
        )

    def create(self) -> None:
        user = self.hub.user(self.headers.get("Authorization"))
        wanted = json.loads(self._body)
        kind = wanted.get("type", "model") + "s"
        if user is None:
            self._send(401, {"error": "Invalid username or password."})
            return
        owner = wanted.get("organization") or user[0]
        name = f"{owner}/{wanted['name']}"
        if owner != user[0] or user[1] != "write":
            self._send(403, {"error": f'You don\'t have the rights to create under "{owner}"'})
            return
        prefix = "" if kind == "models" else f"{kind}/"
        url = f"{self.hub.url}/{prefix}{name}"
        if self.hub.find(kind, name):
            self._send(409, {"error": "You already created this repo", "url": url})
            return
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        repository = self.hub.add(kind, name, {".gitattributes": b""}, private=private)
        repository.settings = wanted
        self._send(200, {"url": url, "name": name, "id": "0" * 24})

    def validate_yaml(self) -> None:
        wanted = json.loads(self._body)
        errors = _errors_of_card(wanted["content"], wanted["repoType"])
        answer = {"errors": [{"message": error} for error in errors], "warnings": []}
        self._send(400 if errors else 200, answer)

    def nothing(self) -> None:
        """Answers a daily request of huggingface_hub itself."""
        self._send(200, {})

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


_KIND = r"/api/(?P<kind>models|datasets|spaces)/"
_PREFIX = r"/(?P<kind>datasets/|spaces/)?"
_NAME = r"(?P<name>[\w.-]+/[\w.-]+?|[\w.-]+?)"
_REVISION = r"(?P<revision>[\w.-]+)"
_ROUTES: list[tuple[tuple[str, ...], str, Callable[..., None]]] = [
    (("GET",), rf"{_KIND}{_NAME}/tree/{_REVISION}(?P<path>/.*)?", _Handler.tree),
    (("POST",), rf"{_KIND}{_NAME}/paths-info/{_REVISION}", _Handler.paths_info),
    (("POST",), rf"{_KIND}{_NAME}/preupload/{_REVISION}", _Handler.preupload),
    (("POST",), rf"{_KIND}{_NAME}/commit/{_REVISION}", _Handler.commit),
    (("POST",), rf"{_KIND}{_NAME}/branch/(?P<branch>[\w.-]+)", _Handler.branch),
    (("GET", "POST"), rf"{_KIND}{_NAME}/variables", _Handler.variables),
    (("PUT",), rf"{_KIND}{_NAME}/settings", _Handler.settings),
    (("GET",), rf"{_KIND}{_NAME}/revision/{_REVISION}", _Handler.info),
    (("GET",), rf"{_KIND}{_NAME}", _Handler.info),
    (("POST",), rf"{_PREFIX}{_NAME}\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    (("POST",), rf"{_PREFIX}{_NAME}\.git/info/lfs/verify", _Handler.lfs_verify),
    (("GET", "HEAD"), rf"{_PREFIX}{_NAME}/resolve/{_REVISION}/(?P<path>.+)", _Handler.resolve),
]
_WRITING = {
    _Handler.preupload,
    _Handler.commit,
    _Handler.branch,
    _Handler.settings,
    _Handler.variables,
    _Handler.lfs_batch,
}
_OTHER_ROUTES: list[tuple[tuple[str, ...], str, Callable[..., None]]] = [
    (("GET",), r"/api/whoami-v2", _Handler.whoami),
    (("POST",), r"/api/repos/create", _Handler.create),
    (("POST",), r"/api/validate-yaml", _Handler.validate_yaml),
    (("PUT",), r"/lfs-storage/(?P<oid>[0-9a-f]{64})", _Handler.lfs_put),
    (("GET",), r"/api/agent-harnesses", _Handler.nothing),
]


def _prefix(repository: Repository) -> str:
    return "" if repository.kind == "models" else f"{repository.kind}/"


def _is_large(path: str, size: int) -> bool:
    return path.endswith(_LFS_ENDS) or size > _LFS_BYTES


def _remote_oid(content: bytes | None, large: bool) -> str | None:
    """Returns the id of an existing file, so that it isn't uploaded again."""
    if content is None:
        return None
    return sha256(content).hexdigest() if large else _oid(content)


def _errors_of_card(content: str, kind: str) -> list[str]:
    """Returns the Hub's validation errors for a card's header."""
    from huggingface_hub.repocard_data import model_index_to_eval_results

    match = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
    values = yaml.safe_load(match[1]) if match else None
    if not isinstance(values, dict):
        return ["there is no header"]
    errors = []
    if "license" in values and values["license"] not in _LICENSES:
        errors.append(f'"license" must be one of {sorted(_LICENSES)}')
    languages = values.get("language", [])
    for language in [languages] if isinstance(languages, str) else languages:
        if not re.fullmatch(r"[a-z]{2,3}|code|multilingual", language):
            errors.append(f'"language" must be ISO 639: {language}')
    if kind == "space" and values.get("sdk") not in ("gradio", "docker", "static"):
        errors.append('"sdk" must be one of gradio, docker, static')
    if "model-index" in values:
        _, results = model_index_to_eval_results(values["model-index"])
        errors += [f"{one} has no value" for one in results if one.metric_value is None]
    return errors


def _file_entry(files: Files, path: str) -> dict[str, Any]:
    content = files[path]
    entry = {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}
    if _is_large(path, len(content)):
        entry["lfs"] = {
            "oid": sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 134,
        }
    return entry


def _folder_entry(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "size": 0, "oid": _oid(path.encode())}


def _oid(content: bytes) -> str:
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()
